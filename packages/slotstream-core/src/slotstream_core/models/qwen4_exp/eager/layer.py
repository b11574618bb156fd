"""`DecoderLayer`, computed at once: whole parts of a layer run in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core import _native
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.experts.stacks import Experts
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer, PassPositions
from slotstream_core.models.qwen4_exp.eager.attention import EagerAttention
from slotstream_core.models.qwen4_exp.eager.delta import EagerGatedDelta, HostRecording
from slotstream_core.models.qwen4_exp.eager.experts import EagerExpertLayer
from slotstream_core.models.qwen4_exp.eager.forecast import EagerForecast
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, rows_of
from slotstream_core.models.qwen4_exp.eager.streams import EagerHyperConnection
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.moe import PassLeases, PassWatch, Shown
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.state.sequence import LayerState


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
    ids: npt.NDArray[np.int32]
    mix: Floats


class EagerDecoderLayer(DecoderLayer):
    """See `DecoderLayer`."""

    at_once = True

    def __init__(
        self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, kind: str, layer: int, experts: Experts
    ) -> None:
        super().__init__(weights, prefix, config, kind=kind, layer=layer, experts=experts)
        self._host = weights.eager_host()
        self._top = config.num_experts_per_tok
        self._expert_count = config.num_experts
        self._width = config.hc_count * config.hidden_size
        self._shape = (config.hc_count, config.hidden_size)
        self._compiled = self._describe()

    def _describe(self) -> _native.Layer | None:
        """The layer for the compiled calls; None when they do not take one of its matrices."""
        first, second, mixer, experts = self._attention_streams, self._expert_streams, self._mixer, self.experts
        if not (
            isinstance(first, EagerHyperConnection)
            and isinstance(second, EagerHyperConnection)
            and isinstance(mixer, EagerGatedDelta | EagerAttention)
            and isinstance(experts, EagerExpertLayer)
        ):
            return None
        first_reader, second_reader = first.mixing.description(), second.mixing.description()
        inputs, output = mixer.input_maps.handles, mixer.output_map.handle
        routed = experts.description()
        if first_reader is None or second_reader is None or routed is None or not (all(inputs) and output):
            return None
        delta = mixer.description() if isinstance(mixer, EagerGatedDelta) else None
        attention = mixer.description() if isinstance(mixer, EagerAttention) else None
        return _native.layer(first_reader, second_reader, inputs, output, delta, attention, routed)

    def forecast_at_once(self, correction: TargetCorrection | None) -> Callable[[Shown], Floats]:
        """See `DecoderLayer.forecast_at_once`."""
        compiled = None
        if self._compiled is not None:
            compiled = EagerForecast(self._compiled, self._host, self._expert_count, correction)

        def forecast(streams: Shown) -> Floats:
            if compiled is not None and len(streams) <= NATIVE_ROWS:
                return compiled(rows_of(streams))
            mixed = self.expert_input(mx.array(streams))
            logits = np.asarray(self.router_logits(mixed))
            return logits if correction is None else correction.apply_on_host(np.asarray(mixed), logits)

        return forecast

    def __call__(
        self,
        streams: mx.array,
        state: LayerState,
        positions: PassPositions,
        leases: PassLeases,
        watch: PassWatch | None = None,
    ) -> mx.array:
        """See `DecoderLayer.__call__`."""
        experts = self.experts
        attended = self._attend_at_once(streams, state, positions, watch)
        if self._compiled is None or attended is None or not isinstance(experts, EagerExpertLayer):
            return super().__call__(streams, state, positions, leases, watch)
        rows = len(attended.x)
        if watch is not None:
            watch.routing(self._layer, attended.x)
        out = np.empty(attended.streams.shape, np.float32)
        if not experts.join_streams(self._compiled, attended, leases, watch, out):
            y = experts.mix_routed(mx.array(attended.x), mx.array(attended.ids), mx.array(attended.mix), leases, watch)
            _native.inject(attended.streams, attended.injection, rows_of(y), out)
        return mx.array(out.reshape(rows, *self._shape))

    def attend(
        self, streams: mx.array, state: LayerState, positions: PassPositions, watch: PassWatch | None = None
    ) -> tuple[mx.array, mx.array, mx.array]:
        """See `DecoderLayer.attend`."""
        attended = self._attend_at_once(streams, state, positions, watch)
        if attended is None:
            return super().attend(streams, state, positions, watch)
        after = mx.array(attended.streams.reshape(-1, *self._shape))
        return after, mx.array(attended.x), mx.array(attended.injection[:, :, None])

    def _attend_at_once(
        self, streams: mx.array, state: LayerState, positions: PassPositions, watch: PassWatch | None
    ) -> Attended | None:
        """Everything before the experts; None, with nothing done, when the compiled calls do not take the layer."""
        if self._compiled is None:
            return None
        if watch is not None:
            watch.entering(self._layer, streams)
        flat = rows_of(streams)
        if isinstance(self._mixer, EagerGatedDelta) and isinstance(state, DeltaState):
            attended = self._advance_delta(self._mixer, self._compiled, flat, state, positions)
        elif isinstance(self._mixer, EagerAttention) and isinstance(state, AttentionState):
            attended = self._advance_attention(self._mixer, self._compiled, flat, state, positions)
        else:
            return None
        if watch is not None:
            watch.attended(self._layer, attended.streams.reshape(-1, *self._shape))
        return attended

    def _attended(self, rows: int) -> Attended:
        count, hidden = self._shape
        return Attended(
            np.empty((rows, self._width), np.float32),
            np.empty((rows, hidden), np.float32),
            np.empty((rows, count), np.float32),
            np.empty((rows, self._top), np.int32),
            np.empty((rows, self._top), np.float32),
        )

    def _advance_delta(
        self,
        mixer: EagerGatedDelta,
        compiled: _native.Layer,
        flat: Floats,
        state: DeltaState,
        positions: PassPositions,
    ) -> Attended:
        rows = len(flat)
        attended = self._attended(rows)
        window = np.asarray(state.window)
        kept, channels = window.shape
        if not positions.record:
            moved = np.empty((kept, channels), np.float32)
            memory = mixer.writable_memory(state)
            _native.advance_delta(compiled, self._host.handle, flat, window, moved, memory, None, *attended)
            state.recorded, state.window = None, mx.array(moved)
            return attended
        moved, memory = np.empty((kept + rows, channels), np.float32), np.asarray(state.memory)
        history = np.empty((rows, memory.size), np.float32)
        _native.advance_delta(compiled, self._host.handle, flat, window, moved, memory, history, *attended)
        state.recorded = HostRecording(moved, state.memory, history.reshape(rows, *memory.shape))
        state.recorded_from = positions.start
        state.window, state.memory = state.recorded.at(rows)
        state.private = state.memory
        return attended

    def _advance_attention(
        self,
        mixer: EagerAttention,
        compiled: _native.Layer,
        flat: Floats,
        state: AttentionState,
        positions: PassPositions,
    ) -> Attended:
        rows = len(flat)
        queries = rows if positions.queries is None else positions.queries
        attended = self._attended(queries)
        if mixer.advance(
            compiled,
            flat,
            state,
            angles=positions.angles,
            block_angles=positions.block_angles,
            record=positions.record,
            queries=queries,
            attended=attended,
        ):
            return attended
        mixed, injection = self._enter_attention(mixer, compiled, flat, state, positions)
        first = rows - queries
        _native.leave(compiled, self._host.handle, mixed, flat[first:], injection[first:], *attended)
        return attended

    def _enter_attention(
        self,
        mixer: EagerAttention,
        compiled: _native.Layer,
        flat: Floats,
        state: AttentionState,
        positions: PassPositions,
    ) -> tuple[Floats, Floats]:
        """Gated heads [queries, heads * dim], and every row's injection [T, streams]."""
        rows = len(flat)
        projections = np.empty(rows * mixer.input_maps.width, np.float32)
        injection = np.empty((rows, self._shape[0]), np.float32)
        _native.enter(compiled, self._host.handle, flat, projections, injection)
        mixed = mixer.attend(
            mixer.input_maps.views(projections, rows),
            state,
            angles=positions.angles,
            block_angles=positions.block_angles,
            record=positions.record,
            queries=positions.queries,
        )
        return mixed, injection

    def remember(self, streams: mx.array, state: AttentionState, positions: PassPositions) -> None:
        """See `DecoderLayer.remember`."""
        if self._compiled is None or not isinstance(self._mixer, EagerAttention):
            super().remember(streams, state, positions)
            return
        self._enter_attention(self._mixer, self._compiled, rows_of(streams), state, positions)
