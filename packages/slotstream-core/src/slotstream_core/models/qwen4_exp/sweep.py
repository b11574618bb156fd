"""Passes group by group of their experts: which rows chose which expert, and their outputs in the routing's order."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.experts.stacks import SweptExperts

Indices = npt.NDArray[np.integer]
Slots = npt.NDArray[np.int32]
ComputePairs = Callable[[mx.array, Indices, Slots], mx.array]
"""Outputs [pairs, hidden] of row ``rows[i]`` of x [T, hidden] through the expert in place ``slots[i]``."""


class SortedPairs:
    """The pairs of one pass at one layer, sorted by expert.

    A pair is one row's choice of one expert; pairs are numbered row by row in the routing's order. Each expert's pairs
    stay in that order, so what is computed for an expert does not depend on how experts are grouped.

    Args:
        chosen: Expert ids [T, k].
        expert_count: Experts of the layer.

    Attributes:
        counts: [experts], how many rows chose each.
    """

    def __init__(self, chosen: Indices, expert_count: int) -> None:
        flat = chosen.reshape(-1)
        # of 16-bit keys numpy's stable sort is a counting sort by digits
        keys = flat.astype(np.uint16 if expert_count <= 1 << 16 else np.uint32)
        self._order = np.argsort(keys, kind="stable").astype(np.int32)
        self.counts = np.bincount(flat, minlength=expert_count)
        self._starts: list[int] = [0, *np.cumsum(self.counts).tolist()]

    def of(self, group: SweptExperts) -> tuple[Slots, Slots]:
        """The pairs that chose one of some experts, expert after expert, and the place of each one's expert."""
        starts = self._starts
        pairs = np.concatenate([self._order[starts[expert] : starts[expert + 1]] for expert in group.experts])
        return pairs, np.repeat(group.slots, self.counts[list(group.experts)])


class SweptPass(Protocol):
    """The rows of a pass on their way through a layer's experts."""

    @property
    def pairs(self) -> SortedPairs:
        """Which of them chose which expert."""

    def compute(self, group: SweptExperts) -> list[mx.array]:
        """Send the pairs of a group through its experts; returns what must be evaluated before it is released."""


class PassRows:
    """A `SweptPass` whose products return MLX arrays.

    Args:
        chosen: Expert ids [T, k].
        expert_count: Experts of the layer.
        x: Inputs of the experts [T, hidden], evaluated.
        compute: The products.
        on_host: Whether they come from numpy, so that the outputs are best put together there.
    """

    def __init__(
        self, chosen: Indices, expert_count: int, x: mx.array, compute: ComputePairs, *, on_host: bool
    ) -> None:
        self.pairs = SortedPairs(chosen, expert_count)
        self._x = x
        self._shape = chosen.shape
        self._compute = compute
        self._host = np.empty((chosen.size, x.shape[-1]), np.float32) if on_host else None
        self._pieces: list[mx.array] = []
        self._order: list[Indices] = []

    def compute(self, group: SweptExperts) -> list[mx.array]:
        """See `SweptPass.compute`."""
        pairs, slots = self.pairs.of(group)
        if not len(pairs):
            return []
        output = self._compute(self._x, pairs // self._shape[1], slots)
        if self._host is not None:
            self._host[pairs] = np.asarray(output)
            return []
        self._pieces.append(output)
        self._order.append(pairs)
        return [output]

    def outputs(self) -> mx.array:
        """Every pair's output [T, k, hidden], once all groups were computed. May be asked for once."""
        hidden = self._x.shape[-1]
        if self._host is not None:
            host, self._host = self._host, None
            return mx.array(host).reshape(*self._shape, hidden)
        back = np.argsort(np.concatenate(self._order)).astype(np.int32)
        together = mx.concatenate(self._pieces)
        self._pieces, self._order = [], []
        return together[mx.array(back)].reshape(*self._shape, hidden)


def rows_by_expert(passes: Sequence[SweptPass]) -> Indices:
    """How many rows of all passes chose each expert, [experts]."""
    counts: Indices = np.sum([each.pairs.counts for each in passes], axis=0)
    return counts


def compute_groups(groups: Iterable[SweptExperts], passes: Sequence[SweptPass]) -> None:
    """Take groups of experts, as they come, and compute the rows of each pass that chose them.

    What a group's rows become does not depend on the other groups, so neither do the results depend on where experts
    come from. A group is released at the latest before the next but one is asked for: while one is computed, others
    may be read.

    Raises:
        ExpertReadError: A record could not be read.
    """
    before: tuple[SweptExperts, list[mx.array]] | None = None
    for group in groups:
        outputs = [output for each in passes for output in each.compute(group)]
        mx.async_eval(outputs)  # type: ignore[no-untyped-call]
        if before is not None:
            _finish(*before)
        before = (group, outputs)
        if not outputs:  # computed on the host, at once
            _finish(*before)
            before = None
    if before is not None:
        _finish(*before)


def _finish(group: SweptExperts, outputs: Sequence[mx.array]) -> None:
    mx.eval(outputs)
    group.release()
