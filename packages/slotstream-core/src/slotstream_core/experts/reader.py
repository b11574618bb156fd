"""Parallel reads of expert records from disk into slots.

Reader threads ("lanes") run `preadv`, which releases the interpreter lock, and write through host views of the slots;
they never call MLX. Pieces stored as a slot holds them are read straight into the slot, others into the lane's scratch
and converted from there. Nothing is published here: a slot being read belongs to the pool's bookkeeping, and only a
finished batch says which records are complete.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from slotstream_core.errors import CheckpointDamaged, ExpertReadError, SettingError, SlotstreamError
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.slots import Bytes, SlotArrays, is_finite

LANES_VARIABLE = "SLOTSTREAM_IO_QUEUE_DEPTH"
LANES_MAX = 128
DEMAND_LANES = 32
MERGE_BYTES = 1 << 20
JOB_BYTES = 1 << 18
PIECES_PER_READ = 256  # well under the kernel's limit of 1,024 buffers a call
CLOSE_WAIT_S = 5.0


class ExpertSource(Protocol):
    """Finds and reads expert records; knows nothing of slots."""

    @property
    def layout(self) -> ExpertLayout:
        """What a record is made of."""

    def locate(self, layer: int, expert: int) -> Sequence[tuple[int, int]]:
        """Return the descriptor and offset of every piece of one record, in the order of `layout.kinds`."""

    def path(self, fd: int) -> Path:
        """Return the file behind a descriptor, for messages."""

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers in order from an offset, once; return the bytes read, fewer than asked at worst, 0 at the end.

        Called by several threads at once.

        Raises:
            OSError: The file cannot be read.
        """


