"""Files of experts are pinned in what a host can spare beside an NVIDIA GPU, and that is charged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotstream_planner import InsufficientMemory, InvalidRequest, Machine, PlanRequest, plan, published_geometry
from slotstream_planner.governor import GovernorState, decide, replan
from slotstream_planner.pinning import host_margin_bytes
from slotstream_planner.report import plan_to_text

PUBLISHED = published_geometry()
GB = 10**9
FILES = PUBLISHED.total_experts * PUBLISHED.record_bytes
REQUEST = PlanRequest(max_context=32_768)


def device(host_gb: float | None, *, ram_gb: int = 40) -> Machine:
    ram = ram_gb * GB
    host = None if host_gb is None else round(host_gb * GB)
    return Machine(
        kind="cuda", ram_bytes=ram, available_bytes=ram, working_set_bytes=ram, cores=16, host_available_bytes=host
    )


def test_all_files_are_pinned_where_a_quarter_of_the_host_is_left_beside_them() -> None:
    made = plan(PUBLISHED, device(500), REQUEST)
    assert FILES <= made.ledger.pinned_file_bytes <= FILES * 1.01
    assert made.to_json()["memory_ledger"]["pinned_file_bytes"] == made.ledger.pinned_file_bytes
    assert "files of experts, pinned there" in plan_to_text(made)


@pytest.mark.parametrize("host_gb", [1.0, 6.0, 12.0, 40.0])
def test_as_much_is_pinned_as_everything_else_and_a_margin_leave(host_gb: float) -> None:
    made = plan(PUBLISHED, device(host_gb), REQUEST)
    host = round(host_gb * GB)
    without = plan(PUBLISHED, device(host_gb), replace(REQUEST, pinned_gb="off"))
    assert without.ledger.pinned_file_bytes == 0
    beside = without.ledger.all_host_bytes + without.ledger.host_process_bytes
    spare = host - host_margin_bytes(host) - beside
    assert made.ledger.pinned_file_bytes == max(0, spare)
    assert replace(made.ledger, pinned_file_bytes=0) == without.ledger


def test_pinned_files_are_part_of_what_is_left_to_the_page_cache() -> None:
    made, without = (plan(PUBLISHED, device(100), replace(REQUEST, pinned_gb=size)) for size in (30, "off"))
    beside = without.ledger.all_host_bytes + without.ledger.host_process_bytes
    assert made.page_cache_bytes == without.page_cache_bytes == 100 * GB - beside
    assert plan(PUBLISHED, device(None), REQUEST).page_cache_bytes == 0


def test_a_host_whose_memory_cannot_be_read_has_nothing_pinned() -> None:
    assert plan(PUBLISHED, device(None), REQUEST).ledger.pinned_file_bytes == 0


def test_nothing_is_pinned_where_nothing_is_streamed_or_no_device_fetches() -> None:
    assert plan(PUBLISHED, device(500, ram_gb=200), replace(REQUEST, memory_gb=150)).ledger.pinned_file_bytes == 0
    processor = replace(device(None, ram_gb=64), kind="linux", working_set_bytes=None)
    assert plan(PUBLISHED, processor, REQUEST).ledger.pinned_file_bytes == 0


def test_a_size_is_taken_as_it_is_and_refused_with_the_numbers_where_it_does_not_fit() -> None:
    assert plan(PUBLISHED, device(None), replace(REQUEST, pinned_gb=3)).ledger.pinned_file_bytes == 3 * GB
    assert plan(PUBLISHED, device(500), replace(REQUEST, pinned_gb=400)).ledger.pinned_file_bytes < FILES * 1.01
    with pytest.raises(
        InsufficientMemory, match=r"pinned files 9\.00 GB more.*give --pinned-gb 2\.2 or less$"
    ) as refused:
        plan(PUBLISHED, device(5), replace(REQUEST, pinned_gb=9))
    assert refused.value.available_bytes == 5 * GB
    plan(PUBLISHED, device(5), replace(REQUEST, pinned_gb=2.2))
    with pytest.raises(InsufficientMemory, match="free memory or give --pinned-gb off$"):
        plan(PUBLISHED, device(1), replace(REQUEST, pinned_gb=9))
    with pytest.raises(InsufficientMemory) as lanes_alone:
        plan(PUBLISHED, device(0.01), replace(REQUEST, pinned_gb="off"))
    assert "pinned" not in str(lanes_alone.value)


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_what_is_no_size_is_refused(size: float) -> None:
    with pytest.raises(InvalidRequest, match="--pinned-gb"):
        plan(PUBLISHED, device(100), replace(REQUEST, pinned_gb=size))


def test_a_size_is_refused_where_there_is_no_such_device() -> None:
    with pytest.raises(InvalidRequest, match=r"--pinned-gb 3 .* leave it out"):
        plan(PUBLISHED, Machine.simulated(ram_gb=64), replace(REQUEST, pinned_gb=3))


def test_what_others_take_of_the_host_is_not_made_up_for_by_what_is_pinned() -> None:
    loaded = plan(PUBLISHED, device(12.2), replace(REQUEST, pinned_gb=9))
    ledger = loaded.ledger
    state = GovernorState(plan=loaded, slots=loaded.pool_slots, last_resize_s=0.0)
    held = sum((ledger.fixed_bytes, loaded.pool_bytes, ledger.lookahead_reserve_bytes))
    now = round(12.2 * GB) - ledger.host_bytes - ledger.host_process_bytes
    for taken, fits in ((0, True), (2 * GB, False)):  # pages of pinned files count as available
        machine = replace(device(12.2), available_bytes=40 * GB - held, host_available_bytes=now - taken)
        assert (replan(state, machine) is not None) == fits


def test_what_is_pinned_stays_so_while_the_pool_follows_the_machine() -> None:
    loaded = plan(PUBLISHED, device(40), REQUEST)
    assert loaded.ledger.pinned_file_bytes > 0
    state = GovernorState(plan=loaded, slots=loaded.pool_slots, last_resize_s=0.0)
    held = sum((loaded.ledger.fixed_bytes, loaded.pool_bytes, loaded.ledger.lookahead_reserve_bytes))
    fresh = replan(state, replace(device(40), available_bytes=40 * GB - held))  # what is pinned still counts there
    assert fresh is not None
    assert fresh.ledger.pinned_file_bytes == loaded.ledger.pinned_file_bytes
    decision = decide(now_s=100.0, state=state, pressure="normal", replan=lambda: fresh)
    assert decision.accepts_requests
