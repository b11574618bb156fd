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
from dataclasses import dataclass
from typing import Final

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


class MappedFiles:
    """The pinned parts of a source's files. `pin` begins, a thread goes on; close the lanes before this.

    Args:
        library: The lanes' functions.
        source: Where records are read from.
        pins: Registers memory with the device.
        regions: `regions_of` the source; at least one.

    Attributes:
        handle: The table's address, for the lanes.
        finished: Set while nothing is being pinned.

    Raises (constructor):
        NativeError: There is no memory for the table.
    """

    def __init__(self, library: LaneLibrary, source: ExpertSource, pins: HostPins, regions: list[FileRegion]) -> None:
        self.finished = threading.Event()
        self.finished.set()
        self._library = library
        self._pins = pins
        self._regions = [(region, source.path(region.fd)) for region in regions]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed = False
        self._owner = os.getpid()
        self._maps: list[mmap.mmap] = []
        self._registered: list[tuple[int, int]] = []  # address, bytes
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
        return sum(size for _, size in list(self._registered))

    def pin(self, most_bytes: int) -> None:
        """Begin to pin the files from their beginnings, at most so many bytes, and return at once. To be called once.

        What the system or the driver refuses stays to be read, with one line in the log. Nothing happens once closed.
        """
        if self._closed:
            return
        self.finished.clear()
        thread = threading.Thread(target=self._work, args=(most_bytes,), name="slotstream-pinning", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many threads
            self.finished.set()
            logger.warning("files of experts are read, which is slower than fetching from pinned ones: %s", error)

    def stop(self) -> None:
        """Pin no more than what has been begun, without waiting."""
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

    def _work(self, most_bytes: int) -> None:
        started = time.perf_counter()
        try:
            self._pin_all(most_bytes)
        except (OSError, SlotstreamError) as error:
            logger.warning(
                "%s of the files of experts are pinned, the others are read, which is slower: %s",
                f"{self.pinned_bytes / 1e9:.2f} GB",
                error,
            )
        else:
            logger.info(
                "%s of the files of experts are pinned for the device to fetch from, in %.1f s",
                f"{self.pinned_bytes / 1e9:.2f} GB",
                time.perf_counter() - started,
            )
        finally:
            with self._lock:
                self.finished.set()
                if self._closed:
                    self._let_go()

    def _pin_all(self, most_bytes: int) -> None:
        left = most_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        for number, (region, path) in enumerate(self._regions):
            if not left or self._stopping.is_set():
                return
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # reads through it are in order, unlike those of the lanes
            try:
                left -= self._pin_region(number, region, fd, left)
            finally:
                os.close(fd)

    def _pin_region(self, number: int, region: FileRegion, fd: int, most_bytes: int) -> int:
        """Pin a region, or its beginning, in steps; return how many bytes that took.

        Raises:
            OSError: The file cannot be read or mapped, or is not the one that lanes read.
            BackendError: The driver refuses, or the device does not fetch what lies there.
        """
        here, theirs = os.fstat(fd), os.fstat(region.fd)
        if not os.path.samestat(here, theirs) or here.st_size < region.end:
            raise OSError("a file of experts was replaced or became shorter; load the model again")
        # A mapping consists of whole pages, also at the end of a file, where none may be asked for.
        length = min(region.byte_count, here.st_size - region.start)
        try:
            mapping = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=region.start)
        except ValueError as error:  # as Python says of a file that has become shorter since
            raise OSError(f"a file of experts cannot be mapped; load the model again ({error})") from error
        self._maps.append(mapping)
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        done = 0
        while done < min(region.byte_count, most_bytes) and not self._stopping.is_set():
            step = min(STEP_BYTES, region.byte_count - done, most_bytes - done)
            sample = _bring(fd, region.start + done, min(step, region.end - region.start - done))
            self._register(address + done, step, sample)
            done += step
            check(self._library.mapped_extend(self.handle, number, address, done), "telling lanes of a mapped file")
        return done

    def _register(self, address: int, byte_count: int, sample: bytes) -> None:
        """Pin one step; the first one has to come back from the device as `sample`, which it begins with.

        Raises:
            BackendError: The driver refuses, or the device does not fetch what lies there.
        """
        self._pins.register(address, byte_count)
        try:
            if not self._registered and self._pins.fetch(address, len(sample)) != sample:
                raise BackendError("the device does not fetch the bytes of a mapped file")
        except BackendError:
            self._pins.unregister(address)
            raise
        self._registered.append((address, byte_count))

    def _let_go(self) -> None:
        """Unregister and unmap everything. The lock is held, and nobody fetches any more."""
        for address, _ in self._registered:
            try:
                self._pins.unregister(address)
            except BackendError as error:
                logger.warning("pages of a file of experts stay pinned until the process ends: %s", error)
        self._registered.clear()
        for mapping in self._maps:
            mapping.close()
        self._maps.clear()
        self._library.mapped_release(self.handle)


def _bring(fd: int, offset: int, byte_count: int) -> bytes:
    """Read bytes into the page cache, so that the driver meets no disk; return the first of them.

    Raises:
        OSError: They cannot be read, or the file ends there.
    """
    buffer, first, done = bytearray(READ_BYTES), b"", 0
    while done < byte_count:
        count = os.preadv(fd, [memoryview(buffer)[: byte_count - done]], offset + done)
        if not count:
            raise OSError(f"a file of experts ends {byte_count - done:,} bytes before its last one")
        first = first or bytes(buffer[: min(count, PROOF_BYTES)])
        done += count
    return first


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
