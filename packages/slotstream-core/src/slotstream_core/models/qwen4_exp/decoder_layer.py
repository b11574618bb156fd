"""One decoder layer, and the positions that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import StateError
from slotstream_core.experts.confidence import Logits
from slotstream_core.experts.stacks import Experts, Sweep
from slotstream_core.models.qwen4_exp.attention import AttentionState, SparseAttention
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState, GatedDeltaLayer
from slotstream_core.models.qwen4_exp.moe import PassLeases, PassWatch, Shown
from slotstream_core.models.qwen4_exp.parts import layer_parts
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.rotary import Angles
from slotstream_core.state.sequence import LayerState


@dataclass(frozen=True, kw_only=True)
class PassPositions:
    """Rotary angles that every attention layer of a pass shares.

    Attributes:
        start: Index of the first token.
        angles: Of the pass's tokens.
        block_angles: Of the first tokens of the indexer's blocks completed in the pass, or None.
        record: Whether layers keep what is needed to trim inside the pass.
        queries: Rows at the end that an attention layer goes on with; all of them when None.
    """

    start: int
    angles: Angles
    block_angles: Angles | None
    record: bool
    queries: int | None = None


class DecoderLayer:
    """One layer without its n-gram part: attention or gated delta, then experts, each through a hyper-connection.

    Attributes:
        at_once: Whether `expert_input` and `router_logits` are computed when they return.
        mixer: The attention or the gated delta rule.
        attention_streams: Its hyper-connection.
        expert_streams: That of the experts.
        experts: The router and what it chooses from.
    """

    at_once = False

    def __init__(
        self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, kind: str, layer: int, experts: Experts
    ) -> None:
        parts = layer_parts(weights)
        self.mixer: GatedDeltaLayer | SparseAttention
        self._layer = layer
        if kind == "linear_attention":
            self.mixer = parts.delta(weights, f"{prefix}.linear_attn", config)
        else:
            self.mixer = parts.attention(weights, f"{prefix}.self_attn", config)
        self.attention_streams = parts.streams(weights, f"{prefix}.attn_hyper_connection", config)
        self.expert_streams = parts.streams(weights, f"{prefix}.mlp_hyper_connection", config)
        self.experts = parts.experts(weights, f"{prefix}.mlp", config, layer=layer, experts=experts)

    def new_state(self) -> DeltaState | AttentionState:
        """The state before the first token."""
        return self.mixer.new_state()

    def expert_input(self, streams: mx.array) -> mx.array:
        """What this layer's experts and router would read from ``streams``, [T, hidden]."""
        return self.expert_streams.mix(streams)

    def router_logits(self, x: mx.array) -> mx.array:
        """The router's logits for rows of `expert_input`, float32 [T, experts]."""
        return self.experts.router_logits(x)

    def forecast_at_once(self, correction: TargetCorrection | None) -> Callable[[Shown], Logits] | None:
        """Return what forecasts this layer's router at once: logits [T, experts] from streams [T, streams, hidden].

        None where layers are not computed `at_once`.

        Args:
            correction: Applied to every forecast.
        """
        return None

    @property
    def forecast_bytes(self) -> int:
        """Bytes that `forecast_at_once` needed for itself, without corrections."""
        return 0

    def __call__(
        self,
        streams: mx.array,
        state: LayerState,
        positions: PassPositions,
        leases: PassLeases,
        watch: PassWatch | None = None,
    ) -> mx.array:
        """Advance ``state`` and return the new streams, [T, streams, hidden]; see `PassPositions.queries`."""
        if isinstance(self.mixer, SparseAttention) and self.mixer.evaluates:
            leases.arrive()
        streams, x, injection = self.attend(streams, state, positions, watch)
        return self.take_in(streams, self.experts(x, leases, watch), injection)

    def sweep(
        self,
        passes: Sequence[mx.array],
        state: LayerState,
        positions: Sequence[PassPositions],
        sweep: Sweep,
        attended: Callable[[int], None],
    ) -> list[mx.array]:
        """What a call with each of some passes gives, to the bit, each expert being read once for all of them.

        Args:
            passes: The streams of each [T, streams, hidden], in order.
            state: Advanced by one pass after the other.
            positions: Of each pass.
            sweep: Brings the experts.
            attended: Told the number of each pass that has just advanced the state.

        Returns:
            The new streams of each pass, evaluated.

        Raises:
            ExpertReadError: A record could not be read.
        """
        parts = []
        for number, (streams, own) in enumerate(zip(passes, positions, strict=True)):
            parts.append(self.attend(streams, state, own))
            mx.eval(parts[-1], *state.arrays())  # one pass's workspace at a time
            attended(number)
        outputs = self.experts.sweep([x for _, x, _ in parts], sweep)
        after = [self.take_in(part, y, injection) for (part, _, injection), y in zip(parts, outputs, strict=True)]
        mx.eval(after)
        return after

    def remember(self, streams: mx.array, state: AttentionState, positions: PassPositions) -> None:
        """Advance the ``state`` of an attention layer by rows that nothing is computed from."""
        x, _ = self.attention_streams.read(streams)
        angles, block_angles = positions.angles, positions.block_angles
        if not isinstance(self.mixer, SparseAttention):
            raise StateError(f"a {type(self.mixer).__name__} has no keys to remember")
        self.mixer(x, state, angles=angles, block_angles=block_angles, record=positions.record, queries=0)

    def take_in(self, streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
        """The streams after the experts' ``output`` [T, hidden]; ``injection`` is what `attend` returned."""
        return self.expert_streams.inject(streams, output, injection)

    def attend(
        self, streams: mx.array, state: LayerState, positions: PassPositions, watch: PassWatch | None = None
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Advance ``state``; returns the streams so far, and the input [T, hidden] and injection of the experts."""
        if watch is not None:
            watch.entering(self._layer, streams)
        x, injection = self.attention_streams.read(streams)
        if isinstance(self.mixer, GatedDeltaLayer) and isinstance(state, DeltaState):
            y = self.mixer(x, state, start=positions.start, record=positions.record)
        elif isinstance(self.mixer, SparseAttention) and isinstance(state, AttentionState):
            y = self.mixer(
                x,
                state,
                angles=positions.angles,
                block_angles=positions.block_angles,
                record=positions.record,
                queries=positions.queries,
            )
            if positions.queries is not None:
                first = streams.shape[0] - positions.queries
                streams, injection = streams[first:], injection[first:]
        else:
            raise StateError(f"a {type(state).__name__} was passed to a {type(self.mixer).__name__}")
        streams = self.attention_streams.inject(streams, y, injection)
        if watch is not None:
            watch.attended(self._layer, streams)
        x, injection = self.expert_streams.read(streams)
        return streams, x, injection


def decoder_layer(
    weights: WeightReader, prefix: str, config: Qwen4ExpConfig, *, kind: str, layer: int, experts: Experts
) -> DecoderLayer:
    """A layer that runs whole parts at once where the compiled products are there, else one that asks MLX for each."""
    if weights.eager is None:
        return DecoderLayer(weights, prefix, config, kind=kind, layer=layer, experts=experts)
    # Imported here because it needs the compiled parts of the package.
    from slotstream_core.models.qwen4_exp.eager.layer import EagerDecoderLayer

    return EagerDecoderLayer(weights, prefix, config, kind=kind, layer=layer, experts=experts)
