"""The largest window is found exactly and says what limits it; the vision tower is fitted into a running plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slotstream_planner import (
    InsufficientMemory,
    InvalidRequest,
    Machine,
    ModelGeometry,
    PlanRequest,
    plan,
    published_geometry,
)
from slotstream_planner.feasibility import find_largest_window
from slotstream_planner.vision import plan_with_vision
from tests.planner.checkpoints import write_checkpoint

GEOMETRY = published_geometry()
ROOMY = Machine.simulated(ram_gb=512, working_set_gb=512)


def fits(request: PlanRequest, machine: Machine, window: int) -> bool:
    try:
        plan(GEOMETRY, machine, replace(request, max_context=window))
    except InsufficientMemory:
        return False
    return True


@pytest.mark.parametrize("target", [10, 14, 16])
def test_the_largest_window_fits_and_the_next_does_not(target: float) -> None:
    request = PlanRequest(memory_gb=target)
    found = find_largest_window(GEOMETRY, ROOMY, request)
    assert 32_768 < found.maximum_window < 262_144
    assert found.limiting_resource == "memory_or_required_components"
    assert fits(request, ROOMY, found.maximum_window)
    assert not any(fits(request, ROOMY, found.maximum_window + more) for more in (1, 2, 500, 1_024, 9_000))


def test_a_large_machine_is_limited_by_the_engine() -> None:
    found = find_largest_window(GEOMETRY, Machine.simulated(ram_gb=128), PlanRequest(max_context=65_536))
    assert (found.maximum_window, found.limiting_resource) == (262_144, "implementation_limit")
    assert found.refusal is None
    document = found.to_json()
    assert document["requested_window"] == 65_536
    assert document["requested_memory_ledger"]["version"] == 1


def test_a_small_model_is_limited_by_itself(tmp_path: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path), compute="bf16")
    found = find_largest_window(geometry, Machine.simulated(ram_gb=16), PlanRequest())
    assert (found.maximum_window, found.limiting_resource) == (8_192, "model_limit")


@pytest.mark.parametrize(
    ("machine", "request_"),
    [
        (Machine.simulated(ram_gb=8), PlanRequest(max_context=32_768)),
        (Machine.simulated(ram_gb=16, available_gb=6), PlanRequest()),
        (Machine.simulated(ram_gb=51.5, working_set_gb=40.2, available_gb=18), PlanRequest(memory_gb=30)),
    ],
)
def test_a_machine_without_room_has_no_window(machine: Machine, request_: PlanRequest) -> None:
    found = find_largest_window(GEOMETRY, machine, request_)
    assert found.maximum_window == 0
    assert found.to_json()["maximum_memory_ledger"] is None


def test_a_refused_window_comes_with_the_one_that_works() -> None:
    found = find_largest_window(GEOMETRY, Machine.simulated(ram_gb=16), PlanRequest(max_context=131_072))
    assert found.refusal is not None
    assert 0 < found.maximum_window < 131_072


def test_an_unreadable_sensor_is_named() -> None:
    machine = Machine(kind="linux", ram_bytes=64 * 10**9, available_bytes=None, working_set_bytes=None, cores=8)
    found = find_largest_window(GEOMETRY, machine, PlanRequest())
    assert (found.maximum_window, found.limiting_resource) == (0, "memory_reading_unavailable")


@pytest.mark.parametrize("target", [12, 16, 22, 34.6])
def test_loading_vision_stays_within_the_target(target: float) -> None:
    before = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=target, max_context=32_768))
    after = plan_with_vision(before)
    assert after.ledger.vision_resident_bytes == 900_000_000
    assert after.target_bytes == before.target_bytes
    assert after.expected_peak_bytes <= (after.target_bytes or 0)
    assert (after.draft, after.lookahead) == (before.draft, before.lookahead)
    assert after.pool_slots <= before.pool_slots
    assert after.prefill_chunk <= before.prefill_chunk
    assert after.retained_tokens <= before.retained_tokens
    assert plan_with_vision(after) is after


def test_vision_keeps_as_much_of_a_complete_conversation_as_it_can() -> None:
    before = plan(
        GEOMETRY, Machine.simulated(ram_gb=24, working_set_gb=22), PlanRequest(memory_gb=15, max_context=65_536)
    )
    assert before.retained_tokens == 65_536
    after = plan_with_vision(before)
    assert after.expected_peak_bytes <= 15 * 10**9
    assert 0 < after.retained_tokens <= 65_536


def test_vision_that_does_not_fit_is_refused_with_the_amount() -> None:
    before = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=8.1, max_context=32_768))
    with pytest.raises(InsufficientMemory, match=r"needs 900 MB more than the target of 8\.10 GB leaves"):
        plan_with_vision(before)


def test_a_fixed_pool_keeps_its_slots_when_vision_loads() -> None:
    before = plan(GEOMETRY, ROOMY, PlanRequest(pool_gb=4))
    after = plan_with_vision(before)
    assert after.pool_slots == before.pool_slots
    assert after.expected_peak_bytes == before.expected_peak_bytes + 900_000_000


def test_reserving_vision_at_start_costs_slots() -> None:
    with_tower = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, vision="on", max_context=32_768))
    without = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=32_768))
    assert with_tower.pool_slots < without.pool_slots
    assert with_tower.vision_reserved


def test_vision_off_stays_off() -> None:
    with pytest.raises(InvalidRequest):
        plan_with_vision(plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, vision="off")))
