"""How much of the experts' files stays pinned while an engine runs, played out on numbers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotstream_planner import Machine, MemoryPlan, PlanRequest, plan, published_geometry
from slotstream_planner.governor import GovernorState, replan, with_pinned
from slotstream_planner.pinned_governor import PinnedState, decide_pinned, desired_pinned_bytes
from slotstream_planner.pressure import PressureLevel

PUBLISHED = published_geometry()
GB = 10**9


def device(host_gb: float | None, *, pinned_gb: float = 0.0) -> Machine:
    return Machine(
        kind="cuda",
        ram_bytes=40 * GB,
        available_bytes=40 * GB,
        working_set_bytes=40 * GB,
        cores=16,
        host_available_bytes=None if host_gb is None else round(host_gb * GB),
        host_pinned_bytes=round(pinned_gb * GB),
    )


def loaded(host_gb: float = 60, **options: object) -> MemoryPlan:
    return plan(PUBLISHED, device(host_gb), PlanRequest(max_context=32_768, **options))  # type: ignore[arg-type]


def state(of: MemoryPlan, byte_count: int | None = None, **changes: object) -> PinnedState:
    pinned = of.ledger.pinned_file_bytes if byte_count is None else byte_count
    made = PinnedState(plan=of, pinned_bytes=pinned, wanted_bytes=pinned, most_bytes=200 * GB, last_change_s=0.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def now_available(of: MemoryPlan, *, taken_gb: float = 0.0) -> int:
    """Return what Linux says of the plan's machine once the engine runs; pinned pages of files count as available."""
    assert of.machine.host_available_bytes is not None
    held = of.ledger.host_bytes + of.ledger.host_process_bytes
    return of.machine.host_available_bytes - held - round(taken_gb * GB)


def act(
    at: PinnedState, desired_gb: float | None, pressure: PressureLevel = "normal", now_s: float = 100.0
) -> tuple[float, str]:
    desired = None if desired_gb is None else round(desired_gb * GB)
    decision = decide_pinned(now_s=now_s, state=at, pressure=pressure, desired_bytes=desired)
    return decision.byte_count / GB, decision.reason


def test_a_quiet_machine_keeps_what_is_pinned() -> None:
    of = loaded()
    now = replace(device(None), host_available_bytes=now_available(of))
    desired = desired_pinned_bytes(state(of), now)
    assert desired == of.ledger.pinned_file_bytes > 0
    decision = decide_pinned(now_s=1_000.0, state=state(of), pressure="normal", desired_bytes=desired)
    assert (decision.byte_count, decision.reason) == (desired, "within the deadband")


def test_pressure_takes_two_or_four_gigabytes_or_a_share() -> None:
    of = loaded()
    assert act(state(of, 50 * GB), 60, "warning") == (50 - 0.15 * 50, "memory pressure (warning)")
    assert act(state(of, 6 * GB), 60, "warning") == (4, "memory pressure (warning)")
    assert act(state(of, 50 * GB), 60, "critical") == (25, "memory pressure (critical)")
    assert act(state(of, 6 * GB), 60, "critical") == (2, "memory pressure (critical)")
    assert act(state(of, 50 * GB), 3, "warning")[0] == 3
    assert act(state(of, 50 * GB), None, "warning")[0] == 50 - 0.15 * 50


def test_lasting_pressure_gives_everything_back() -> None:
    of, pinned = loaded(), 60 * GB
    seen: list[int] = []
    while pinned and len(seen) < 20:
        pinned = decide_pinned(
            now_s=0.0, state=state(of, pinned), pressure="critical", desired_bytes=60 * GB
        ).byte_count
        seen.append(pinned)
    assert seen[-1] == 0
    assert seen == sorted(seen, reverse=True)


def test_pressure_counts_from_what_is_pinned_or_will_be() -> None:
    of = loaded()
    beginning = state(of, 60 * GB, pinned_bytes=10 * GB)
    assert act(beginning, 60, "warning")[0] == 8
    giving_back = state(of, 60 * GB, wanted_bytes=20 * GB)
    assert act(giving_back, 60, "critical")[0] == 10


def test_what_others_take_of_the_host_is_given_back_from_a_gigabyte_on() -> None:
    of = loaded()
    pinned = of.ledger.pinned_file_bytes / GB
    for taken_gb, given_back in ((1.3, False), (1.4, True)):  # three quarters of it come off
        now = replace(device(None), host_available_bytes=now_available(of, taken_gb=taken_gb))
        desired = desired_pinned_bytes(state(of), now)
        assert desired is not None
        found, reason = act(state(of), desired / GB, now_s=1.0)
        assert (found < pinned) == given_back
        assert reason == ("availability dropped" if given_back else "within the deadband")


