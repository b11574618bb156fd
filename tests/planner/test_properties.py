"""What holds for every plan, whatever the machine and the options."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slotstream_planner import (
    InsufficientMemory,
    InvalidRequest,
    Machine,
    MemoryPlan,
    ModelGeometry,
    PlanRequest,
    plan,
    published_geometry,
)
from slotstream_planner.calibration import request_seconds
from slotstream_planner.charges import floor_slots
from slotstream_planner.planning import resolve_plan
from slotstream_planner.prefill import QUERY_KEY_LIMIT, schedule_passes

PUBLISHED = published_geometry()


@st.composite
def geometries(draw: st.DrawFn) -> ModelGeometry:
    """Return models from tiny to larger than the published one."""
    experts = draw(st.integers(4, 600))
    layers = draw(st.integers(1, 80))
    record = draw(st.integers(1_000, 20_000_000))
    full = draw(st.integers(0, layers))
    return ModelGeometry(
        name="drawn",
        compute="bf16",
        layers=layers,
        full_attention_layers=full,
        experts=experts,
        experts_per_token=draw(st.integers(1, min(16, experts))),
        record_bytes=record,
        slot_bytes=record + draw(st.integers(0, record)),
        shared_bytes=10**8,
        shared_resident_bytes=draw(st.integers(10**6, 10**10)),
        ngram_bytes=draw(st.sampled_from([0, 10**6, 10**10])),
        draft_bytes=draw(st.sampled_from([0, experts * record + 10**6])),
        draft_resident_bytes=experts * record * 2 + 10**6,
        vision_bytes=0,
        vision_resident_bytes=0,
        correction_bytes=draw(st.sampled_from([0, 10**6])),
        vocabulary=draw(st.integers(256, 300_000)),
        context_limit=draw(st.integers(64, 500_000)),
        hidden=draw(st.integers(32, 8_192)),
        expert_width=draw(st.integers(32, 4_096)),
        kv_bytes_per_token=full * draw(st.integers(64, 8_192)),
        recurrent_bytes=draw(st.integers(0, 10**9)),
        prefill_bytes_per_token=draw(st.integers(1_000, 3_000_000)),
        default_pool_fraction=draw(st.sampled_from([None, 0.25, 1.0])),
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Return real-looking and busy machines."""
    ram = draw(st.integers(2 * 10**10, 10**12))
    return Machine(
        kind=draw(st.sampled_from(["macos", "linux", "cuda"])),
        ram_bytes=ram,
        available_bytes=draw(st.integers(ram // 3, ram)),
        working_set_bytes=draw(st.one_of(st.none(), st.integers(ram // 2, ram))),
        cores=8,
    )


SIZES = st.one_of(
    st.just({}),
    st.builds(lambda n: {"experts_per_layer": n}, st.integers(1, 60)),
    st.builds(lambda gb: {"pool_gb": gb}, st.floats(0.05, 80)),
    st.builds(lambda gb: {"memory_gb": gb}, st.floats(8.1, 200)),
    st.builds(lambda gb: {"memory_limit_gb": gb}, st.floats(8.1, 200)),
)


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    """Return one size option, or none, among every other option."""
    return PlanRequest(
        **draw(SIZES),
        max_context=draw(st.one_of(st.just("auto"), st.integers(1, 64), st.integers(1, 262_144))),
        mtp=draw(st.sampled_from(["auto", "auto", "on", "off"])),
        mtp_experts=draw(st.sampled_from(["automatic", "resident", "streamed"])),
        lookahead=draw(st.sampled_from(["auto", "on", "off"])),
        prefix_cache=draw(st.sampled_from(["on", "off"])),
        prefill_chunk=draw(st.sampled_from([None, 512])),
    )


def accepted(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> MemoryPlan | None:
    try:
        return resolve_plan(geometry, machine, request)
    except (InsufficientMemory, InvalidRequest):
        return None


@settings(max_examples=300)
@given(geometry=st.one_of(st.just(PUBLISHED), geometries()), machine=machines(), request=requests())
def test_no_accepted_plan_exceeds_what_it_may_take(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest
) -> None:
    result = accepted(geometry, machine, request)
    assume(result is not None)
    assert result is not None
    peak = result.expected_peak_bytes
    assert peak <= machine.ram_bytes
    assert peak <= machine.working_set_limit_bytes
    assert machine.available_bytes is not None
    assert peak <= machine.available_bytes - machine.slack_bytes
    assert result.target_bytes is None or peak <= result.target_bytes
    assert floor_slots(geometry) <= result.pool_slots <= geometry.total_experts
    assert 1 <= result.window_tokens <= geometry.context_limit
    assert 0 <= result.retained_tokens <= result.window_tokens


@settings(max_examples=150)
@given(geometry=st.one_of(st.just(PUBLISHED), geometries()), machine=machines(), request=requests())
def test_ledger_lines_sum_to_the_peak_and_json_round_trips(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest
) -> None:
    result = accepted(geometry, machine, request)
    assume(result is not None)
    assert result is not None
    document = result.to_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    amounts = asdict(result.ledger)
    beside = {"resource_identity", "active_capacity_bytes", "planning_margin_bytes", "retained_on_host"}
    beside |= {"host_bytes", "host_process_bytes", "pinned_file_bytes"}
    if result.ledger.retained_on_host:
        beside |= {"retained_capacity_bytes", "retained_recurrent_bytes"}
    counted = sum(size for name, size in amounts.items() if name not in beside)
    assert counted == result.expected_peak_bytes == document["memory_ledger"]["expected_peak_bytes"]
    assert all(size >= 0 for size in amounts.values() if isinstance(size, int))


PARTS: list[dict[str, Any]] = [
    {"mtp": "off", "lookahead": "off"},
    {"mtp": "off", "lookahead": "on"},
    {"mtp": "on", "mtp_experts": "streamed", "lookahead": "on"},
    {"mtp": "on", "mtp_experts": "resident", "lookahead": "off"},
]


@settings(max_examples=200)
@given(
    small=st.floats(10.5, 90),
    more=st.floats(0, 10),
    window=st.sampled_from([8_192, 32_768]),
    parts=st.sampled_from(PARTS),
)
def test_a_larger_target_is_never_estimated_slower(
    small: float, more: float, window: int, parts: dict[str, Any]
) -> None:
    """With the same parts running: the reference curve does not price what drafts and lookahead gain."""
    machine = Machine.simulated(ram_gb=200, working_set_gb=200)

    def seconds(target: float) -> float:
        result = plan(PUBLISHED, machine, PlanRequest(memory_gb=target, max_context=window, **parts))
        return request_seconds(result.prefill_chunk, result.scaled_experts_per_layer)

    assert seconds(small + more) <= seconds(small) + 1e-9


@settings(max_examples=100)
@given(tokens=st.integers(1, 262_144), largest=st.sampled_from([64, 128, 256, 512, 1024, 2048, 4096]))
def test_a_schedule_covers_the_prompt_within_the_limit(tokens: int, largest: int) -> None:
    position = 0
    for each in schedule_passes(tokens, largest):
        assert each.start == position
        assert 0 < each.tokens <= each.full_tokens
        assert each.full_tokens * (each.start + each.full_tokens) <= QUERY_KEY_LIMIT or each.full_tokens == 64
        position += each.tokens
    assert position == tokens
