"""One request's reads: which bytes go where, and what became of them."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from slotstream_core.errors import CheckpointDamaged, ExpertReadError, SlotstreamError
from slotstream_core.experts.directories import Fault
from slotstream_core.experts.slot_memory import Bytes
from slotstream_core.experts.slots import SlotArrays, converted, is_finite
from slotstream_core.experts.sources import ExpertSource


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


class _Unread(Exception):
    """A segment that did not come in full; it may lie elsewhere."""

    def __init__(self, segment: Segment, error: int, got: int) -> None:
        super().__init__(error, got)
        self.fault = Fault(segment.fd, error, segment.offset, segment.byte_count, got)


class DemandGate:
    """Open while no read that a computation waits for is under way. Lanes that read ahead stand aside while it is shut.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()

    def enter(self) -> None:
        """Count one more batch under way."""
        with self._lock:
            self._count += 1
            self._open.clear()

    def leave(self) -> None:
        """Count one batch less."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._open.set()

    def wait(self) -> None:
        """Return once no batch is under way."""
        self._open.wait()


class Completion(Protocol):
    """When a batch is done; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Whether no lane touches the batch's slots any more."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return once that is so, or after `timeout` seconds; say which."""


class Batch(Protocol):
    """What the owner of slots knows of reads into them; see the attributes of `ReadBatch`."""

    @property
    def records(self) -> tuple[Record, ...]:
        """What is being read."""

    @property
    def done(self) -> Completion:
        """Set when no lane touches these slots any more."""

    @property
    def errors(self) -> Mapping[int, SlotstreamError]:
        """For records that did not arrive, by position in `records`, why; stable once done."""

    @property
    def bytes_read(self) -> int:
        """Bytes that arrived; stable once done."""

    @property
    def read_s(self) -> float:
        """Time the lanes spent; stable once done."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` or a successful `retract` was called."""

    def cancel(self) -> None:
        """Drop the reads no lane has begun. `done` follows as soon as those under way return."""

    def retract(self) -> bool:
        """Cancel the whole batch if no lane has begun any of it; say whether that was so."""


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
        self._untouched = True
        self._gate: DemandGate | None = None
        self._lock = threading.Lock()

    def demand(self, gate: DemandGate) -> list[int]:
        """Shut `gate` until this batch is done; return the jobs that no lane has claimed."""
        with self._lock:
            if self._gate is None and not self.done.is_set():
                gate.enter()
                self._gate = gate
            return list(self._waiting)

    def retract(self) -> bool:
        """Cancel the whole batch if no lane has claimed any of it; say whether that was so."""
        with self._lock:
            if not self._untouched or self.done.is_set():
                return False
            self._give_up_waiting()
            self.cancelled = True
            self._finish()
            return True

    def cancel(self) -> None:
        """Drop the jobs no lane has claimed. `done` follows as soon as the reads under way return."""
        error = cancelled_read()
        with self._lock:
            self.cancelled = True
            for segments in self._waiting.values():
                self.errors |= {piece.record: error for segment in segments for piece in segment.pieces}
            self._give_up_waiting()
            if not self._running:
                self._finish()

    def _give_up_waiting(self) -> None:
        """Drop the jobs no lane has claimed. The lock is held."""
        for segments in self._waiting.values():
            for segment in segments:
                self._source.settle(segment.fd, segment.byte_count)
        self._waiting.clear()

    def _finish(self) -> None:
        """Say that no lane touches the slots any more. The lock is held."""
        if not self.done.is_set():
            self.done.set()
            if self._gate is not None:
                self._gate.leave()

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
            self._untouched = False
        started = time.perf_counter()
        bytes_read = 0
        errors: dict[int, SlotstreamError] = {}
        for segment in segments:
            try:
                if self.cancelled:
                    raise cancelled_read()
                bytes_read += self._bring(segment, scratch, errors)
            except SlotstreamError as error:
                errors = {piece.record: error for piece in segment.pieces} | errors  # the first one counts
            except Exception as error:  # noqa: BLE001 - the top of a lane: whatever happened, the batch must end
                wrapped = ExpertReadError(f"reading experts failed unexpectedly: {type(error).__name__}: {error}")
                errors = {piece.record: wrapped for piece in segment.pieces} | errors
            finally:
                self._source.settle(segment.fd, segment.byte_count)
        with self._lock:
            self.bytes_read += bytes_read
            self.read_s += time.perf_counter() - started
            self.errors.update(errors)
            self._running -= 1
            if not self._running and not self._waiting:
                self._finish()

    def _bring(self, segment: Segment, scratch: Bytes, errors: dict[int, SlotstreamError]) -> int:
        """Read and check one segment; where that fails and the source has its pieces elsewhere too, those.

        Returns the bytes that arrived.
        """
        try:
            self._read(segment, scratch)
        except _Unread as unread:
            others = self._elsewhere(segment, unread.fault)
            if others is None:
                raise self._failure(segment, unread.fault) from unread
            return sum(self._bring_other(other, scratch, errors) for other in others)
        self._check(segment, scratch, errors)
        return segment.byte_count

    def _bring_other(self, segment: Segment, scratch: Bytes, errors: dict[int, SlotstreamError]) -> int:
        """Bring a single piece from elsewhere, whatever becomes of the others."""
        try:
            return self._bring(segment, scratch, errors)
        except ExpertReadError as error:
            errors.setdefault(segment.pieces[0].record, error)
            return 0

    def _elsewhere(self, segment: Segment, fault: Fault) -> list[Segment] | None:
        """Return reads of the same pieces from another place; None when there is none."""
        kinds = self._source.layout.kinds
        others: list[Segment] = []
        places: dict[int, Sequence[tuple[int, int]] | None] = {}
        for piece in segment.pieces:
            record = self.records[piece.record]
            if piece.record not in places:
                places[piece.record] = self._source.elsewhere(fault, record.layer, record.expert)
            found = places[piece.record]
            if found is None:
                return None
            fd, offset = found[piece.kind]
            others.append(Segment(fd=fd, offset=offset, byte_count=kinds[piece.kind].disk_bytes, pieces=[piece]))
        return others

    def _read(self, segment: Segment, scratch: Bytes) -> None:
        """Read one segment and bring every piece into its slot, in the slot's type."""
        alignment = self._source.alignment
        if alignment == 1 and self._arrays.memory.direct:
            self._fill(segment, self._buffers(segment, scratch), segment.offset, segment.byte_count)
            self._convert(segment, scratch)
            return
        # Past the page cache, or to a device: whole blocks around the segment into scratch, then the wanted pieces.
        before = segment.offset % alignment
        needed = before + segment.byte_count
        block = scratch[: -(-needed // alignment) * alignment]
        self._fill(segment, [block.data], segment.offset - before, needed)
        for kind_index, record_index, stored in self._stored(segment, scratch):
            slot = self.records[record_index].slot
            if self._source.layout.kinds[kind_index].converts:
                self._arrays.write(kind_index, slot, stored)
            else:
                self._arrays.memory.put(self._arrays.views[kind_index][slot], stored)
        self._arrays.memory.finish()

    def _stored(self, segment: Segment, scratch: Bytes) -> Iterator[tuple[int, int, Bytes]]:
        """Kind, record and stored bytes of every piece of a segment that was read into scratch."""
        start = segment.offset % self._source.alignment
        for kind_index, record_index in segment.pieces:
            end = start + self._source.layout.kinds[kind_index].disk_bytes
            yield kind_index, record_index, scratch[start:end]
            start = end

    def _buffers(self, segment: Segment, scratch: Bytes) -> list[memoryview]:
        """Where an ordinary read puts each piece: its slot, or scratch if it must be converted."""
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

    def _convert(self, segment: Segment, scratch: Bytes) -> None:
        kinds, start = self._source.layout.kinds, 0
        for kind_index, record_index in segment.pieces:
            kind = kinds[kind_index]
            if kind.converts:
                self._arrays.write(
                    kind_index, self.records[record_index].slot, scratch[start : start + kind.disk_bytes]
                )
                start += kind.disk_bytes

    def _fill(self, segment: Segment, buffers: list[memoryview], offset: int, needed: int) -> None:
        """Read until the first `needed` bytes of the buffers are there."""
        before = segment.offset - offset
        done = 0
        while done < needed:
            try:
                count = self._source.read(segment.fd, buffers, offset + done)
            except OSError as error:
                raise _Unread(segment, error.errno or errno.EIO, max(0, done - before)) from error
            done += count
            if count <= 0 or (done < needed and done % self._source.alignment):
                raise _Unread(segment, 0, max(0, done - before))
            if done < needed:
                buffers = _remaining(buffers, count)

    def _failure(self, segment: Segment, fault: Fault) -> ExpertReadError:
        kinds = self._source.layout.kinds
        ends = itertools.accumulate(kinds[piece.kind].disk_bytes for piece in segment.pieces)
        first_missing = next(piece for piece, end in zip(segment.pieces, ends, strict=True) if end > fault.got)
        return failed_read(self._source, self.records[first_missing.record], fault)

    def _check(self, segment: Segment, scratch: Bytes, errors: dict[int, SlotstreamError]) -> None:
        """Verify scales and biases that arrived for the first time: in their slots where the host may look there."""
        direct = self._arrays.memory.direct
        for kind_index, record_index, stored in self._stored(segment, scratch):
            kind, record = self._source.layout.kinds[kind_index], self.records[record_index]
            if not record.check or kind.part == "weight":
                continue
            values = self._arrays.views[kind_index][record.slot] if direct else converted(kind, stored)
            if not is_finite(kind.slot_dtype, values):
                errors[record_index] = damaged_values(self._source, segment.fd, record, kind_index)


def cancelled_read() -> ExpertReadError:
    """Return what becomes of a record whose read was cancelled."""
    return ExpertReadError("the read was cancelled before it started")


def failed_read(source: ExpertSource, record: Record, fault: Fault) -> ExpertReadError:
    """Return the error of a read that did not come in full.

    Args:
        source: Where it was read from.
        record: The first one that misses bytes.
        fault: The read.
    """
    return ExpertReadError(
        f"{source.path(fault.fd)}: reading expert {record.expert} of layer {record.layer} failed: wanted "
        f"{fault.wanted:,} bytes at offset {fault.offset:,}, got {fault.got:,} ({fault.reason}); check the disk and "
        "verify the checkpoint, then ask again"
    )


def damaged_values(source: ExpertSource, fd: int, record: Record, kind_index: int) -> CheckpointDamaged:
    """Return the error of a record whose scales or biases of one kind are not finite."""
    tensor = source.layout.layers[record.layer][kind_index].tensor
    return CheckpointDamaged(
        f"{source.path(fd)}: {tensor} holds values that are not finite for expert {record.expert}; download or convert "
        "the checkpoint again"
    )


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
