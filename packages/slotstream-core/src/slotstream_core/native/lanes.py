"""The C functions of the reading lanes (csrc/lanes.h, csrc/mapped.h, csrc/mirrors.h) as ctypes sees them.

Calls that only keep books hold the interpreter lock, since handing it over would cost more than they take; the two that
wait release it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Mapping
from ctypes import c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Final

from slotstream_core.errors import NativeError
from slotstream_core.native.binding import ABI_VERSION, library_path
from slotstream_core.native.elf import check_whole
from slotstream_core.native.library import OFF, native_choice

logger = logging.getLogger("slotstream.native")

AS_STORED, WIDENED = 0, 1
UNCHECKED, FINITE_BFLOAT16, FINITE_FLOAT32 = 0, 1, 2
CANCELLED, NOT_READ, NOT_FINITE, NOT_COPIED = 1, 2, 3, 4

READ_FUNCTION: Final = ctypes.CFUNCTYPE(c_int64, c_void_p, c_int32, c_void_p, c_int32, c_int64)
"""`ss_read_function`: context, descriptor, buffers, their number, offset."""


class LaneSettings(ctypes.Structure):
    """`ss_lane_settings`."""

    _fields_ = [
        ("demand_lanes", c_int32),
        ("ahead_lanes", c_int32),
        ("alignment", c_int64),
        ("merge_bytes", c_int64),
        ("job_bytes", c_int64),
        ("part_bytes", c_int64),
        ("staging", c_int64),
        ("scratch", c_void_p),
        ("scratch_bytes", c_int64),
        ("scratch_stride", c_int64),
        ("ahead_scratch", c_void_p),
        ("ahead_scratch_bytes", c_int64),
        ("ahead_scratch_stride", c_int64),
        ("read", c_void_p),
        ("context", c_void_p),
        ("copy", c_void_p),
        ("finish", c_void_p),
        ("stream", c_void_p),
        ("launch", c_void_p),
        ("kernel", c_void_p),
        ("event", c_void_p),
        ("record", c_void_p),
        ("follow", c_void_p),
        ("mirrors", c_void_p),
        ("mapped", c_void_p),
    ]


class PieceKindStructure(ctypes.Structure):
    """`ss_piece_kind`."""

    _fields_ = [
        ("slots", c_void_p),
        ("slot_count", c_int64),
        ("slot_bytes", c_int64),
        ("disk_bytes", c_int64),
        ("change", c_int32),
        ("check", c_int32),
    ]


class BatchState(ctypes.Structure):
    """`ss_batch_state`."""

    _fields_ = [
        ("done", c_int32),
        ("failures", c_int32),
        ("cancelled", c_int32),
        ("left_out", c_int32),
        ("bytes_read", c_int64),
        ("read_ns", c_int64),
    ]


class Failure(ctypes.Structure):
    """`ss_failure`."""

    _fields_ = [
        ("outcome", c_int32),
        ("error", c_int32),
        ("record", c_int32),
        ("kind", c_int32),
        ("first_missing", c_int32),
        ("fd", c_int32),
        ("offset", c_int64),
        ("wanted", c_int64),
        ("got", c_int64),
    ]


class Fault(ctypes.Structure):
    """`ss_fault` of csrc/mirrors.h."""

    _fields_ = [
        ("fd", c_int32),
        ("error", c_int32),
        ("offset", c_int64),
        ("wanted", c_int64),
        ("got", c_int64),
    ]


class DirectoryStructure(ctypes.Structure):
    """`ss_directory_state` of csrc/mirrors.h."""

    _fields_ = [
        ("queued_bytes", c_int64),
        ("total_bytes", c_int64),
        ("bytes_per_s", c_double),
        ("usable", c_int32),
        ("passed_over", c_int32),
        ("fault", Fault),
    ]


_SHORT: Final = {
    "ss_abi_version": (c_int32, []),
    "ss_lanes_create": (c_int32, [ctypes.POINTER(LaneSettings), ctypes.POINTER(c_void_p)]),
    "ss_lanes_release": (None, [c_void_p]),
    "ss_batch_create": (c_int32, [c_void_p, c_void_p, c_int64, c_void_p, c_int64, ctypes.POINTER(c_void_p)]),
    "ss_batch_state_of": (c_void_p, [c_void_p]),
    "ss_batch_reads": (c_int64, [c_void_p]),
    "ss_batch_submit": (c_int32, [c_void_p]),
    "ss_batch_read_ahead": (c_int32, [c_void_p]),
    "ss_batch_cancel": (None, [c_void_p]),
    "ss_batch_retract": (c_int32, [c_void_p]),
    "ss_batch_failures": (c_int64, [c_void_p, c_void_p, c_int64]),
    "ss_batch_release": (None, [c_void_p]),
    "ss_mapped_create": (c_int32, [c_void_p, c_int64, ctypes.POINTER(c_void_p)]),
    "ss_mapped_extend": (c_int32, [c_void_p, c_int64, c_void_p, c_int64]),
    "ss_mapped_shrink": (c_int32, [c_void_p, c_int64, c_int64]),
    "ss_mapped_quiet": (c_int32, [c_void_p]),
    "ss_mapped_users": (c_int64, [c_void_p]),
    "ss_mapped_release": (None, [c_void_p]),
    "ss_mirrors_create": (c_int32, [c_int32, ctypes.POINTER(c_void_p)]),
    "ss_mirrors_release": (None, [c_void_p]),
    "ss_mirrors_choose": (c_int32, [c_void_p, c_int64, c_int64]),
    "ss_mirrors_settle": (None, [c_void_p, c_int32, c_int64]),
    "ss_mirrors_begin": (None, [c_void_p, c_int32, c_double]),
    "ss_mirrors_end": (None, [c_void_p, c_int32, c_double, c_int64]),
    "ss_mirrors_leave_out": (
        c_int32,
        [c_void_p, c_int32, ctypes.POINTER(Fault), c_int64, ctypes.POINTER(c_int32)],
    ),
    "ss_mirrors_state": (None, [c_void_p, c_int32, ctypes.POINTER(DirectoryStructure)]),
}
_WAITING: Final = {
    "ss_batch_wait": (c_int32, [c_void_p, c_int64]),
    "ss_lanes_close": (c_int32, [c_void_p, c_int64]),
}


class LaneLibrary:
    """The functions, by their names in C without the prefix.

    Args:
        path: The built library.

    Raises (constructor):
        NativeError: It cannot be loaded, lacks a function, or was built from another version of this package.
    """

    def __init__(self, path: Path) -> None:
        try:
            check_whole(path)
            holding, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
            for library, functions in ((holding, _SHORT), (releasing, _WAITING)):
                for name, (result, arguments) in functions.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path.name} cannot be used ({error}); install slotstream-core again") from error
        version = holding.ss_abi_version()
        if version != ABI_VERSION:
            raise NativeError(f"{path.name} has interface {version}, not {ABI_VERSION}; install slotstream-core again")
        self.lanes_create = holding.ss_lanes_create
        self.lanes_release = holding.ss_lanes_release
        self.lanes_close = releasing.ss_lanes_close
        self.batch_create = holding.ss_batch_create
        self.batch_state_of = holding.ss_batch_state_of
        self.batch_reads = holding.ss_batch_reads
        self.batch_submit = holding.ss_batch_submit
        self.batch_read_ahead = holding.ss_batch_read_ahead
        self.batch_wait = releasing.ss_batch_wait
        self.batch_cancel = holding.ss_batch_cancel
        self.batch_retract = holding.ss_batch_retract
        self.batch_failures = holding.ss_batch_failures
        self.batch_release = holding.ss_batch_release
        self.mapped_create = holding.ss_mapped_create
        self.mapped_extend = holding.ss_mapped_extend
        self.mapped_shrink = holding.ss_mapped_shrink
        self.mapped_quiet = holding.ss_mapped_quiet
        self.mapped_users = holding.ss_mapped_users
        self.mapped_release = holding.ss_mapped_release
        self.mirrors_create = holding.ss_mirrors_create
        self.mirrors_release = holding.ss_mirrors_release
        self.mirrors_choose = holding.ss_mirrors_choose
        self.mirrors_settle = holding.ss_mirrors_settle
        self.mirrors_begin = holding.ss_mirrors_begin
        self.mirrors_end = holding.ss_mirrors_end
        self.mirrors_leave_out = holding.ss_mirrors_leave_out
        self.mirrors_state = holding.ss_mirrors_state


@functools.cache
def _opened(path: Path) -> LaneLibrary | None:
    """Open a file once in a process, however many engines and draft heads ask, so that a warning comes once too."""
    try:
        return LaneLibrary(path)
    except NativeError as error:
        logger.warning("%s; experts are read by Python's threads, which is slower", error)
        return None


def lane_library(environment: Mapping[str, str], *, path: Path | None = None) -> LaneLibrary | None:
    """Return the library; None when it is switched off, not installed, unusable (said in the log), or on macOS.

    Raises:
        SettingError: `SLOTSTREAM_NATIVE` has a value that cannot be used.
    """
    where = path or library_path()
    if native_choice(environment) == OFF or sys.platform == "darwin" or where is None:
        return None
    return _opened(where)
