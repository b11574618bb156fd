"""Prompt passes expert by expert: which rows chose which expert, and their outputs in the routing's order."""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.experts.stacks import Sweep, SweptExperts

Indices = npt.NDArray[np.integer]
ComputePairs = Callable[[mx.array, Indices, npt.NDArray[np.int32]], mx.array]
"""Outputs [pairs, hidden] of row ``rows[i]`` of x [T, hidden] through the expert in place ``slots[i]``."""


class PassRows:
    """The rows of one pass through one layer, sorted by the expert they chose, and what the experts make of them.

    A pair is one row's choice of one expert; pairs are numbered row by row in the routing's order. Each expert's pairs
    stay in that order, so what is computed for an expert does not depend on how experts are grouped.

    Args:
        chosen: Expert ids [T, k].
        expert_count: Experts of the layer.
        x: Inputs of the experts [T, hidden], evaluated.
        on_host: Whether the products come from numpy, so that the outputs are best put together there.
    """

    def __init__(self, chosen: Indices, expert_count: int, x: mx.array, *, on_host: bool) -> None:
        self._x = x
        self._shape = chosen.shape
        flat = chosen.reshape(-1)
        # of 16-bit keys numpy's stable sort is a counting sort by digits
        self._order = np.argsort(flat.astype(np.uint16 if expert_count <= 1 << 16 else np.uint32), kind="stable")
        self.counts = np.bincount(flat, minlength=expert_count)
        self._starts = np.concatenate([[0], np.cumsum(self.counts)])
        self._host = np.empty((flat.size, x.shape[-1]), np.float32) if on_host else None
        self._pieces: list[mx.array] = []
        self._pairs: list[Indices] = []

    def pairs_of(self, experts: Sequence[int]) -> Indices:
        """The pairs that chose one of some experts, expert after expert."""
        return np.concatenate([self._order[self._starts[expert] : self._starts[expert + 1]] for expert in experts])

    def compute(self, group: SweptExperts, compute: ComputePairs) -> list[mx.array]:
        """Send the pairs of a group through its experts; returns what must be evaluated before it is released."""
        pairs = self.pairs_of(group.experts)
        if not len(pairs):
            return []
        slots = np.repeat(group.slots, self.counts[list(group.experts)])
        output = compute(self._x, pairs // self._shape[1], slots)
        if self._host is not None:
            self._host[pairs] = np.asarray(output)
            return []
        self._pieces.append(output)
        self._pairs.append(pairs)
        return [output]

    def outputs(self) -> mx.array:
        """Every pair's output [T, k, hidden], once all groups were computed. May be asked for once."""
        hidden = self._x.shape[-1]
        if self._host is not None:
            host, self._host = self._host, None
            return mx.array(host).reshape(*self._shape, hidden)
        back = np.argsort(np.concatenate(self._pairs)).astype(np.int32)
        together = mx.concatenate(self._pieces)
        self._pieces, self._pairs = [], []
        return together[mx.array(back)].reshape(*self._shape, hidden)


def sweep_layer(sweep: Sweep, layer: int, passes: Sequence[PassRows], compute: ComputePairs) -> None:
    """Take every expert that some pass needs once and compute its rows of each pass, pass by pass.

    Passes are not merged: the rows of one pass go through an expert as they would if it came alone, so that sharing
    the reads changes no bit. While a group is computed, the next ones are read.

    Raises:
        ExpertReadError: A record could not be read.
    """
    rows = np.sum([each.counts for each in passes], axis=0)
    before: tuple[SweptExperts, list[mx.array]] | None = None
    for group in sweep.layer(layer, rows):
        outputs = [output for each in passes for output in each.compute(group, compute)]
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
