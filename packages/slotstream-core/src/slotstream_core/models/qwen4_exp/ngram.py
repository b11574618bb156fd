"""The n-gram embedding: hashed rows of the last tokens, gated into every residual stream."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.ngram_tables import derive_ngram_tables
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CheckpointDamaged
from slotstream_core.models.qwen4_exp.convolution import causal_convolution, last_rows
from slotstream_core.models.qwen4_exp.ngram_rows import NgramTable, RowCache, RowFetch
from slotstream_core.models.qwen4_exp.projections import FusedProjection, WeightReader
from slotstream_core.state.rows import HostValues
from slotstream_core.state.snapshot import GrowingArray

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NgramHash:
    """Maps each token and the ones before it to table rows.

    For an n-gram, the ids (newest first) are multiplied each by its own odd number in wrapping 64-bit arithmetic and
    combined by XOR; each head takes the non-negative remainder by its own size and adds its own offset. Tokens
    before an end of document, or before the sequence, count as the end-of-document id.

    Attributes:
        multipliers: One a position of the longest n-gram.
        head_sizes: One a head, all heads of bigrams first, then trigrams, and so on.
        head_offsets: First row of each head.
        eos_id: The end-of-document id.
    """

    multipliers: Ids
    head_sizes: Ids
    head_offsets: Ids
    eos_id: int

    @property
    def context_tokens(self) -> int:
        """Tokens before the present one that matter."""
        return len(self.multipliers) - 1

    def rows(self, context: Ids, ids: Ids) -> Ids:
        """Table rows [T, heads] of ``ids`` [T] that follow ``context`` [context_tokens]."""
        if len(ids) == 1:
            return np.array([self._rows_of_one(context.tolist(), int(ids[0]))], np.int64)
        history = np.concatenate([context, ids])
        tokens = len(ids)
        depth = self.context_tokens
        heads = len(self.head_sizes) // depth
        mixed = ids * self.multipliers[0]
        cut = np.zeros(tokens, bool)
        blocks = []
        for back in range(1, depth + 1):
            earlier = history[depth - back : depth - back + tokens]
            cut |= earlier == self.eos_id
            mixed = mixed ^ np.where(cut, self.eos_id, earlier) * self.multipliers[back]
            part = slice((back - 1) * heads, back * heads)
            blocks.append(np.remainder(mixed[:, None], self.head_sizes[part]) + self.head_offsets[part])
        return np.concatenate(blocks, axis=1)

    @cached_property
    def _numbers(self) -> tuple[list[int], list[tuple[int, int]]]:
        return self.multipliers.tolist(), list(zip(self.head_sizes.tolist(), self.head_offsets.tolist(), strict=True))

    def _rows_of_one(self, context: list[int], token: int) -> list[int]:
        """As `rows` for one token, without numpy's cost for each operation."""
        multipliers, heads = self._numbers
        depth = self.context_tokens
        share = len(heads) // depth
        mixed = _wrapped(token * multipliers[0])
        cut = False
        rows = []
        for back in range(1, depth + 1):
            earlier = context[depth - back]
            cut = cut or earlier == self.eos_id
            mixed ^= _wrapped((self.eos_id if cut else earlier) * multipliers[back])
            rows += [mixed % size + offset for size, offset in heads[(back - 1) * share : back * share]]
        return rows


def _wrapped(value: int) -> int:
    """``value`` in 64 bits, signed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(kw_only=True, slots=True)
class NgramBuffers:
    """Arrays that kernels write a window into, row after row. They belong to one `NgramState`.

    Attributes:
        windows: Two, written in turn.
        addresses: Of these on the device.
        current: Which of them is the state's.
    """

    windows: tuple[mx.array, mx.array]
    addresses: tuple[int, int]
    current: int = 0

    def hold(self, state: "NgramState") -> bool:
        """Whether the state's window is what was last written here."""
        return state.window is self.windows[self.current]


