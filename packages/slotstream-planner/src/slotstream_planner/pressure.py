"""Memory pressure as the operating system reports it, as one of three levels."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Final, Literal

from slotstream_planner.cgroups import MemoryPressure, read_memory_pressure

__all__ = ["PressureLevel", "level_of_mac_value", "level_of_stall", "read_pressure_level"]

PressureLevel = Literal["normal", "warning", "critical"]

_WARNING_SOME_PERCENT: Final = 10.0
_CRITICAL_FULL_PERCENT: Final = 10.0
_MAC_LEVELS: Final[dict[int, PressureLevel]] = {1: "normal", 2: "warning", 4: "critical"}


def level_of_stall(pressure: MemoryPressure) -> PressureLevel:
    """Return the level of a Linux stall reading.

    Tasks that lose a tenth of their time to memory are a warning; all of them losing it is critical.
    """
    if pressure.full >= _CRITICAL_FULL_PERCENT:
        return "critical"
    return "warning" if pressure.some >= _WARNING_SOME_PERCENT else "normal"


def level_of_mac_value(value: int) -> PressureLevel:
    """Return the level of macOS's ``kern.memorystatus_vm_pressure_level``; unknown values are a warning."""
    return _MAC_LEVELS.get(value, "warning")


def read_pressure_level(stall_file: Path = Path("/proc/pressure/memory")) -> PressureLevel | None:
    """Return this machine's level now, or None where it reports none."""
    if sys.platform == "darwin":
        return _read_mac_level()
    reading = read_memory_pressure(stall_file)
    return None if reading is None else level_of_stall(reading)


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