class StoredExperts:
    """The source for an open checkpoint: the extents of its layout. The checkpoint owns the descriptors."""

    def __init__(self, layout: ExpertLayout) -> None:
        self._layout = layout
        self._paths = {piece.fd: piece.path for layer in layout.layers for piece in layer}
        self._starts = [
            [(piece.fd, piece.offset, kind.disk_bytes) for piece, kind in zip(layer, layout.kinds, strict=True)]
            for layer in layout.layers
        ]

    @property
    def layout(self) -> ExpertLayout:
        """See `ExpertSource`."""
        return self._layout

    def locate(self, layer: int, expert: int) -> Sequence[tuple[int, int]]:
        """See `ExpertSource`."""
        return [(fd, start + expert * stride) for fd, start, stride in self._starts[layer]]

    def path(self, fd: int) -> Path:
        """See `ExpertSource`."""
        return self._paths[fd]

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `ExpertSource`."""
        return os.preadv(fd, buffers, offset)


class Record(NamedTuple):
    """One expert to read into one slot; `check` asks that its scales be verified to be finite."""

    layer: int
    expert: int
    slot: int
    check: bool


class Piece(NamedTuple):
    """One piece of one record of a batch, by position."""

    kind: int
    record: int


@dataclass(slots=True)
class Segment:
    """Pieces that lie one after the other on disk: one read."""

    fd: int
    offset: int
    byte_count: int
    pieces: list[Piece]


class ReadBatch:
    """The records of one request on their way into slots.

    Lanes claim its jobs one by one. Any thread may look at `done`; the other results are stable once it is set.

    Attributes:
        records: What is being read.
        done: Set when no lane touches these slots any more.
        errors: For records that did not arrive, by position in `records`, why.
        bytes_read: Bytes that arrived.
        read_s: Time the lanes spent.
        cancelled: Whether `cancel` was called.
    """

    def __init__(
        self, records: Sequence[Record], arrays: SlotArrays, source: ExpertSource, jobs: Sequence[list[Segment]]
    ) -> None:
        self.records = tuple(records)
        self.done = threading.Event()
        self.errors: dict[int, SlotstreamError] = {}
        self.bytes_read = 0
        self.read_s = 0.0
        self.cancelled = False
        self._arrays = arrays
        self._source = source
        self._waiting = dict(enumerate(jobs))
        self._running = 0
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Drop the jobs no lane has claimed. `done` follows as soon as the reads under way return."""
        error = ExpertReadError("the read was cancelled before it started")
        with self._lock:
            self.cancelled = True
            for segments in self._waiting.values():
                self.errors |= {piece.record: error for segment in segments for piece in segment.pieces}
            self._waiting.clear()
            if not self._running:
                self.done.set()

    def waiting_jobs(self) -> list[int]:
        """Return the jobs that no lane has claimed."""
        with self._lock:
            return list(self._waiting)

    def run(self, job: int, scratch: Bytes) -> None:
        """Read one job, unless it was cancelled. Called by lanes."""
        with self._lock:
            segments = self._waiting.pop(job, None)
            if segments is None:
                return
            self._running += 1
        started = time.perf_counter()
        bytes_read = 0
        errors: dict[int, SlotstreamError] = {}
        for segment in segments:
            try:
                if self.cancelled:
                    raise ExpertReadError("the read was cancelled before it started")
                self._read(segment, scratch)
                bytes_read += segment.byte_count
                self._place(segment, scratch, errors)
            except SlotstreamError as error:
                errors |= {piece.record: error for piece in segment.pieces}
            except Exception as error:  # noqa: BLE001 - the top of a lane: whatever happened, the batch must end
                wrapped = ExpertReadError(f"reading experts failed unexpectedly: {type(error).__name__}: {error}")
                errors |= {piece.record: wrapped for piece in segment.pieces}
        with self._lock:
            self.bytes_read += bytes_read
            self.read_s += time.perf_counter() - started
            self.errors.update(errors)
            self._running -= 1
            if not self._running and not self._waiting:
                self.done.set()

    def _buffers(self, segment: Segment, scratch: Bytes) -> list[memoryview]:
        kinds = self._source.layout.kinds
        buffers: list[memoryview] = []
        room = scratch.data
        for kind_index, record_index in segment.pieces:
            kind = kinds[kind_index]
            if kind.converts:
                buffers.append(room[: kind.disk_bytes])
                room = room[kind.disk_bytes :]
            else:
                start = self.records[record_index].slot * kind.slot_bytes
                buffers.append(self._arrays.windows[kind_index][start : start + kind.slot_bytes])
        return buffers

    def _read(self, segment: Segment, scratch: Bytes) -> None:
        buffers = self._buffers(segment, scratch)
        done = 0
        while done < segment.byte_count:
            try:
                count = self._source.read(segment.fd, buffers, segment.offset + done)
            except OSError as error:
                raise self._failure(segment, done, error.strerror or str(error)) from error
            if count <= 0:
                raise self._failure(segment, done, "the file ends there")
            done += count
            if done < segment.byte_count:
                buffers = _remaining(buffers, count)

    def _failure(self, segment: Segment, got: int, reason: str) -> ExpertReadError:
        kinds = self._source.layout.kinds
        ends = itertools.accumulate(kinds[piece.kind].disk_bytes for piece in segment.pieces)
        first_missing = next(piece for piece, end in zip(segment.pieces, ends, strict=True) if end > got)
        record = self.records[first_missing.record]
        return ExpertReadError(
            f"{self._source.path(segment.fd)}: reading expert {record.expert} of layer {record.layer} failed: wanted "
            f"{segment.byte_count:,} bytes at offset {segment.offset:,}, got {got:,} ({reason}); "
            "check the disk and verify the checkpoint, then ask again"
        )

    def _place(self, segment: Segment, scratch: Bytes, errors: dict[int, SlotstreamError]) -> None:
        """Convert what was read into scratch, and check scales where asked."""
        kinds, start = self._source.layout.kinds, 0
        for kind_index, record_index in segment.pieces:
            kind, record = kinds[kind_index], self.records[record_index]
            must_check = record.check and kind.part != "weight"
            if kind.converts:
                stored = scratch[start : start + kind.disk_bytes]
                start += kind.disk_bytes
                self._arrays.write(kind_index, record.slot, stored)
            elif must_check:
                stored = self._arrays.views[kind_index][record.slot]
            if must_check and not is_finite(kind.disk_dtype, stored):
                tensor = self._source.layout.layers[record.layer][kind_index].tensor
                errors[record_index] = CheckpointDamaged(
                    f"{self._source.path(segment.fd)}: {tensor} holds values that are not finite for expert "
                    f"{record.expert}; download or convert the checkpoint again"
                )


