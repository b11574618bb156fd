"""The elastic governor's policy: how large the pool should be now, as a pure function.

The engine's loop reads sensors, calls `decide`, and carries the decision out between requests. Nothing
here reads a clock, a sensor or a pool, so every rule can be tested with numbers alone.

The sizes in the rules are the published model's; a smaller model scales them by its own expert set, so
that one unit is 1 GB for the published model and a sixty-fourth of the experts for a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from slotstream_planner.charges import draft_bytes, floor_slots, vision_bytes
from slotstream_planner.errors import InsufficientMemory
from slotstream_planner.machine import Machine
from slotstream_planner.planning import MemoryPlan, resolve_plan
from slotstream_planner.pressure import PressureLevel
from slotstream_planner.splitting import split_pool
from slotstream_planner.units import GB
from slotstream_planner.vision import kept_components

__all__ = [
    "POLL_SECONDS",
    "Decision",
    "GovernedPool",
    "GovernorState",
    "admits_growth",
    "credited_bytes",
    "credited_host_bytes",
    "decide",
    "plan_after_resize",
    "replan",
    "still_fits",
    "with_pinned",
]

POLL_SECONDS: Final = 15.0
GROW_COOLDOWN_SECONDS: Final = 60.0

Action = Literal["hold", "shrink", "grow"]
Replan = Callable[[], MemoryPlan | None]


class GovernedPool(Protocol):
    """What the governor's loop needs from the engine's pool. All methods need the generation gate."""

    @property
    def slot_count(self) -> int:
        """Slots now."""

    def growth_transient_bytes(self, slot_count: int) -> int:
        """Return the largest single tensor that growing to `slot_count` allocates beside its old one."""

    def resize(self, slot_count: int) -> None:
        """Grow tensor by tensor, keeping every slot's position and contents, or shrink to an empty pool."""


