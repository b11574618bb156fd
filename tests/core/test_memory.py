"""Process memory from recorded inputs, and against this process."""

from __future__ import annotations

import mmap
import struct

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core import memory
from slotstream_core.backend import Backend
from slotstream_core.memory import (
    Footprint,
    device_memory,
    footprint,
    machine_of,
    parse_process_status,
    parse_rusage,
)
from slotstream_planner.sensors import DeviceMemory

LINUX_STATUS = """Name:\tpython3.11
Umask:\t0022
State:\tR (running)
VmPeak:\t 1436548 kB
VmSize:\t 1371012 kB
VmHWM:\t  241992 kB
VmRSS:\t  176456 kB
RssAnon:\t  151880 kB
Threads:\t7
"""


def test_linux_counts_resident_pages() -> None:
    assert parse_process_status(LINUX_STATUS) == Footprint(current_bytes=180_690_944, peak_bytes=247_799_808)


def test_the_peak_is_never_below_the_current_size() -> None:
    status = LINUX_STATUS.replace("241992", "100000")
    assert parse_process_status(status) == Footprint(current_bytes=180_690_944, peak_bytes=180_690_944)


@pytest.mark.parametrize("text", ["", "Name:\tkthreadd\n", "VmRSS:\t12 MB\nVmHWM:\t12 kB\n", "VmRSS\nVmHWM: x kB"])
def test_a_status_without_the_sizes_says_nothing(text: str) -> None:
    assert parse_process_status(text) is None


def test_macos_counts_the_physical_footprint() -> None:
    counters = [1000 + index for index in range(35)]
    counters[7], counters[28] = 3_221_225_472, 5_368_709_120
    data = struct.pack("<16s35Q", b"uuid", *counters)
    assert parse_rusage(data) == Footprint(current_bytes=3_221_225_472, peak_bytes=5_368_709_120)
    assert parse_rusage(data[:-8]) is None
    assert parse_rusage(bytes(len(data))) is None


def test_a_new_array_shows_in_the_footprint() -> None:
    before = footprint()
    block = mmap.mmap(-1, 64_000_000)  # memory of its own, which nothing freed before can stand for
    np.frombuffer(block, np.uint8)[:] = 1
    during = footprint()
    assert during.current_bytes - before.current_bytes > 50_000_000
    assert during.peak_bytes >= during.current_bytes
    block.close()
    after = footprint()
    assert after.peak_bytes > after.current_bytes + 50_000_000


def test_a_devices_memory_is_what_mlx_is_told_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, str | int] = {"device_name": "H", "total_memory": 140 * 10**9, "free_memory": 90 * 10**9}
    monkeypatch.setattr(mx, "device_info", lambda _: told)
    monkeypatch.setattr(memory, "read_nvidia_memory", lambda: DeviceMemory(name="smi", total_bytes=2, free_bytes=1))
    machine = machine_of("cuda")
    assert (machine.kind, machine.ram_bytes, machine.available_bytes) == ("cuda", 140 * 10**9, 90 * 10**9)
    assert machine.host_available_bytes is not None
    del told["free_memory"]
    assert device_memory() == DeviceMemory(name="smi", total_bytes=2, free_bytes=1)
    monkeypatch.setattr(memory, "read_nvidia_memory", lambda: None)
    assert machine_of("cuda").kind != "cuda"


def test_without_proc_the_peak_stands_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_process_status", lambda: "")
    monkeypatch.setattr("slotstream_core.memory.sys.platform", "linux")
    measured = footprint()
    assert measured.current_bytes == measured.peak_bytes > 10_000_000


def test_the_buffer_cache_is_capped_and_dropped() -> None:
    before = memory.cap_buffer_cache(1_000_000)
    try:
        for _ in range(3):
            mx.eval(mx.zeros((4_000_000,)))
        # MLX's CUDA backend asks whether the cache is full before it adds a buffer
        one_buffer_more = 17_000_000 if Backend.detect().kind == "cuda" else 0
        assert mx.get_cache_memory() <= 1_000_000 + one_buffer_more
        assert memory.cap_buffer_cache(2_000_000) == 1_000_000
        assert memory.drop_buffer_cache() >= 0
        assert mx.get_cache_memory() == 0
    finally:
        memory.cap_buffer_cache(before)
