"""The indexer: scores blocks of past keys and selects which of them each token attends to.

Keys of ``indexer_compress_ratio`` consecutive tokens are averaged into one block key once the block is complete. A
token attends to the ``indexer_budget / indexer_compress_ratio`` best complete blocks before or at it, and to the
tokens after its last complete block, which are at most a block less one. Score: sum over index heads of
max(0, q . k) / sqrt(dim); of equal scores the earlier block wins, or in float32 the one that `tied_blocks` finds.
Until there are more complete blocks than the budget holds, everything is selected and nothing is scored.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.rotary import Angles, rotate
from slotstream_core.models.qwen4_exp.tied_blocks import select_largest
from slotstream_core.state.rows import HostValues, RowForm
from slotstream_core.state.snapshot import GrowingArray

BLOCK_STEP = 256
"""The block cache grows by this many blocks."""


@dataclass
class IndexState:
    """What the indexer remembers.

    Attributes:
        blocks: Normalised and rotated keys of complete blocks, [capacity, dim], compute dtype.
        tail: Raw keys of the tokens after the last complete block, [tokens, dim].
        length: Tokens seen.
        ratio: Tokens a block.
        recorded: Raw keys from the last complete block before the last recorded pass to its end.
        recorded_from: Index of the first token of ``recorded``.
        private: The blocks that nothing else refers to and that may be written in place; forks share.
        tail_room: Arrays of no token, one, and so on up to ``ratio``, all at one place in memory, which nothing else
            refers to; where ``tail`` is one of them, the next token may be written there in place. Forks share.
    """

    blocks: mx.array
    tail: mx.array
    ratio: int
    length: int = 0
    recorded: mx.array | None = None
    recorded_from: int = 0
    private: mx.array | None = field(default=None, init=False, repr=False)
    tail_room: tuple[mx.array, ...] = field(default=(), init=False, repr=False)

    def fork(self) -> Self:
        """See `LayerState.fork`."""
        self.private, self.tail_room = None, ()
        return replace(self)

    def copy(self) -> Self:
        """As `fork`, for going back here from a short way on: blocks completed meanwhile are written over then."""
        self.tail_room = ()
        copied = replace(self)
        copied.private = self.private
        return copied

    def trim(self, length: int) -> None:
        """See `LayerState.trim`."""
        first = length // self.ratio * self.ratio
        if self.recorded is not None:
            self.tail = self.recorded[first - self.recorded_from : length - self.recorded_from]
            self.recorded = self.recorded[: length - self.recorded_from]
        self.length = length

    def forget_passes(self) -> None:
        """See `LayerState.forget_passes`."""
        self.recorded = None

    def arrays(self) -> Iterable[mx.array]:
        """See `LayerState.arrays`."""
        yield self.blocks
        yield self.tail
        if self.recorded is not None:
            yield self.recorded

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """See `Storable.fixed_arrays`."""
        return {"tail": self.tail}

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """See `Storable.row_arrays`."""
        form = RowForm(axis=0, tokens_per_row=self.ratio, step_rows=BLOCK_STEP)
        return {"blocks": GrowingArray(array=self.blocks, form=form)}

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """See `Storable.load`."""
        self.blocks, self.tail, self.length = rows["blocks"], fixed["tail"], length
        self.recorded = None


class Selector:
    """The indexer of one attention layer; weights only, the sequence lives in `IndexState`.

    Attributes:
        evaluates: Whether choosing blocks evaluates their scores, to choose among equal ones as float32 references do.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        self._heads = config.indexer_n_heads
        self._dim = config.indexer_head_dim
        self._ratio = config.indexer_compress_ratio
        self._best = config.indexer_budget // config.indexer_compress_ratio
        self._dtype = weights.compute_dtype
        self.evaluates = self._dtype == mx.float32
        self._q_norm = weights.norm(f"{prefix}.q_layernorm.weight", config.rms_norm_eps)
        self._k_norm = weights.norm(f"{prefix}.k_layernorm.weight", config.rms_norm_eps)

    @property
    def norm_weights(self) -> tuple[mx.array, mx.array]:
        """Of the queries' norm and of the keys', [1, dim] each."""
        return self._q_norm.plain_weight, self._k_norm.plain_weight

    def new_state(self) -> IndexState:
        """The state before the first token."""
        empty = mx.zeros((0, self._dim), self._dtype)
        return IndexState(blocks=empty, tail=empty, ratio=self._ratio)

    def score_blocks(
        self, qk: mx.array, state: IndexState, *, angles: Angles, block_angles: Angles | None, record: bool
    ) -> mx.array | None:
        """Take in the pass's keys and score every complete block for every token.

        Args:
            qk: Index queries and one key of each token, [T, (heads + 1) * dim].
            state: Advanced by the pass.
            angles: Of the pass's tokens.
            block_angles: Of the first tokens of the blocks completed by this pass, or None.
            record: Keep the raw keys of the pass so that ``state`` can be trimmed to any length inside it.

        Returns:
            Scores [T, blocks], float32, of all complete blocks (also those after a token); None when every token
            may see everything.
        """
        tokens = qk.shape[0]
        done = state.length // self._ratio
        raw = mx.concatenate([state.tail, qk[:, self._heads * self._dim :]])
        fresh = raw.shape[0] // self._ratio
        if fresh and block_angles is not None:
            whole = raw[: fresh * self._ratio].reshape(fresh, self._ratio, self._dim)
            pooled = whole.astype(mx.float32).mean(axis=1).astype(self._dtype)
            keys = rotate(self._k_norm(pooled[:, None]), block_angles)[:, 0]
            state.blocks = state.private = self._append(state.blocks, keys, done)
        state.tail = raw[fresh * self._ratio :]
        state.recorded = raw if record else None
        state.recorded_from = done * self._ratio
        state.length += tokens
        blocks = done + fresh
        if blocks <= self._best:
            return None
        q = qk[:, : self._heads * self._dim].reshape(tokens, self._heads, self._dim)
        q = rotate(self._q_norm(q), angles).astype(mx.float32)
        products = q.swapaxes(0, 1) @ state.blocks[:blocks].astype(mx.float32).T  # [heads, T, blocks]
        scores: mx.array = mx.maximum(products, 0.0).sum(axis=0) * self._dim**-0.5
        return scores

    def _append(self, blocks: mx.array, rows: mx.array, start: int) -> mx.array:
        end = start + rows.shape[0]
        if end > blocks.shape[0]:
            grown = -(-end // BLOCK_STEP) * BLOCK_STEP - blocks.shape[0]
            blocks = mx.concatenate([blocks, mx.zeros((grown, self._dim), blocks.dtype)])
        return mx.slice_update(blocks, rows.astype(blocks.dtype), mx.array([start]), (0,))

    def block_mask(self, scores: mx.array, *, first_position: int) -> mx.array:
        """Which blocks each row selects, [T, blocks] bool; row t stands at ``first_position + t``."""
        rows, blocks = scores.shape
        complete = (np.arange(rows)[:, None] + first_position + 1) // self._ratio
        visible = mx.array(np.arange(blocks) < complete)
        scores = mx.where(visible, scores, -mx.inf)
        worst = mx.partition(scores, blocks - self._best, axis=-1)[:, blocks - self._best, None]
        better = scores > worst
        equal = (scores == worst) & visible
        room = self._best - better.sum(axis=-1, keepdims=True)
        selected = better | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))
        if not self.evaluates:
            return selected
        contested = np.array(equal.sum(axis=-1) > room[:, 0])
        return self._settle(selected, scores, np.flatnonzero(contested), complete) if contested.any() else selected

    def _settle(
        self, selected: mx.array, scores: mx.array, rows: npt.NDArray[np.intp], complete: npt.NDArray[np.int64]
    ) -> mx.array:
        """Choose among equals in ``rows`` as the family's own implementation does on a CPU."""
        mask, values = np.array(selected), np.array(scores)
        for row in rows:
            mask[row] = False
            mask[row, select_largest(values[row, : complete[row, 0]].tolist(), self._best)] = True
        return mx.array(mask)

    def token_mask(self, scores: mx.array, *, first_position: int, keys: int) -> mx.array:
        """Which keys each row sees, [T, keys] bool, for scores of all complete blocks among ``keys`` keys."""
        rows, blocks = scores.shape
        selected = mx.repeat(self.block_mask(scores, first_position=first_position), self._ratio, axis=1)
        rest = keys - blocks * self._ratio
        if rest:
            selected = mx.concatenate([selected, mx.zeros((rows, rest), mx.bool_)], axis=1)
        positions = np.arange(rows)[:, None] + first_position
        index = np.arange(keys)
        open_block = (index >= (positions + 1) // self._ratio * self._ratio) & (index <= positions)
        return selected | mx.array(open_block)

    def token_indices(self, scores: mx.array, *, position: int) -> mx.array:
        """The keys that a token at ``position`` sees, ascending, for its ``scores`` [blocks]."""
        complete = (position + 1) // self._ratio
        rest = mx.arange(complete * self._ratio, position + 1)
        if complete <= self._best:
            return mx.arange(position + 1)
        chosen = self.block_mask(scores[None, :complete], first_position=position)[0]
        blocks = mx.sort(mx.argsort(mx.logical_not(chosen))[: self._best])
        tokens = (blocks[:, None] * self._ratio + mx.arange(self._ratio)).reshape(-1)
        return mx.concatenate([tokens, rest.astype(tokens.dtype)])
