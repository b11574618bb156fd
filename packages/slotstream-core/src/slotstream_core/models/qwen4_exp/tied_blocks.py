"""Which of several equal scores are selected, when not all of them fit.

The indexer's scores are sums of max(0, q . k), so many are exactly 0 and the edge of the budget often falls among
equals.  The family's own implementation leaves that choice to PyTorch's `topk` on a CPU, which runs the C++ standard
library over (score, index) pairs: `partial_sort` when `64 * count <= n`, else `nth_element`.  Both are deterministic,
so repeating the steps of libstdc++'s versions (introselect: median-of-three partitioning, a heap when that degenerates,
insertion sort for three or fewer) selects the very same blocks.
"""

from collections.abc import Sequence


def select_largest(scores: Sequence[float], count: int) -> list[int]:
    """Return the ascending indices of the `count` largest scores; among equals, those that PyTorch 2.13 takes.

    Args:
        scores: n finite values.
        count: From 1 to n.
    """
    run = _Selection(scores)
    if 64 * count <= len(scores):
        run.heap_select(0, count, len(scores))
    else:
        run.partition_at(count - 1)
    return sorted(run.order[:count])


class _Selection:
    """Index positions being rearranged so that larger scores come first."""

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = scores
        self.order = list(range(len(scores)))

    def _before(self, left: int, right: int) -> bool:
        return self._scores[left] > self._scores[right]

    def partition_at(self, position: int) -> None:
        """Put the elements that belong before or at `position` there (`nth_element`)."""
        order = self.order
        first, last = 0, len(order)
        rounds = 2 * (last.bit_length() - 1)
        while last - first > 3:
            if rounds == 0:
                self.heap_select(first, position + 1, last)
                order[first], order[position] = order[position], order[first]
                return
            rounds -= 1
            cut = self._partition(first, last)
            first, last = (cut, last) if cut <= position else (first, cut)
        self._insertion_sort(first, last)

    def _partition(self, first: int, last: int) -> int:
        """Partition around the median of the second, middle and last element; return where the second part begins."""
        order, scores = self.order, self._scores
        median = self._median(first + 1, first + (last - first) // 2, last - 1)
        order[first], order[median] = order[median], order[first]
        pivot = scores[order[first]]  # compared here and not by `_before`: this is where the time goes
        low, high = first + 1, last
        while True:
            while scores[order[low]] > pivot:
                low += 1
            high -= 1
            while pivot > scores[order[high]]:
                high -= 1
            if low >= high:
                return low
            order[low], order[high] = order[high], order[low]
            low += 1

    def _median(self, a: int, b: int, c: int) -> int:
        order, before = self.order, self._before
        if before(order[a], order[b]):
            if before(order[b], order[c]):
                return b
            return c if before(order[a], order[c]) else a
        if before(order[a], order[c]):
            return a
        return c if before(order[b], order[c]) else b

    def _insertion_sort(self, first: int, last: int) -> None:
        order = self.order
        for position in range(first + 1, last):
            item = order[position]
            hole = position
            if self._before(item, order[first]):
                hole = first
            else:
                while self._before(item, order[hole - 1]):
                    hole -= 1
            order[hole + 1 : position + 1] = order[hole:position]
            order[hole] = item

    def heap_select(self, first: int, middle: int, last: int) -> None:
        """Put the largest `middle - first` elements of [first, last) in front, as a heap with the smallest on top."""
        order, size = self.order, middle - first
        for parent in range((size - 2) // 2, -1, -1):
            self._sink(first, parent, size, order[first + parent])
        for position in range(middle, last):
            if self._before(order[position], order[first]):
                item = order[position]
                order[position] = order[first]
                self._sink(first, 0, size, item)

    def _sink(self, first: int, top: int, size: int, item: int) -> None:
        """Move the hole at `top` to the bottom, then `item` from there up to its place."""
        order, hole, child = self.order, top, top
        while child < (size - 1) // 2:
            child = 2 * (child + 1)
            if self._before(order[first + child], order[first + child - 1]):
                child -= 1
            order[first + hole] = order[first + child]
            hole = child
        if size % 2 == 0 and child == (size - 2) // 2:
            child = 2 * child + 1
            order[first + hole] = order[first + child]
            hole = child
        parent = (hole - 1) // 2
        while hole > top and self._before(order[first + parent], item):
            order[first + hole] = order[first + parent]
            hole, parent = parent, (parent - 1) // 2
        order[first + hole] = item
