"""What a layer's experts start from, and rows on their way through them group by group."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx
import numpy as np

from slotstream_core import _native
from slotstream_core.experts.stacks import Slots, SweptExperts
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, EagerHost, MatrixView
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.sweep import SortedPairs

Shared = tuple[Floats, Floats]
"""The shared expert's output [T, hidden] and its raw gate [T, 1]."""


class Attended(NamedTuple):
    """What a layer's experts start from; its order is that of the compiled calls' outputs.

    Attributes:
        streams: After the mixer, [T, streams * hidden].
        x: The experts' input, [T, hidden].
        injection: How strongly their output enters each stream, [T, streams].
        ids: The chosen experts, best first, [T, top].
        mix: Their weights, [T, top].
    """

    streams: Floats
    x: Floats
    injection: Floats
    ids: Slots
    mix: Floats

    def part(self, rows: slice) -> Attended:
        """Some of the rows; nothing is copied."""
        streams, x, injection, ids, mix = self
        return Attended(streams[rows], x[rows], injection[rows], ids[rows], mix[rows])


class ExpertCalls:
    """The compiled calls of one layer's experts, where they lie now.

    Args:
        layer: The layer.
        host: The threads.
        stacks: The gate, up and down matrices of all places.

    Attributes:
        stacks: The same.
    """

    def __init__(
        self, layer: _native.Layer, host: EagerHost, stacks: tuple[MatrixView, MatrixView, MatrixView]
    ) -> None:
        self._layer = layer
        self._pool = host.handle
        self.stacks = stacks
        self._gate, self._up, self._down = (stack.handle for stack in stacks)

    def share(self, x: Floats) -> Shared:
        """The shared expert's output [T, hidden] for ``x`` [T, hidden] and its raw gate [T, 1]."""
        shared, gate = np.empty(x.shape, np.float32), np.empty((len(x), 1), np.float32)
        _native.shared(self._layer, self._pool, x, shared, gate)
        return shared, gate

    def join(self, attended: Attended, slots: Slots, shared: Shared, out: Floats) -> None:
        """Write the streams after the experts, which lie in ``slots`` [T, top], to ``out`` [T, streams * hidden]."""
        streams, x, injection, _, mix = attended
        stacks = self._gate, self._up, self._down
        _native.join_experts(self._layer, self._pool, *stacks, slots, x, mix, *shared, streams, injection, out)

    def fill(self, x: Floats, pairs: Slots, slots: Slots, outputs: Floats) -> None:
        """Write some pairs, with experts in ``slots``, to their rows of ``outputs`` [T * top, hidden].

        Args:
            x: All rows of the pass, [T, hidden].
            pairs: Pair p is choice p % top of row p // top.
            slots: Place of each one's expert.
            outputs: Written.
        """
        stacks = self._gate, self._up, self._down
        if len(x) > NATIVE_ROWS:
            _native.expert_pairs(self._pool, *stacks, x, pairs, slots, outputs)
            return
        found = np.empty((len(pairs), x.shape[1]), np.float32)
        _native.experts(self._pool, *stacks, x[pairs // (len(outputs) // len(x))], slots, found)
        outputs[pairs] = found

    def join_outputs(self, attended: Attended, outputs: Floats, shared: Shared, out: Floats) -> None:
        """As `join`, from all outputs that `fill` wrote."""
        streams, _, injection, _, mix = attended
        _native.join_outputs(self._layer, self._pool, outputs, mix, *shared, streams, injection, out)


class RoutedRows:
    """A `SweptPass` that is computed at once.

    Args:
        attended: Its rows.
        expert_count: Experts of the layer.
        calls: What computes.

    Attributes:
        pairs: Which row chose which expert.
    """

    def __init__(self, attended: Attended, expert_count: int, calls: ExpertCalls) -> None:
        self.pairs = SortedPairs(attended.ids, expert_count)
        self._attended = attended
        self._calls = calls
        self._outputs = np.empty((attended.ids.size, attended.x.shape[1]), np.float32)
        self._shared: Shared | None = None

    def compute(self, group: SweptExperts) -> list[mx.array]:
        """See `SweptPass.compute`; nothing is left to evaluate. The first time, the shared expert is computed too."""
        if self._shared is None:
            self._shared = self._calls.share(self._attended.x)
        pairs, slots = self.pairs.of(group)
        if len(pairs):
            self._calls.fill(self._attended.x, pairs, slots, self._outputs)
        return []

    def join(self, out: Floats) -> None:
        """Write the streams after the experts to ``out`` [T, streams * hidden], once all groups were computed."""
        shared = self._shared or self._calls.share(self._attended.x)
        self._calls.join_outputs(self._attended, self._outputs, shared, out)
