"""The live side of `slotstream_planner.pinned_governor`: pins and gives back files, also beside a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from slotstream_planner import Machine, MemoryPlan
from slotstream_planner.governor import with_pinned
from slotstream_planner.pinned_governor import PinnedState, decide_pinned, desired_pinned_bytes
from slotstream_planner.pressure import PressureLevel

logger = logging.getLogger("slotstream.core")

__all__ = ["GovernedPins", "PinnedGovernor", "PinningEngine"]


class GovernedPins(Protocol):
    """What this needs of an engine's files."""

    @property
    def pinned_bytes(self) -> int:
        """What is pinned now."""

    @property
    def wanted_bytes(self) -> int:
        """What is to be pinned, once what is being done is done."""

    @property
    def most_bytes(self) -> int:
        """What can be pinned; 0 where nothing can."""

    def pin(self, wanted_bytes: int) -> None:
        """Begin to pin so many bytes, or to give back all beyond them, and return at once. Needs no gate."""


class PinningEngine(Protocol):
    """What this needs of the engine."""

    @property
    def plan(self) -> MemoryPlan:
        """The plan in force."""

    @property
    def pins(self) -> GovernedPins:
        """The experts' files."""

    @property
    def prefix_bytes(self) -> int:
        """What kept conversations hold."""


class PinnedGovernor:
    """Decides for one engine. Its methods are for one thread.

    Args:
        engine: The engine.
        clock: Monotonic seconds.
    """

    def __init__(self, engine: PinningEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._last_change_s = clock()
        self._last_pressure_s: float | None = None

    def follow(self, read_machine: Callable[[], Machine | None]) -> None:
        """Pin what the host can spare now, after the policy's deadbands and cooldown."""
        if self._engine.pins.most_bytes:
            self._decide("normal", read_machine())

    def relieve(self, level: PressureLevel, read_machine: Callable[[], Machine | None]) -> bool:
        """Begin to give files back under pressure; False where none is pinned or to be pinned any more."""
        self._last_pressure_s = self._clock()
        if not self._engine.pins.wanted_bytes:
            return False
        self._decide(level, read_machine())
        return True

    def charged(self, plan: MemoryPlan) -> MemoryPlan:
        """Return a plan that charges what is to be pinned; the same where it does."""
        pins = self._engine.pins
        if not pins.most_bytes or plan.ledger.pinned_file_bytes == pins.wanted_bytes:
            return plan
        return with_pinned(plan, pins.wanted_bytes)

    def _decide(self, level: PressureLevel, machine: Machine | None) -> None:
        pins, now_s = self._engine.pins, self._clock()
        state = PinnedState(
            plan=self._engine.plan,
            pinned_bytes=pins.pinned_bytes,
            wanted_bytes=pins.wanted_bytes,
            most_bytes=pins.most_bytes,
            last_change_s=self._last_change_s,
            last_pressure_s=self._last_pressure_s,
            prefix_bytes=self._engine.prefix_bytes,
        )
        desired = None if machine is None else desired_pinned_bytes(state, machine)
        decision = decide_pinned(now_s=now_s, state=state, pressure=level, desired_bytes=desired)
        if decision.byte_count == state.wanted_bytes:
            return
        before, after = state.wanted_bytes / 1e9, decision.byte_count / 1e9
        logger.info("pinned files of experts: %.2f to %.2f GB (%s)", before, after, decision.reason)
        self._last_change_s = now_s
        pins.pin(decision.byte_count)
