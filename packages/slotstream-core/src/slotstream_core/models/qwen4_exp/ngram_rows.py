"""Rows of the n-gram tables, read from disk on demand through a bounded cache.

A table never enters memory: a row is one `pread` a piece (weights, scales and biases when quantised), rows of one
request are read by several threads at once, and the packed bytes are kept first in, first out up to a byte budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.floats import first_not_finite
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CheckpointDamaged, ExpertReadError
from slotstream_core.native.matrices import BITS, GROUP_SIZES
from slotstream_core.native.products import RecordLayout

READ_LANES: Final = 8
ROWS_PER_LANE: Final = 16
"""A request is split over more lanes only when each gets at least this many rows."""

_DTYPES: Final = {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16, "U32": mx.uint32}

_FLOAT_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2}


ReadRows = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]], int]
"""`slotstream_core._native.read_rows`."""


class RowReader(Protocol):
    """Where packed rows come from."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one packed row."""

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
        """Read ``rows`` [N] into ``out`` [N, row_bytes].

        Raises:
            ExpertReadError: A read failed or ended early; ``out`` is undefined.
        """


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """One tensor of every shard: dtype, bytes of a row, and where each shard's tensor begins."""

    dtype: str
    row_bytes: int
    files: tuple[tuple[int, int, str], ...]  # (descriptor, offset, "file: tensor") a shard


