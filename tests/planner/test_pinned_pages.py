"""Pinned pages of files are found among the counters of Linux, as they were read beside an NVIDIA H200."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotstream_planner import Machine
from slotstream_planner.cgroups import CgroupLimit
from slotstream_planner.pinned_pages import read_pinned_page_bytes
from slotstream_planner.pressure import read_available_share

RECORDED = Path(__file__).parent / "recorded"
GIB = 2**30

pytestmark = pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != 4096, reason="recorded with pages of 4 KiB")


def counters(path: Path, acquired: int, released: int) -> Path:
    path.write_text(f"nr_free_pages 1\nnr_foll_pin_acquired {acquired}\nnr_foll_pin_released {released}\nnr_x y\n")
    return path


@pytest.mark.parametrize(
    ("moment", "acquired", "released", "expected"),
    [
        ("pinned", 1_057_792, 7_111, 4 * GIB),  # 4 GiB of a file
        ("let_go", 1_582_079, 1_317_841, 0),  # no file, and 1 GiB of CUDA's pinned memory, which is shared memory
    ],
)
def test_pinned_files_are_told_from_cudas_own_pinned_memory(
    tmp_path: Path, moment: str, acquired: int, released: int, expected: int
) -> None:
    vmstat = counters(tmp_path / "vmstat", acquired, released)
    found = read_pinned_page_bytes(vmstat=vmstat, meminfo=RECORDED / f"meminfo.{moment}")
    assert expected <= found <= expected + 0.3 * 10**9  # programs and libraries are mapped, too


def test_what_is_pinned_for_a_moment_is_next_to_nothing() -> None:
    found = read_pinned_page_bytes(vmstat=RECORDED / "vmstat.before", meminfo=RECORDED / "meminfo.before")
    assert found == (8_396_718 - 8_394_716) * 4096  # after 34 GB of pins that were let go


def test_pins_of_programs_are_no_pages_of_files(tmp_path: Path) -> None:
    vmstat = counters(tmp_path / "vmstat", 100 * GIB // 4096, 0)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("Mapped: 200000 kB\nShmem: 300000 kB\n")
    assert read_pinned_page_bytes(vmstat=vmstat, meminfo=meminfo) == 0


def test_a_kernel_without_the_counters_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("nr_free_pages 1\n")
    assert read_pinned_page_bytes(vmstat=tmp_path / "vmstat", meminfo=RECORDED / "meminfo.pinned") == 0
    assert read_pinned_page_bytes(vmstat=tmp_path / "none", meminfo=tmp_path / "none") == 0
    vmstat = counters(tmp_path / "vmstat", 10, 20)
    assert read_pinned_page_bytes(vmstat=vmstat, meminfo=RECORDED / "meminfo.pinned") == 0


def test_a_host_beside_a_device_is_read_with_its_pinned_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotstream_planner.machine.read_pinned_page_bytes", lambda: 5 * GIB)
    machine = Machine.current(accelerator_bytes=140 * GIB, accelerator_available_bytes=100 * GIB)
    assert machine.host_pinned_bytes == 5 * GIB
    assert Machine.current().host_pinned_bytes == 0


def test_what_is_pinned_is_no_part_of_the_available_share(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0
    monkeypatch.setattr("slotstream_planner.pressure.read_pinned_page_bytes", lambda: counted)
    machine = Machine.current()
    assert machine.available_bytes is not None
    monkeypatch.setattr(Machine, "current", lambda: machine)
    half = machine.available_bytes // 2
    whole, without = read_available_share(), read_available_share(half)
    assert whole is not None
    assert without == pytest.approx(whole / 2)
    counted = half
    assert read_available_share() == read_available_share(half // 2) == without
    assert read_available_share(machine.ram_bytes) == 0


def test_page_cache_in_active_use_is_available_beside_a_device() -> None:
    limit = CgroupLimit(limit_bytes=100, used_bytes=90, reclaimable_bytes=20, active_cache_bytes=30)
    assert (limit.available_bytes, limit.available_without_cache_bytes) == (30, 60)
    odd = CgroupLimit(limit_bytes=100, used_bytes=10, reclaimable_bytes=10, active_cache_bytes=30)
    assert odd.available_without_cache_bytes == 100
