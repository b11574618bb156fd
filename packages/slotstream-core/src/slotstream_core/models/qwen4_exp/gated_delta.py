"""The gated delta layer: short convolution, gated delta rule, gated norm."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import StateError
from slotstream_core.models.qwen4_exp.convolution import causal_convolution, last_rows
from slotstream_core.models.qwen4_exp.delta_rule import advance_chunked, advance_one
from slotstream_core.models.qwen4_exp.norms import RmsNorm
from slotstream_core.models.qwen4_exp.projections import FusedProjection, WeightReader
from slotstream_core.state.rows import HostValues
from slotstream_core.state.snapshot import GrowingArray

CHUNK_TOKENS = 16
"""Tokens solved together in a long pass; a power of two."""

KEY_EPS = 1e-6
"""Added to the squared length under the root when keys and queries are normalised."""


class DeltaRecording(Protocol):
    """Windows and memories at the positions of one pass, from before its first token to after its last."""

    def at(self, position: int) -> tuple[mx.array, mx.array]:
        """Window and memory after ``position`` tokens of the pass."""

    def arrays(self) -> Iterable[mx.array]:
        """What may not be evaluated yet."""


class DeltaPairs:
    """A `DeltaRecording` of arrays, in the order of positions."""

    def __init__(self, pairs: Iterable[tuple[mx.array, mx.array]]) -> None:
        self._pairs = tuple(pairs)

    def at(self, position: int) -> tuple[mx.array, mx.array]:
        """See `DeltaRecording.at`."""
        return self._pairs[position]

    def arrays(self) -> Iterable[mx.array]:
        """See `DeltaRecording.arrays`."""
        for pair in self._pairs:
            yield from pair


@dataclass(kw_only=True, slots=True)
class DeltaBuffers:
    """Arrays that kernels write a state into, row after row. They belong to one `DeltaState`.

    Attributes:
        windows: Two, written in turn.
        memory: Advanced in place.
        addresses: Of the three on the device.
        current: Which window is the state's.
    """

    windows: tuple[mx.array, mx.array]
    memory: mx.array
    addresses: tuple[int, int, int]
    current: int = 0

    def hold(self, state: "DeltaState") -> bool:
        """Whether the state is what was last written here."""
        return state.window is self.windows[self.current] and state.memory is self.memory


@dataclass
class DeltaState:
    """What a gated delta layer remembers.

    Attributes:
        window: The last inputs of the convolution, [kernel - 1, channels], compute dtype.
        memory: The recurrent state [value heads, value dim, key dim], float32.
        recorded: Of the last recorded pass.
        recorded_from: Length before it.
        private: The memory that nothing else refers to and that may be advanced in place; forks and recordings share.
        buffers: What kernels may write into, which nothing else refers to either.
    """

    window: mx.array
    memory: mx.array
    recorded: DeltaRecording | None = None
    recorded_from: int = 0
    private: mx.array | None = field(default=None, init=False, repr=False)
    buffers: DeltaBuffers | None = field(default=None, init=False, repr=False)

    def fork(self) -> Self:
        """See `LayerState.fork`."""
        self.private = self.buffers = None
        return replace(self)

    def trim(self, length: int) -> None:
        """See `LayerState.trim`.

        Raises:
            StateError: Nothing was recorded.
        """
        if self.recorded is None:
            raise StateError(f"the delta rule kept no state for {length:,} tokens; run the pass with record=True")
        self.window, self.memory = self.recorded.at(length - self.recorded_from)

    def forget_passes(self) -> None:
        """See `LayerState.forget_passes`."""
        self.recorded = None

    def arrays(self) -> Iterable[mx.array]:
        """See `LayerState.arrays`."""
        yield self.window
        yield self.memory
        if self.recorded is not None:
            yield from self.recorded.arrays()

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """See `Storable.fixed_arrays`."""
        return {"window": self.window, "memory": self.memory}

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """See `Storable.row_arrays`."""
        return {}

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """See `Storable.load`."""
        self.window, self.memory, self.recorded = fixed["window"], fixed["memory"], None


class GatedDeltaLayer:
    """One gated delta layer; weights only, the sequence lives in `DeltaState`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        self._key_heads = config.linear_num_key_heads
        self._value_heads = config.linear_num_value_heads
        self._key_dim = config.linear_key_head_dim
        self._value_dim = config.linear_value_head_dim
        self._eps = config.rms_norm_eps
        self._silu_gate = config.output_gate_type == "silu"
        self._dtype = weights.compute_dtype
        self._inputs = FusedProjection(
            [weights.projection(f"{prefix}.{name}") for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")]
        )
        self._kernel = weights.vector(f"{prefix}.conv1d.weight")[:, :, 0].T  # [taps, channels]
        self._rate = -mx.exp(weights.vector(f"{prefix}.A_log", mx.float32))[None]
        self._dt_bias = weights.vector(f"{prefix}.dt_bias", mx.float32)[None]
        self._zeros = mx.zeros_like(self._dt_bias)
        # queries and keys as RMS norms: sum x^2 + eps under the root, queries scaled by key_dim^-1/2
        scales = [self._key_dim**-1.0] * self._key_heads + [self._key_dim**-0.5] * self._key_heads
        lengths = mx.broadcast_to(mx.array(scales)[:, None], (2 * self._key_heads, self._key_dim))
        self._unit = RmsNorm(lengths, KEY_EPS / self._key_dim, composed=weights.host is not None)
        self._norm = weights.norm(f"{prefix}.norm.weight", self._eps)
        self._output = weights.projection(f"{prefix}.out_proj")
        mx.eval(self._kernel, self._rate, self._zeros, self._dt_bias)

    def new_state(self) -> DeltaState:
        """The state before the first token."""
        taps, channels = self._kernel.shape
        return DeltaState(
            window=mx.zeros((taps - 1, channels), self._dtype),
            memory=mx.zeros((self._value_heads, self._value_dim, self._key_dim), mx.float32),
        )

    def __call__(self, x: mx.array, state: DeltaState, *, start: int, record: bool) -> mx.array:
        """Advance ``state`` over ``x`` [T, hidden], whose first token has index ``start``; returns [T, hidden]."""
        tokens = x.shape[0]
        mixed, gate, step, decay = self._inputs(x)
        padded = mx.concatenate([state.window, mixed])
        convolved = causal_convolution(padded, self._kernel, dilation=1)
        q, k, v = self._heads(convolved)
        beta = mx.sigmoid(step.astype(mx.float32))
        log_decay = self._rate * mx.logaddexp(decay.astype(mx.float32) + self._dt_bias, self._zeros)  # [T, value heads]
        state.recorded = None
        if record or tokens == 1:
            output = self._token_by_token(padded, q, k, v, (mx.exp(log_decay), beta), state, start=start, record=record)
        else:
            q, k, v, log_decay, beta = (x.swapaxes(0, 1) for x in (q, k, v, log_decay, beta))
            output, state.memory = advance_chunked(state.memory, q, k, v, log_decay, beta, CHUNK_TOKENS)
            output = output.swapaxes(0, 1)
        state.window = last_rows(padded, self._kernel.shape[0] - 1)
        return self._gated_output(output, gate)

    def _heads(self, convolved: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Unit queries (times K^-1/2) and keys [T, key heads, K], and values [T, value heads, V]."""
        tokens = convolved.shape[0]
        heads, dim = self._key_heads, self._key_dim
        width = heads * dim
        qk = convolved[:, : 2 * width].reshape(tokens, 2 * heads, dim).astype(mx.float32)
        qk = self._unit(qk)
        v = convolved[:, 2 * width :].reshape(tokens, self._value_heads, self._value_dim)
        return qk[:, :heads], qk[:, heads:], v.astype(mx.float32)

    def _token_by_token(
        self,
        padded: mx.array,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        rates: tuple[mx.array, mx.array],
        state: DeltaState,
        *,
        start: int,
        record: bool,
    ) -> mx.array:
        decay, beta = rates
        kept = self._kernel.shape[0] - 1
        outputs = []
        recorded = [(state.window, state.memory)]
        tokens = q.shape[0]
        # splitting costs less than indexing: an index is a gather
        per_token = zip(*([x] if tokens == 1 else mx.split(x, tokens) for x in (q, k, v, decay, beta)), strict=True)
        for t, inputs in enumerate(per_token):
            output, state.memory = advance_one(state.memory, *(x.squeeze(0) for x in inputs))
            outputs.append(output)
            if record:
                recorded.append((padded[t + 1 : t + 1 + kept], state.memory))
        if record:
            state.recorded, state.recorded_from = DeltaPairs(recorded), start
        return mx.stack(outputs) if len(outputs) > 1 else outputs[0][None]

    def _gated_output(self, output: mx.array, gate: mx.array) -> mx.array:
        tokens = output.shape[0]
        normed = self._norm(output.astype(self._dtype))
        gate = gate.reshape(normed.shape)
        weight = mx.sigmoid(gate)
        gated = normed * (gate * weight if self._silu_gate else weight)
        return self._output(gated.reshape(tokens, self._value_heads * self._value_dim))