def test_more_is_pinned_from_two_gigabytes_on_a_minute_after_the_last_change_and_pressure() -> None:
    at = state(loaded(), 20 * GB)
    assert act(at, 21.9) == (20, "within the deadband")
    assert act(at, 22) == (22, "memory freed")
    assert act(at, 22, now_s=60.0) == (20, "within the deadband")
    assert act(replace(at, last_pressure_s=41.0), 22) == (20, "within the deadband")


def test_the_last_gigabyte_of_what_was_asked_for_comes_back_too() -> None:
    at = state(loaded(pinned_gb=20), round(19.2 * GB))
    assert act(at, 20) == (20, "memory freed")
    assert act(replace(at, most_bytes=30 * GB), 19.8) == (19.2, "within the deadband")
    refused = replace(at, most_bytes=round(19.5 * GB))  # the driver did not take more
    assert act(refused, 19.5) == (19.5, "memory freed")


def test_a_size_that_was_asked_for_is_kept_as_far_as_it_fits() -> None:
    of = loaded(host_gb=30, pinned_gb=20)
    beside = (of.ledger.all_host_bytes - of.ledger.pinned_file_bytes + of.ledger.host_process_bytes) / GB
    for taken_gb, expected in ((0.0, 20.0), (5.0, 20.0), (15.0, 15 - beside), (29.0, 0.0)):
        now = replace(device(None), host_available_bytes=now_available(of, taken_gb=taken_gb))
        desired = desired_pinned_bytes(state(of), now)
        assert desired == pytest.approx(expected * GB, abs=1)


def test_what_others_have_pinned_is_not_available_and_what_this_process_has_is() -> None:
    of = loaded()
    pinned = of.ledger.pinned_file_bytes / GB
    now = replace(device(None, pinned_gb=pinned), host_available_bytes=now_available(of))
    assert desired_pinned_bytes(state(of), now) == of.ledger.pinned_file_bytes
    beside_another = replace(device(None, pinned_gb=pinned + 20), host_available_bytes=now_available(of))
    found = desired_pinned_bytes(state(of), beside_another)
    assert found is not None
    assert found < of.ledger.pinned_file_bytes - 14 * GB


def test_kept_conversations_are_not_counted_twice() -> None:
    of = loaded()
    filled = replace(device(None), host_available_bytes=now_available(of) - of.ledger.retained_bytes)
    at = state(of, prefix_bytes=of.ledger.retained_bytes)
    assert desired_pinned_bytes(at, filled) == of.ledger.pinned_file_bytes


def test_without_a_reading_nothing_changes() -> None:
    of = loaded()
    assert desired_pinned_bytes(state(of), device(None)) is None
    assert act(state(of, 20 * GB), None) == (20, "within the deadband")


def test_a_plan_made_again_charges_what_is_pinned_by_then() -> None:
    of = loaded(host_gb=30, pinned_gb=20)
    held = sum((of.ledger.fixed_bytes, of.pool_bytes, of.ledger.lookahead_reserve_bytes))
    now = replace(device(None), available_bytes=40 * GB - held, host_available_bytes=now_available(of, taken_gb=15))
    for pinned_gb, fits in ((20, False), (10, True)):
        at = GovernorState(plan=with_pinned(of, pinned_gb * GB), slots=of.pool_slots, last_resize_s=0.0)
        assert (replan(at, now) is not None) == fits


def test_files_of_a_streamed_draft_head_are_pinned_too() -> None:
    sizes = {
        placement: loaded(host_gb=500, mtp="on", mtp_experts=placement).ledger.pinned_file_bytes
        for placement in ("resident", "streamed")
    }
    records = PUBLISHED.experts * PUBLISHED.record_bytes
    assert records <= sizes["streamed"] - sizes["resident"] <= records * 1.01


def test_a_plan_beside_a_second_engine_leaves_what_that_has_pinned() -> None:
    alone, second = (
        plan(PUBLISHED, device(60, pinned_gb=pinned_gb), PlanRequest(max_context=32_768)) for pinned_gb in (0, 20)
    )
    assert second.ledger.pinned_file_bytes == alone.ledger.pinned_file_bytes - 15 * GB  # and a margin of 5 less
    asked = plan(PUBLISHED, device(100, pinned_gb=90), PlanRequest(max_context=32_768, pinned_gb=3))
    assert asked.ledger.pinned_file_bytes == 3 * GB
