"""Machines are read from what the kernel says, containers included, and impossible readings are refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from slotstream_planner import InvalidRequest, Machine, MachineError, PlanRequest, plan, published_geometry
from slotstream_planner.cgroups import MemoryPressure, read_cgroup_limits, read_memory_pressure
from slotstream_planner.machine import MachineKind
from slotstream_planner.pressure import (
    level_of_mac_value,
    level_of_stall,
    read_available_share,
    read_pressure_level,
)

GIB = 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_machine_can_be_read() -> None:
    machine = Machine.current()
    assert machine.ram_bytes > 0
    assert machine.available_bytes is not None
    assert not machine.is_simulated


def test_an_accelerator_is_planned_by_its_own_memory() -> None:
    machine = Machine.current(accelerator_bytes=140 * GIB, accelerator_available_bytes=100 * GIB)
    assert (machine.kind, machine.ram_bytes, machine.available_bytes) == ("cuda", 140 * GIB, 100 * GIB)
    assert machine.working_set_margin_bytes == 2 * 10**9


def test_a_version_2_container_limit_and_its_parents_are_read(tmp_path: Path) -> None:
    write(tmp_path / "membership", "0::/outer/inner\n")
    root = tmp_path / "fs"
    for name, limit, current, inactive in (("outer/inner", 4, 3, 1), ("outer", 8, 2, 0)):
        write(root / name / "memory.max", f"{limit * GIB}\n")
        write(root / name / "memory.current", f"{current * GIB}\n")
        write(root / name / "memory.stat", f"anon 5\ninactive_file {inactive * GIB}\nactive_file 7\n")
    write(root / "memory.max", "max\n")
    write(root / "memory.current", "1\n")
    limits = read_cgroup_limits(membership=tmp_path / "membership", root=root)
    assert [limit.limit_bytes for limit in limits] == [4 * GIB, 8 * GIB]
    assert [limit.available_bytes for limit in limits] == [2 * GIB, 6 * GIB]
    assert [limit.available_without_cache_bytes for limit in limits] == [2 * GIB + 7, 6 * GIB + 7]


def test_a_version_1_limit_is_read_and_its_absence_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "membership", "9:cpu,memory:/job\n1:name=systemd:/x\n")
    root = tmp_path / "fs"
    write(root / "memory/job/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(root / "memory/job/memory.usage_in_bytes", f"{GIB}\n")
    write(root / "memory/job/memory.stat", "total_inactive_file 10\ntotal_active_file 5\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "memory/memory.usage_in_bytes", "5\n")
    limits = read_cgroup_limits(membership=tmp_path / "membership", root=root)
    assert [(limit.limit_bytes, limit.available_bytes) for limit in limits] == [(2 * GIB, GIB + 10)]
    assert limits[0].available_without_cache_bytes == GIB + 15


def test_no_control_groups_is_no_limit(tmp_path: Path) -> None:
    assert read_cgroup_limits(membership=tmp_path / "absent", root=tmp_path) == []


def test_a_stall_file_gives_the_last_ten_seconds(tmp_path: Path) -> None:
    write(tmp_path / "memory", "some avg10=12.50 avg60=1.00 total=9\nfull avg10=2.25 avg60=0 total=3\n")
    assert read_memory_pressure(tmp_path / "memory") == MemoryPressure(some=12.5, full=2.25)
    assert read_pressure_level(tmp_path / "memory", available_share=lambda: 0.2) == "warning"
    assert read_pressure_level(tmp_path / "memory", available_share=lambda: None) == "warning"


def test_stalls_while_memory_is_free_belong_to_others(tmp_path: Path) -> None:
    write(tmp_path / "memory", "some avg10=80.00 avg60=1.00 total=9\nfull avg10=20.00 avg60=0 total=3\n")
    assert read_pressure_level(tmp_path / "memory", available_share=lambda: 0.24) == "critical"
    assert read_pressure_level(tmp_path / "memory", available_share=lambda: 0.25) == "normal"


def test_the_available_share_counts_all_that_this_process_may_use() -> None:
    share = read_available_share()
    assert share is not None
    assert 0 < share <= 1


@pytest.mark.parametrize("text", ["", "some avg10=oops\n", "nonsense\n"])
def test_a_malformed_stall_file_is_no_alarm(tmp_path: Path, text: str) -> None:
    write(tmp_path / "memory", text)
    assert read_pressure_level(tmp_path / "memory") in (None, "normal")


def test_a_missing_stall_file_is_no_reading(tmp_path: Path) -> None:
    assert read_pressure_level(tmp_path / "memory") is None


def test_pressure_levels() -> None:
    assert level_of_stall(MemoryPressure(some=9.9, full=0)) == "normal"
    assert level_of_stall(MemoryPressure(some=80, full=10)) == "critical"
    assert [level_of_mac_value(value) for value in (1, 2, 4, 77)] == ["normal", "warning", "critical", "warning"]


@pytest.mark.parametrize("ram", [math.nan, math.inf, 0, -4])
def test_a_simulated_size_must_be_one(ram: float) -> None:
    with pytest.raises(InvalidRequest):
        Machine.simulated(ram_gb=ram)


@pytest.mark.parametrize("options", [{"working_set_gb": 20}, {"available_gb": 17}, {"available_gb": math.nan}])
def test_simulated_readings_must_agree(options: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Machine.simulated(ram_gb=16, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "readings",
    [
        {"ram_bytes": 0},
        {"available_bytes": -1},
        {"working_set_bytes": 0},
        {"ram_bytes": 2**63},
    ],
)
def test_an_impossible_reading_is_refused(readings: dict[str, int]) -> None:
    good = {"ram_bytes": 16 * GIB, "available_bytes": 8 * GIB, "working_set_bytes": 12 * GIB, **readings}
    with pytest.raises(MachineError, match="cannot be right"):
        Machine(kind="macos", cores=8, **good)  # type: ignore[arg-type]


def test_without_an_availability_reading_nothing_is_planned() -> None:
    machine = Machine(kind="linux", ram_bytes=64 * GIB, available_bytes=None, working_set_bytes=None, cores=8)
    for request in (PlanRequest(), PlanRequest(memory_gb=20), PlanRequest(experts_per_layer=30)):
        with pytest.raises(MachineError, match="available memory could not be read"):
            plan(published_geometry(), machine, request)


def test_slack_is_five_percent_of_a_large_machine_and_a_quarter_of_a_tiny_one() -> None:
    def slack(ram_gb: float) -> int:
        return Machine.simulated(ram_gb=ram_gb).slack_bytes

    assert (slack(51.5), slack(16), slack(2)) == (2_575_000_000, 1_500_000_000, 500_000_000)


def test_an_unread_working_set_is_three_quarters_of_a_mac_and_all_of_a_linux_machine() -> None:
    def limit(kind: MachineKind) -> int:
        machine = Machine(kind=kind, ram_bytes=16_000, available_bytes=1, working_set_bytes=None, cores=1)
        return machine.working_set_limit_bytes

    assert (limit("macos"), limit("linux")) == (12_000, 16_000)
