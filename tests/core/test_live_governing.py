"""A governor over a really loaded engine: resizing between requests, never during one, output unchanged."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotstream_core.backend import Backend
from slotstream_core.engine import Engine, load
from slotstream_core.errors import GenerationCancelled
from slotstream_core.events import Finished
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.governing import Governor, Sensors
from slotstream_core.live_governing import LiveEngine, govern, live_sensors
from slotstream_planner import Machine, MemoryPlan
from slotstream_planner.pressure import PressureLevel

PROMPT = list(range(5, 25))
WITHIN_S = 240.0


class World:
    """Readings that a test moves by hand."""

    def __init__(self, machine: Machine) -> None:
        self.now_s = 0.0
        self.machine = machine
        self.level: PressureLevel = "normal"

    def sensors(self) -> Sensors:
        return Sensors(
            clock=lambda: self.now_s,
            machine=lambda: self.machine,
            pressure=lambda: self.level,
            footprint=lambda: 1,
        )


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    with load(tiny_model) as opened:
        yield opened


def ids(engine: Engine) -> tuple[int, ...]:
    *_, last = engine.generate(PROMPT, sampling=GREEDY, max_tokens=8)
    assert isinstance(last, Finished)
    return last.token_ids


def test_pressure_shrinks_the_pool_and_leaves_the_output_alone(engine: Engine) -> None:
    world = World(Machine.current())
    plans: list[MemoryPlan] = []
    live = LiveEngine(engine, cancel_running=lambda: None, adopted=plans.append)
    governor = Governor(live, world.sensors())
    expected, slots = ids(engine), engine.pool.slot_count
    decision = governor.on_pressure("critical")
    assert decision.action == "shrink"
    assert engine.pool.slot_count < slots
    assert plans[-1] is engine.plan
    assert engine.plan.pool_slots == engine.pool.slot_count
    assert ids(engine) == expected
    world.now_s = 1_000.0
    grown = governor.poll()
    assert grown is not None
    assert (grown.action, engine.pool.slot_count) == ("grow", slots)
    assert ids(engine) == expected


def test_a_poll_leaves_a_running_request_alone(engine: Engine) -> None:
    governor = Governor(
        LiveEngine(engine, cancel_running=lambda: None, adopted=lambda plan: None), World(Machine.current()).sensors()
    )
    running = engine.generate(PROMPT, sampling=GREEDY, max_tokens=4)
    next(running)
    assert governor.poll() is None
    list(running)
    assert governor.poll() is not None


def test_pressure_stops_a_running_request_before_it_resizes(engine: Engine) -> None:
    cancel, begun, asked = CancelToken(), threading.Event(), threading.Event()

    def cancel_running() -> None:
        cancel.cancel()
        asked.set()

    live = LiveEngine(engine, cancel_running=cancel_running, adopted=lambda plan: None)
    governor = Governor(live, World(Machine.current()).sensors())
    outcome: list[GenerationCancelled] = []

    def run() -> None:
        try:
            for _ in engine.generate(PROMPT, sampling=GREEDY, max_tokens=20, cancel=cancel):
                begun.set()
                assert asked.wait(WITHIN_S)
        except GenerationCancelled as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WITHIN_S)
    governor.on_pressure("warning")
    thread.join(WITHIN_S)
    assert len(outcome) == 1
    engine._loaded.experts.pool.check_integrity()


def test_a_pinned_plan_is_never_grown(engine: Engine) -> None:
    world = World(Machine.current())
    live = LiveEngine(engine, cancel_running=lambda: None, adopted=lambda plan: None)
    governor = Governor(live, world.sensors(), elastic=False)
    governor.on_pressure("critical")
    world.now_s = 1_000.0
    decision = governor.poll()
    assert decision is not None
    assert decision.action == "hold"


def test_a_governor_of_this_machine_starts_and_ends(engine: Engine) -> None:
    with govern(engine, elastic=True, cancel_running=lambda: None) as governor:
        assert governor.status.accepts_requests
    sensors = live_sensors(Backend.detect())
    assert sensors.machine().ram_bytes > 0
    assert sensors.footprint() > 0
    assert dataclasses.replace(sensors, clock=lambda: 1.0).clock() == 1.0
