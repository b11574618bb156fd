"""Memory pressure as the operating system reports it, as one of three levels."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from slotstream_planner.cgroups import MemoryPressure, read_memory_pressure
from slotstream_planner.errors import MachineError
from slotstream_planner.machine import Machine
from slotstream_planner.pinned_pages import read_pinned_page_bytes

__all__ = ["PressureLevel", "level_of_mac_value", "level_of_stall", "read_available_share", "read_pressure_level"]

PressureLevel = Literal["normal", "warning", "critical"]

_WARNING_SOME_PERCENT: Final = 10.0
_CRITICAL_FULL_PERCENT: Final = 10.0
_PLENTY_SHARE: Final = 0.25
_MAC_LEVELS: Final[dict[int, PressureLevel]] = {1: "normal", 2: "warning", 4: "critical"}


def level_of_stall(pressure: MemoryPressure, *, available_share: float | None = None) -> PressureLevel:
    """Return the level of a Linux stall reading.

    Tasks that lose a tenth of their time to memory are a warning; all of them losing it is critical.  The reading is
    the whole machine's: a program that stalls at the limit of its own control group raises it while memory is free.
    So while a quarter of the memory this process may use is available, a stall is somebody else's.

    Args:
        pressure: The reading.
        available_share: Available memory over all there is, control groups included; None when it is not known.
    """
    if available_share is not None and available_share >= _PLENTY_SHARE:
        return "normal"
    if pressure.full >= _CRITICAL_FULL_PERCENT:
        return "critical"
    return "warning" if pressure.some >= _WARNING_SOME_PERCENT else "normal"


def level_of_mac_value(value: int) -> PressureLevel:
    """Return the level of macOS's ``kern.memorystatus_vm_pressure_level``; unknown values are a warning."""
    return _MAC_LEVELS.get(value, "warning")


def read_available_share(pinned_bytes: int = 0) -> float | None:
    """Return which share of the memory this process may use is available now, or None when it cannot be read.

    Args:
        pinned_bytes: What this process has pinned of files. That, and what others have pinned as far as it is told,
            counts as available to the system, and nobody can have it.
    """
    try:
        machine = Machine.current()
    except MachineError:
        return None
    if machine.available_bytes is None:
        return None
    pinned_bytes = max(pinned_bytes, read_pinned_page_bytes())
    return max(0, machine.available_bytes - pinned_bytes) / machine.ram_bytes


def read_pressure_level(
    stall_file: Path = Path("/proc/pressure/memory"),
    *,
    available_share: Callable[[], float | None] = read_available_share,
) -> PressureLevel | None:
    """Return this machine's level now, or None where it reports none.

    Args:
        stall_file: Where Linux reports stalls.
        available_share: Asked on Linux when tasks stall, see `level_of_stall`.
    """
    if sys.platform == "darwin":
        return _read_mac_level()
    reading = read_memory_pressure(stall_file)
    if reading is None or level_of_stall(reading) == "normal":
        return None if reading is None else "normal"
    return level_of_stall(reading, available_share=available_share())


def _read_mac_level() -> PressureLevel | None:
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    try:
        library = ctypes.CDLL(None)
        failed = library.sysctlbyname(
            b"kern.memorystatus_vm_pressure_level", ctypes.byref(value), ctypes.byref(size), None, 0
        )
    except (OSError, AttributeError):
        return None
    return None if failed else level_of_mac_value(value.value)
