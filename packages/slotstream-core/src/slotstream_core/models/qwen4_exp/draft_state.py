"""What the draft head remembers of a sequence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.state.rows import HostValues
from slotstream_core.state.snapshot import GrowingArray

Ids = npt.NDArray[np.int64]


@dataclass
class DraftState:
    """What the draft head remembers of a sequence.

    Attributes:
        attention: Keys and values of rows 0 to ``attention.length - 1``.
        streams: Main model's streams of the rows from ``first`` to the last token seen, [rows, streams, hidden]; rows
            that ``attention`` holds already are kept for as long as the next token may still be taken back.
        tokens: The tokens at the same places, [rows].
        first: Place of the first of them.
        on_host: Whether streams are computed when they arrive: numpy then cuts and joins them sooner than MLX would.
        behind: Latest tokens and their streams, not yet joined with the others: plain decoding adds a row at a time.
        rows_behind: How many they are.
    """

    attention: AttentionState
    streams: mx.array
    tokens: Ids
    first: int = 0
    on_host: bool = False
    behind: list[tuple[Ids, mx.array]] = field(default_factory=list)
    rows_behind: int = 0

    @property
    def length(self) -> int:
        """Tokens seen."""
        return self.first + len(self.tokens) + self.rows_behind

    @property
    def waiting(self) -> int:
        """Rows that the next draft takes in."""
        return self.length - self.attention.length

    def add(self, tokens: Ids, streams: mx.array) -> None:
        """Remember the ``tokens`` [T] of a pass and their ``streams`` [T, streams, hidden]."""
        self.behind.append((tokens, streams))
        self.rows_behind += len(tokens)

    def join(self) -> None:
        """Have all rows in ``streams`` and ``tokens``."""
        if self.behind:
            tokens, streams = zip(*self.behind, strict=True)
            if self.on_host:
                self.streams = mx.array(np.concatenate([np.asarray(part) for part in (self.streams, *streams)]))
            else:
                self.streams = mx.concatenate([self.streams, *streams])
            self.tokens = np.concatenate([self.tokens, *tokens])
            self.behind, self.rows_behind = [], 0

    def rows(self, first: int, last: int | None = None) -> mx.array:
        """The ``streams`` from one place to before another, or to the end, counted from `first`."""
        if self.on_host:
            return mx.array(np.asarray(self.streams)[first:last])
        return self.streams[first:last]

    def forget_rows(self, count: int) -> None:
        """Drop the earliest rows of ``streams`` and ``tokens``."""
        self.streams, self.tokens = self.rows(count), self.tokens[count:]
        self.first += count

    def fork(self) -> Self:
        """See `LayerState.fork`."""
        return replace(self, attention=self.attention.fork(), behind=list(self.behind))

    def trim(self, length: int) -> None:
        """See `LayerState.trim`."""
        self.join()
        self.drop_last_row(length)
        self.streams = self.rows(0, length - self.first)
        self.tokens = self.tokens[: length - self.first]

    def drop_last_row(self, length: int) -> None:
        """Drop the row at the last of ``length`` tokens, if there is one: the token after it is chosen anew."""
        if self.attention.length > max(0, length - 1):
            self.attention.trim(max(0, length - 1))

    def forget_passes(self) -> None:
        """See `LayerState.forget_passes`: what `trim` needs here is a few rows, which are kept."""

    def arrays(self) -> Iterable[mx.array]:
        """See `LayerState.arrays`."""
        yield from self.attention.arrays()
        yield self.streams
        for _, streams in self.behind:
            yield streams

    def fixed_arrays(self) -> Mapping[str, mx.array | HostValues]:
        """See `Storable.fixed_arrays`: with what `row_arrays` cannot hold, the latest block of the indexer."""
        self.join()
        attention = self._settled()
        index, first = attention.index, attention.length - self.first
        latest = max(0, attention.length // index.ratio - 1)
        return {
            **attention.fixed_arrays(),
            "latest_block": index.blocks[latest : latest + 1],
            "streams": self.streams[first:],
            "tokens": self.tokens[first:],
        }

    def row_arrays(self) -> Mapping[str, GrowingArray]:
        """See `Storable.row_arrays`: one row later than the head has them, since row t exists once t + 1 is known."""
        return {
            name: replace(growing, array=_moved(growing.array, growing.form.axis, 1))
            for name, growing in self._settled().row_arrays().items()
        }

    def load(self, length: int, fixed: Mapping[str, mx.array], rows: Mapping[str, mx.array]) -> None:
        """See `Storable.load`."""
        self.tokens = np.array(fixed["tokens"])
        self.streams = fixed["streams"]
        self.behind, self.rows_behind = [], 0
        self.first = length - len(self.tokens)
        own = {name: _moved(rows[name], growing.form.axis, -1) for name, growing in self.attention.row_arrays().items()}
        self.attention.load(self.first, fixed, own)
        self.attention.private.clear()  # a part of larger arrays
        index = self.attention.index
        if complete := self.first // index.ratio:
            index.blocks = mx.concatenate([index.blocks[: complete - 1], fixed["latest_block"]])

    def _settled(self) -> AttentionState:
        """The rows that the tokens seen so far decide."""
        attention = self.attention.fork()
        if attention.length > max(0, self.length - 1):
            attention.trim(max(0, self.length - 1))
        return attention


def _moved(array: mx.array, axis: int, by: int) -> mx.array:
    """Rows one place later, behind a row of zeros, or one place earlier, without the first row."""
    shape = list(array.shape)
    shape[axis] = 1
    if by > 0:
        return mx.concatenate([mx.zeros(shape, array.dtype), array], axis=axis)
    return mx.split(array, [1], axis=axis)[1]
