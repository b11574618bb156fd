"""The live side of the memory governor: reads the sensors, asks the planner's policy, resizes between requests.

The policy itself is `slotstream_planner.governor`, a pure function. This module adds a clock, sensors and locks:

- every 15 s a poll, skipped while a request runs, because resizing needs the engine's generation gate;
- every second a look at the system's memory pressure; a new or lasting pressure asks the running request to stop
  at its next safe boundary, waits for the gate and acts at once;
- pinned files of experts, where there are any, follow the machine at every poll, also beside a request, and go first
  under pressure: nothing else is done as long as some are left (`slotstream_core.pinned_governing`);
- growth only when the largest replacement tensor fits beside the old one, in the budget and in the machine.

The engine is reached through `GovernedEngine`, so that the loop can be tested with numbers instead of memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from slotstream_core.errors import DeviceHung
from slotstream_core.experts import StreamedExperts
from slotstream_core.pinned_governing import GovernedPins, PinnedGovernor
from slotstream_planner import Machine, MachineError, MemoryPlan
from slotstream_planner.governor import (
    POLL_SECONDS,
    Decision,
    GovernedPool,
    GovernorState,
    admits_growth,
    decide,
    plan_after_resize,
    replan,
)
from slotstream_planner.pressure import PressureLevel

logger = logging.getLogger("slotstream.core")

__all__ = ["ExpertsPool", "GovernedEngine", "Governor", "GovernorStatus", "Sensors"]

PRESSURE_SECONDS: Final = 1.0
LASTING_SECONDS: Final = 10.0
"""Pressure that has not eased acts again after the kernel's averaging window."""

_SEVERITY: Final[dict[PressureLevel, int]] = {"normal": 0, "warning": 1, "critical": 2}


class GovernedEngine(Protocol):
    """What the governor needs from the engine."""

    @property
    def plan(self) -> MemoryPlan:
        """The plan in force."""

    @property
    def pool(self) -> GovernedPool:
        """The expert pool."""

    @property
    def pins(self) -> GovernedPins:
        """The experts' files, of which an NVIDIA GPU fetches from those that are pinned."""

    @property
    def prefix_bytes(self) -> int:
        """What retained conversations hold beyond the plan's fixed cost."""

    def try_gate(self) -> AbstractContextManager[None] | None:
        """Return the generation gate, taken, or None while a request runs."""

    def wait_gate(self) -> AbstractContextManager[None]:
        """Return the generation gate, taken, after waiting for a running request."""

    def cancel_running(self) -> None:
        """Ask a running request to stop at its next safe boundary. Never blocks."""

    def drop_caches(self, *, retained: bool) -> None:
        """Empty MLX's buffer cache, and the retained conversations too when `retained` is true. Needs the gate."""

    def adopt(self, plan: MemoryPlan) -> None:
        """Serve under this plan from the next request on. Needs the gate."""


@dataclass(frozen=True, kw_only=True)
class Sensors:
    """How the governor sees the world; every one may be replaced in a test.

    Attributes:
        clock: Monotonic seconds.
        machine: Present readings.
        pressure: The system's memory pressure; None where it reports none.
        footprint: Bytes this process holds.
    """

    clock: Callable[[], float]
    machine: Callable[[], Machine]
    pressure: Callable[[], PressureLevel | None]
    footprint: Callable[[], int]


@dataclass(frozen=True, kw_only=True)
class GovernorStatus:
    """What a status page shows.

    Attributes:
        elastic: Whether the pool follows the machine.
        accepts_requests: False while no valid plan exists.
        slots: Slots now.
        last_reason: Why the last decision was taken.
        resizes: Resizes since the start.
        waiting_growth: Whether growth is wanted but does not fit yet.
    """

    elastic: bool
    accepts_requests: bool
    slots: int
    last_reason: str
    resizes: int
    waiting_growth: bool


class ExpertsPool:
    """A `GovernedPool` over streamed experts."""

    def __init__(self, experts: StreamedExperts) -> None:
        self._experts = experts

    @property
    def slot_count(self) -> int:
        """Slots now."""
        return self._experts.pool.slot_count

    def growth_transient_bytes(self, slot_count: int) -> int:
        """Return the largest replacement array: it exists beside the one it replaces."""
        return slot_count * max(kind.slot_bytes for kind in self._experts.layout.kinds)

    def resize(self, slot_count: int) -> None:
        """Change the number of slots; growing keeps every record, shrinking starts cold."""
        self._experts.resize(slot_count)


