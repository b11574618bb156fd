"""Which of several directories that hold the same records is asked for one: where it is expected to arrive first.

That is the directory with the least (bytes it still has to bring + bytes of this record) / throughput. The throughput
is measured while reading: bytes over the time in which at least one read was under way, recent ones counting most.
Before anything is measured all directories count as equally fast. An even split would wait for the slowest disk, and
the time of a single read says more about the queue before it than about the disk.

csrc/mirrors.c decides where the library is there, since its lanes read then; `PythonDirectories` decides the same, to
the last bit, where it is not.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from slotstream_core.native import lanes as binding
from slotstream_core.native.binding import check
from slotstream_core.native.lanes import LaneLibrary

WINDOW_S: Final = 0.5
"""Busy time after which what was measured before counts half."""

REMEASURE_AFTER: Final = 256
"""Records that go elsewhere before a directory is tried again, and then by that read alone: a disk that was slow for a
while comes back."""


class Fault(NamedTuple):
    """A read that did not come in full; error 0 says that the file ends there."""

    fd: int
    error: int
    offset: int
    wanted: int
    got: int

    @property
    def reason(self) -> str:
        """Why no more came."""
        return os.strerror(self.error) if self.error else "the file ends there"


NO_FAULT: Final = Fault(0, 0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectoryState:
    """What one directory has to do and how fast it does it.

    Attributes:
        queued_bytes: Chosen and not settled yet.
        total_bytes: Read since the start.
        bytes_per_s: Measured throughput; 0 before the first read.
        usable: Whether it is still asked.
        passed_over: Records that went elsewhere since it was asked last.
        fault: What made it unusable.
    """

    queued_bytes: int
    total_bytes: int
    bytes_per_s: float
    usable: bool
    passed_over: int
    fault: Fault


class Directories(Protocol):
    """Chooses; directories are known by their position. Any thread may call it. Times are seconds of one clock."""

    @property
    def address(self) -> int | None:
        """Of the `ss_mirrors` that compiled lanes ask; None where they cannot."""

    def choose(self, byte_count: int, record_count: int) -> int:
        """Return where so many bytes, of so many records, are expected first, and queue them there."""

    def settle(self, directory: int, byte_count: int) -> None:
        """Say that queued bytes are not waited for any more."""

    def begin(self, directory: int, now_s: float) -> None:
        """Count a read that begins."""

    def end(self, directory: int, now_s: float, byte_count: int) -> None:
        """Count a read that ended with so many bytes."""

    def leave_out(self, directory: int, fault: Fault, byte_count: int) -> int | None:
        """Ask a directory no more whose read failed; return where bytes are expected first now, and queue nothing.

        None, with nothing changed, when it is the last.
        """

    def state(self, directory: int) -> DirectoryState:
        """Return the present state."""


@dataclass(kw_only=True, slots=True)
class _Load:
    queued_bytes: int = 0
    total_bytes: int = 0
    usable: bool = True
    passed_over: int = 0
    fault: Fault = NO_FAULT
    under_way: int = 0
    measured_anew: bool = False
    since_s: float = 0.0
    busy_s: float = 0.0
    recent_bytes: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.recent_bytes / self.busy_s if self.busy_s > 0 and self.recent_bytes > 0 else 0.0


class PythonDirectories:
    """See `Directories`.

    Args:
        count: Of directories.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._loads = [_Load() for _ in range(count)]

    @property
    def address(self) -> None:
        """See `Directories`."""
        return None

    def choose(self, byte_count: int, record_count: int) -> int:
        """See `Directories`."""
        with self._lock:
            chosen = self._choose(byte_count, record_count)
            self._loads[chosen].queued_bytes += byte_count
            return chosen

    def settle(self, directory: int, byte_count: int) -> None:
        """See `Directories`."""
        with self._lock:
            load = self._loads[directory]
            load.queued_bytes = max(0, load.queued_bytes - byte_count)

    def begin(self, directory: int, now_s: float) -> None:
        """See `Directories`."""
        with self._lock:
            load = self._loads[directory]
            if not load.under_way:
                load.since_s = now_s
            load.under_way += 1

    def end(self, directory: int, now_s: float, byte_count: int) -> None:
        """See `Directories`."""
        with self._lock:
            load = self._loads[directory]
            if load.measured_anew:
                load.measured_anew, load.busy_s, load.recent_bytes = False, 0.0, 0.0
            load.busy_s += now_s - load.since_s
            load.since_s = now_s
            load.under_way -= 1
            load.recent_bytes += byte_count
            load.total_bytes += byte_count
            if load.busy_s > WINDOW_S:
                load.busy_s /= 2
                load.recent_bytes /= 2

    def leave_out(self, directory: int, fault: Fault, byte_count: int) -> int | None:
        """See `Directories`."""
        with self._lock:
            if not any(load.usable for index, load in enumerate(self._loads) if index != directory):
                return None
            failed = self._loads[directory]
            if failed.usable:
                failed.usable, failed.fault = False, fault
            return self._choose(byte_count, 1)

    def state(self, directory: int) -> DirectoryState:
        """See `Directories`."""
        with self._lock:
            load = self._loads[directory]
            return DirectoryState(
                queued_bytes=load.queued_bytes,
                total_bytes=load.total_bytes,
                bytes_per_s=load.bytes_per_s,
                usable=load.usable,
                passed_over=load.passed_over,
                fault=load.fault,
            )

    def _choose(self, byte_count: int, record_count: int) -> int:
        """Return where bytes are expected first. The lock is held."""
        usable = [index for index, load in enumerate(self._loads) if load.usable]
        known = [rate for index in usable if (rate := self._loads[index].bytes_per_s)]
        assumed = sum(known) / len(known) if known else 1.0

        def expected_s(index: int) -> float:
            load = self._loads[index]
            return (load.queued_bytes + byte_count) / (load.bytes_per_s or assumed)

        forgotten = [index for index in usable if self._loads[index].passed_over >= REMEASURE_AFTER]
        chosen = forgotten[0] if forgotten else min(usable, key=expected_s)
        self._loads[chosen].measured_anew |= bool(forgotten)
        for index in usable:
            load = self._loads[index]
            load.passed_over = 0 if index == chosen else min(REMEASURE_AFTER, load.passed_over + record_count)
        return chosen