@dataclass
class NgramState:
    """What an n-gram layer remembers.

    Attributes:
        window: The last inputs of its convolution, [(taps - 1) * dilation, streams * hidden], compute dtype.
        context: The last token ids, on the host.
        recorded: Per position of the last recorded pass, from before its first token: (window, context).
        recorded_from: Length at the first of them.
        buffers: What kernels may write into, which nothing else refers to; forks share what is there.
    """

    window: mx.array
    context: Ids
    recorded: list[tuple[mx.array, Ids]] = field(default_factory=list)
    recorded_from: int = 0
    buffers: NgramBuffers | None = field(default=None, init=False, repr=False)

    def fork(self) -> Self:
        """See `LayerState.fork`."""
        self.buffers = None
        return replace(self, recorded=list(self.recorded))

    def trim(self, length: int) -> None:
        """See `LayerState.trim`."""
        position = length - self.recorded_from
        self.window, self.context = self.recorded[position]
        del self.recorded[position + 1 :]

    def forget_passes(self) -> None:
        """See `LayerState.forget_passes`."""
        self.recorded = []

    def arrays(self) -> Iterable[mx.array]:
        """See `LayerState.arrays`."""
        yield self.window
        for window, _ in self.recorded:
            yield window

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """See `Storable.fixed_arrays`."""
        return {"window": self.window, "context": self.context}

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """See `Storable.row_arrays`."""
        return {}

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """See `Storable.load`."""
        self.window, self.context, self.recorded = fixed["window"], np.array(fixed["context"], np.int64), []


class NgramLookUp:
    """Embeddings of some tokens, whose rows are on their way.

    Args:
        fetch: The distinct rows.
        places: Which of them each token has, [T, heads].
        embed: Unpacks distinct rows, and puts those at some places [N, heads] side by side, [N, heads * row width].
    """

    def __init__(
        self,
        fetch: RowFetch,
        places: npt.NDArray[np.intp],
        embed: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.intp]], mx.array],
    ) -> None:
        self._fetch = fetch
        self._places = places
        self._embed = embed
        self._packed: npt.NDArray[np.uint8] | None = None

    def embeddings(self, first: int = 0, last: int | None = None) -> mx.array:
        """Those of tokens ``first`` to ``last``, all of them unless told otherwise: [tokens, heads * row width].

        Raises:
            ExpertReadError: A row could not be read.
            CheckpointDamaged: A row holds a float that is not finite.
        """
        packed, places = self._distinct(), self._places[first:last]
        if len(places) == len(self._places):
            return self._embed(packed, places)
        distinct, inverse = np.unique(places, return_inverse=True)
        return self._embed(packed[distinct], inverse.reshape(places.shape))

    def packed(self, token: int) -> npt.NDArray[np.uint8]:
        """The packed rows of a token, by its index among them: [heads, row bytes].

        Raises:
            ExpertReadError: A row could not be read.
            CheckpointDamaged: A row holds a float that is not finite.
        """
        rows: npt.NDArray[np.uint8] = self._distinct()[self._places[token]]
        return rows

    def _distinct(self) -> npt.NDArray[np.uint8]:
        if self._packed is None:
            self._packed = self._fetch.finish()
        return self._packed


