"""`SparseAttention` and its `Selector`, computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core import _native as pieces
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.attention import CACHE_STEP_TOKENS, AttentionState, SparseAttention
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap, EagerMaps
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.indexer import BLOCK_STEP, IndexState, Selector
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.rotary import Angles
from slotstream_core.models.qwen4_exp.tied_blocks import select_largest


def writable(cache: mx.array, private: mx.array | None, start: int, end: int, *, axis: int, step: int) -> mx.array:
    """Return an array to write rows ``start`` to ``end`` of ``cache`` to, along ``axis``.

    It is ``cache`` itself when that is ``private`` and long enough, else a copy, grown by whole steps.
    """
    if cache is private and end <= cache.shape[axis]:
        return cache
    shape = list(cache.shape)
    shape[axis] = max(shape[axis], -(-end // step) * step)
    fresh = mx.zeros(shape, mx.float32)
    mx.eval(fresh)
    old: tuple[slice, ...] = (slice(None),) * axis + (slice(0, start),)
    np.asarray(fresh)[old] = np.asarray(cache)[old]
    return fresh


def written(cache: mx.array, private: mx.array | None, rows: Floats, start: int, *, axis: int, step: int) -> mx.array:
    """Return ``cache`` with ``rows`` written from ``start`` along ``axis``; see `writable`."""
    end = start + rows.shape[axis]
    cache = writable(cache, private, start, end, axis=axis, step=step)
    place: tuple[slice, ...] = (slice(None),) * axis + (slice(start, end),)
    np.asarray(cache)[place] = rows
    return cache


class EagerAttention(SparseAttention):
    """See `SparseAttention`.

    Attributes:
        input_maps: Of queries with their gates, keys, values and the indexer.
        output_map: Of the heads' results.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._eager = weights.eager_host()
        self._eps = config.rms_norm_eps
        self.input_maps = EagerMaps(self._inputs, self._eager)
        self.output_map = EagerMap(self._output, self._eager)
        norms = np.array(self._norm.plain_weight)
        self._q_weight, self._k_weight = norms[0].copy(), norms[-1].copy()
        self._blocks = EagerSelector(weights, f"{prefix}.indexer", config)
        self._selector = self._blocks

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
        """See `SparseAttention.__call__`."""
        mixed = self.attend(
            self.input_maps(rows_of(x)),
            state,
            angles=angles,
            block_angles=block_angles,
            record=record,
            queries=queries,
        )
        return mx.array(self.output_map(mixed)) if len(mixed) else mx.zeros((0, x.shape[1]), mx.float32)

    def attend(
        self,
        projections: Sequence[Floats],
        state: AttentionState,
        *,
        angles: Angles,
        block_angles: Angles | None,
        record: bool,
        queries: int | None = None,
    ) -> Floats:
        """A call between `input_maps`, whose results it takes, and `output_map`: gated heads [T, heads * dim]."""
        query_gate, k, v, index_qk = projections
        tokens, heads, dim = len(k), self._heads, self._dim
        keys = np.empty((tokens, self._kv_heads * dim), np.float32)
        pieces.norm_rotate(k, dim, self._k_weight, angles.host_cos, angles.host_sin, self._eps, keys)
        self._append(state, keys, v)
        scores = self._blocks.score(index_qk, state.index, angles=angles, block_angles=block_angles, record=record)
        first = 0 if queries is None else tokens - queries
        if first == tokens:
            return np.empty((0, heads * dim), np.float32)
        query_gate, scores = query_gate[first:], None if scores is None else scores[first:]
        q = np.empty((len(query_gate), heads * dim), np.float32)
        cos, sin = angles.host_cos[first:], angles.host_sin[first:]
        pieces.norm_rotate(query_gate, 2 * dim, self._q_weight, cos, sin, self._eps, q)
        attended = self._attend_rows(q, state, scores) if len(q) <= NATIVE_ROWS else self._attend_many(q, state, scores)
        heads_out = attended.reshape(len(q) * heads, dim)
        pieces.gate(heads_out, query_gate.reshape(len(q) * heads, 2 * dim)[:, dim:], heads_out)
        return attended

    def description(self) -> tuple[Any, ...]:
        """Attention for `_native.layer`."""
        return (
            *(number for place in self.input_maps.places for number in place),
            self._q_weight,
            self._k_weight,
            self._heads,
            self._kv_heads,
            self._blocks.width,
            self._eps,
            self._dim**-0.5,
        )

    def advance(
        self,
        compiled: pieces.Layer,
        streams: Floats,
        state: AttentionState,
        *,
        angles: Angles,
        block_angles: Angles | None,
        record: bool,
        queries: int,
        attended: tuple[Floats, Floats, Floats, npt.NDArray[np.int32], Floats],
    ) -> bool:
        """From few rows of ``streams`` to what the experts of the last ``queries`` of them start from, in one call.

        Args:
            compiled: The layer of this attention.
            streams: [T, streams * hidden].
            state: Advanced.
            angles: Of the rows.
            block_angles: Of the first token of each block that they complete.
            record: Whether to keep what trimming inside these rows needs.
            queries: At least one.
            attended: Written.

        Returns:
            False, with nothing done, when there are too many rows or keys have to be chosen.
        """
        rows = len(streams)
        if rows > NATIVE_ROWS or queries < 1 or self._blocks.chooses(state.length + rows):
            return False
        handle, cos, sin = self._eager.handle, angles.host_cos, angles.host_sin
        keys, values, start, index_qk = self._begin_rows(state, rows)
        pieces.advance_attention(compiled, handle, streams, queries, cos, sin, keys, values, start, index_qk, *attended)
        self._end_rows(state, index_qk, block_angles=block_angles, record=record)
        return True

    def remember(
        self,
        compiled: pieces.Layer,
        streams: Floats,
        state: AttentionState,
        *,
        angles: Angles,
        block_angles: Angles | None,
        record: bool,
    ) -> None:
        """Advance ``state`` by rows of ``streams`` that nothing attends from, in one call; see `advance`."""
        handle, cos, sin = self._eager.handle, angles.host_cos, angles.host_sin
        keys, values, start, index_qk = self._begin_rows(state, len(streams))
        pieces.remember(compiled, handle, streams, cos, sin, keys, values, start, index_qk)
        self._end_rows(state, index_qk, block_angles=block_angles, record=record)

    def _begin_rows(self, state: AttentionState, rows: int) -> tuple[Floats, Floats, int, Floats]:
        """What a call writes that advances ``state``: keys and values, from which row on, and rows for the indexer."""
        self._make_room(state, rows)
        index_qk = np.empty((rows, self._blocks.width), np.float32)
        return np.asarray(state.keys), np.asarray(state.values), state.length, index_qk

    def _end_rows(self, state: AttentionState, index_qk: Floats, *, block_angles: Angles | None, record: bool) -> None:
        """Let ``state`` have the rows that the call wrote."""
        state.length += len(index_qk)
        self._blocks.take_in(index_qk, state.index, block_angles=block_angles, record=record)

    def _make_room(self, state: AttentionState, rows: int) -> None:
        """Have caches that so many rows more may be written to."""
        for name in ("keys", "values"):
            cache = writable(
                getattr(state, name),
                state.private.get(name),
                state.length,
                state.length + rows,
                axis=1,
                step=CACHE_STEP_TOKENS,
            )
            setattr(state, name, cache)
            state.private[name] = cache

    def _append(self, state: AttentionState, keys: Floats, values: Floats) -> None:
        shape = (len(keys), self._kv_heads, self._dim)
        for name, rows in (("keys", keys), ("values", values)):
            cache = written(
                getattr(state, name),
                state.private.get(name),
                rows.reshape(shape).swapaxes(0, 1),
                state.length,
                axis=1,
                step=CACHE_STEP_TOKENS,
            )
            setattr(state, name, cache)
            state.private[name] = cache
        state.length += len(keys)

    def _attend_rows(self, q: Floats, state: AttentionState, scores: Floats | None) -> Floats:
        """One row after another; [T, heads * dim]."""
        keys, values = np.asarray(state.keys), np.asarray(state.values)
        out = np.empty(q.shape, np.float32)
        for t, row in enumerate(q):
            position = state.length - len(q) + t
            chosen = None if scores is None else self._blocks.keys_of(scores[t], position=position)
            count = position + 1 if chosen is None else len(chosen)
            scratch = np.empty(self._heads * count, np.float32)

            def part(
                first: int,
                last: int,
                row: Floats = row,
                chosen: npt.NDArray[np.int32] | None = chosen,
                count: int = count,
                scratch: Floats = scratch,
                t: int = t,
            ) -> None:
                pieces.attend(
                    row,
                    keys,
                    values,
                    self._kv_heads,
                    self._dim,
                    count,
                    chosen,
                    self._dim**-0.5,
                    scratch,
                    first,
                    last,
                    out[t],
                )

            self._eager.run_parts(part, self._heads, values=2 * self._heads * count * self._dim)
        return out

    def _attend_many(self, q: Floats, state: AttentionState, scores: Floats | None) -> Floats:
        """All rows at once; [T, heads * dim]."""
        position, out = state.length - len(q), np.empty(q.shape, np.float32)
        selected = None
        if scores is not None:
            selected = np.asarray(self._blocks.block_mask(mx.array(scores), first_position=position)).view(np.uint8)
        keys, values = np.asarray(state.keys), np.asarray(state.values)
        pieces.attend_rows(
            self._eager.handle,
            q,
            keys,
            values,
            self._kv_heads,
            self._dim,
            position,
            selected,
            self._blocks.ratio,
            self._dim**-0.5,
            out,
        )
        return out


