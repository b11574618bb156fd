"""`GatedDeltaLayer`, computed at once. Tokens run one after another, also in long passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np

from slotstream_core import _native as pieces
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap, EagerMaps
from slotstream_core.models.qwen4_exp.gated_delta import KEY_EPS, DeltaPairs, DeltaState, GatedDeltaLayer
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.projections import WeightReader


class HostRecording:
    """A `DeltaRecording` on the host, copied where it is gone back to.

    Args:
        windows: Window before the pass and the inputs of its convolution, [taps - 1 + T, channels].
        before: Memory before the pass.
        memories: After each token, [T, ...].
    """

    def __init__(self, windows: Floats, before: mx.array, memories: Floats) -> None:
        self._windows = windows
        self._before = before
        self._memories = memories

    def at(self, position: int) -> tuple[mx.array, mx.array]:
        """See `DeltaRecording.at`."""
        kept = len(self._windows) - len(self._memories)
        window = mx.array(self._windows[position : position + kept])
        return window, self._before if position == 0 else mx.array(self._memories[position - 1])

    def arrays(self) -> Iterable[mx.array]:
        """See `DeltaRecording.arrays`."""
        return ()


class EagerGatedDelta(GatedDeltaLayer):
    """See `GatedDeltaLayer`.

    Attributes:
        input_maps: Of queries, keys and values together, the gate, the step and the decay.
        output_map: Of the heads' results.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._eager = weights.eager_host()
        self.input_maps = EagerMaps(self._inputs, self._eager)
        self.output_map = EagerMap(self._output, self._eager)
        self._taps = np.ascontiguousarray(np.asarray(self._kernel))
        self._rates = np.array(self._rate).reshape(-1)
        self._steps = np.array(self._dt_bias).reshape(-1)
        self._norm_weight = np.array(self._norm.plain_weight).reshape(-1)

    def __call__(self, x: mx.array, state: DeltaState, *, start: int, record: bool) -> mx.array:
        """See `GatedDeltaLayer.__call__`."""
        mixed, gate, step, decay = self.input_maps(rows_of(x))
        tokens = len(mixed)
        window = np.asarray(state.window)
        convolved = np.empty((tokens, self._taps.shape[1]), np.float32)
        pieces.convolve(window, mixed, self._taps, 1, convolved)
        padded = np.concatenate([window, mixed])
        output = np.empty((tokens, self._value_heads * self._value_dim), np.float32)
        state.recorded = None
        inputs = (convolved, gate, step, decay)
        if record:
            state.recorded, state.recorded_from = self._advance_recorded(inputs, padded, state, output), start
        else:
            self._advance(inputs, self.writable_memory(state), output)
        state.window = mx.array(padded[tokens:])
        return mx.array(self.output_map(output))

    def description(self) -> tuple[Any, ...]:
        """The delta rule for `_native.layer`."""
        return (
            *(number for place in self.input_maps.places for number in place),
            self._taps,
            self._rates,
            self._steps,
            self._norm_weight,
            self._key_heads,
            self._key_dim,
            self._eps,
            KEY_EPS,
            int(self._silu_gate),
        )

    def writable_memory(self, state: DeltaState) -> Floats:
        """The memory of ``state``, copied first if anything else refers to it."""
        if state.private is not state.memory:
            state.memory = state.private = mx.array(np.asarray(state.memory))
        return np.asarray(state.memory)

    def _advance(self, inputs: tuple[Floats, Floats, Floats, Floats], memory: Floats, output: Floats) -> None:
        def heads(first: int, last: int) -> None:
            pieces.delta(
                *inputs,
                self._rates,
                self._steps,
                self._norm_weight,
                memory,
                self._key_heads,
                self._key_dim,
                self._eps,
                KEY_EPS,
                int(self._silu_gate),
                first,
                last,
                output,
            )

        self._eager.run_parts(heads, self._value_heads, values=memory.size * len(output))

    def _advance_recorded(
        self, inputs: tuple[Floats, Floats, Floats, Floats], padded: Floats, state: DeltaState, output: Floats
    ) -> DeltaPairs:
        """As `_advance`, a token at a time, keeping window and memory of every position."""
        kept = len(padded) - len(output)
        recorded = [(state.window, state.memory)]
        state.private = None
        for t in range(len(output)):
            row = slice(t, t + 1)
            state.memory = mx.array(np.asarray(state.memory))
            convolved, gate, step, decay = inputs
            self._advance((convolved[row], gate[row], step[row], decay[row]), np.asarray(state.memory), output[row])
            recorded.append((mx.array(padded[t + 1 : t + 1 + kept]), state.memory))
        return DeltaPairs(recorded)
