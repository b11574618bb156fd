"""Parallel reads of expert records from disk into slots.

Compiled lanes do it where they can (`slotstream_core.experts.compiled`); what follows says how Python's do.

Reader threads ("lanes") run `preadv`, which releases the interpreter lock, and write through host views of the slots;
they never call MLX. A second set of lanes reads what a computation may ask for soon; it begins nothing while a read
that one waits for is under way. Pieces stored as a slot holds them are read straight into the slot, others into the
lane's scratch and converted from there; reads past the page cache always go through scratch. Nothing is published here:
a slot being read belongs to the pool's bookkeeping, and only a finished batch says which records are complete.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from slotstream_core.errors import ExpertReadError, SettingError
from slotstream_core.experts.batches import Batch, DemandGate, Piece, ReadBatch, Record, Segment
from slotstream_core.experts.compiled import CLOSE_WAIT_S, CompiledBatch, CompiledLanes, LaneScratch, can_read
from slotstream_core.experts.mapped_files import MappedFiles, open_mapped_files
from slotstream_core.experts.slot_memory import LARGE_PAGE_BYTES, Bytes, HostMemory, SlotMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.native.lanes import LaneLibrary, lane_library
from slotstream_planner.lanes import (
    COPYING_LANES,
    LANES_MAX,
    PART_BYTES,
    SCRATCH_STEP_BYTES,
    STAGING,
    ahead_lanes,
    demand_lanes,
)

LANES_VARIABLE = "SLOTSTREAM_IO_QUEUE_DEPTH"
JOB_BYTES = 1 << 18
PIECES_PER_READ = 256  # well under the kernel's limit of 1,024 buffers a call


Job = tuple[ReadBatch, int]


class ExpertReader:
    """A fixed set of lanes, made once and closed once; a context manager.

    Its methods are for one thread.

    Args:
        source: Where records are read from.
        lane_count: Lanes for what a computation waits for.
        ahead_lane_count: Lanes for what it may ask for soon; without them `submit_ahead` is not to be called.
        memory: Where the slots lie that are read into; the host's when not given.
        native: Whether compiled lanes may read; when not given, what SLOTSTREAM_NATIVE says. Python's do where they are
            not installed or cannot.

    Attributes:
        compiled: Whether compiled lanes read.
        mapped: What a device may fetch from pinned files instead of having it read; None where it may not.
        ahead_scratch_bytes: Scratch of all lanes that read ahead; their batches hold one record.
    """

    def __init__(
        self,
        source: ExpertSource,
        *,
        lane_count: int,
        ahead_lane_count: int = 0,
        memory: SlotMemory | None = None,
        native: bool | None = None,
    ) -> None:
        self.source = source
        self.memory = memory or HostMemory()
        self.lane_count = lane_count
        self.ahead_lane_count = ahead_lane_count
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ahead_jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = DemandGate()
        self._outstanding: weakref.WeakSet[ReadBatch] = weakref.WeakSet()
        self._closed = False
        # No segment exceeds this. Blocks around it may add one at either end.
        largest = max(source.merge_bytes, *(kind.disk_bytes for kind in source.layout.kinds))
        self._scratch_bytes = largest + 2 * source.alignment
        self._ahead_part_bytes = min(largest, source.layout.record_bytes) + 2 * source.alignment
        self.ahead_scratch_bytes = ahead_lane_count * self._ahead_part_bytes
        self.mapped: MappedFiles | None = None
        self._lanes: list[threading.Thread] = []
        self._compiled = self._open_compiled(native)
        if self._compiled is None:
            self._open_python()

    def _open_python(self) -> None:
        scratch = _scratch(self.memory, self.lane_count, self._scratch_bytes)
        ahead_scratch = _scratch(self.memory, self.ahead_lane_count, self._ahead_part_bytes)
        self._lanes = [
            _start(f"slotstream-lane-{index}", _work, self._jobs, part) for index, part in enumerate(scratch)
        ]
        self._lanes += [
            _start(f"slotstream-ahead-{index}", _work_ahead, self._ahead_jobs, part, self._gate)
            for index, part in enumerate(ahead_scratch)
        ]

    def _open_compiled(self, native: bool | None) -> CompiledLanes | None:
        library = None if native is False else _usable_library(self.source, self.memory, {} if native else os.environ)
        if library is None:
            return None
        each, part_bytes, demand_bytes, ahead_bytes = 1, 0, self._scratch_bytes, self._ahead_part_bytes
        if not self.memory.direct:
            each, part_bytes = STAGING, PART_BYTES
            demand_bytes = ahead_bytes = PART_BYTES + 2 * self.source.alignment
        scratch = _scratch(self.memory, self.lane_count * each + 1, demand_bytes)
        ahead_scratch = _scratch(self.memory, self.ahead_lane_count * each, ahead_bytes)
        self.ahead_scratch_bytes = self.ahead_lane_count * each * ahead_bytes
        self.mapped = open_mapped_files(library, self.source, self.memory.pins)
        return CompiledLanes(
            library,
            self.source,
            scratch=LaneScratch(parts=scratch, byte_count=demand_bytes, lane_parts=each),
            ahead_scratch=LaneScratch(parts=ahead_scratch, byte_count=ahead_bytes, lane_parts=each),
            merge_bytes=self.source.merge_bytes,
            job_bytes=part_bytes or JOB_BYTES,
            part_bytes=part_bytes,
            copies=None if self.memory.direct else self.memory.copies,
            mapped=self.mapped,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def compiled(self) -> bool:
        """See the class."""
        return self._compiled is not None

    @property
    def compiled_lanes(self) -> CompiledLanes | None:
        """The compiled lanes, if they read."""
        return self._compiled

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def prepare(self, records: Sequence[Record], arrays: SlotArrays) -> Batch:
        """Plan the reads of at least one record into its slot. Nothing moves before `submit`.

        Raises:
            ExpertReadError: The reader is closed.
        """
        if self._compiled is None:
            return self.plan(records, arrays)
        self.refuse_when_closed()
        return self._compiled.prepare(records, arrays)

    def plan(self, records: Sequence[Record], arrays: SlotArrays) -> ReadBatch:
        """Plan the reads of at least one record for a thread that makes them itself; see `extra_scratch`.

        Raises:
            ExpertReadError: The reader is closed.
        """
        self.refuse_when_closed()
        jobs = _jobs_of(_segments(self.source, records))
        return ReadBatch(records, arrays, self.source, jobs)

    def refuse_when_closed(self) -> None:
        """Do nothing while the reader is open.

        Raises:
            ExpertReadError: It is closed.
        """
        if self._closed:
            raise ExpertReadError("the expert reader is closed; load the model again")

    def submit(self, batch: Batch) -> None:
        """Hand a prepared batch to the lanes and return at once.

        A batch that reads ahead may be handed over too, once something waits for it: who claims a job first reads it.
        """
        if isinstance(batch, CompiledBatch):
            batch.done.submit()
        elif isinstance(batch, ReadBatch):
            self._outstanding.add(batch)
            for job in batch.demand(self._gate):
                self._jobs.put((batch, job))

    def submit_ahead(self, batch: Batch) -> None:
        """Hand a prepared batch to the lanes that read ahead and return at once."""
        if isinstance(batch, CompiledBatch):
            batch.done.read_ahead()
        elif isinstance(batch, ReadBatch):
            self._outstanding.add(batch)
            for job in batch.waiting_jobs():
                self._ahead_jobs.put((batch, job))

    def extra_scratch(self, count: int) -> list[Bytes]:
        """Return scratch for threads beside the lanes that run the batches of `plan` themselves."""
        return _scratch(self.memory, count, self._scratch_bytes)

    def close(self) -> None:
        """Skip queued reads and end the lanes. Waits at most a few seconds for a disk that does not answer."""
        if self._closed:
            return
        self._closed = True
        if self._compiled is not None:
            self._compiled.close(CLOSE_WAIT_S)
            return
        for batch in list(self._outstanding):
            batch.cancel()
        for _ in range(self.lane_count):
            self._jobs.put(None)
        for _ in range(self.ahead_lane_count):
            self._ahead_jobs.put(None)
        deadline = time.monotonic() + CLOSE_WAIT_S
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))


def _usable_library(source: ExpertSource, memory: SlotMemory, environment: Mapping[str, str]) -> LaneLibrary | None:
    """Return the library of compiled lanes if they can read from a source into a memory."""
    if source.native_read is None or not can_read(source.layout, memory):
        return None
    return lane_library(environment)


def _scratch(memory: SlotMemory, lane_count: int, byte_count: int) -> list[Bytes]:
    """Return one page-aligned buffer a lane, out of one block.

    The block is large enough for large pages: the disk then transfers whole runs instead of pages. Untouched memory
    costs nothing.
    """
    stride = -(-byte_count // SCRATCH_STEP_BYTES) * SCRATCH_STEP_BYTES
    block = memory.buffer(max(lane_count * stride + SCRATCH_STEP_BYTES, LARGE_PAGE_BYTES))
    first = -block.ctypes.data % SCRATCH_STEP_BYTES
    return [block[first + lane * stride :][:byte_count] for lane in range(lane_count)]


def _start(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    lane = threading.Thread(target=work, args=arguments, name=name, daemon=True)
    lane.start()
    return lane


def _work(jobs: queue.SimpleQueue[Job | None], scratch: Bytes) -> None:
    while (job := jobs.get()) is not None:
        batch, index = job
        batch.run(index, scratch)
        del job, batch  # an idle lane keeps no slot memory alive


def _work_ahead(jobs: queue.SimpleQueue[Job | None], scratch: Bytes, gate: DemandGate) -> None:
    while (job := jobs.get()) is not None:
        batch, index = job
        gate.wait()
        batch.run(index, scratch)
        del job, batch


def _segments(source: ExpertSource, records: Sequence[Record]) -> list[Segment]:
    """Cover every piece of the records, joining neighbours on disk while a read stays within `merge_bytes`."""
    limit = source.merge_bytes
    sizes = [kind.disk_bytes for kind in source.layout.kinds]
    pieces = sorted(
        (fd, offset, kind, index)
        for index, places in enumerate(source.locate_all([(record.layer, record.expert) for record in records]))
        for kind, (fd, offset) in enumerate(places)
    )
    segments: list[Segment] = []
    last = Segment(fd=-1, offset=0, byte_count=0, pieces=[])
    for fd, offset, kind, index in pieces:
        size = sizes[kind]
        adjacent = fd == last.fd and offset == last.offset + last.byte_count
        if adjacent and last.byte_count + size <= limit and len(last.pieces) < PIECES_PER_READ:
            last.byte_count += size
            last.pieces.append(Piece(kind, index))
        else:
            last = Segment(fd=fd, offset=offset, byte_count=size, pieces=[Piece(kind, index)])
            segments.append(last)
    return segments


def _jobs_of(segments: list[Segment]) -> list[list[Segment]]:
    """Share segments out, record by record: large ones singly, small ones together so that a hand-over pays for itself.

    Reads under way at one time then lie in different tensors. In the order of their offsets they would crowd into one
    stretch of the disk, which was measured to cost a third of the throughput.
    """
    segments.sort(key=lambda segment: (segment.pieces[0].record, -segment.byte_count))
    jobs: list[list[Segment]] = []
    filled = JOB_BYTES
    for segment in segments:
        if filled + segment.byte_count > JOB_BYTES:
            jobs.append([])
            filled = 0
        jobs[-1].append(segment)
        filled += segment.byte_count
    return jobs


def choose_lanes(
    environment: Mapping[str, str],
    *,
    core_count: int,
    source: ExpertSource | None = None,
    memory: SlotMemory | None = None,
) -> int:
    """Return how many lanes to use: the environment's SLOTSTREAM_IO_QUEUE_DEPTH, else four a core, at most 32.

    A lane waits for the disk most of the time, so there are more of them than cores; a fast disk needs about 32
    requests in flight to reach its throughput, and two cores cannot feed so many. Lanes that copy to a device leave a
    core free, and are 4 if they are Python's, which contend for the interpreter's lock (both measured: docs/log.md).

    Args:
        environment: The process's variables.
        core_count: Processors.
        source: Where records are read from; together with `memory`, to see whether Python's lanes would copy.
        memory: Where the slots lie.

    Raises:
        SettingError: The variable is not a whole number from 1 to 128.
    """
    asked = asked_lanes(environment)
    if asked is not None:
        return asked
    if source is None or memory is None or memory.direct:
        return demand_lanes(core_count, copies=False)
    compiled = _usable_library(source, memory, environment) is not None
    return demand_lanes(core_count, copies=True) if compiled else COPYING_LANES


def asked_lanes(environment: Mapping[str, str]) -> int | None:
    """Return the lanes that SLOTSTREAM_IO_QUEUE_DEPTH asks for; None where it is not set.

    Raises:
        SettingError: It is not a whole number from 1 to 128.
    """
    text = environment.get(LANES_VARIABLE)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= LANES_MAX):
        raise SettingError(f"{LANES_VARIABLE} is {text!r}; use a whole number from 1 to {LANES_MAX}, or unset it")
    return int(text)


def choose_ahead_lanes(lane_count: int, memory: SlotMemory | None = None) -> int:
    """Return how many lanes read ahead beside `lane_count` lanes: a quarter as many, at most 16.

    What they have begun goes on when a request comes, and shares the disk with it, so that more of them make requests
    wait longer. Beside a device they are as many as the others, at most 16: a layer takes it less time than few lanes
    need for its records (both measured: docs/log.md).

    Args:
        lane_count: Lanes for what a computation waits for.
        memory: Where the slots lie; the host's when not given.
    """
    return ahead_lanes(lane_count, copies=memory is not None and not memory.direct)
