"""Pinned files follow the machine beside requests, and go before anything that costs more to lose."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slotstream_core.backend import Backend
from slotstream_core.engine import load
from slotstream_core.governing import Governor
from slotstream_core.live_governing import LiveEngine, live_sensors
from slotstream_planner import Machine, PlanRequest, plan, published_geometry
from tests.core.test_governing import FakeEngine, FakePins, World

GB = 10**9
DEVICE = Machine(
    kind="cuda", ram_bytes=40 * GB, available_bytes=40 * GB, working_set_bytes=40 * GB, cores=16,
    host_available_bytes=60 * GB,
)  # fmt: skip
PLAN = plan(published_geometry(), DEVICE, PlanRequest(max_context=32_768))
PINNED = PLAN.ledger.pinned_file_bytes


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(PLAN)
    engine.pins = FakePins(PINNED)
    engine.pins.most_bytes = 80 * GB
    return engine


@pytest.fixture
def world() -> World:
    world = World()
    world.machine = host(0)
    return world


def host(taken_gb: float) -> Machine:
    """Return the machine while the engine runs and others have taken so much of the host."""
    ledger = PLAN.ledger
    held = ledger.fixed_bytes + PLAN.pool_bytes + ledger.lookahead_reserve_bytes
    here = ledger.host_bytes + ledger.host_process_bytes
    return replace(DEVICE, available_bytes=40 * GB - held, host_available_bytes=60 * GB - here - round(taken_gb * GB))


def test_pressure_takes_pinned_files_first_and_the_rest_once_there_are_none(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.level = "critical"
    for _ in range(20):
        world.now_s += 10.0
        if governor.watch_pressure() is not None:
            break
    assert engine.pins.asked[0] == PINNED - PINNED // 2
    assert engine.pins.asked == sorted(engine.pins.asked, reverse=True)
    assert engine.pins.asked[-1] == 0
    assert len(engine.pins.asked) > 2
    assert engine.events == ["cancel", "gate", "drop all", "drop all"]
    assert engine.pool.slot_count < PLAN.pool_slots


def test_nothing_else_is_touched_while_pinned_files_are_given_back(
    engine: FakeEngine, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "cancel_running", lambda: pytest.fail("the request was stopped"))
    governor = Governor(engine, world.sensors)
    world.level = "warning"
    with engine.lock:  # a request runs
        assert governor.watch_pressure() is None
    assert engine.pins.asked == [PINNED - int(0.15 * PINNED)]
    assert engine.events == []
    assert engine.pool.sizes == [PLAN.pool_slots]


def test_what_is_pinned_follows_the_host_while_a_request_runs(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.machine = host(8)
    with engine.lock:
        assert governor.poll() is None
    assert engine.pins.asked == [PINNED - 6 * GB]
    assert engine.plan.ledger.pinned_file_bytes == PINNED
    governor.poll()
    assert engine.plan.ledger.pinned_file_bytes == PINNED - 6 * GB
    assert governor.status.accepts_requests


def test_files_are_pinned_again_a_minute_after_the_pressure(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    world.level = "critical"
    governor.watch_pressure()
    world.level = "normal"
    for now_s, wanted in ((30.0, PINNED - PINNED // 2), (60.0, PINNED - PINNED // 2), (60.5, PINNED)):
        world.now_s = now_s
        governor.watch_pressure()
        governor.poll()
        assert engine.pins.wanted_bytes == wanted
        assert engine.plan.ledger.pinned_file_bytes == wanted


def test_pressure_that_finds_nothing_pinned_keeps_files_from_being_pinned(engine: FakeEngine, world: World) -> None:
    governor = Governor(engine, world.sensors)
    engine.pins.wanted_bytes = engine.pins.pinned_bytes = 0
    world.now_s, world.level = 70.0, "warning"
    assert governor.watch_pressure() is not None
    world.now_s, world.level = 130.0, "normal"
    governor.poll()
    assert engine.pins.asked == []
    world.now_s = 130.5
    governor.poll()
    assert engine.pins.asked == [PINNED]


def test_an_engine_that_pins_nothing_is_left_alone(world: World, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(PLAN)
    governor = Governor(engine, world.sensors)
    world.level = "critical"
    with caplog.at_level(logging.INFO):
        assert governor.watch_pressure() is not None
        governor.poll()
    assert engine.pins.asked == []
    assert engine.plan.ledger.pinned_file_bytes > 0  # what a plan made again charges, though no file can be pinned here
    assert "pinned files" not in caplog.text


def test_a_live_engine_offers_its_files_and_its_pressure_counts_them_as_taken(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[int] = []

    def read_share(pinned_bytes: int) -> float:
        shares.append(pinned_bytes)
        return 0.5

    def read_level(*, available_share: Callable[[], float | None]) -> str:
        return "normal" if available_share() == 0.5 else "critical"

    monkeypatch.setattr("slotstream_core.live_governing.read_available_share", read_share)
    monkeypatch.setattr("slotstream_core.live_governing.read_pressure_level", read_level)
    with load(tiny_model) as engine:
        live = LiveEngine(engine, cancel_running=lambda: None, adopted=lambda plan: None)
        assert live.pins is engine.pinned
        assert (live.pins.most_bytes > 0) == (Backend.detect().kind == "cuda")
        assert 0 <= engine.pinned_bytes <= live.pins.most_bytes
        assert live_sensors(Backend.detect(), lambda: 7).pressure() == "normal"
    assert shares == [7]