LookUps = dict[int, tuple[NgramLookUp, NgramState]]
"""By layer with an n-gram part: the embeddings of tokens, on their way, and its state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NgramSource:
    """What an n-gram layer is made from.

    Attributes:
        checkpoint: Has the table; open for as long as the layer is used.
        weights: Reads the layer's other tensors.
        prefix: Name of the layer's module.
        config: The model's.
        index: Which of the model's n-gram layers this is, from zero.
        cache_bytes: Most that packed rows take which are kept.
        lanes: Read rows.
    """

    checkpoint: Checkpoint
    weights: WeightReader
    prefix: str
    config: Qwen4ExpConfig
    index: int
    cache_bytes: int
    lanes: ThreadPoolExecutor


class NgramLayer:
    """The n-gram embedding of one decoder layer; owns its row cache, the sequence lives in `NgramState`.

    Raises (constructor):
        CheckpointError: A tensor is missing or cannot be used, or heads reach outside the table.
    """

    def __init__(self, source: NgramSource) -> None:
        checkpoint, weights, prefix, config = source.checkpoint, source.weights, source.prefix, source.config
        self._count, self._hidden = config.hc_count, config.hidden_size
        self._dtype = weights.compute_dtype
        self._table = NgramTable(checkpoint, f"{prefix}.ple_embedding.ngram_embedding", config.ngram_row_width)
        self._hash = _read_hash(weights, f"{prefix}.ple_embedding", config, source.index)
        _check_heads(self._hash, self._table.row_count, f"{prefix}.ple_embedding")
        self.cache = RowCache(self._table, source.cache_bytes, source.lanes)
        self._projections = FusedProjection(
            [weights.projection(f"{prefix}.key_proj"), weights.projection(f"{prefix}.value_proj")]
        )
        eps, groups = config.rms_norm_eps, self._count
        self._key_norm = weights.norm(f"{prefix}.norm_key.weight", eps, groups=groups)
        self._query_norm = weights.norm(f"{prefix}.norm_query.weight", eps, groups=groups, factor=self._hidden**-0.5)
        self._conv_norm = weights.norm(f"{prefix}.norm_conv.weight", eps, groups=groups)
        self._kernel = weights.vector(f"{prefix}.conv1d.weight")[:, :, 0].T  # [taps, streams * hidden]
        self._dilation = config.ngram_size
        mx.eval(self._kernel)

    def new_state(self) -> NgramState:
        """The state before the first token."""
        rows = (self._kernel.shape[0] - 1) * self._dilation
        return NgramState(
            window=mx.zeros((rows, self._kernel.shape[1]), self._dtype),
            context=np.full(self._hash.context_tokens, self._hash.eos_id, np.int64),
        )

    def look_up(self, ids: Ids, state: NgramState) -> NgramLookUp:
        """Start to read the embeddings of ``ids`` [T] after ``state``, which is left as it is."""
        rows = self._hash.rows(state.context, ids)
        if len(ids) == 1:  # few rows, which are seldom the same
            own = rows[0].tolist()
            order = sorted(set(own))
            places = np.array([[order.index(row) for row in own]], np.intp)
            fetch = self.cache.begin(np.array(order, np.int64))
        else:
            distinct, inverse = np.unique(rows, return_inverse=True)
            places = inverse.reshape(len(ids), -1)
            fetch = self.cache.begin(distinct)
        return NgramLookUp(fetch, places, self.embed)

    def embed(self, packed: npt.NDArray[np.uint8], places: npt.NDArray[np.intp]) -> mx.array:
        """The rows at ``places`` [T, heads] of ``packed`` ones, side by side: [T, heads * row width]."""
        values = self._table.unpack(packed, self._dtype)
        return values[mx.array(places.reshape(-1).astype(np.int32))].reshape(len(places), -1)

    def __call__(
        self, streams: mx.array, ids: Ids, embeddings: mx.array, state: NgramState, *, start: int, record: bool
    ) -> mx.array:
        """Advance ``state`` over ``ids`` [T] and return the new streams, [T, streams, hidden]."""
        tokens = streams.shape[0]
        keys, value = self._projections(embeddings)
        keys = self._key_norm(keys.reshape(streams.shape))
        queries = self._query_norm(streams)
        match = (keys * queries).sum(axis=-1, keepdims=True)  # [T, streams, 1], scaled by hidden^-1/2
        gate = mx.sigmoid(mx.sqrt(mx.maximum(mx.abs(match), 1e-6)) * mx.sign(match))
        gated = gate * value[:, None, :]
        normed = self._conv_norm(gated)
        padded = mx.concatenate([state.window, normed.reshape(tokens, self._count * self._hidden)])
        convolved = causal_convolution(padded, self._kernel, dilation=self._dilation)
        self._advance(padded, ids, state, start=start, record=record)
        return streams + gated + convolved.reshape(streams.shape)

    def _last_rows(self, padded: mx.array, kept: int) -> mx.array:
        return last_rows(padded, kept)

    def _advance(self, padded: mx.array, ids: Ids, state: NgramState, *, start: int, record: bool) -> None:
        kept = state.window.shape[0]
        history = np.concatenate([state.context, ids])
        depth = len(state.context)
        state.recorded = []
        if record:
            state.recorded_from = start
            for t in range(len(ids) + 1):
                state.recorded.append((padded[t : t + kept], history[t : t + depth]))
        state.window = self._last_rows(padded, kept)
        state.context = history[len(history) - depth :].copy()


def _read_hash(weights: WeightReader, module: str, config: Qwen4ExpConfig, index: int) -> NgramHash:
    """The constants stored in the checkpoint, or those derived from the configuration when it stores none."""
    names = [f"{module}.{name}" for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")]
    eos_id = config.eos_token_ids[0]
    if all(weights.has(name) for name in names):
        multipliers, sizes, offsets = (np.array(weights.vector(name, mx.int64)) for name in names)
        return NgramHash(multipliers=multipliers, head_sizes=sizes, head_offsets=offsets, eos_id=eos_id)
    tables = derive_ngram_tables(config, index)
    return NgramHash(
        multipliers=np.array(tables.multipliers, np.int64),
        head_sizes=np.array(tables.head_sizes, np.int64),
        head_offsets=np.array(tables.head_offsets, np.int64),
        eos_id=eos_id,
    )


def _check_heads(found: NgramHash, row_count: int, module: str) -> None:
    """Refuse heads that reach outside the table, whose rows would be read from elsewhere in the file."""
    sizes, offsets = found.head_sizes.tolist(), found.head_offsets.tolist()
    for head, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        if size < 1 or offset < 0 or offset + size > row_count:
            raise CheckpointDamaged(
                f"head {head} of {module} has {size:,} rows from row {offset:,} on; its table has {row_count:,} rows; "
                "download or convert the checkpoint again"
            )