@dataclass(frozen=True, kw_only=True)
class GovernorState:
    """What is loaded and what happened lately.

    Attributes:
        plan: The plan in force.
        slots: Slots the pool really has.
        last_resize_s: Clock time of the last resize; process start counts as one.
        last_pressure_s: Clock time of the last pressure event; None when there was none.
        elastic: False pins the pool: only admission and pressure clean-up remain.
        prefix_bytes: What the prefix cache owns beyond the fixed cost.
        pinned_bytes: Files of experts that are pinned now; the plan charges what is to be pinned.
    """

    plan: MemoryPlan
    slots: int
    last_resize_s: float
    last_pressure_s: float | None = None
    elastic: bool = True
    prefix_bytes: int = 0
    pinned_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do with the pool.

    Attributes:
        action: Keep, shrink or grow.
        slots: The size to reach; the present one for ``hold``.
        reason: The rule's label.
        drop_caches: Whether to empty the prefix cache and MLX's buffer cache first.
        accepts_requests: False while no valid plan exists: refuse with ``insufficient_memory``.
        plan: The fresh plan, when there is one.
    """

    action: Action
    slots: int
    reason: str
    drop_caches: bool
    accepts_requests: bool
    plan: MemoryPlan | None


def decide(*, now_s: float, state: GovernorState, pressure: PressureLevel, replan: Replan) -> Decision:
    """Apply the rules in order: critical, warning, no valid plan, drop, growth, hold.

    Args:
        now_s: The clock.
        state: What is loaded.
        pressure: ``normal`` for a poll; a pressure event's level otherwise.
        replan: Returns the plan this process would get now, or None when none is valid.
    """
    fresh = replan()
    floor = floor_slots(state.plan.geometry)
    desired = floor if fresh is None else fresh.pool_slots
    unit = _unit_slots(state.plan)
    accepts = fresh is not None
    if pressure != "normal":
        units, share = (4, 0.50) if pressure == "critical" else (2, 0.15)
        target = min(desired, state.slots - max(units * unit, int(share * state.slots)))
        return _resize(state, max(floor, target), f"memory pressure ({pressure})", fresh, drop_caches=True)
    if fresh is None:
        return _resize(state, floor, "context plan unavailable", None, drop_caches=False)
    if not state.elastic:
        return _hold(state, fresh, accepts_requests=still_fits(state.plan, fresh))
    if desired <= state.slots - unit:
        return _resize(state, desired, "availability dropped", fresh, drop_caches=False)
    restoring = desired > state.slots and not fresh.arrangement.availability_clamped
    if (desired >= state.slots + 2 * unit or restoring) and _cooled(now_s, state):
        return _resize(state, desired, "memory freed", fresh, drop_caches=False)
    return _hold(state, fresh, accepts_requests=accepts)


def _unit_slots(plan: MemoryPlan) -> int:
    """Return the slots of one unit: 1 GB, or a sixty-fourth of a small model's experts."""
    geometry = plan.geometry
    unit_bytes = min(GB, geometry.total_experts * geometry.slot_bytes // 64)
    return max(1, -(-unit_bytes // geometry.slot_bytes))


def _cooled(now_s: float, state: GovernorState) -> bool:
    since_pressure = float("inf") if state.last_pressure_s is None else now_s - state.last_pressure_s
    return min(now_s - state.last_resize_s, since_pressure) > GROW_COOLDOWN_SECONDS


def _resize(state: GovernorState, slots: int, reason: str, fresh: MemoryPlan | None, *, drop_caches: bool) -> Decision:
    size = slots if state.elastic else state.slots
    action: Action = "hold" if size == state.slots else "shrink" if size < state.slots else "grow"
    return Decision(
        action=action,
        slots=size,
        reason=reason,
        drop_caches=drop_caches,
        accepts_requests=fresh is not None and (state.elastic or still_fits(state.plan, fresh)),
        plan=fresh,
    )


def _hold(state: GovernorState, fresh: MemoryPlan, *, accepts_requests: bool) -> Decision:
    return Decision(
        action="hold",
        slots=state.slots,
        reason="within the deadband",
        drop_caches=False,
        accepts_requests=accepts_requests,
        plan=fresh,
    )


def credited_bytes(state: GovernorState, available_bytes: int) -> int:
    """Return availability plus what this process itself holds and would be planned again."""
    geometry, ledger = state.plan.geometry, state.plan.ledger
    held = state.slots * geometry.slot_bytes + ledger.fixed_bytes + ledger.lookahead_reserve_bytes
    if not ledger.retained_on_host:
        held += state.prefix_bytes
    if state.plan.draft != "off":
        held += draft_bytes(geometry, streamed=state.plan.draft == "streamed")
    if state.plan.vision_reserved:
        held += vision_bytes(geometry)
    return available_bytes + held


def credited_host_bytes(plan: MemoryPlan, machine: Machine, *, prefix_bytes: int) -> int | None:
    """Return what the host has available and what the process holds of it and would be planned again, or None.

    Pages of pinned files count as available to Linux, so that there is no credit for them.
    """
    if machine.host_available_bytes is None:
        return None
    ledger = plan.ledger
    held = ledger.host_bytes + ledger.host_process_bytes + (prefix_bytes if ledger.retained_on_host else 0)
    return machine.host_available_bytes + held


def with_pinned(plan: MemoryPlan, byte_count: int) -> MemoryPlan:
    """Return the same plan with so much of its files of experts pinned."""
    ledger = replace(plan.ledger, pinned_file_bytes=byte_count)
    return replace(plan, arrangement=replace(plan.arrangement, ledger=ledger))


def replan(state: GovernorState, machine: Machine) -> MemoryPlan | None:
    """Return the automatic plan of the loaded model under present availability; None when none is valid.

    Window, draft head, its placement, lookahead and the saved limit are kept as loaded.

    Args:
        state: What is loaded.
        machine: Present readings, without any credit.
    """
    if machine.available_bytes is None:
        return None
    credited = replace(
        machine,
        available_bytes=credited_bytes(state, machine.available_bytes),
        host_available_bytes=credited_host_bytes(state.plan, machine, prefix_bytes=state.prefix_bytes),
        host_pinned_bytes=max(0, machine.host_pinned_bytes - state.pinned_bytes),
    )
    try:
        return resolve_plan(state.plan.geometry, credited, kept_components(state.plan))
    except InsufficientMemory:
        return None


def still_fits(pinned: MemoryPlan, fresh: MemoryPlan) -> bool:
    """Return whether a pinned plan may still serve: its peak is within what a fresh plan may take."""
    return fresh.target_bytes is None or pinned.expected_peak_bytes <= fresh.target_bytes


def admits_growth(
    *, footprint_bytes: int, transient_bytes: int, target_bytes: int, available_bytes: int, slack_bytes: int
) -> bool:
    """Return whether growing may start: the larger tensor fits beside the old one, here and in the machine.

    Every figure must be a real reading above zero; otherwise the warm pool is kept as it is.
    """
    figures = (footprint_bytes, transient_bytes, target_bytes, available_bytes, slack_bytes)
    if any(figure <= 0 for figure in figures):
        return False
    return footprint_bytes + transient_bytes <= target_bytes and transient_bytes + slack_bytes <= available_bytes


def plan_after_resize(state: GovernorState, decision: Decision) -> MemoryPlan:
    """Return the plan in force once the pool has the decided size.

    The fresh plan's pass size and retention are adopted when its slots are what the pool has; otherwise both
    follow from the pool alone.
    """
    old, geometry = state.plan, state.plan.geometry
    before, after = state.slots / geometry.layers, decision.slots / geometry.layers
    note = f"elastic: resized ~{before:.0f} to ~{after:.0f} experts/layer ({decision.reason})"
    if decision.plan is not None and decision.plan.pool_slots == decision.slots:
        fresh = decision.plan
        return replace(fresh, source=old.source, request=old.request, notes=(*fresh.notes, note))
    split = split_pool(
        geometry,
        decision.slots,
        window=old.window_tokens,
        retained_floor=0,
        retains=old.request.prefix_cache == "on",
        forced_pass=old.request.prefill_chunk,
    )
    arrangement = replace(old.arrangement, split=split, ledger=old.ledger.with_split(geometry, split))
    return replace(old, arrangement=arrangement, notes=(*old.notes, note))
