"""Pools that are treated alike, one by compiled code and others by Python, and compared step by step."""

from __future__ import annotations

import threading
from typing import Any

from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.residency import Count, Residency
from tests.core.expert_files import ScriptedSource

TIMES = (Count.READ_NS, Count.WAIT_NS)
IDLE = threading.Event()
"""Never set: waited for, it is a pause."""


class Wandering(ScriptedSource):
    """Does not say where records always lie, so that tickets are Python's."""

    @property
    def strides(self) -> None:  # type: ignore[override]
        return None


class Twin:
    """One of several pools that are treated alike, and who holds its slots."""

    def __init__(self, source: ScriptedSource, pool: SlotPool) -> None:
        self.source = source
        self.pool = pool
        self.leases: list[PoolLease] = []

    def books(self) -> tuple[object, ...]:
        """Everything that twins must agree about, except times, once it was found to agree with itself."""
        self.pool.check_integrity()
        counts = [value for count, value in enumerate(self.pool._residency.counts) if count not in TIMES]
        return state_of(self.pool._residency), counts, self.pool._tickets.slots

    def finish_tickets(self) -> None:
        """Wait for what is being read ahead."""
        finish_tickets(self.pool)

    def release_all(self) -> None:
        """Let go of everything."""
        while self.leases:
            self.leases.pop().release()


def both(results: list[Any]) -> Any:
    """Return what two twins came to, which is the same."""
    assert results[0] == results[1]
    return results[0]


def finish_tickets(pool: SlotPool) -> None:
    """Wait for what a pool is reading ahead."""
    while pool._tickets.being_read:
        IDLE.wait(0.0005)
        pool._tickets.settle()


def state_of(residency: Residency) -> tuple[object, ...]:
    """Everything in the books, except times."""
    return (
        residency.slot_of.tolist(),
        residency.coming.tolist(),
        bytes(residency.marks),
        residency.uses.tolist(),
        residency.key_of.tolist(),
        residency.holds.tolist(),
        bytes(residency.clock.referenced),
        list(residency.free),
        residency.counts[: Count.READ_NS].tolist(),  # those after it are times
    )
