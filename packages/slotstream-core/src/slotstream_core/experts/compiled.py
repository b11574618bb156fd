"""Reading lanes in C: the threads, queues and waits of csrc/lanes.h behind the reader's interface.

Python decides where the pieces of each record are read and which slots they go to, and hands a whole batch over in one
call. The interpreter lock is not taken again before somebody waits for it, and that wait is one call too. Whatever a
batch came to is told exactly as by Python's lanes.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from slotstream_core.errors import BackendError, SlotstreamError
from slotstream_core.experts.batches import Record, cancelled_read, damaged_values, failed_read
from slotstream_core.experts.directories import Fault
from slotstream_core.experts.layout import ExpertLayout, PieceKind
from slotstream_core.experts.mapped_files import MappedFiles
from slotstream_core.experts.slot_memory import Bytes, DeviceCopies, SlotMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.native import lanes as binding
from slotstream_core.native.binding import check
from slotstream_core.native.lanes import LaneLibrary

CLOSE_WAIT_S: Final = 5.0
"""Longest wait for a disk that does not answer."""

WAIT_MS: Final = 200
"""Longest wait in one call: between two of them Python handles signals."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneScratch:
    """Scratch of one set of lanes: parts of one block, at equal distances.

    Attributes:
        parts: For each lane as many as `lane_parts`; for the lanes that a computation waits for, one more, for the
            thread that waits.
        byte_count: Of each part.
        lane_parts: More than one where a lane reads on while what it read is copied to a device.
    """

    parts: list[Bytes]
    byte_count: int
    lane_parts: int = 1

    @property
    def address(self) -> int | None:
        """Of the first part."""
        return int(self.parts[0].ctypes.data) if self.parts else None

    @property
    def stride(self) -> int:
        """From one part to the next."""
        if len(self.parts) < 2:
            return -(-self.byte_count // (1 << 14)) * (1 << 14)
        return int(self.parts[1].ctypes.data - self.parts[0].ctypes.data)


class CompiledCompletion:
    """When a batch is done, and what it came to; owns the batch of the library. `is_set` and `wait` are for one thread.

    Attributes:
        bytes_read: Bytes that arrived; final once the batch is done.
        read_ns: Time that threads spent on it; final once the batch is done.
        failures: Pieces that did not arrive; final once the batch is done.
    """

    def __init__(
        self,
        library: LaneLibrary,
        handle: int,
        arrays: SlotArrays,
        source: ExpertSource,
        under_way: set[CompiledCompletion],
    ) -> None:
        self.bytes_read = 0
        self.read_ns = 0
        self.failures: list[binding.Failure] = []
        self._library = library
        self._handle: int | None = handle
        self._state = binding.BatchState.from_address(library.batch_state_of(handle))
        self._arrays: SlotArrays | None = arrays
        self._source = source
        self._under_way = under_way

    def __del__(self) -> None:
        if self._handle is not None:  # never handed over
            self._library.batch_release(self._handle)

    @property
    def handle(self) -> int | None:
        """The batch of the library; None once it is done and what it came to is here."""
        return self._handle

    def submit(self) -> None:
        """Queue what no thread has begun with what a computation waits for."""
        if self._handle is not None:
            self._under_way.add(self)
            check(self._library.batch_submit(self._handle), "reading experts")

    def read_ahead(self) -> None:
        """Queue it with what a computation may ask for."""
        if self._handle is not None:
            self._under_way.add(self)
            check(self._library.batch_read_ahead(self._handle), "reading experts ahead")

    def is_set(self) -> bool:
        """Whether no thread touches the slots any more."""
        if self._handle is None:
            return True
        return bool(self._state.done) and self._collected(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Return once no thread touches the slots any more, or after `timeout` seconds; say whether that is so."""
        if timeout is None:
            while not self._collected(WAIT_MS):
                pass
            return True
        deadline = time.monotonic() + timeout
        while not self._collected(max(0, min(WAIT_MS, int(1000 * (deadline - time.monotonic()))))):
            if time.monotonic() >= deadline:
                return False
        return True

    def cancel(self) -> None:
        """Drop the reads no thread has begun."""
        if self._handle is not None:
            self._library.batch_cancel(self._handle)

    def retract(self) -> bool:
        """Cancel everything if no thread has begun any of it; say whether that was so."""
        return self._handle is not None and bool(self._library.batch_retract(self._handle))

    def _collected(self, milliseconds: int) -> bool:
        handle = self._handle
        if handle is None:
            return True
        if not self._library.batch_wait(handle, milliseconds):
            return False
        self.bytes_read, self.read_ns = self._state.bytes_read, self._state.read_ns
        if count := self._state.failures:
            found = (binding.Failure * count)()
            self._library.batch_failures(handle, found, count)
            self.failures = list(found)
        if self._state.left_out:
            self._source.report_left_out()
        self._handle = self._arrays = None
        del self._state
        self._library.batch_release(handle)
        self._under_way.discard(self)
        return True


class CompiledBatch:
    """The records of one request on their way into slots; see `ReadBatch`, of which it has what a request needs."""

    def __init__(self, records: Callable[[], Sequence[Record]], source: ExpertSource, done: CompiledCompletion) -> None:
        self._list_records = records
        self.done = done
        self.cancelled = False
        self._source = source
        self._errors: dict[int, SlotstreamError] | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """What is being read. Listed when somebody asks: mostly nobody does."""
        return tuple(self._list_records())

    @property
    def bytes_read(self) -> int:
        """Bytes that arrived."""
        return self.done.bytes_read

    @property
    def read_s(self) -> float:
        """Time the lanes spent."""
        return self.done.read_ns / 1e9

    @property
    def errors(self) -> dict[int, SlotstreamError]:
        """For records that did not arrive, by position in `records`, why. Empty before the batch is done."""
        if self._errors is None:
            if not self.done.is_set():
                return {}
            self._errors = {}
            records = self.records if self.done.failures else ()
            for failure in sorted(self.done.failures, key=lambda failure: failure.outcome == binding.CANCELLED):
                if failure.record not in self._errors:
                    self._errors[failure.record] = self._error(failure, records)
        return self._errors

    def cancel(self) -> None:
        """See `ReadBatch.cancel`."""
        self.cancelled = True
        self.done.cancel()

    def retract(self) -> bool:
        """See `ReadBatch.retract`."""
        retracted = self.done.retract()
        self.cancelled = self.cancelled or retracted
        return retracted

    def _error(self, failure: binding.Failure, records: Sequence[Record]) -> SlotstreamError:
        if failure.outcome == binding.CANCELLED:
            return cancelled_read()
        if failure.outcome == binding.NOT_FINITE:
            return damaged_values(self._source, failure.fd, records[failure.record], failure.kind)
        if failure.outcome == binding.NOT_COPIED:
            return BackendError(
                f"copying {failure.wanted:,} bytes to the device failed: the CUDA runtime says {failure.error}; see "
                "its list of error codes"
            )
        fault = Fault(failure.fd, failure.error, failure.offset, failure.wanted, failure.got)
        return failed_read(self._source, records[failure.first_missing], fault)


class CompiledLanes:
    """The threads, made once and closed once. Its methods are for one thread.

    Args:
        library: The functions.
        source: Where records are read from; `native_read` says how.
        scratch: Of the lanes that a computation waits for, and of the thread that waits.
        ahead_scratch: Of the lanes that read ahead.
        merge_bytes: Neighbours are read together up to here.
        job_bytes: Small reads are handed to a lane together up to here.
        part_bytes: With `copies`, longer pieces are read and copied in parts of at most so many bytes; 0: whole.
        copies: How records come from scratch into slots that the host does not write.
        mapped: With `copies`, what need not be read; closed with the lanes.

    Attributes:
        handle: Their address.

    Raises (constructor):
        NativeError: The threads cannot be started.
    """

    def __init__(
        self,
        library: LaneLibrary,
        source: ExpertSource,
        *,
        scratch: LaneScratch,
        ahead_scratch: LaneScratch,
        merge_bytes: int,
        job_bytes: int,
        part_bytes: int = 0,
        copies: DeviceCopies | None = None,
        mapped: MappedFiles | None = None,
    ) -> None:
        self._library = library
        self._source = source
        self._under_way: set[CompiledCompletion] = set()
        self._addresses: list[int] = []
        self._kinds = (binding.PieceKindStructure * 0)()
        self._kept_arrays: dict[int, SlotArrays] = {}
        settings = binding.LaneSettings(
            demand_lanes=(len(scratch.parts) - 1) // scratch.lane_parts,
            ahead_lanes=len(ahead_scratch.parts) // ahead_scratch.lane_parts,
            staging=scratch.lane_parts,
            alignment=source.alignment,
            merge_bytes=merge_bytes,
            job_bytes=job_bytes,
            part_bytes=part_bytes,
            scratch=scratch.address,
            scratch_bytes=scratch.byte_count,
            scratch_stride=scratch.stride,
            ahead_scratch=ahead_scratch.address,
            ahead_scratch_bytes=ahead_scratch.byte_count,
            ahead_scratch_stride=ahead_scratch.stride,
            read=source.native_read or None,
            copy=copies.copy if copies else None,
            finish=copies.finish if copies else None,
            stream=copies.stream if copies else None,
            launch=copies.launch or None if copies else None,
            kernel=copies.kernel or None if copies else None,
            event=copies.event or None if copies else None,
            record=copies.record or None if copies else None,
            follow=copies.follow or None if copies else None,
            mirrors=source.native_mirrors,
            mapped=mapped.handle if mapped is not None else None,
        )
        handle = ctypes.c_void_p()
        check(library.lanes_create(settings, ctypes.byref(handle)), "starting the reading lanes")
        self.handle = handle.value or 0
        kept = _Kept(self._under_way, self._kept_arrays, (scratch, ahead_scratch, source), mapped)
        self._end = weakref.finalize(self, _end, library, self.handle, kept, CLOSE_WAIT_S)

    def prepare(self, records: Sequence[Record], arrays: SlotArrays) -> CompiledBatch:
        """See `ExpertReader.prepare`."""
        if arrays.addresses is not self._addresses:
            self._kinds, self._addresses = piece_kinds(arrays), arrays.addresses
        locate = self._source.locate_everywhere
        numbers: list[int] = []
        for layer, expert, slot, checked in records:
            numbers += (slot, checked)
            for places in locate(layer, expert):
                for place in places:
                    numbers += place
        flat = array("q", numbers)
        batch = ctypes.c_void_p()
        code = self._library.batch_create(
            self.handle, self._kinds, len(self._kinds), flat.buffer_info()[0], len(records), ctypes.byref(batch)
        )
        check(code, "planning reads of experts")
        completion = CompiledCompletion(self._library, batch.value or 0, arrays, self._source, self._under_way)
        kept = tuple(records)
        return CompiledBatch(lambda: kept, self._source, completion)

    def take_over(self, batch: int, records: Callable[[], Sequence[Record]], arrays: SlotArrays) -> CompiledBatch:
        """Return a batch that compiled code planned and handed over, by its address; `records` lists what it reads."""
        completion = CompiledCompletion(self._library, batch, arrays, self._source, self._under_way)
        self._under_way.add(completion)
        return CompiledBatch(records, self._source, completion)

    def keep(self, arrays: SlotArrays) -> None:
        """Keep slots alive, which compiled code has read into without an object for each batch, until `let_go`."""
        self._kept_arrays[id(arrays)] = arrays

    def let_go(self, arrays: SlotArrays) -> None:
        """Undo `keep`: no read into these slots is under way."""
        self._kept_arrays.pop(id(arrays), None)

    def close(self, wait_s: float) -> None:
        """Drop queued reads and end the threads, waiting for at most so long. A second call does nothing.

        Threads still at a read then go on in the background, and what they write to is kept until they return.
        """
        if (found := self._end.detach()) is not None:
            library, handle, kept, _ = found[2]
            _end(library, handle, kept, wait_s)


class _Kept(NamedTuple):
    """What threads use until they end."""

    under_way: set[CompiledCompletion]
    arrays: dict[int, SlotArrays]
    others: tuple[object, ...]
    mapped: MappedFiles | None


def _end(library: LaneLibrary, handle: int, kept: _Kept, wait_s: float) -> None:
    if kept.mapped is not None:
        kept.mapped.stop()
    if not library.lanes_close(handle, int(1000 * wait_s)):
        _release(library, handle, kept)
        return
    try:
        threading.Thread(target=_outlast, args=(library, handle, kept), name="slotstream-closing", daemon=True).start()
    except RuntimeError:  # the interpreter ends: its memory must stay, and the process goes soon
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _outlast(library: LaneLibrary, handle: int, kept: _Kept) -> None:
    """Wait for a disk that does not answer, and keep until then what its answer is written to."""
    while library.lanes_close(handle, WAIT_MS):
        pass
    _release(library, handle, kept)


def _release(library: LaneLibrary, handle: int, kept: _Kept) -> None:
    """Let everything go after the last thread."""
    library.lanes_release(handle)
    if kept.mapped is not None:
        kept.mapped.close()


def can_read(layout: ExpertLayout, memory: SlotMemory) -> bool:
    """Whether the library knows the way of every piece from disk to slots: its change of type, and the last copy."""
    if not memory.direct:
        return memory.copies is not None and not any(kind.converts for kind in layout.kinds)
    return all(not kind.converts or (kind.disk_dtype, kind.slot_dtype) == ("BF16", "F32") for kind in layout.kinds)


def piece_kinds(arrays: SlotArrays) -> ctypes.Array[binding.PieceKindStructure]:
    """Describe the pieces of a record and where slots take them; stale once the arrays grow."""
    kinds = (binding.PieceKindStructure * len(arrays.layout.kinds))()
    for place, kind, address in zip(kinds, arrays.layout.kinds, arrays.addresses, strict=True):
        place.slots, place.slot_count, place.slot_bytes = address, arrays.slot_count, kind.slot_bytes
        place.disk_bytes, place.change, place.check = kind.disk_bytes, _change(kind), _check(kind)
    return kinds


def _change(kind: PieceKind) -> int:
    return binding.WIDENED if kind.converts else binding.AS_STORED


def _check(kind: PieceKind) -> int:
    if kind.part == "weight":
        return binding.UNCHECKED
    return binding.FINITE_FLOAT32 if kind.disk_dtype == "F32" else binding.FINITE_BFLOAT16
