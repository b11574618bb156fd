"""A governor for a real engine on this machine: its gate, its sensors, and what becomes of a running request."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from slotstream_core.backend import Backend
from slotstream_core.engine import Engine
from slotstream_core.governing import Governor, Sensors
from slotstream_core.memory import drop_buffer_cache, machine_here, planned_footprint
from slotstream_core.pinned_governing import GovernedPins
from slotstream_planner import MemoryPlan
from slotstream_planner.governor import GovernedPool
from slotstream_planner.pressure import read_available_share, read_pressure_level

__all__ = ["LiveEngine", "govern", "live_sensors"]


class LiveEngine:
    """An engine as its governor sees it.

    Args:
        engine: The engine; not owned.
        cancel_running: Asks the running request, if any, to end with a memory failure at its next safe boundary.
        adopted: Called with every plan that comes into force.
    """

    def __init__(
        self, engine: Engine, *, cancel_running: Callable[[], None], adopted: Callable[[MemoryPlan], None]
    ) -> None:
        self._engine = engine
        self._cancel_running = cancel_running
        self._adopted = adopted

    @property
    def prefix_bytes(self) -> int:
        """What kept conversations take."""
        return self._engine.memory.held_bytes

    @property
    def plan(self) -> MemoryPlan:
        """The plan in force."""
        return self._engine.plan

    @property
    def pool(self) -> GovernedPool:
        """The expert pool."""
        return self._engine.pool

    @property
    def pins(self) -> GovernedPins:
        """The experts' files."""
        return self._engine.pinned

    def try_gate(self) -> AbstractContextManager[None] | None:
        """Return the engine, taken, or None while a request runs."""
        return self._engine.held(wait=False)

    def wait_gate(self) -> AbstractContextManager[None]:
        """Return the engine, taken, after waiting for a running request."""
        return self._engine.held(wait=True) or nullcontext()

    def cancel_running(self) -> None:
        """Ask a running request to stop at its next safe boundary."""
        self._cancel_running()

    def drop_caches(self, *, retained: bool) -> None:
        """Empty MLX's buffer cache, and with ``retained`` forget what is kept of conversations."""
        if retained:
            self._engine.memory.cache.clear()
        drop_buffer_cache()

    def adopt(self, plan: MemoryPlan) -> None:
        """Serve under this plan from the next request on."""
        self._engine.adopt(plan)
        self._adopted(plan)


def live_sensors(backend: Backend, pinned_bytes: Callable[[], int] = lambda: 0) -> Sensors:
    """Return the sensors of this machine.

    Args:
        backend: What runs here.
        pinned_bytes: What this process has pinned of files, which the system counts as available.
    """
    return Sensors(
        clock=time.monotonic,
        machine=lambda: machine_here(backend),
        pressure=lambda: read_pressure_level(available_share=lambda: read_available_share(pinned_bytes())),
        footprint=lambda: planned_footprint(backend.kind).current_bytes,
    )


def govern(
    engine: Engine,
    *,
    elastic: bool,
    cancel_running: Callable[[], None],
    adopted: Callable[[MemoryPlan], None] = lambda plan: None,
) -> Governor:
    """Return a governor of an engine on this machine; enter it to start it.

    Args:
        engine: The engine; it must outlive the governor.
        elastic: Whether the pool follows the machine.  Without it only memory pressure is acted on.
        cancel_running: See `LiveEngine`.
        adopted: See `LiveEngine`.
    """
    live = LiveEngine(engine, cancel_running=cancel_running, adopted=adopted)
    return Governor(live, live_sensors(Backend.detect(), lambda: engine.pinned_bytes), elastic=elastic)