class NgramTable:
    """One n-gram table of a checkpoint: shards of rows in order, all stored alike.

    Args:
        checkpoint: Open for as long as the table is used; not owned.
        module: Name of the table without ``.shard_0``.
        row_width: Elements of one row.

    Raises:
        CheckpointDamaged: No shard, or shards that are not stored alike.
    """

    def __init__(self, checkpoint: Checkpoint, module: str, row_width: int) -> None:
        self._row_width = row_width
        shards: list[str] = []
        while checkpoint.has(f"{module}.shard_{len(shards)}.weight"):
            shards.append(f"{module}.shard_{len(shards)}")
        if not shards:
            raise CheckpointDamaged(f"{module} has no shard_0; the n-gram table is missing from the checkpoint")
        quantization = checkpoint.module_quantization(shards[0])
        self._bits = quantization.bits if quantization else 0
        self._group_size = quantization.group_size if quantization else 0
        parts = ("weight", "scales", "biases") if quantization else ("weight",)
        self._pieces = tuple(_piece(checkpoint, shards, part) for part in parts)
        self._places = np.array([[file[:2] for file in piece.files] for piece in self._pieces], np.int64)
        self._widths = np.array([piece.row_bytes for piece in self._pieces], np.int64)
        self._read_rows: ReadRows | None = None
        self._starts = np.cumsum([0] + [checkpoint.tensors[f"{shard}.weight"].shape[0] for shard in shards])

    @property
    def row_count(self) -> int:
        """Rows of all shards."""
        return int(self._starts[-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one packed row, its pieces one after another."""
        return sum(piece.row_bytes for piece in self._pieces)

    def read_with(self, read_rows: ReadRows) -> None:
        """Let compiled code read from now on."""
        self._read_rows = read_rows

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
        """See `RowReader.read`.

        Raises:
            CheckpointDamaged: A float of a row is not finite.
            ExpertReadError: As for `RowReader.read`.
        """
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        locals_ = rows - self._starts[shards]
        done = 0
        if self._read_rows is not None:
            places = np.ascontiguousarray(self._places[:, shards].transpose(1, 0, 2))
            places[:, :, 1] += locals_[:, None] * self._widths
            done = self._read_rows(places, self._widths, out)
        # where compiled code did not get on, this says what is wrong
        for shard, row, target in zip(shards[done:].tolist(), locals_[done:].tolist(), out[done:], strict=True):
            view = memoryview(target)
            start = 0
            for piece in self._pieces:
                descriptor, offset, name = piece.files[shard]
                _read_exactly(descriptor, view[start : start + piece.row_bytes], offset + row * piece.row_bytes, name)
                start += piece.row_bytes
        self._refuse_not_finite(rows, shards, out)

    def _refuse_not_finite(
        self, rows: npt.NDArray[np.int64], shards: npt.NDArray[np.intp], packed: npt.NDArray[np.uint8]
    ) -> None:
        start = 0
        for piece in self._pieces:
            floats = np.ascontiguousarray(packed[:, start : start + piece.row_bytes])
            start += piece.row_bytes
            bad = first_not_finite(floats, piece.dtype)
            if bad is not None:
                at = bad // (piece.row_bytes // _FLOAT_BYTES[piece.dtype])
                name = piece.files[int(shards[at])][2]
                raise CheckpointDamaged(
                    f"{name} holds a value that is not finite in row {int(rows[at] - self._starts[shards[at]]):,}; "
                    "download or convert the checkpoint again"
                )

    def record_layout(self) -> RecordLayout | None:
        """How the compiled products see a packed row; None when it is not quantised or they do not take it."""
        if self._bits not in BITS or self._group_size not in GROUP_SIZES or self._pieces[1].dtype == "F16":
            return None
        return RecordLayout(
            columns=self._row_width,
            bits=self._bits,
            group_size=self._group_size,
            bfloat16=self._pieces[1].dtype == "BF16",
        )

    def unpack(self, packed: npt.NDArray[np.uint8], dtype: mx.Dtype) -> mx.array:
        """Values of packed rows [N, row_bytes] as [N, row_width]; quantised rows are rounded to bfloat16 first."""
        arrays = []
        start = 0
        for piece in self._pieces:
            raw = np.ascontiguousarray(packed[:, start : start + piece.row_bytes])
            arrays.append(mx.array(raw).view(_DTYPES[piece.dtype]))
            start += piece.row_bytes
        if len(arrays) == 1:
            return arrays[0].astype(dtype)
        weight, scales, biases = arrays[0], arrays[1].astype(mx.float32), arrays[2].astype(mx.float32)
        values = mx.dequantize(weight, scales, biases, group_size=self._group_size, bits=self._bits)
        return values.astype(mx.bfloat16).astype(dtype)


def _piece(checkpoint: Checkpoint, shards: Sequence[str], part: str) -> _Piece:
    first = checkpoint.tensors[f"{shards[0]}.{part}"]
    row_bytes = first.byte_count // first.shape[0]
    files = []
    for shard in shards:
        name = f"{shard}.{part}"
        info = checkpoint.tensors[name]
        if info.dtype != first.dtype or info.byte_count != row_bytes * info.shape[0]:
            raise CheckpointDamaged(
                f"{info.path.name}: {name} is {info.dtype} with {info.byte_count:,} bytes for {info.shape[0]:,} rows, "
                f"unlike {shards[0]}.{part} ({first.dtype}, {row_bytes} bytes a row); convert the checkpoint again"
            )
        extent = checkpoint.extent(name)
        files.append((extent.fd, extent.offset, f"{extent.path.name}: {name}"))
    return _Piece(dtype=first.dtype, row_bytes=row_bytes, files=tuple(files))


def _read_exactly(descriptor: int, view: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:]], offset + done)
        except OSError as error:
            raise ExpertReadError(f"{name}: reading {len(view)} bytes at offset {offset:,} failed: {error}") from error
        if count == 0:
            raise ExpertReadError(
                f"{name}: the file ends early; {len(view)} bytes wanted at offset {offset:,}, {done} read. "
                "It was truncated while in use: verify the checkpoint"
            )
        done += count


class RowCache:
    """Packed rows of one table, at most ``budget_bytes`` of them, oldest dropped first. Used by one thread.

    Args:
        reader: Where missing rows are read.
        budget_bytes: Payload kept; at least one row is.
        lanes: Runs the reads; shared and not owned.

    Attributes:
        hits: Distinct rows found in the cache, over all requests.
        misses: Distinct rows read from disk.
    """

    def __init__(self, reader: RowReader, budget_bytes: int, lanes: ThreadPoolExecutor) -> None:
        self._reader = reader
        self._lanes = lanes
        self.capacity_rows = max(1, budget_bytes // reader.row_bytes)
        self._places: dict[int, int] = {}  # of kept rows
        self._kept = np.empty((self.capacity_rows, reader.row_bytes), np.uint8)  # a ring; pages are taken when written
        self._row_at = np.empty(self.capacity_rows, np.int64)  # the row in each place that was written
        self._written = 0  # rows that ever entered the ring
        self.hits = 0
        self.misses = 0

    def fetch(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Packed bytes [N, row_bytes] of the distinct ``rows`` [N].

        Raises:
            ExpertReadError: A read failed or ended early; the cache keeps only complete rows.
        """
        return self.begin(rows).finish()

    def begin(self, rows: npt.NDArray[np.int64]) -> RowFetch:
        """Start to read those of some distinct rows [N] that are missing; finish that before the next is begun."""
        place_of = self._places.get
        places = np.array([place_of(row, -1) for row in rows.tolist()], np.int64)
        missing = np.flatnonzero(places < 0)
        self.hits += len(rows) - len(missing)
        self.misses += len(missing)
        wanted = rows[missing]
        out = np.empty((len(wanted), self._reader.row_bytes), np.uint8)
        lanes = min(READ_LANES, max(1, len(wanted) // ROWS_PER_LANE)) if len(wanted) else 0
        cuts = np.linspace(0, len(wanted), lanes + 1).astype(int).tolist()
        jobs = [
            self._lanes.submit(self._reader.read, wanted[a:b], out[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)
        ]
        return RowFetch(self, rows, places, missing, out, jobs)

    def finish(self, fetch: RowFetch) -> npt.NDArray[np.uint8]:
        """See `RowFetch.finish`."""
        failures = [error for job in fetch.jobs if (error := job.exception()) is not None]
        if failures:
            raise failures[0]
        missing, read = fetch.missing, fetch.read
        if not len(missing):
            return self._kept[fetch.places]
        packed = read
        if len(missing) < len(fetch.rows):
            packed = self._kept[fetch.places]  # of missing rows something else, replaced at once
            packed[missing] = read
        self._keep(fetch.rows[missing], read)
        return packed

    def _keep(self, rows: npt.NDArray[np.int64], read: npt.NDArray[np.uint8]) -> None:
        first = max(0, len(rows) - self.capacity_rows)
        rows, read = rows[first:], read[first:]
        order = self._written + np.arange(len(rows))
        places = order % self.capacity_rows
        for row in self._row_at[places[order >= self.capacity_rows]].tolist():
            del self._places[row]
        self._kept[places], self._row_at[places] = read, rows
        self._places.update(zip(rows.tolist(), places.tolist(), strict=True))
        self._written += len(rows)

    @property
    def kept_bytes(self) -> int:
        """Payload held now."""
        return len(self._places) * self._reader.row_bytes


class RowFetch:
    """Rows on their way from a `RowCache`, which makes these.

    Attributes:
        rows: What was asked for, [N].
        places: Where the cache has them, [N]; -1 where it does not.
        missing: Which are read, as indices into `rows`.
        read: The bytes of those, complete once the jobs are done.
        jobs: The reads.
    """

    def __init__(
        self,
        cache: RowCache,
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        missing: npt.NDArray[np.intp],
        read: npt.NDArray[np.uint8],
        jobs: Sequence[Future[None]],
    ) -> None:
        self._cache = cache
        self.rows = rows
        self.places = places
        self.missing = missing
        self.read = read
        self.jobs = jobs

    def finish(self) -> npt.NDArray[np.uint8]:
        """Wait for the reads; returns packed bytes [N, row_bytes].

        Raises:
            ExpertReadError: A read failed or ended early; the cache keeps only complete rows.
        """
        return self._cache.finish(self)
