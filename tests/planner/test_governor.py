"""The governor's rules, played out on numbers alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from slotstream_planner import Machine, MemoryPlan, PlanRequest, plan, published_geometry
from slotstream_planner.governor import (
    GovernorState,
    admits_growth,
    credited_bytes,
    decide,
    plan_after_resize,
    replan,
    still_fits,
)
from slotstream_planner.pressure import PressureLevel

GEOMETRY = published_geometry()
DEVICE = Machine.simulated(ram_gb=51.5, working_set_gb=40.2)
LOADED = plan(GEOMETRY, DEVICE, PlanRequest(max_context=32_768))
UNIT = -(-(10**9) // GEOMETRY.slot_bytes)


def state(slots: int = LOADED.pool_slots, **changes: object) -> GovernorState:
    return replace(GovernorState(plan=LOADED, slots=slots, last_resize_s=0.0), **changes)  # type: ignore[arg-type]


def fresh(slots: int, *, clamped: bool = True) -> MemoryPlan:
    """Return a valid plan of this size."""
    split = replace(LOADED.arrangement.split, slots=slots)
    return replace(LOADED, arrangement=replace(LOADED.arrangement, split=split, availability_clamped=clamped))


def act(
    now_s: float, at: GovernorState, desired: MemoryPlan | None, pressure: PressureLevel = "normal"
) -> tuple[str, int, str]:
    decision = decide(now_s=now_s, state=at, pressure=pressure, replan=lambda: desired)
    return decision.action, decision.slots, decision.reason


def test_a_quiet_machine_holds_forever() -> None:
    for tick in range(1, 40):
        assert act(15.0 * tick, state(), fresh(LOADED.pool_slots))[0] == "hold"


def test_critical_pressure_takes_half_the_pool_or_four_units() -> None:
    action, slots, reason = act(1, state(7_000), fresh(7_000), "critical")
    assert (action, slots, reason) == ("shrink", 3_500, "memory pressure (critical)")
    assert act(1, state(2_400), fresh(2_400), "critical")[1] == 2_400 - 4 * UNIT


def test_warning_takes_two_units_or_fifteen_percent() -> None:
    assert act(1, state(3_000), fresh(3_000), "warning")[1] == 3_000 - 2 * UNIT
    assert act(1, state(20_000), fresh(20_000), "warning")[1] == 17_000


def test_pressure_never_leaves_more_than_the_plan_wants() -> None:
    assert act(1, state(7_000), fresh(1_000), "warning")[1] == 1_000


def test_repeated_critical_pressure_falls_to_the_floor_and_stays() -> None:
    slots, seen = 7_000, []
    for tick in range(6):
        slots = act(float(tick), state(slots), fresh(7_000), "critical")[1]
        seen.append(slots)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 640
    assert act(9, state(640), fresh(640), "critical")[0] == "hold"


def test_pressure_empties_caches_even_at_the_floor() -> None:
    decision = decide(now_s=1, state=state(640), pressure="critical", replan=lambda: fresh(640))
    assert decision.drop_caches
    assert not decide(now_s=1, state=state(640), pressure="normal", replan=lambda: fresh(640)).drop_caches


def test_a_warning_shrinks_while_growth_is_cooling_down() -> None:
    cooling = state(7_000, last_resize_s=100.0, last_pressure_s=100.0)
    assert act(101, cooling, fresh(7_000), "warning")[0] == "shrink"


def test_without_a_valid_plan_the_pool_falls_to_the_floor_and_requests_are_refused() -> None:
    decision = decide(now_s=1, state=state(), pressure="normal", replan=lambda: None)
    assert (decision.action, decision.slots, decision.reason) == ("shrink", 640, "context plan unavailable")
    assert not decision.accepts_requests


@pytest.mark.parametrize(("lost", "action"), [(UNIT - 1, "hold"), (UNIT, "shrink")])
def test_a_drop_acts_from_one_unit(lost: int, action: str) -> None:
    assert act(1, state(5_000), fresh(5_000 - lost))[0] == action


@pytest.mark.parametrize(("gained", "action"), [(2 * UNIT - 1, "hold"), (2 * UNIT, "grow")])
def test_a_gain_acts_from_two_units(gained: int, action: str) -> None:
    assert act(61, state(3_000), fresh(3_000 + gained))[0] == action


def test_a_small_gain_that_restores_the_tier_size_acts_too() -> None:
    assert act(61, state(3_000), fresh(3_010, clamped=False))[:2] == ("grow", 3_010)


@pytest.mark.parametrize(("resize_s", "pressure_s"), [(51.0, None), (0.0, 51.0), (1.0, None)])
def test_growth_waits_for_both_cooldowns(resize_s: float, pressure_s: float | None) -> None:
    cooling = state(3_000, last_resize_s=resize_s, last_pressure_s=pressure_s)
    assert act(61, cooling, fresh(7_000))[0] == "hold"


def test_growth_comes_strictly_after_sixty_seconds() -> None:
    assert act(60.0, state(3_000), fresh(7_000))[0] == "hold"
    assert act(60.1, state(3_000, last_pressure_s=0.0), fresh(7_000))[0] == "grow"


def test_a_fall_in_availability_causes_one_shrink_and_then_rest() -> None:
    """Memory that the shrink frees comes back as availability, so nothing ratchets."""
    available_bytes, at, resizes = 2 * 10**9, state(), 0
    for tick in range(1, 20):
        machine = replace(DEVICE, available_bytes=available_bytes)
        decision = decide(now_s=15.0 * tick, state=at, pressure="normal", replan=partial(replan, at, machine))
        if decision.action != "hold":
            available_bytes += (at.slots - decision.slots) * GEOMETRY.slot_bytes
            resizes += 1
            after = plan_after_resize(at, decision)
            at = replace(at, plan=after, slots=decision.slots, last_resize_s=15.0 * tick)
    assert resizes == 1
    assert 640 < at.slots < LOADED.pool_slots


def test_an_adaptive_limit_bounds_growth_and_is_recovered() -> None:
    limited = plan(GEOMETRY, DEVICE, PlanRequest(memory_limit_gb=20, max_context=32_768))
    small = GovernorState(plan=limited, slots=1_000, last_resize_s=0.0)
    again = replan(small, replace(DEVICE, available_bytes=40 * 10**9))
    assert again is not None
    assert again.pool_slots == limited.pool_slots
    assert again.target_bytes == 20 * 10**9


def test_a_replan_keeps_what_is_loaded() -> None:
    again = replan(state(), replace(DEVICE, available_bytes=2 * 10**9))
    assert again is not None
    assert (again.draft, again.lookahead, again.window_tokens) == (LOADED.draft, LOADED.lookahead, LOADED.window_tokens)
    assert again.pool_slots < LOADED.pool_slots


def test_a_replan_under_hopeless_pressure_is_none() -> None:
    tiny = state(640)
    assert replan(tiny, replace(DEVICE, available_bytes=0)) is None
    assert replan(tiny, replace(DEVICE, available_bytes=None)) is None


def test_the_process_is_credited_with_what_it_holds() -> None:
    held = credited_bytes(state(1_000, prefix_bytes=7), 10)
    assert held == 10 + 1_000 * 2_764_800 + 5_300_000_000 + 7 + 409 * 2**20 + 1_600_000_000


def test_a_pinned_pool_is_not_resized_but_is_rechecked() -> None:
    pinned = state(7_000, elastic=False)
    decision = decide(now_s=90, state=pinned, pressure="critical", replan=lambda: fresh(640))
    assert (decision.action, decision.slots, decision.drop_caches) == ("hold", 7_000, True)
    small = plan(GEOMETRY, DEVICE, PlanRequest(memory_gb=12, max_context=32_768))
    assert not still_fits(LOADED, small)
    assert not decide(now_s=90, state=pinned, pressure="normal", replan=lambda: small).accepts_requests
    assert decide(now_s=90, state=pinned, pressure="normal", replan=lambda: LOADED).accepts_requests


GOOD = {
    "footprint_bytes": 10,
    "transient_bytes": 2,
    "target_bytes": 12,
    "available_bytes": 5,
    "slack_bytes": 3,
}


def test_growth_needs_room_in_the_target_and_in_the_machine() -> None:
    assert admits_growth(**GOOD)
    assert not admits_growth(**{**GOOD, "target_bytes": 11})
    assert not admits_growth(**{**GOOD, "available_bytes": 4})


@pytest.mark.parametrize("name", sorted(GOOD))
def test_growth_needs_every_figure_to_be_a_reading(name: str) -> None:
    assert not admits_growth(**{**GOOD, name: 0})


def test_a_resize_to_the_fresh_plan_adopts_its_sizes() -> None:
    target = plan(GEOMETRY, DEVICE, PlanRequest(memory_gb=14, max_context=32_768))
    decision = decide(now_s=99, state=state(), pressure="normal", replan=lambda: target)
    after = plan_after_resize(state(), decision)
    assert (after.pool_slots, after.prefill_chunk) == (target.pool_slots, target.prefill_chunk)
    assert after.source == "auto"
    assert after.notes[-1] == "elastic: resized ~148 to ~34 experts/layer (availability dropped)"


def test_a_resize_below_the_fresh_plan_derives_sizes_from_the_pool() -> None:
    decision = decide(now_s=1, state=state(), pressure="critical", replan=lambda: LOADED)
    after = plan_after_resize(state(), decision)
    assert after.pool_slots == decision.slots
    assert after.ledger.pool_bytes == decision.slots * GEOMETRY.slot_bytes
    assert after.prefill_chunk == 1024
    assert after.retained_tokens == 32_768
