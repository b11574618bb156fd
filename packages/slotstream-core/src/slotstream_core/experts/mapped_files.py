"""Expert files in pinned memory, from which a device fetches records itself.

A file in the page cache is mapped and its pages are registered with the device's driver, which pins them: the system
may not take them back, and the device copies a piece from there without a processor. Compiled lanes ask the table of
csrc/mapped.h for each piece, and read what is not in it; so nothing waits for this, and nothing depends on it.

The host never looks through a mapping: of a file that became shorter meanwhile it may not, and the process would end.
The device goes on with the pages as they were.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from slotstream_core.errors import BackendError, SlotstreamError
from slotstream_core.experts.slot_memory import HostPins
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.native.binding import check
from slotstream_core.native.lanes import LaneLibrary

logger = logging.getLogger("slotstream.experts")

STEP_BYTES: Final = 1 << 26
"""Registered in one call, in which the driver lets nobody else begin anything: 2 ms at the measured 36 ms a GiB."""

READ_BYTES: Final = 1 << 23  # after each read the interpreter lock is waited for, up to 5 ms beside a busy thread
PROOF_BYTES: Final = 1 << 16
LOOK_S: Final = 0.002
PATIENCE: Final = 4
"""On a disk that is never idle reading for this gets a fifth of the time, so that it ends some day."""

LEAST_WAIT_S: Final = 0.01  # reads of a cached file take less time than most requests
STOP_WAIT_S: Final = 5.0
"""Longest wait for a disk that does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRegion:
    """Bytes of one file that hold experts, from one page to another.

    Attributes:
        fd: What lanes read the file through.
        start: Offset of the first byte, a multiple of a page.
        end: Behind the last byte of the last expert.
    """

    fd: int
    start: int
    end: int

    @property
    def byte_count(self) -> int:
        """Of its pages."""
        return -(-(self.end - self.start) // mmap.PAGESIZE) * mmap.PAGESIZE


class _Step(NamedTuple):
    """What was registered in one call."""

    region: int
    address: int
    byte_count: int


class MappedFiles:
    """The pinned parts of a source's files: as much as `pin` asked for last, from their beginnings.

    Close the lanes before this. A thread does what `pin` asks for and ends. It begins no read of a file while requests
    read, or not before it has waited `PATIENCE` times as long as its last one took. What is given back is what was
    pinned last: which parts are asked for more than others is not known. It is looked up no more first, and let go once
    every read that may have found it is over, its copies included; requests go on meanwhile.

    Args:
        library: The lanes' functions.
        source: Where records are read from.
        pins: Registers memory with the device.
        regions: `regions_of` the source; at least one.

    Attributes:
        handle: The table's address, for the lanes.
        finished: Set while nothing is being pinned or given back.
        most_bytes: What can be pinned: all of it, or what was when the system or the driver refused more.

    Raises (constructor):
        NativeError: There is no memory for the table.
    """

    def __init__(self, library: LaneLibrary, source: ExpertSource, pins: HostPins, regions: list[FileRegion]) -> None:
        self.finished = threading.Event()
        self.finished.set()
        self._library = library
        self._pins = pins
        self._regions = [(region, source.path(region.fd)) for region in regions]
        self.most_bytes = self.byte_count
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._owner = os.getpid()
        self._wanted = 0  # bytes that are to be pinned
        self._pinned = 0
        self._read_s = 0.0  # what the last read took
        self._beside: Sequence[MappedFiles] = (self,)
        self._maps: dict[int, mmap.mmap] = {}
        self._steps: list[_Step] = []  # in the order of the regions
        numbers = array("q")
        for region in regions:
            numbers.extend((region.fd, region.start, region.start + region.byte_count))
        handle = ctypes.c_void_p()
        code = library.mapped_create(numbers.buffer_info()[0], len(regions), ctypes.byref(handle))
        check(code, "listing the files of experts")
        self.handle = handle.value or 0

    @property
    def byte_count(self) -> int:
        """What pinning all of it would take."""
        return sum(region.byte_count for region, _ in self._regions)

    @property
    def pinned_bytes(self) -> int:
        """What is pinned now."""
        return self._pinned

    @property
    def wanted_bytes(self) -> int:
        """What is to be pinned once `finished` is set, or a step of `STEP_BYTES` less where that was given back."""
        return self._wanted

    def pin(self, wanted_bytes: int) -> None:
        """Begin to pin so many bytes, or to give back all beyond them, and return at once. Any thread, at any time.

        What the system or the driver refuses stays to be read, with one line in the log, and is not tried again.
        Nothing happens once closed.
        """
        with self._lock:
            if self._closed or self._stopping.is_set():
                return
            self._wanted = max(0, min(wanted_bytes, self.most_bytes)) // mmap.PAGESIZE * mmap.PAGESIZE
            if self._wanted == self._pinned or not self.finished.is_set():
                return
            self.finished.clear()
            thread = threading.Thread(target=self._work, name="slotstream-pinning", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads
                self.finished.set()
                logger.warning("no more of the files of experts is pinned or given back for now: %s", error)

    def give_way_to(self, parts: Sequence[MappedFiles]) -> None:
        """Begin no read while requests read from any of these, itself among them. Before the first `pin`."""
        self._beside = parts

    @property
    def in_use(self) -> bool:
        """Whether a read is under way, or was planned, whose records may lie here. Any thread."""
        with self._lock:
            return not self._closed and bool(self._library.mapped_users(self.handle))

    def stop(self) -> None:
        """Pin and give back no more than what has been begun, without waiting."""
        self._stopping.set()

    def close(self) -> None:
        """Let go of everything, once no lane is left. A second call does nothing.

        Where a disk does not answer for some seconds, that happens when it does. In a forked child, which has
        neither the thread nor the device, nothing happens.
        """
        if os.getpid() != self._owner:
            return
        self.stop()
        self.finished.wait(STOP_WAIT_S)
        with self._lock:
            first, self._closed = not self._closed, True
            if first and self.finished.is_set():
                self._let_go()

    def _work(self) -> None:
        while True:
            started, before = time.perf_counter(), self._pinned
            try:
                self._reach()
            except (OSError, SlotstreamError) as error:
                with self._lock:
                    self.most_bytes = self._wanted = self._pinned
                logger.warning(
                    "%s of the files of experts are pinned, the others are read, which is slower: %s",
                    f"{self._pinned / 1e9:.2f} GB",
                    error,
                )
            else:
                self._tell(before, time.perf_counter() - started)
            with self._lock:
                if self._wanted == self._pinned or self._stopping.is_set():
                    self.finished.set()
                    if self._closed:
                        self._let_go()
                    return

    def _tell(self, before: int, seconds: float) -> None:
        if self._pinned >= before:
            what = f"{self._pinned / 1e9:.2f} GB of the files of experts are pinned for the device to fetch from"
        else:
            given = before - self._pinned
            what = f"{given / 1e9:.2f} GB of pinned files of experts are given back, {self._pinned / 1e9:.2f} GB stay"
        logger.info("%s, in %.1f s", what, seconds)

    def _reach(self) -> None:
        """Pin or give back until as much is pinned as is wanted.

        Raises:
            OSError: A file cannot be read or mapped, or is not the one that lanes read.
            BackendError: The driver refuses, or the device does not fetch what lies there.
        """
        while self._pinned != self._wanted and not self._stopping.is_set():
            wanted = self._wanted
            if wanted < self._pinned:
                self._give_back(wanted)
                with self._lock:  # a step may have been larger than what was left to give back
                    self._wanted = self._pinned if self._wanted == wanted else self._wanted
                continue
            number = self._steps[-1].region if self._steps else 0
            if self._reached(number) == self._regions[number][0].byte_count:
                number += 1
            region, path = self._regions[number]
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # reads through it are in order, unlike those of the lanes
            try:
                self._pin_region(number, region, fd)
            finally:
                os.close(fd)

    def _reached(self, number: int) -> int:
        """How many bytes of a region are pinned, from its start."""
        return sum(step.byte_count for step in self._steps if step.region == number)

    def _pin_region(self, number: int, region: FileRegion, fd: int) -> None:
        """Pin a region from where it is not pinned yet, in steps, as long as more is wanted.

        Raises:
            OSError: The file cannot be read or mapped, or is not the one that lanes read.
            BackendError: The driver refuses, or the device does not fetch what lies there.
        """
        here, theirs = os.fstat(fd), os.fstat(region.fd)
        if not os.path.samestat(here, theirs) or here.st_size < region.end:
            raise OSError("a file of experts was replaced or became shorter; load the model again")
        if number not in self._maps:
            self._maps[number] = _map(fd, region, here.st_size)
        address = np.frombuffer(self._maps[number], np.uint8).ctypes.data
        done = self._reached(number)
        while done < region.byte_count and self._pinned < self._wanted and not self._stopping.is_set():
            step = min(STEP_BYTES, region.byte_count - done, self._wanted - self._pinned)
            sample = self._bring(fd, region.start + done, min(step, region.end - region.start - done))
            if self._stopping.is_set():
                return
            self._register(_Step(number, address + done, step), sample)
            done += step
            check(self._library.mapped_extend(self.handle, number, address, done), "telling lanes of a mapped file")

    def _register(self, step: _Step, sample: bytes) -> None:
        """Pin one step; the first one has to come back from the device as `sample`, which it begins with.

        Raises:
            BackendError: The driver refuses, or the device does not fetch what lies there.
        """
        self._pins.register(step.address, step.byte_count)
        try:
            if not self._steps and self._pins.fetch(step.address, len(sample)) != sample:
                raise BackendError("the device does not fetch the bytes of a mapped file")
        except BackendError:
            self._pins.unregister(step.address)
            raise
        self._steps.append(step)
        self._pinned += step.byte_count

    def _bring(self, fd: int, offset: int, byte_count: int) -> bytes:
        """Read bytes into the page cache, so that the driver meets no disk; return the first of them.

        Returns early once this is to stop.

        Raises:
            OSError: They cannot be read, or the file ends there.
        """
        buffer, first, done = bytearray(READ_BYTES), b"", 0
        while done < byte_count and not self._give_way():
            started = time.perf_counter()
            count = os.preadv(fd, [memoryview(buffer)[: byte_count - done]], offset + done)
            if not count:
                raise OSError(f"a file of experts ends {byte_count - done:,} bytes before its last one")
            first = first or bytes(buffer[: min(count, PROOF_BYTES)])
            done += count
            self._read_s = time.perf_counter() - started
        return first

    def _give_way(self) -> bool:
        """Wait while requests read, but not for long; return whether this is to stop."""
        end = time.perf_counter() + max(LEAST_WAIT_S, PATIENCE * self._read_s)
        while any(part.in_use for part in self._beside) and time.perf_counter() < end:
            if self._stopping.wait(LOOK_S):
                break
        return self._stopping.is_set()

    def _give_back(self, wanted_bytes: int) -> None:
        """Let the last steps go until no more than this is pinned. Waits for reads that may have found them.

        Raises:
            BackendError: The driver does not let a step go; it counts as pinned.
        """
        kept, pinned = len(self._steps), self._pinned
        while pinned > wanted_bytes:
            kept -= 1
            pinned -= self._steps[kept].byte_count
        left = dict.fromkeys((step.region for step in self._steps[kept:]), 0)
        for step in self._steps[:kept]:
            if step.region in left:
                left[step.region] += step.byte_count
        for number, byte_count in left.items():
            check(self._library.mapped_shrink(self.handle, number, byte_count), "telling lanes what is given back")
        while not self._library.mapped_quiet(self.handle):
            if self._stopping.wait(LOOK_S):
                return  # all of it is let go when this is closed
        while len(self._steps) > kept:
            step = self._steps[-1]
            self._pins.unregister(step.address)
            self._steps.pop()
            self._pinned -= step.byte_count
            self._unmap(step)

    def _unmap(self, step: _Step) -> None:
        """Take pages that are not pinned any more out of the process, so that the system finds nobody using them."""
        mapping = self._maps[step.region]
        start = step.address - np.frombuffer(mapping, np.uint8).ctypes.data
        mapping.madvise(mmap.MADV_DONTNEED, start, step.byte_count)

    def _let_go(self) -> None:
        """Unregister and unmap everything. The lock is held, and nobody fetches any more."""
        for step in self._steps:
            try:
                self._pins.unregister(step.address)
            except BackendError as error:
                logger.warning("pages of a file of experts stay pinned until the process ends: %s", error)
        self._steps.clear()
        self._pinned = 0
        for mapping in self._maps.values():
            mapping.close()
        self._maps.clear()
        self._library.mapped_release(self.handle)


def _map(fd: int, region: FileRegion, file_bytes: int) -> mmap.mmap:
    """Map a region; whole pages, also at the end of a file, where none may be asked for.

    Raises:
        OSError: It cannot be mapped.
    """
    length = min(region.byte_count, file_bytes - region.start)
    try:
        return mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=region.start)
    except ValueError as error:  # as Python says of a file that has become shorter since
        raise OSError(f"a file of experts cannot be mapped; load the model again ({error})") from error


def regions_of(source: ExpertSource) -> list[FileRegion]:
    """Return what may be mapped of a source, in order.

    That is nothing where reads are not the system's, go past the page cache, or choose among directories.
    """
    strides = source.strides
    if strides is None or source.alignment != 1 or source.native_read != 0:
        return []
    kinds, last = source.layout.kinds, source.layout.expert_count - 1
    spans = sorted(
        (int(fd), int(start) // mmap.PAGESIZE * mmap.PAGESIZE, int(start) + last * int(stride) + kind.disk_bytes)
        for layer in strides
        for kind, (fd, start, stride) in zip(kinds, layer, strict=True)
    )
    regions: list[FileRegion] = []
    for fd, start, end in spans:
        before = regions[-1] if regions else None
        if before is not None and before.fd == fd and start <= before.start + before.byte_count:
            regions[-1] = FileRegion(fd=fd, start=before.start, end=max(before.end, end))
        else:
            regions.append(FileRegion(fd=fd, start=start, end=end))
    return regions


def open_mapped_files(library: LaneLibrary, source: ExpertSource, pins: HostPins | None) -> MappedFiles | None:
    """Return what may be pinned of a source, with nothing pinned yet; None where nothing may."""
    regions = regions_of(source) if pins is not None else []
    return MappedFiles(library, source, pins, regions) if pins is not None and regions else None