class ExpertReader:
    """A fixed set of lanes, made once and closed once; a context manager.

    Its methods are for one thread.
    """

    def __init__(self, source: ExpertSource, *, lane_count: int) -> None:
        self.source = source
        self.lane_count = lane_count
        self._jobs: queue.SimpleQueue[tuple[ReadBatch, int] | None] = queue.SimpleQueue()
        self._outstanding: weakref.WeakSet[ReadBatch] = weakref.WeakSet()
        self._closed = False
        # A segment that holds a converted piece never exceeds this: merging stops at MERGE_BYTES.
        scratch_bytes = max([MERGE_BYTES, *(kind.disk_bytes for kind in source.layout.kinds if kind.converts)])
        self._lanes = [
            threading.Thread(
                target=_work, args=(self._jobs, scratch_bytes), name=f"slotstream-lane-{index}", daemon=True
            )
            for index in range(lane_count)
        ]
        for lane in self._lanes:
            lane.start()

    def __enter__(self) -> ExpertReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, records: Sequence[Record], arrays: SlotArrays) -> ReadBatch:
        """Plan the reads of at least one record into its slot. Nothing moves before `submit`.

        Raises:
            ExpertReadError: The reader is closed.
        """
        if self._closed:
            raise ExpertReadError("the expert reader is closed; load the model again")
        jobs = _jobs_of(_segments(self.source, records), self.lane_count)
        return ReadBatch(records, arrays, self.source, jobs)

    def submit(self, batch: ReadBatch) -> None:
        """Hand a prepared batch to the lanes and return at once."""
        self._outstanding.add(batch)
        for job in batch.waiting_jobs():
            self._jobs.put((batch, job))

    def close(self) -> None:
        """Skip queued reads and end the lanes. Waits at most a few seconds for a disk that does not answer."""
        if self._closed:
            return
        self._closed = True
        for batch in list(self._outstanding):
            batch.cancel()
        for _ in self._lanes:
            self._jobs.put(None)
        deadline = time.monotonic() + CLOSE_WAIT_S
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))


def _work(jobs: queue.SimpleQueue[tuple[ReadBatch, int] | None], scratch_bytes: int) -> None:
    scratch = np.empty(scratch_bytes, dtype=np.uint8)
    while (job := jobs.get()) is not None:
        batch, index = job
        batch.run(index, scratch)
        del job, batch  # an idle lane keeps no slot memory alive


def _segments(source: ExpertSource, records: Sequence[Record]) -> list[Segment]:
    """Cover every piece of the records, joining neighbours on disk while a read stays within MERGE_BYTES."""
    sizes = [kind.disk_bytes for kind in source.layout.kinds]
    pieces = sorted(
        (fd, offset, kind, index)
        for index, record in enumerate(records)
        for kind, (fd, offset) in enumerate(source.locate(record.layer, record.expert))
    )
    segments: list[Segment] = []
    last = Segment(fd=-1, offset=0, byte_count=0, pieces=[])
    for fd, offset, kind, index in pieces:
        size = sizes[kind]
        adjacent = fd == last.fd and offset == last.offset + last.byte_count
        if adjacent and last.byte_count + size <= MERGE_BYTES and len(last.pieces) < PIECES_PER_READ:
            last.byte_count += size
            last.pieces.append(Piece(kind, index))
        else:
            last = Segment(fd=fd, offset=offset, byte_count=size, pieces=[Piece(kind, index)])
            segments.append(last)
    return segments


def _jobs_of(segments: list[Segment], lane_count: int) -> list[list[Segment]]:
    """Share segments out: large ones singly and first, small ones together so that a hand-over pays for itself."""
    total = sum(segment.byte_count for segment in segments)
    if total <= JOB_BYTES:
        return [segments]
    target = max(JOB_BYTES, -(-total // (2 * lane_count)))
    segments.sort(key=lambda segment: -segment.byte_count)
    jobs: list[list[Segment]] = []
    filled = target
    for segment in segments:
        if filled + segment.byte_count > target:
            jobs.append([])
            filled = 0
        jobs[-1].append(segment)
        filled += segment.byte_count
    return jobs


def _remaining(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the buffers left after `count` bytes were filled."""
    rest: list[memoryview] = []
    for buffer in buffers:
        if count >= buffer.nbytes:
            count -= buffer.nbytes
        else:
            rest.append(buffer[count:])
            count = 0
    return rest


def choose_lanes(environment: Mapping[str, str], *, core_count: int) -> int:
    """Return how many lanes to use: the environment's SLOTSTREAM_IO_QUEUE_DEPTH, else four a core, at most 32.

    A lane waits for the disk most of the time, so there are more of them than cores; a fast disk needs about 32
    requests in flight to reach its throughput, and two cores cannot feed so many.

    Raises:
        SettingError: The variable is not a whole number from 1 to 128.
    """
    text = environment.get(LANES_VARIABLE)
    if text is None:
        return min(DEMAND_LANES, 4 * max(1, core_count))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= LANES_MAX):
        raise SettingError(f"{LANES_VARIABLE} is {text!r}; use a whole number from 1 to {LANES_MAX}, or unset it")
    return int(text)