class Governor:
    """Keeps one engine inside what the machine can give. A context manager; closing it ends its thread.

    `poll` and `on_pressure` are what the thread calls; a test or a drill may call them instead.
    """

    def __init__(self, engine: GovernedEngine, sensors: Sensors, *, elastic: bool = True) -> None:
        self._engine = engine
        self._sensors = sensors
        self._pinned = PinnedGovernor(engine, sensors.clock)
        self._elastic = elastic and engine.plan.source == "auto"
        self._last_resize_s = sensors.clock()
        self._last_pressure_s: float | None = None
        self._last_level: PressureLevel = "normal"
        self._accepts = True
        self._waiting_growth = False
        self._reason = "started"
        self._resizes = 0
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Governor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slotstream-governor", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it; a resize under way is finished first."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def status(self) -> GovernorStatus:
        """What happened so far."""
        return GovernorStatus(
            elastic=self._elastic,
            accepts_requests=self._accepts,
            slots=self._engine.pool.slot_count,
            last_reason=self._reason,
            resizes=self._resizes,
            waiting_growth=self._waiting_growth,
        )

    def poll(self) -> Decision | None:
        """Compare pinned files and the pool with what the machine can give; None while a request runs.

        The pool is left alone then.
        """
        self._pinned.follow(self._machine)
        gate = self._engine.try_gate()
        if gate is None:
            return None
        with gate:
            return self._act("normal")

    def watch_pressure(self) -> Decision | None:
        """Look at the pressure level; act when it rose, or when it lasts.

        Returns None where that is not so, and where pinned files are given back instead of anything else.
        """
        level = self._sensors.pressure() or "normal"
        rose = _SEVERITY[level] > _SEVERITY[self._last_level]
        since_s = float("inf") if self._last_pressure_s is None else self._sensors.clock() - self._last_pressure_s
        self._last_level = level
        if level == "normal" or not (rose or since_s >= LASTING_SECONDS):
            return None
        self._last_pressure_s = self._sensors.clock()
        if self._pinned.relieve(level, self._machine):
            return None
        return self.on_pressure(level)

    def on_pressure(self, level: PressureLevel) -> Decision:
        """Stop a running request at its next safe boundary, then shrink and empty caches."""
        self._last_pressure_s = self._sensors.clock()
        self._engine.cancel_running()
        with self._engine.wait_gate():
            return self._act(level)

    def _run(self) -> None:
        next_poll_s = self._sensors.clock() + POLL_SECONDS
        while not self._ending.wait(PRESSURE_SECONDS):
            try:
                self.watch_pressure()
                if self._sensors.clock() >= next_poll_s:
                    self.poll()
                    next_poll_s = self._sensors.clock() + POLL_SECONDS
            except DeviceHung as error:
                logger.error("the pool does not follow the machine any more: %s", error)
                return

    def _act(self, level: PressureLevel) -> Decision:
        """Decide and carry out. The gate is held."""
        charged = self._pinned.charged(self._engine.plan)
        if charged is not self._engine.plan:
            self._engine.adopt(charged)
        state, machine = self._state(), self._machine()
        decision = decide(
            now_s=self._sensors.clock(),
            state=state,
            pressure=level,
            replan=lambda: None if machine is None else replan(state, machine),
        )
        if decision.drop_caches:
            self._engine.drop_caches(retained=True)
        self._accepts = decision.accepts_requests
        if decision.action == "grow":
            decision = self._admitted(decision, machine)
        if decision.action != "hold":
            self._resize(state, decision)
        self._reason = decision.reason
        return decision

    def _state(self) -> GovernorState:
        return GovernorState(
            plan=self._engine.plan,
            slots=self._engine.pool.slot_count,
            last_resize_s=self._last_resize_s,
            last_pressure_s=self._last_pressure_s,
            elastic=self._elastic,
            prefix_bytes=self._engine.prefix_bytes,
            pinned_bytes=self._engine.pins.pinned_bytes,
        )

    def _machine(self) -> Machine | None:
        try:
            return self._sensors.machine()
        except MachineError:
            return None

    def _admitted(self, decision: Decision, machine: Machine | None) -> Decision:
        """Return the decision, or a hold that keeps the warm pool until the growth fits."""
        self._engine.drop_caches(retained=False)
        plan = decision.plan
        fits = (
            machine is not None
            and machine.available_bytes is not None
            and plan is not None
            and plan.target_bytes is not None
            and admits_growth(
                footprint_bytes=self._sensors.footprint(),
                transient_bytes=self._engine.pool.growth_transient_bytes(decision.slots),
                target_bytes=plan.target_bytes,
                available_bytes=machine.available_bytes,
                slack_bytes=machine.slack_bytes,
            )
        )
        self._waiting_growth = not fits
        if fits:
            return decision
        return replace(decision, action="hold", slots=self._engine.pool.slot_count, reason="growth waits for room")

    def _resize(self, state: GovernorState, decision: Decision) -> None:
        if decision.action == "shrink":
            self._engine.drop_caches(retained=True)
        self._engine.pool.resize(decision.slots)
        self._engine.adopt(plan_after_resize(state, decision))
        self._last_resize_s = self._sensors.clock()
        self._resizes += 1
