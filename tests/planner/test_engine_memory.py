"""What the engine holds beside its slots is charged once, and to the memory it lies in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotstream_planner import InsufficientMemory, InvalidRequest, Machine, PlanRequest, plan, published_geometry
from slotstream_planner.charges import driver_bytes, fixed_cost, lookahead_bytes
from slotstream_planner.engine_memory import HOST_PROCESS_BYTES, EngineMemory, dense_batch_bytes, engine_memory
from slotstream_planner.governor import GovernorState, credited_bytes
from slotstream_planner.lanes import (
    PART_BYTES,
    STAGING,
    ahead_lanes,
    demand_lanes,
    demand_scratch_bytes,
    scratch_part_bytes,
)
from slotstream_planner.report import plan_to_text

PUBLISHED = published_geometry()
WIDENED = published_geometry(compute="float32")
GB = 10**9
DEVICE = Machine(
    kind="cuda", ram_bytes=150 * GB, available_bytes=149 * GB, working_set_bytes=150 * GB, cores=16,
    host_available_bytes=100 * GB,
)  # fmt: skip
PROCESSOR = Machine(kind="linux", ram_bytes=64 * GB, available_bytes=60 * GB, working_set_bytes=None, cores=2)
REQUEST = PlanRequest(max_context=32_768, pinned_gb="off")


def held(machine: Machine, *, drafts: bool = False, lanes: int | None = None, rows: int = 4096) -> EngineMemory:
    geometry = WIDENED if machine.kind == "linux" else PUBLISHED
    return engine_memory(geometry, machine, pass_tokens=rows, drafts=drafts, lookahead=True, lanes=lanes)


def test_a_part_of_scratch_holds_a_record_and_a_block_at_either_end() -> None:
    assert scratch_part_bytes(PUBLISHED.record_bytes, copies=False) >= PUBLISHED.record_bytes + 2 * 4096
    assert scratch_part_bytes(1000, copies=False) >= 2**20 + 2 * 4096


def test_what_is_copied_to_a_device_needs_no_more_than_a_part_of_a_record() -> None:
    part = scratch_part_bytes(PUBLISHED.record_bytes, copies=True)
    assert PART_BYTES + 2 * 4096 <= part < PUBLISHED.record_bytes / 8


@pytest.mark.parametrize(("cores", "least", "most"), [(2, 22, 28), (8, 88, 95), (64, 88, 95)])
def test_a_processor_is_charged_the_lanes_of_its_cores(cores: int, least: int, most: int) -> None:
    charged = held(replace(PROCESSOR, cores=cores)).charged_bytes
    assert least * 10**6 <= charged <= most * 10**6


def test_lanes_that_are_asked_for_are_charged() -> None:
    few, many = (
        plan(WIDENED, PROCESSOR, replace(REQUEST, reading_lanes=lanes)).ledger.expert_workspace_bytes
        for lanes in (4, 128)
    )
    assert few < 15 * 10**6 < 350 * 10**6 < many
    with pytest.raises(InvalidRequest, match="129 reading lanes"):
        plan(WIDENED, PROCESSOR, replace(REQUEST, reading_lanes=129))


def test_on_a_mac_the_documented_constants_include_the_lanes() -> None:
    fixed = fixed_cost(PUBLISHED)
    assert fixed.total_bytes == 5_300_000_000
    assert fixed.scratch_bytes == demand_scratch_bytes(
        PUBLISHED.record_bytes, demand_lanes(64, copies=False), copies=False
    )
    assert plan(PUBLISHED, Machine.simulated(ram_gb=48), REQUEST).ledger.expert_workspace_bytes == 0


def test_a_device_is_charged_what_lies_on_it_and_the_host_what_is_pinned() -> None:
    ledger = plan(PUBLISHED, DEVICE, REQUEST).ledger
    own = held(DEVICE, drafts=True)
    assert ledger.expert_workspace_bytes == own.router_bytes + own.state_bytes + own.batch_bytes
    assert ledger.host_bytes == own.lane_bytes + own.ahead_bytes + own.copy_bytes
    parts = 15 * STAGING + 1 + ahead_lanes(15, copies=True) * STAGING
    part = scratch_part_bytes(PUBLISHED.record_bytes, copies=True)
    assert ledger.host_bytes == pytest.approx(parts * part, abs=5 * 10**6)
    assert ledger.expected_peak_bytes == sum(size for name, size in ledger.lines)


def test_routers_count_as_float32_whatever_the_shared_weights_count() -> None:
    whole = 48 * 512 * 2560 * 4
    assert held(DEVICE).router_bytes == whole // 2  # stored as bfloat16
    packed = replace(PUBLISHED, float_router_bytes=0)
    held_packed = engine_memory(packed, DEVICE, pass_tokens=256, drafts=False, lookahead=False)
    assert held_packed.router_bytes == whole


def test_experts_are_unpacked_for_long_passes_only() -> None:
    assert dense_batch_bytes(PUBLISHED, 512) == 0
    assert 250 * 10**6 < dense_batch_bytes(PUBLISHED, 1024) < 350 * 10**6
    short = plan(PUBLISHED, DEVICE, replace(REQUEST, prefill_chunk=512)).ledger
    long = plan(PUBLISHED, DEVICE, replace(REQUEST, prefill_chunk=1024)).ledger
    assert long.expert_workspace_bytes - short.expert_workspace_bytes == dense_batch_bytes(PUBLISHED, 1024)


def test_drafts_keep_a_state_for_every_row() -> None:
    assert held(DEVICE, drafts=True).state_bytes == 5 * PUBLISHED.recurrent_bytes
    assert held(DEVICE).state_bytes == PUBLISHED.recurrent_bytes


def test_a_host_without_room_for_pinned_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(InsufficientMemory, match="of the host's memory") as refused:
        plan(PUBLISHED, replace(DEVICE, host_available_bytes=10**7), REQUEST)
    assert refused.value.available_bytes == 10**7
    assert plan(PUBLISHED, replace(DEVICE, host_available_bytes=None), REQUEST).ledger.host_bytes > 10**7


def test_conversations_beside_a_device_are_kept_in_the_hosts_memory_and_leave_the_device_to_experts() -> None:
    small = replace(DEVICE, ram_bytes=40 * GB, working_set_bytes=40 * GB, available_bytes=40 * GB)
    kept, none = (
        plan(PUBLISHED, small, PlanRequest(max_context=65_536, prefix_cache=cached, pinned_gb="off"))
        for cached in ("on", "off")
    )
    ledger = kept.ledger
    assert kept.retained_tokens == 65_536  # a whole conversation
    assert ledger.retained_bytes == 65_536 * PUBLISHED.kv_bytes_per_token + 3 * PUBLISHED.recurrent_bytes
    assert ledger.all_host_bytes == ledger.host_bytes + ledger.retained_bytes
    assert "retained conversations" not in {name for name, size in ledger.lines if size}
    assert kept.pool_slots == none.pool_slots
    assert none.ledger.all_host_bytes == none.ledger.host_bytes


def test_a_host_keeps_no_more_of_conversations_than_a_quarter_of_what_it_has() -> None:
    host_bytes = 4 * GB
    kept = plan(PUBLISHED, replace(DEVICE, host_available_bytes=host_bytes), PlanRequest(max_context=200_000))
    assert 0 < kept.ledger.retained_bytes <= host_bytes // 4
    assert kept.retained_tokens < 200_000


def test_what_the_host_keeps_is_not_taken_for_memory_of_the_device() -> None:
    loaded = plan(PUBLISHED, DEVICE, REQUEST)
    states = [
        GovernorState(plan=loaded, slots=loaded.pool_slots, last_resize_s=0.0, prefix_bytes=held_bytes)
        for held_bytes in (0, 5 * GB)
    ]
    assert credited_bytes(states[0], GB) == credited_bytes(states[1], GB)


def test_the_lookahead_of_a_processor_reserves_what_its_lanes_and_compact_routers_take() -> None:
    routers = 49 * 512 * 2560 * 9 // 8
    two, sixteen = lookahead_bytes(WIDENED, lanes=2), lookahead_bytes(WIDENED, lanes=16)
    assert routers + 2 * PUBLISHED.record_bytes < two < sixteen < lookahead_bytes(PUBLISHED)


def test_the_lookahead_of_a_device_reserves_its_correction_alone() -> None:
    ledger = plan(PUBLISHED, DEVICE, replace(REQUEST, lookahead="on")).ledger
    assert ledger.lookahead_reserve_bytes == 36 * 2**20
    assert PUBLISHED.correction_bytes <= 36 * 2**20
    bare = plan(replace(PUBLISHED, correction_bytes=0), DEVICE, replace(REQUEST, lookahead="on")).ledger
    assert bare.lookahead_reserve_bytes == 0
    assert bare.host_bytes == ledger.host_bytes  # what lanes read ahead into


def test_what_the_driver_holds_is_charged_where_the_fixed_cost_has_nothing_that_lies_elsewhere() -> None:
    plain = Machine.simulated(ram_gb=150, working_set_gb=150)
    assert driver_bytes(PUBLISHED) == 0  # rows of n-grams, interpreter and lanes: 737 MB in the host's memory
    assert plan(PUBLISHED, DEVICE, REQUEST).ledger.fixed_bytes == plan(PUBLISHED, plain, REQUEST).ledger.fixed_bytes
    bare = replace(PUBLISHED, ngram_bytes=0)
    assert driver_bytes(bare) == 580_000_000 - fixed_cost(bare).process_bytes - fixed_cost(bare).scratch_bytes > 0
    automatic, off_device = (plan(bare, machine, REQUEST) for machine in (DEVICE, plain))
    assert automatic.ledger.fixed_bytes - off_device.ledger.fixed_bytes == driver_bytes(bare)
    assert automatic.pool_slots > 0


def test_an_automatic_plan_of_a_small_model_loses_no_slot_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(PUBLISHED, experts=16, ngram_bytes=0)
    assert driver_bytes(small) > 90 * 10**6
    charged = plan(small, DEVICE, REQUEST)
    monkeypatch.setattr("slotstream_planner.arranging.driver_bytes", lambda geometry: 0)
    free = plan(small, DEVICE, REQUEST)
    assert (charged.pool_slots, charged.draft) == (free.pool_slots, free.draft)
    assert charged.target_bytes == (free.target_bytes or 0) + driver_bytes(small)


def test_conversations_leave_the_host_what_the_process_takes_and_no_plan_is_refused_for_that() -> None:
    tight = plan(PUBLISHED, replace(DEVICE, host_available_bytes=HOST_PROCESS_BYTES), REQUEST)
    assert tight.retained_tokens == 0
    assert tight.ledger.host_process_bytes == HOST_PROCESS_BYTES
    assert "the process and its libraries" in plan_to_text(tight)
    roomy = plan(PUBLISHED, replace(DEVICE, host_available_bytes=HOST_PROCESS_BYTES + 4 * GB), REQUEST)
    assert 0 < roomy.ledger.retained_bytes <= GB