class EagerSelector(Selector):
    """See `Selector`.

    Attributes:
        ratio: Keys of a block.
        width: Values of a row that it reads.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self.ratio = self._ratio
        self.width = (self._heads + 1) * self._dim
        self._eager = weights.eager_host()
        self._eps = config.rms_norm_eps
        self._q_weight = np.array(self._q_norm.plain_weight).reshape(-1)
        self._k_weight = np.array(self._k_norm.plain_weight).reshape(-1)

    def chooses(self, length: int) -> bool:
        """Whether the tokens up to ``length`` are too many to see all of them."""
        return length // self._ratio > self._best

    def take_in(self, qk: Floats, state: IndexState, *, block_angles: Angles | None, record: bool) -> None:
        """Take in the pass's keys; see `Selector.score_blocks`."""
        done = state.length // self._ratio
        raw = np.concatenate([np.asarray(state.tail), qk[:, self._heads * self._dim :]])
        fresh = len(raw) // self._ratio
        if fresh and block_angles is not None:
            pooled = raw[: fresh * self._ratio].reshape(fresh, self._ratio, self._dim).mean(axis=1)
            keys = self._rotated(pooled, self._k_weight, block_angles)
            state.blocks = written(state.blocks, state.private, keys, done, axis=0, step=BLOCK_STEP)
            state.private = state.blocks
        state.tail = mx.array(raw[fresh * self._ratio :])
        state.recorded = mx.array(raw) if record else None
        state.recorded_from = done * self._ratio
        state.length += len(qk)

    def score(
        self, qk: Floats, state: IndexState, *, angles: Angles, block_angles: Angles | None, record: bool
    ) -> Floats | None:
        """See `Selector.score_blocks`."""
        self.take_in(qk, state, block_angles=block_angles, record=record)
        if not self.chooses(state.length):
            return None
        blocks = state.length // self._ratio
        q = self._rotated(qk[:, : self._heads * self._dim], self._q_weight, angles)
        keys, scale = np.asarray(state.blocks), self._dim**-0.5
        scores = np.empty((len(qk), blocks), np.float32)

        def part(first: int, last: int) -> None:
            pieces.score_blocks(q[first:last], keys, scale, scores[first:last])

        self._eager.run_parts(part, len(q), values=q.size * blocks)
        return scores

    def _rotated(self, x: Floats, weight: Floats, angles: Angles) -> Floats:
        out = np.empty(x.shape, np.float32)
        pieces.norm_rotate(x, self._dim, weight, angles.host_cos, angles.host_sin, self._eps, out)
        return out

    def keys_of(self, scores: Floats, *, position: int) -> npt.NDArray[np.int32] | None:
        """The keys that a token at ``position`` sees, ascending, for its ``scores`` [blocks]; None for all of them."""
        complete = (position + 1) // self._ratio
        if complete <= self._best:
            return None
        visible = scores[:complete]
        worst = np.partition(visible, complete - self._best)[complete - self._best]
        chosen = np.flatnonzero(visible >= worst)
        if len(chosen) > self._best:
            chosen = np.array(select_largest(visible.tolist(), self._best))
        tokens = (chosen[:, None] * self._ratio + np.arange(self._ratio)).reshape(-1)
        rest = np.arange(complete * self._ratio, position + 1)
        return np.concatenate([tokens, rest]).astype(np.int32)