class CompiledDirectories:
    """See `Directories`; csrc/mirrors.c.

    Args:
        library: The functions.
        count: Of directories.

    Raises (constructor):
        NativeError: There are too many of them, or too little memory.
    """

    def __init__(self, library: LaneLibrary, count: int) -> None:
        handle = ctypes.c_void_p()
        check(library.mirrors_create(count, ctypes.byref(handle)), "sharing reads among directories")
        self._library = library
        self._handle = handle.value or 0
        weakref.finalize(self, library.mirrors_release, self._handle)

    @property
    def address(self) -> int:
        """See `Directories`."""
        return self._handle

    def choose(self, byte_count: int, record_count: int) -> int:
        """See `Directories`."""
        return int(self._library.mirrors_choose(self._handle, byte_count, record_count))

    def settle(self, directory: int, byte_count: int) -> None:
        """See `Directories`."""
        self._library.mirrors_settle(self._handle, directory, byte_count)

    def begin(self, directory: int, now_s: float) -> None:
        """See `Directories`."""
        self._library.mirrors_begin(self._handle, directory, now_s)

    def end(self, directory: int, now_s: float, byte_count: int) -> None:
        """See `Directories`."""
        self._library.mirrors_end(self._handle, directory, now_s, byte_count)

    def leave_out(self, directory: int, fault: Fault, byte_count: int) -> int | None:
        """See `Directories`."""
        newly = ctypes.c_int32()
        why = binding.Fault(*fault)
        other = self._library.mirrors_leave_out(
            self._handle, directory, ctypes.byref(why), byte_count, ctypes.byref(newly)
        )
        return None if other < 0 else int(other)

    def state(self, directory: int) -> DirectoryState:
        """See `Directories`."""
        found = binding.DirectoryStructure()
        self._library.mirrors_state(self._handle, directory, ctypes.byref(found))
        fault = found.fault
        return DirectoryState(
            queued_bytes=found.queued_bytes,
            total_bytes=found.total_bytes,
            bytes_per_s=found.bytes_per_s,
            usable=bool(found.usable),
            passed_over=found.passed_over,
            fault=Fault(fault.fd, fault.error, fault.offset, fault.wanted, fault.got),
        )


def open_directories(library: LaneLibrary | None, count: int) -> Directories:
    """Return what chooses among so many directories: the library's, or Python's where there is none."""
    return PythonDirectories(count) if library is None else CompiledDirectories(library, count)
