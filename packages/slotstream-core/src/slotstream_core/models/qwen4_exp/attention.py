"""Full attention over selected keys: grouped heads, gated output, and a growing cache of keys and values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.host_products import HOST_ROWS, attend, host_array
from slotstream_core.models.qwen4_exp.indexer import IndexState, Selector
from slotstream_core.models.qwen4_exp.projections import FusedProjection, WeightReader
from slotstream_core.models.qwen4_exp.rotary import Angles, rotate
from slotstream_core.state.rows import HostValues, RowForm
from slotstream_core.state.snapshot import GrowingArray
from slotstream_planner.charges import SEQUENCE_STEP_TOKENS

CACHE_STEP_TOKENS = SEQUENCE_STEP_TOKENS
"""The key and value caches grow by this many tokens."""

SCORE_BYTES_LIMIT = 64 * 2**20
"""Queries of one pass are attended in groups so that one group's scores stay below this."""

GATHERED_ROWS = 4
"""With a selection active, passes of at most this many rows gather the selected keys instead of masking the others."""


@dataclass(kw_only=True, slots=True)
class AttentionBuffers:
    """Arrays of one `AttentionState` that kernels write the next rows into, and where these lie.

    Attributes:
        arrays: Keys, values, the indexer's blocks and its tail [ratio, dim].
        addresses: Of the four on the device.
    """

    arrays: tuple[mx.array, ...]
    addresses: tuple[int, ...]


