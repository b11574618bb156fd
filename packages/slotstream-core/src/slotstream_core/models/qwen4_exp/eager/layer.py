"""`DecoderLayer`, computed at once: whole parts of a layer run in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from slotstream_core import _native
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import StateError
from slotstream_core.experts.stacks import Experts, Sweep
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer, PassPositions
from slotstream_core.models.qwen4_exp.eager.attention import EagerAttention
from slotstream_core.models.qwen4_exp.eager.delta import EagerGatedDelta, HostRecording
from slotstream_core.models.qwen4_exp.eager.experts import EagerExpertLayer
from slotstream_core.models.qwen4_exp.eager.forecast import EagerForecast
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, rows_of
from slotstream_core.models.qwen4_exp.eager.routed import Attended, ExpertCalls
from slotstream_core.models.qwen4_exp.eager.streams import EagerHyperConnection
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.moe import PassLeases, PassWatch, Shown
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.state.sequence import LayerState


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
        first, second, mixer, experts = self.attention_streams, self.expert_streams, self.mixer, self.experts
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
        compiled, experts = None, self.experts
        if self._compiled is not None and isinstance(experts, EagerExpertLayer):
            router = experts.prepare_forecasts()
            compiled = EagerForecast(self._compiled, router, self._host, self._expert_count, correction)

        def forecast(streams: Shown) -> Floats:
            if compiled is not None and len(streams) <= NATIVE_ROWS:
                return compiled(rows_of(streams))
            mixed = self.expert_input(mx.array(streams))
            logits = np.asarray(self.router_logits(mixed))
            return logits if correction is None else correction.apply_on_host(np.asarray(mixed), logits)

        return forecast

    @property
    def forecast_bytes(self) -> int:
        """See `DecoderLayer.forecast_bytes`."""
        return self.experts.compact_bytes if isinstance(self.experts, EagerExpertLayer) else 0

    def __call__(
        self,
        streams: mx.array,
        state: LayerState,
        positions: PassPositions,
        leases: PassLeases,
        watch: PassWatch | None = None,
    ) -> mx.array:
        """See `DecoderLayer.__call__`."""
        routed = self._routed()
        attended = self._attend_at_once(streams, state, positions, watch)
        if attended is None:
            return super().__call__(streams, state, positions, leases, watch)
        rows = len(attended.x)
        if watch is not None:
            watch.routing(self._layer, attended.x)
        out = np.empty(attended.streams.shape, np.float32)
        if routed is not None:
            experts, calls = routed
            experts.join_streams(calls, attended, leases, watch, out)
        else:
            x, ids, mix = mx.array(attended.x), mx.array(attended.ids), mx.array(attended.mix)
            y = self.experts.mix_routed(x, ids, mix, leases, watch)
            _native.inject(attended.streams, attended.injection, rows_of(y), out)
        return mx.array(out.reshape(rows, *self._shape))

    def _routed(self) -> tuple[EagerExpertLayer, ExpertCalls] | None:
        """What goes on from `Attended`; None when the compiled calls do not take a matrix."""
        if self._compiled is None or not isinstance(self.experts, EagerExpertLayer):
            return None
        calls = self.experts.calls(self._compiled)
        return None if calls is None else (self.experts, calls)

    def sweep(
        self,
        passes: Sequence[mx.array],
        state: LayerState,
        positions: Sequence[PassPositions],
        sweep: Sweep,
        attended: Callable[[int], None],
    ) -> list[mx.array]:
        """See `DecoderLayer.sweep`. Neighbours among the passes go through the experts as one where no bit changes."""
        routed = self._routed()
        if routed is None:
            return super().sweep(passes, state, positions, sweep, attended)
        experts, calls = routed
        totals, places = cut_runs([len(streams) for streams in passes])
        runs = [self._attended(rows) for rows in totals]
        for number, ((run, rows), streams, own) in enumerate(zip(places, passes, positions, strict=True)):
            if self._attend_at_once(streams, state, own, None, runs[run].part(rows)) is None:
                raise StateError(f"a {type(state).__name__} was passed to a {type(self.mixer).__name__}")
            mx.eval(state.arrays())
            attended(number)
        outs = [np.empty(run.streams.shape, np.float32) for run in runs]
        experts.sweep_streams(calls, runs, sweep, outs)
        return [mx.array(outs[run][rows].reshape(-1, *self._shape)) for run, rows in places]

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
        self,
        streams: mx.array,
        state: LayerState,
        positions: PassPositions,
        watch: PassWatch | None,
        to: Attended | None = None,
    ) -> Attended | None:
        """Everything before the experts; None, with nothing done, when the compiled calls do not take the layer.

        Written ``to`` where that is given.
        """
        if self._compiled is None:
            return None
        if watch is not None:
            watch.entering(self._layer, streams)
        flat = rows_of(streams)
        attended = to or self._attended(len(flat) if positions.queries is None else positions.queries)
        if isinstance(self.mixer, EagerGatedDelta) and isinstance(state, DeltaState):
            self._advance_delta(self.mixer, self._compiled, flat, state, positions, attended)
        elif isinstance(self.mixer, EagerAttention) and isinstance(state, AttentionState):
            self._advance_attention(self.mixer, self._compiled, flat, state, positions, attended)
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
        attended: Attended,
    ) -> None:
        rows = len(flat)
        window = np.asarray(state.window)
        kept, channels = window.shape
        if not positions.record:
            moved = np.empty((kept, channels), np.float32)
            memory = mixer.writable_memory(state)
            _native.advance_delta(compiled, self._host.handle, flat, window, moved, memory, None, *attended)
            state.recorded, state.window = None, mx.array(moved)
            return
        moved, memory = np.empty((kept + rows, channels), np.float32), np.asarray(state.memory)
        history = np.empty((rows, memory.size), np.float32)
        _native.advance_delta(compiled, self._host.handle, flat, window, moved, memory, history, *attended)
        state.recorded = HostRecording(moved, state.memory, history.reshape(rows, *memory.shape))
        state.recorded_from = positions.start
        state.window, state.memory = state.recorded.at(rows)
        state.private = state.memory

    def _advance_attention(
        self,
        mixer: EagerAttention,
        compiled: _native.Layer,
        flat: Floats,
        state: AttentionState,
        positions: PassPositions,
        attended: Attended,
    ) -> None:
        rows = len(flat)
        queries = rows if positions.queries is None else positions.queries
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
            return
        mixed, injection = self._enter_attention(mixer, compiled, flat, state, positions)
        first = rows - queries
        _native.leave(compiled, self._host.handle, mixed, flat[first:], injection[first:], *attended)

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
        if self._compiled is None or not isinstance(self.mixer, EagerAttention):
            super().remember(streams, state, positions)
            return
        self.mixer.remember(
            self._compiled,
            rows_of(streams),
            state,
            angles=positions.angles,
            block_angles=positions.block_angles,
            record=positions.record,
        )


def cut_runs(lengths: Sequence[int]) -> tuple[list[int], list[tuple[int, slice]]]:
    """Put passes of these many rows together so far as no row's bits change, see `NATIVE_ROWS`.

    Returns:
        The rows of each run, and the run and the rows there of each pass.
    """
    totals: list[int] = []
    places: list[tuple[int, slice]] = []
    joins = False
    for rows in lengths:
        many = rows > NATIVE_ROWS
        if not (many and joins):
            totals.append(0)
        places.append((len(totals) - 1, slice(totals[-1], totals[-1] + rows)))
        totals[-1] += rows
        joins = many
    return totals, places
