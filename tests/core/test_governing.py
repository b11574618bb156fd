"""The governor's loop: when it polls, what it waits for, and that a real pool keeps its output."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core.diagnostics.elastic import check_elastic
from slotstream_core.errors import DeviceHung
from slotstream_core.governing import Governor, Sensors
from slotstream_core.testing import write_tiny_model
from slotstream_planner import Machine, MachineError, MemoryPlan, PlanRequest, plan, published_geometry
from slotstream_planner.pressure import PressureLevel

GEOMETRY = published_geometry()
DEVICE = Machine.simulated(ram_gb=51.5, working_set_gb=40.2)
PLAN = plan(GEOMETRY, DEVICE, PlanRequest(max_context=32_768))


class FakePool:
    def __init__(self, slots: int) -> None:
        self.slot_count = slots
        self.sizes = [slots]

    def growth_transient_bytes(self, slot_count: int) -> int:
        return slot_count * 819_200

    def resize(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.sizes.append(slot_count)


class FakePins:
    def __init__(self, byte_count: int = 0) -> None:
        self.pinned_bytes = self.wanted_bytes = self.most_bytes = byte_count
        self.asked: list[int] = []

    def pin(self, wanted_bytes: int) -> None:
        self.pinned_bytes = self.wanted_bytes = wanted_bytes
        self.asked.append(wanted_bytes)


class FakeEngine:
    """An engine made of numbers, whose gate can be held as a request would hold it."""

    def __init__(self, loaded: MemoryPlan = PLAN) -> None:
        self.plan = loaded
        self.pool = FakePool(loaded.pool_slots)
        self.pins = FakePins()
        self.prefix_bytes = 0
        self.lock = threading.Lock()
        self.events: list[str] = []

    def try_gate(self) -> AbstractContextManager[None] | None:
        return self.wait_gate() if not self.lock.locked() else None

    @contextmanager
    def wait_gate(self) -> Iterator[None]:
        with self.lock:
            self.events.append("gate")
            yield

    def cancel_running(self) -> None:
        self.events.append("cancel")

    def drop_caches(self, *, retained: bool) -> None:
        self.events.append("drop all" if retained else "drop buffers")

    def adopt(self, plan: MemoryPlan) -> None:
        self.plan = plan


class World:
    """Sensors a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.level: PressureLevel | None = "normal"
        self.machine: Machine | None = DEVICE
        self.footprint_bytes = 10**9

    def read_machine(self) -> Machine:
        if self.machine is None:
            raise MachineError("no reading")
        return self.machine

    @property
    def sensors(self) -> Sensors:
        return Sensors(
            clock=lambda: self.now_s,
            machine=self.read_machine,
            pressure=lambda: self.level,
            footprint=lambda: self.footprint_bytes,
        )


