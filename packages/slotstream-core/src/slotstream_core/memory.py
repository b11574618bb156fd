"""How much memory this process uses, what there is to be had, and the cap on what MLX keeps back.

Linux counts resident pages (VmRSS, VmHWM in /proc/self/status). macOS counts the physical footprint, which includes
memory shared with the GPU and compressed pages: what its memory-pressure decisions are made from.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slotstream_planner import Machine
from slotstream_planner.sensors import DeviceMemory, read_nvidia_memory

if TYPE_CHECKING:
    from slotstream_core.backend import Backend, BackendKind
    from slotstream_planner.machine import MachineKind

PROCESS_STATUS = Path("/proc/self/status")
KIB = 1024
# rusage_info_v4 of <sys/resource.h>: a 16-byte uuid, then 64-bit counters of which these are the positions.
RUSAGE_INFO_V4 = 4
RUSAGE_COUNTERS = 35
RUSAGE_BYTES = 16 + 8 * RUSAGE_COUNTERS
PHYS_FOOTPRINT = 7
LIFETIME_MAX_PHYS_FOOTPRINT = 28


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """Memory of this process.

    Attributes:
        current_bytes: Now.
        peak_bytes: The most since the process started.
    """

    current_bytes: int
    peak_bytes: int


def footprint() -> Footprint:
    """Measure this process. Takes about 50 microseconds; never raises on Linux and macOS."""
    if sys.platform == "darwin":
        measured = parse_rusage(_rusage_info())
    else:
        measured = parse_process_status(_process_status())
    if measured is not None:
        return measured
    # Sandboxes without /proc: the C library's peak is the best upper bound there is. Bytes on macOS, else KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else KIB)
    return Footprint(current_bytes=peak, peak_bytes=peak)


def device_footprint() -> Footprint:
    """Measure what MLX holds on its device, kept buffers included: what a plan for an NVIDIA GPU is about."""
    import mlx.core as mx

    current = int(mx.get_active_memory()) + int(mx.get_cache_memory())
    return Footprint(current_bytes=current, peak_bytes=max(current, int(mx.get_peak_memory())))


def device_memory() -> DeviceMemory | None:
    """Return the memory of the NVIDIA device that MLX computes on, all programs' use counted; None where it is unknown.

    MLX asks the driver, of the device that CUDA_VISIBLE_DEVICES leaves it; where it cannot, nvidia-smi is asked of the
    first one. Loads MLX.
    """
    import mlx.core as mx

    told = mx.device_info(mx.gpu)
    total, free = told.get("total_memory"), told.get("free_memory")
    if not isinstance(total, int) or not isinstance(free, int) or total <= 0:
        return read_nvidia_memory()
    return DeviceMemory(name=str(told.get("device_name", "")), total_bytes=total, free_bytes=free)


def machine_here(backend: Backend) -> Machine:
    """Return this machine as the backend sees it: Metal's working set, or a CUDA device's memory.

    Raises:
        slotstream_planner.MachineError: The memory sensors cannot be read.
    """
    if backend.kind == "metal":
        return Machine.current(working_set_bytes=backend.working_set_bytes())
    return machine_of("cuda" if backend.kind == "cuda" else "other")


def machine_of(kind: MachineKind) -> Machine:
    """Return present readings of the memory that a plan for such a machine divides: the device's for "cuda".

    Raises:
        slotstream_planner.MachineError: The memory sensors cannot be read.
    """
    if kind == "cuda" and (device := device_memory()) is not None:
        return Machine.current(accelerator_bytes=device.total_bytes, accelerator_available_bytes=device.free_bytes)
    return Machine.current()


def planned_footprint(backend: BackendKind) -> Footprint:
    """Measure the memory that a plan for this backend speaks of: the process's, or an NVIDIA device's."""
    return device_footprint() if backend == "cuda" else footprint()


def parse_process_status(text: str) -> Footprint | None:
    """Read VmRSS and VmHWM out of the text of /proc/PID/status; None when they are not there.

    The kernel updates the peak lazily, a few hundred kB behind, so it can read lower than the current size; the larger
    is returned.
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if name in ("VmRSS", "VmHWM") and len(words) == 2 and words[0].isdigit() and words[1] == "kB":
            values[name] = int(words[0]) * KIB
    if len(values) != 2:
        return None
    return Footprint(current_bytes=values["VmRSS"], peak_bytes=max(values["VmHWM"], values["VmRSS"]))


def parse_rusage(data: bytes) -> Footprint | None:
    """Read the footprints out of a macOS rusage_info_v4; None when it is not one."""
    if len(data) != RUSAGE_BYTES:
        return None
    counters = struct.unpack(f"<16x{RUSAGE_COUNTERS}Q", data)
    current, peak = counters[PHYS_FOOTPRINT], counters[LIFETIME_MAX_PHYS_FOOTPRINT]
    if not current:
        return None
    return Footprint(current_bytes=current, peak_bytes=max(current, peak))


def cap_buffer_cache(limit_bytes: int) -> int:
    """Let MLX keep at most this many bytes of freed buffers for reuse; return the limit before.

    Loads MLX. The plan's ledger charges for this cache, so the engine sets it before it allocates anything.
    """
    import mlx.core as mx

    return int(mx.set_cache_limit(limit_bytes))


def drop_buffer_cache() -> int:
    """Give MLX's freed buffers back to the system; return how many bytes there were. Loads MLX."""
    import mlx.core as mx

    held_bytes = int(mx.get_cache_memory())
    mx.clear_cache()
    return held_bytes


def _process_status() -> str:
    try:
        return PROCESS_STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _rusage_info() -> bytes:
    buffer = ctypes.create_string_buffer(RUSAGE_BYTES)
    try:
        call = ctypes.CDLL(None).proc_pid_rusage
    except AttributeError:
        return b""
    return buffer.raw if call(os.getpid(), RUSAGE_INFO_V4, buffer) == 0 else b""