@dataclass
class AttentionState:
    """What a full-attention layer remembers.

    Attributes:
        keys: [KV heads, capacity, head dim], compute dtype; rows at and after ``length`` are unused.
        values: As ``keys``.
        length: Tokens seen.
        index: The indexer's state.
        private: By name, the arrays that nothing else refers to and that may be written in place; forks share.
        buffers: What kernels have written into last.
    """

    keys: mx.array
    values: mx.array
    index: IndexState
    length: int = 0
    private: dict[str, mx.array] = field(default_factory=dict, init=False, repr=False)
    buffers: AttentionBuffers | None = field(default=None, init=False, repr=False)

    def fork(self) -> Self:
        """See `LayerState.fork`."""
        self.private.clear()
        self.buffers = None
        return replace(self, index=self.index.fork())

    def trim(self, length: int) -> None:
        """See `LayerState.trim`."""
        self.length = length
        self.index.trim(length)

    def forget_passes(self) -> None:
        """See `LayerState.forget_passes`."""
        self.index.forget_passes()

    def arrays(self) -> Iterable[mx.array]:
        """See `LayerState.arrays`."""
        yield self.keys
        yield self.values
        yield from self.index.arrays()

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """See `Storable.fixed_arrays`."""
        return self.index.fixed_arrays()

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """See `Storable.row_arrays`."""
        form = RowForm(axis=1, tokens_per_row=1, step_rows=CACHE_STEP_TOKENS)
        own = {"keys": GrowingArray(array=self.keys, form=form), "values": GrowingArray(array=self.values, form=form)}
        return {**own, **self.index.row_arrays()}

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """See `Storable.load`."""
        self.keys, self.values, self.length = rows["keys"], rows["values"], length
        self.private = {"keys": self.keys, "values": self.values}
        self.index.load(length, fixed, rows)

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the rows of a pass, [KV heads, T, head dim], and return all rows so far as views."""
        end = self.length + keys.shape[1]
        self.keys = write_rows(self.keys, keys, self.length, axis=1)
        self.values = write_rows(self.values, values, self.length, axis=1)
        self.private, self.buffers = {"keys": self.keys, "values": self.values}, None
        self.length = end
        return self.keys[:, :end], self.values[:, :end]


def write_rows(cache: mx.array, rows: mx.array, start: int, *, axis: int) -> mx.array:
    """Return ``cache`` with ``rows`` written from ``start`` along ``axis``, grown by whole steps when needed.

    The old array's memory is reused when nothing else refers to it.
    """
    end = start + rows.shape[axis]
    capacity = cache.shape[axis]
    if end > capacity:
        shape = list(cache.shape)
        shape[axis] = -(-end // CACHE_STEP_TOKENS) * CACHE_STEP_TOKENS - capacity
        cache = mx.concatenate([cache, mx.zeros(shape, cache.dtype)], axis=axis)
    return mx.slice_update(cache, rows.astype(cache.dtype), mx.array([start]), (axis,))


class SparseAttention:
    """One full-attention layer; weights only, the sequence lives in `AttentionState`.

    Attributes:
        evaluates: Whether a call may evaluate what it is given, as choosing among equal blocks does.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._dim = config.head_dim
        self._dtype = weights.compute_dtype
        self._host = weights.host
        names = ("q_proj", "k_proj", "v_proj", "indexer.index_qk_proj")
        self._inputs = FusedProjection([weights.projection(f"{prefix}.{name}") for name in names])
        head_norms = [weights.vector(f"{prefix}.q_norm.weight")] * self._heads
        head_norms += [weights.vector(f"{prefix}.k_norm.weight")] * self._kv_heads
        self._norm = weights.norm_of(mx.stack(head_norms), config.rms_norm_eps)
        self._output = weights.projection(f"{prefix}.o_proj")
        self._selector = Selector(weights, f"{prefix}.indexer", config)
        self.evaluates = self._selector.evaluates

    def new_state(self) -> AttentionState:
        """The state before the first token."""
        empty = mx.zeros((self._kv_heads, 0, self._dim), self._dtype)
        return AttentionState(keys=empty, values=empty, index=self._selector.new_state())

    def __call__(
        self,
        x: mx.array,
        state: AttentionState,
        *,
        angles: Angles,
        block_angles: Angles | None,
        record: bool,
        queries: int | None = None,
    ) -> mx.array:
        """Attend from ``x`` [T, hidden] to every selected key up to each token; returns [T, hidden].

        Args:
            x: Inputs of the pass.
            state: Advanced by the pass.
            angles: Of the pass's tokens.
            block_angles: Of the first token of each indexer block that this pass completes; None without one.
            record: Keep what is needed to trim ``state`` to any length inside the pass.
            queries: Attend from the last so many tokens only, and return their rows; all of them when None.
        """
        tokens = x.shape[0]
        asking = tokens if queries is None else queries
        query_gate, k, v, index_qk = self._inputs(x)
        query_gate = query_gate.reshape(tokens, self._heads, 2, self._dim)
        gate = query_gate[:, :, 1].reshape(tokens, self._heads * self._dim)
        qk = mx.concatenate([query_gate[:, :, 0], k.reshape(tokens, self._kv_heads, self._dim)], axis=1)
        qk = rotate(self._norm(qk), angles)
        q = qk[:, : self._heads].swapaxes(0, 1)
        keys, values = state.append(
            qk[:, self._heads :].swapaxes(0, 1), v.reshape(tokens, self._kv_heads, self._dim).swapaxes(0, 1)
        )
        scores = self._selector.score_blocks(
            index_qk, state.index, angles=angles, block_angles=block_angles, record=record
        )
        if asking == 0:
            return mx.zeros((0, x.shape[1]), x.dtype)
        if asking < tokens:
            q, gate = q[:, tokens - asking :], gate[tokens - asking :]
            scores = None if scores is None else scores[tokens - asking :]
        if scores is None:
            attended = self._attend_all(q, keys, values)
        elif asking <= GATHERED_ROWS:
            attended = self._attend_gathered(q, keys, values, scores)
        else:
            attended = self._attend_masked(q, keys, values, scores)
        merged = attended.swapaxes(0, 1).reshape(asking, self._heads * self._dim)
        return self._output(merged * mx.sigmoid(gate))

    def _attend(self, q: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
        if self._host is not None and q.shape[1] >= HOST_ROWS:
            shown = None if mask is None else np.asarray(mask)
            host_q, host_keys, host_values = host_array(q), host_array(keys), host_array(values)
            return mx.array(attend(host_q, host_keys, host_values, shown, self._dim**-0.5, self._host))
        return mx.fast.scaled_dot_product_attention(
            q[None], keys[None], values[None], scale=self._dim**-0.5, mask=mask
        )[0]

    def _row_groups(self, tokens: int, keys: int) -> list[slice]:
        size = max(1, SCORE_BYTES_LIMIT // (4 * self._heads * keys))
        return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]

    def _attend_all(self, q: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        tokens, total = q.shape[1], keys.shape[1]
        if tokens == 1:
            return self._attend(q, keys, values, None)
        outputs = []
        for rows in self._row_groups(tokens, total):
            visible = total - tokens + rows.stop
            positions = np.arange(visible - (rows.stop - rows.start), visible)
            mask = mx.array(np.arange(visible) <= positions[:, None])
            outputs.append(self._attend(q[:, rows], keys[:, :visible], values[:, :visible], mask))
        return mx.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]

    def _attend_masked(self, q: mx.array, keys: mx.array, values: mx.array, scores: mx.array) -> mx.array:
        tokens, total = q.shape[1], keys.shape[1]
        outputs = []
        for rows in self._row_groups(tokens, total):
            first = total - tokens + rows.start
            mask = self._selector.token_mask(scores[rows], first_position=first, keys=total)
            outputs.append(self._attend(q[:, rows], keys, values, mask))
        return mx.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]

    def _attend_gathered(self, q: mx.array, keys: mx.array, values: mx.array, scores: mx.array) -> mx.array:
        tokens, total = q.shape[1], keys.shape[1]
        outputs = []
        for row in range(tokens):
            chosen = self._selector.token_indices(scores[row], position=total - tokens + row)
            outputs.append(
                self._attend(q[:, row : row + 1], mx.take(keys, chosen, axis=1), mx.take(values, chosen, axis=1), None)
            )
        return mx.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]