def available(gigabytes: float) -> Machine:
    return replace(DEVICE, available_bytes=int(gigabytes * 1e9))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def test_a_quiet_machine_is_left_alone(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    for tick in range(5):
        world.now_s = 15.0 * tick
        governor.poll()
    assert engine.pool.sizes == [PLAN.pool_slots]
    assert governor.status.resizes == 0


def test_a_poll_is_skipped_while_a_request_runs(engine: FakeEngine, world: World) -> None:
    world.machine = available(1)
    governor = Governor(engine, world.sensors)
    with engine.lock:
        assert governor.poll() is None
    assert engine.pool.sizes == [PLAN.pool_slots]


def test_a_drop_shrinks_after_emptying_caches_and_the_plan_follows(engine: FakeEngine, world: World) -> None:
    world.machine = available(2)
    governor = Governor(engine, world.sensors)
    governor.poll()
    assert engine.pool.slot_count < PLAN.pool_slots
    assert engine.events == ["gate", "drop all"]
    assert engine.plan.pool_slots == engine.pool.slot_count
    assert "availability dropped" in engine.plan.notes[-1]


def test_pressure_cancels_the_running_request_before_waiting_for_it(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.level = "critical"
    decision = governor.watch_pressure()
    assert decision is not None
    assert decision.reason == "memory pressure (critical)"
    assert engine.events[:2] == ["cancel", "gate"]
    assert engine.pool.slot_count == PLAN.pool_slots - PLAN.pool_slots // 2


def test_the_same_pressure_acts_once_and_again_only_when_it_lasts(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.level = "warning"
    assert governor.watch_pressure() is not None
    world.now_s = 5.0
    assert governor.watch_pressure() is None
    world.level = "critical"
    assert governor.watch_pressure() is not None
    world.now_s = 15.0
    assert governor.watch_pressure() is not None


def test_growth_waits_until_its_largest_tensor_fits(engine: FakeEngine, world: World) -> None:
    engine.pool.slot_count = 1_000
    governor = Governor(engine, world.sensors)
    world.now_s, world.footprint_bytes = 61.0, 40 * 10**9
    governor.poll()
    assert engine.pool.slot_count == 1_000
    assert governor.status.waiting_growth
    assert engine.events == ["gate", "drop buffers"]
    world.footprint_bytes = 9 * 10**9
    governor.poll()
    assert engine.pool.slot_count == PLAN.pool_slots
    assert not governor.status.waiting_growth


def test_without_a_reading_requests_are_refused_until_there_is_one(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.machine = None
    governor.poll()
    assert not governor.status.accepts_requests
    assert engine.pool.slot_count == 640
    world.machine, world.now_s = DEVICE, 100.0
    governor.poll()
    assert governor.status.accepts_requests


@pytest.mark.parametrize("elastic", [True, False])
def test_a_fixed_or_pinned_plan_is_never_resized(world: World, elastic: bool) -> None:
    loaded = plan(GEOMETRY, DEVICE, PlanRequest(memory_gb=20, max_context=32_768)) if elastic else PLAN
    engine = FakeEngine(loaded)
    governor = Governor(engine, world.sensors, elastic=elastic)
    world.level = "critical"
    governor.watch_pressure()
    assert engine.pool.sizes == [loaded.pool_slots]
    assert "drop all" in engine.events


def test_its_thread_starts_once_and_ends_when_closed(engine: FakeEngine, world: World) -> None:
    with Governor(engine, world.sensors) as governor:
        governor.start()
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("slotstream-governor") == 1
    assert "slotstream-governor" not in [thread.name for thread in threading.enumerate()]


def test_its_thread_ends_with_the_engine_whose_device_hangs(
    engine: FakeEngine, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def hung() -> AbstractContextManager[None]:
        raise DeviceHung("the GPU has not answered for 60 s")

    monkeypatch.setattr("slotstream_core.governing.PRESSURE_SECONDS", 0.0)
    monkeypatch.setattr(engine, "wait_gate", hung)
    world.level = "critical"
    governor = Governor(engine, world.sensors)
    governor.start()
    thread = governor._thread
    assert thread is not None
    thread.join(30.0)
    assert not thread.is_alive()
    assert "does not follow the machine any more: the GPU has not answered" in caplog.text
    governor.close()


def test_resizing_a_real_pool_leaves_greedy_output_alone(tmp_path: Path) -> None:
    report = check_elastic(write_tiny_model(tmp_path / "tiny"), max_tokens=12)
    assert report.passed, report.to_text()
    assert report.facts["big_slots"] > report.facts["floor_slots"]


def test_a_drill_shrinks_recovers_and_stays_inside_its_plan(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    command = [sys.executable, "-m", "slotstream_cli", "elastic-drill", "--model", str(model), "--max-tokens", "6"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)  # alone in its process
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["passed"]
    assert report["facts"]["low_slots"] < report["facts"]["full_slots"]


@pytest.mark.parametrize("name", ["elastic-check", "elastic-drill"])
def test_the_checks_are_commands(tmp_path: Path, name: str) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    result = CliRunner().invoke(main, [name, "--model", str(model), "--max-tokens", "4", "--json"])
    document = json.loads(result.output)
    assert document["name"] == name
    assert (result.exit_code == 0) == document["passed"]
    assert any("ids" in item["name"] and item["passed"] for item in document["items"])
