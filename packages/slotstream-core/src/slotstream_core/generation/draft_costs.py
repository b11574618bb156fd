"""What passes and guesses take: properties of the machine and of what the pool holds, not of the text."""

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

_SAMPLES: Final = 15
"""Passes, rows or guesses that a median is taken of."""

_BELIEVED: Final = 7
"""So many of them are needed before what was supposed stops counting."""

_SUPPOSED: Final = 3
"""As how many samples it counts until then: one pass that something else held up must not end drafting."""

_FORGOTTEN_AFTER: Final = 1024
"""Passes after which a time is not believed any more: a price that was too high when it was taken (an empty pool,
another request) would otherwise keep drafts from ever being tried again."""

_MEMORY: Final = 0.98
"""What the waiting of a pass still counts after the next one."""

_ROW_SHARE: Final = 0.25
"""Part of a plain pass that a draft is supposed to add to a pass: rather too little, so that some are timed."""

_GUESS_SHARE: Final = 0.15
"""The same for a guess."""


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """What one pass took, and the guesses before it.

    Attributes:
        depth: Drafts that it verified; 0 for a plain pass.
        time_s: The pass, from start to logits.
        wait_s: Part of it spent waiting for expert records.
        bytes_read: Bytes of expert records read in it.
        guesses_s: Each guess made before it, verified or not.
        caught_up_rows: Rows of plain passes that the head had to take in before.
        caught_up_s: How long that took: owed once for going back to drafts, not by every such pass.
        usual: Whether later passes of the depth are going to be like it; if not, its time is not learnt from.
    """

    depth: int
    time_s: float
    wait_s: float = 0.0
    bytes_read: int = 0
    guesses_s: tuple[float, ...] = ()
    caught_up_rows: int = 0
    caught_up_s: float = 0.0
    usual: bool = True

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.time_s + sum(self.guesses_s) + self.caught_up_s


class _Recent:
    """The median of the latest samples, none of them older than so many passes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque(maxlen=_SAMPLES)

    def note(self, now: int, seconds: float) -> None:
        self._samples.append((now, seconds))

    def count(self, now: int) -> int:
        while self._samples and self._samples[0][0] < now - _FORGOTTEN_AFTER:
            self._samples.popleft()
        return len(self._samples)

    def latest(self, now: int) -> list[float]:
        self.count(now)
        return [seconds for _, seconds in self._samples]

    def median(self, now: int, supposed: float) -> float:
        samples = self.latest(now)
        return statistics.median(samples if len(samples) >= _BELIEVED else [*samples, *[supposed] * _SUPPOSED])


class DraftCosts:
    """Expected times of a plain pass, of the rows that drafts add to it, and of guesses.

    The first added row makes another kind of pass of it, and every further one adds about as much as the one before;
    so passes of all depths teach the price of a row. Computing counts as a median, since single passes are held up by
    other work; what is read counts at the time a byte made wait.
    """

    def __init__(self) -> None:
        self._plain, self._first_row, self._further_row = _Recent(), _Recent(), _Recent()
        self._guesses = (_Recent(), _Recent())
        self._plain_bytes, self._row_bytes = 0.0, 0.0
        self._wait_s, self._waited_bytes = 0.0, 0.0
        self._passes = self._latest_plain = 0

    def pass_by(self) -> None:
        """Count a plain pass that nobody timed."""
        self._passes += 1
        self._latest_plain = self._passes

    def note(self, cost: PassCost) -> None:
        """Learn from one pass."""
        self._passes += 1
        for place, seconds in enumerate(cost.guesses_s):
            self._guesses[place > 0].note(self._passes, seconds)
        if not cost.depth:
            self._latest_plain = self._passes
        if not cost.usual:
            return
        computing_s = max(0.0, cost.time_s - cost.wait_s)
        if not cost.depth:
            self._plain.note(self._passes, computing_s)
            self._plain_bytes += (cost.bytes_read - self._plain_bytes) / min(self.plain_passes, _SAMPLES)
        elif plain := self._plain.latest(self._passes):
            self._learn_rows(cost.depth, max(0.0, computing_s - statistics.median(plain)))
            self._row_bytes += ((cost.bytes_read - self._plain_bytes) / cost.depth - self._row_bytes) / _SAMPLES
        self._wait_s = self._wait_s * _MEMORY + cost.wait_s
        self._waited_bytes = self._waited_bytes * _MEMORY + cost.bytes_read

    def _learn_rows(self, depth: int, added_s: float) -> None:
        """Learn from ``depth`` rows that took so long together: the price of the first, or else of one of the rest."""
        if depth == 1:
            self._first_row.note(self._passes, added_s)
            return
        first_s = self._first_row.median(self._passes, _ROW_SHARE * self.plain_s)
        self._further_row.note(self._passes, max(0.0, added_s - first_s) / (depth - 1))

    @property
    def plain_passes(self) -> int:
        """How many plain passes are remembered."""
        return self._plain.count(self._passes)

    @property
    def since_plain(self) -> int:
        """How many passes were made since the latest of them."""
        return self._passes - self._latest_plain

    @property
    def plain_s(self) -> float:
        """Seconds of a plain pass; 0 while none is known."""
        samples = self._plain.latest(self._passes)
        return statistics.median(samples) + self._plain_bytes * self._byte_s if samples else 0.0

    def row_s(self, place: int) -> float:
        """Seconds that the draft at this place adds to a pass."""
        samples = self._further_row if place else self._first_row
        return samples.median(self._passes, _ROW_SHARE * self.plain_s) + max(0.0, self._row_bytes) * self._byte_s

    def drafts_s(self, *, guesses: int, rows: int) -> float:
        """Seconds of so many guesses, and of so many added rows."""
        added_s = sum(self.guess_s(place) for place in range(guesses))
        return added_s + sum(self.row_s(place) for place in range(rows))

    def guess_s(self, place: int) -> float:
        """Seconds of the guess at this place; the first takes in the rows of the pass before."""
        return self._guesses[place > 0].median(self._passes, _GUESS_SHARE * self.plain_s)

    @property
    def _byte_s(self) -> float:
        return self._wait_s / self._waited_bytes if self._waited_bytes else 0.0
