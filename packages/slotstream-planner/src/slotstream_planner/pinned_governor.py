"""How much of the experts' files an engine keeps pinned while it runs, as a pure function beside `governor`.

Pinned pages are the memory of the host that costs least to lose: their records are read from the page cache again, and
no request ends. So they go before a request is stopped, a conversation forgotten or a slot taken away, and come again
by the same deadbands and cooldown as slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from slotstream_planner.governor import GROW_COOLDOWN_SECONDS, credited_host_bytes
from slotstream_planner.machine import Machine
from slotstream_planner.pinning import most_pinned_bytes, pinned_file_bytes
from slotstream_planner.planning import MemoryPlan
from slotstream_planner.pressure import PressureLevel
from slotstream_planner.units import GB

__all__ = ["PinnedDecision", "PinnedState", "decide_pinned", "desired_pinned_bytes"]

_GIVEN_UNITS: Final[dict[PressureLevel, int]] = {"warning": 2, "critical": 4}
_GIVEN_SHARE: Final[dict[PressureLevel, float]] = {"warning": 0.15, "critical": 0.50}


@dataclass(frozen=True, kw_only=True)
class PinnedState:
    """What is pinned and what happened lately.

    Attributes:
        plan: The plan in force.
        pinned_bytes: Pinned now.
        wanted_bytes: To be pinned, once what is being done is done.
        most_bytes: What can be pinned: all files of the engine, or what the driver did not refuse.
        last_change_s: Clock time of the last decision to pin more or less; the start counts as one.
        last_pressure_s: Clock time of the last pressure event; None when there was none.
        prefix_bytes: What kept conversations hold.
    """

    plan: MemoryPlan
    pinned_bytes: int
    wanted_bytes: int
    most_bytes: int
    last_change_s: float
    last_pressure_s: float | None = None
    prefix_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PinnedDecision:
    """How much is to be pinned from now on.

    Attributes:
        byte_count: The bytes; what is wanted already for a hold.
        reason: The rule's label.
    """

    byte_count: int
    reason: str


def desired_pinned_bytes(state: PinnedState, machine: Machine) -> int | None:
    """Return what would be pinned if it were planned now; None where the host's memory cannot be read.

    An automatic size is planned again. One that was asked for is kept as far as it fits, without a margin.
    """
    plan = state.plan
    ledger = plan.ledger
    host = credited_host_bytes(plan, machine, prefix_bytes=state.prefix_bytes)
    if host is None:
        return None
    others = max(0, machine.host_pinned_bytes - state.pinned_bytes)
    here = replace(machine, host_available_bytes=host, host_pinned_bytes=others)
    other_bytes = ledger.all_host_bytes - ledger.pinned_file_bytes + ledger.host_process_bytes
    found = pinned_file_bytes(
        plan.geometry,
        here,
        plan.request,
        slots=plan.pool_slots,
        head=plan.draft == "streamed",
        other_bytes=other_bytes,
    )
    return max(0, min(found, state.most_bytes, host - other_bytes))


def decide_pinned(
    *, now_s: float, state: PinnedState, pressure: PressureLevel, desired_bytes: int | None
) -> PinnedDecision:
    """Apply the rules in order: pressure, drop, growth, hold.

    Args:
        now_s: The clock.
        state: What is pinned.
        pressure: ``normal`` for a poll; a pressure event's level otherwise.
        desired_bytes: See `desired_pinned_bytes`.
    """
    desired = state.wanted_bytes if desired_bytes is None else desired_bytes
    whole = _whole_bytes(state)
    unit = min(GB, max(1, whole // 64))
    if pressure != "normal":
        held = min(state.pinned_bytes, state.wanted_bytes)
        given = max(_GIVEN_UNITS[pressure] * unit, int(_GIVEN_SHARE[pressure] * held))
        return PinnedDecision(byte_count=max(0, min(desired, held - given)), reason=f"memory pressure ({pressure})")
    if desired <= state.wanted_bytes - unit:
        return PinnedDecision(byte_count=desired, reason="availability dropped")
    restoring = desired == whole > state.wanted_bytes
    if (desired >= state.wanted_bytes + 2 * unit or restoring) and _cooled(now_s, state):
        return PinnedDecision(byte_count=desired, reason="memory freed")
    return PinnedDecision(byte_count=state.wanted_bytes, reason="within the deadband")


def _whole_bytes(state: PinnedState) -> int:
    """Return what is pinned where there is memory for all that was asked for."""
    plan = state.plan
    most = most_pinned_bytes(
        plan.geometry, plan.machine, plan.request, slots=plan.pool_slots, head=plan.draft == "streamed"
    )
    return min(most, state.most_bytes)


def _cooled(now_s: float, state: PinnedState) -> bool:
    since_pressure = float("inf") if state.last_pressure_s is None else now_s - state.last_pressure_s
    return min(now_s - state.last_change_s, since_pressure) > GROW_COOLDOWN_SECONDS
