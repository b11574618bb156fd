"""Plans reproduce the documented tables and never promise more than there is."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest

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
from slotstream_planner.charges import floor_slots, minimum_target_bytes
from slotstream_planner.machine import UNLIMITED_BYTES
from tests.planner.checkpoints import CONFIG, write_checkpoint

GEOMETRY = published_geometry()
ROOMY = Machine.simulated(ram_gb=512, working_set_gb=512)

FIXED_TARGETS = [
    (8.1, "off", False, 256, 640, 6_510, 7.922),
    (9, "off", False, 512, 640, 9_765, 8.345),
    (10, "off", True, 256, 821, 11_831, 8.998),
    (11, "off", True, 256, 1_147, 15_448, 10.000),
    (12, "streamed", True, 512, 1_225, 17_658, 10.998),
    (14, "streamed", True, 1024, 1_635, 24_891, 12.997),
    (16, "streamed", True, 1024, 2_286, 32_125, 14.997),
    (20, "streamed", True, 1024, 3_727, 32_768, 18.999),
    (22, "resident", True, 2048, 3_531, 32_768, 20.999),
    (24, "resident", True, 2048, 4_254, 32_768, 22.998),
    (28, "resident", True, 2048, 5_701, 32_768, 26.999),
    (33, "resident", True, 2048, 7_509, 32_768, 31.998),
    (34.6, "resident", True, 4096, 7_125, 32_768, 33.599),
]

TIERS = [
    (16, 10.0, "off", 256, 821, 32_768),
    (18, 11.5, "off", 512, 1_189, 32_768),
    (24, 16.0, "streamed", 1024, 2_286, 32_768),
    (32, 22.0, "resident", 2048, 3_531, 32_768),
    (36, 25.0, "resident", 2048, 3_578, 65_536),
    (48, 33.6, "resident", 2048, 7_726, 32_768),
    (64, 43.206711808, "resident", 4096, 7_125, 131_072),
    (96, 54.682327552, "resident", 4096, 7_125, 262_144),
    (128, 54.682327552, "resident", 4096, 7_125, 262_144),
]

FIXTURES = [
    ((17.2, 11.8, 12.5), 9.8, 896, 256, 12_659, 8.8, 385.506, 3.7333),
    ((25.8, 18, 21), 16.0, 2_576, 1024, 32_768, 15.0, 200.580, 7.61399),
    ((34.4, 25.8, 29), 23.8, 4_916, 2048, 32_768, 22.8, 183.627, 9.92149),
    ((51.5, 40.2, 44), 33.0, 7_280, 4096, 32_768, 32.0, 182.264, 11.6),
]


def simulate(ram: float, working_set: float | None = None, available: float | None = None) -> Machine:
    return Machine.simulated(ram_gb=ram, working_set_gb=working_set, available_gb=available)


def plain(machine: Machine, *, lookahead: bool = True, **options: object) -> MemoryPlan:
    """Plan without a draft head."""
    request = PlanRequest(mtp="off", lookahead="auto" if lookahead else "off", **options)  # type: ignore[arg-type]
    return plan(GEOMETRY, machine, request)


@pytest.mark.parametrize(("target", "draft", "lookahead", "chunk", "slots", "retained", "peak"), FIXED_TARGETS)
def test_fixed_targets_split_as_documented(
    target: float, draft: str, lookahead: bool, chunk: int, slots: int, retained: int, peak: float
) -> None:
    result = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=target, max_context=32_768))
    assert (result.draft, result.lookahead, result.prefill_chunk) == (draft, lookahead, chunk)
    assert (result.pool_slots, result.retained_tokens) == (slots, retained)
    assert result.expected_peak_bytes / 1e9 == pytest.approx(peak, abs=0.0006)


@pytest.mark.parametrize(("ram", "target", "draft", "chunk", "slots", "window"), TIERS)
def test_simulated_tiers_plan_as_documented(
    ram: float, target: float, draft: str, chunk: int, slots: int, window: int
) -> None:
    result = plan(GEOMETRY, simulate(ram))
    assert result.target_bytes == round(target * 1e9)
    assert (result.draft, result.prefill_chunk) == (draft, chunk)
    assert (result.pool_slots, result.window_tokens) == (slots, window)
    assert result.lookahead


def test_an_eight_gigabyte_machine_is_refused_with_the_numbers() -> None:
    with pytest.raises(InsufficientMemory, match=r"needs 7\.92 GB and the machine can give 6\.00 GB") as caught:
        plan(GEOMETRY, simulate(8))
    assert caught.value.required_bytes == 7_921_999_104
    assert caught.value.available_bytes == 6_000_000_000


@pytest.mark.parametrize(("machine", "target", "slots", "chunk", "retained", "peak", "prefill_s", "tok_s"), FIXTURES)
def test_fixtures_without_head_and_lookahead_are_reproduced(
    machine: tuple[float, float, float],
    target: float,
    slots: int,
    chunk: int,
    retained: int,
    peak: float,
    prefill_s: float,
    tok_s: float,
) -> None:
    result = plain(simulate(*machine), lookahead=False, max_context=32_768)
    assert result.target_bytes == round(target * 1e9)
    assert (result.pool_slots, result.prefill_chunk, result.retained_tokens) == (slots, chunk, retained)
    assert result.expected_peak_bytes / 1e9 == pytest.approx(peak, abs=0.05)
    assert result.prefill_seconds(32_768) == pytest.approx(prefill_s, abs=0.001)
    assert result.reference_decode_tok_s == pytest.approx(tok_s, rel=1e-5)


@pytest.mark.parametrize(
    ("machine", "slots", "window"),
    [
        ((17.2, 11.8), 896, 32_768),
        ((25.8, 18), 2_421, 32_768),
        ((34.4, 25.8), 4_760, 65_536),
        ((51.5, 40.2), 7_125, 131_072),
    ],
)
def test_fixture_machines_with_lookahead(machine: tuple[float, float], slots: int, window: int) -> None:
    assert plain(simulate(*machine), max_context=32_768).pool_slots == slots
    assert plain(simulate(*machine)).window_tokens == window


@pytest.mark.parametrize(
    ("ram", "working_set", "target", "draft", "base_slots", "window"),
    [
        (17.18, 12.7, 10.7, "off", 1_049, 32_768),
        (25.77, 19.0, 17.0, "streamed", 2_642, 32_768),
        (34.36, 26.8, 24.052, "resident", 4_273, 65_536),
        (51.54, 40.2, 34.6, "resident", 7_125, 65_536),
    ],
)
def test_real_devices_plan_as_documented(
    ram: float, working_set: float, target: float, draft: str, base_slots: int, window: int
) -> None:
    machine = simulate(ram, working_set)
    base = plan(GEOMETRY, machine, PlanRequest(max_context=32_768))
    assert base.target_bytes == round(target * 1e9)
    assert (base.draft, base.pool_slots) == (draft, base_slots)
    assert plan(GEOMETRY, machine).window_tokens == window


def test_a_busy_machine_gets_what_is_left() -> None:
    result = plain(simulate(51.5, 40.2, 18), max_context=32_768)
    assert result.target_bytes == 15_425_000_000
    assert result.arrangement.availability_clamped
    assert any("other programs hold memory" in note for note in result.notes)


@pytest.mark.parametrize(("percent", "target"), [(15, 20.61), (95, 33.0)])
def test_the_share_of_memory_is_an_option(percent: float, target: float) -> None:
    result = plain(simulate(137.4), max_ram_percent=percent, max_context=32_768)
    assert result.target_bytes == pytest.approx(target * 1e9)


def test_a_large_budget_holds_everything() -> None:
    result = plan(GEOMETRY, simulate(137.4), PlanRequest(memory_gb=88, max_context=32_768))
    assert result.fully_resident
    assert result.experts_per_layer == 512


@pytest.mark.parametrize(("ram", "available"), [(16, 6), (8, None)])
def test_too_little_memory_is_refused(ram: float, available: float | None) -> None:
    with pytest.raises(InsufficientMemory):
        plan(GEOMETRY, simulate(ram, None, available))


def test_a_budget_above_what_is_available_is_refused() -> None:
    with pytest.raises(InsufficientMemory, match="can give 15"):
        plan(GEOMETRY, simulate(51.5, 40.2, 18), PlanRequest(memory_gb=30))


def test_a_pool_size_wins_over_a_budget_and_says_so() -> None:
    request = PlanRequest(experts_per_layer=30, pool_gb=9, memory_gb=20)
    result = plan(GEOMETRY, ROOMY, request)
    assert result.source == "--experts-per-layer"
    assert result.pool_slots == 1_440
    assert result.target_bytes is None
    assert result.window_tokens == 32_768
    assert [note.split()[0] for note in result.notes] == ["--pool-gb", "--memory-gb"]


def test_a_pool_below_the_floor_is_raised_with_a_note() -> None:
    result = plan(GEOMETRY, ROOMY, PlanRequest(experts_per_layer=1))
    assert result.pool_slots == floor_slots(GEOMETRY)
    assert any("floor of 640 slots" in note for note in result.notes)


def test_pool_gigabytes_become_whole_slots() -> None:
    assert plan(GEOMETRY, ROOMY, PlanRequest(pool_gb=4)).pool_slots == int(4e9 / 2_764_800)


def test_a_budget_below_the_floor_names_the_number_that_works() -> None:
    with pytest.raises(InsufficientMemory, match=r"use --memory-gb 8\.1 or more, up to 512"):
        plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=8.0))
    assert plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=8.1)).pool_slots == 640


@pytest.mark.parametrize("window", [32_768, 65_536, 131_072, 262_144])
@pytest.mark.parametrize("parts", [{}, {"mtp": "on"}, {"vision": "on", "mtp": "off"}])
def test_the_budget_a_refusal_names_works_and_a_step_less_does_not(window: int, parts: dict[str, str]) -> None:
    def at(target: float) -> MemoryPlan:
        return plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=target, max_context=window, **parts))  # type: ignore[arg-type]

    with pytest.raises(InsufficientMemory) as caught:
        at(8.0)
    named = float(str(caught.value).split("--memory-gb ")[-1].split()[0])
    assert at(named).window_tokens == window
    with pytest.raises(InsufficientMemory):
        at(named - 0.1)


def test_a_refused_window_names_the_largest_that_works() -> None:
    machine = simulate(16)
    with pytest.raises(InsufficientMemory, match=r"use --max-context \d+ or less") as caught:
        plan(GEOMETRY, machine, PlanRequest(max_context=262_144))
    named = int(str(caught.value).split("--max-context ")[-1].split()[0])
    assert plan(GEOMETRY, machine, PlanRequest(max_context=named)).window_tokens == named


def test_an_adaptive_limit_is_never_exceeded_and_may_pass_the_ordinary_ceiling() -> None:
    result = plan(GEOMETRY, simulate(128), PlanRequest(memory_limit_gb=60))
    assert result.source == "auto"
    assert result.target_bytes == 60_000_000_000
    busy = plan(GEOMETRY, simulate(128, None, 40), PlanRequest(memory_limit_gb=60))
    assert busy.target_bytes == 33_600_000_000


def test_an_adaptive_limit_above_the_hardware_says_so() -> None:
    result = plan(GEOMETRY, simulate(48), PlanRequest(memory_limit_gb=100))
    assert result.target_bytes == 34_000_000_000
    assert any("above what this machine supports" in note for note in result.notes)


def test_an_adaptive_limit_excludes_fixed_sizes() -> None:
    with pytest.raises(InvalidRequest, match="one of the two"):
        plan(GEOMETRY, ROOMY, PlanRequest(memory_limit_gb=20, memory_gb=20))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, 1e12])
@pytest.mark.parametrize("option", ["memory_gb", "pool_gb", "memory_limit_gb"])
def test_a_size_that_is_no_size_is_refused(option: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match="--"):
        plan(GEOMETRY, ROOMY, PlanRequest(**{option: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts_per_layer": 0}, "give 1 to 512"),
        ({"experts_per_layer": 513}, "give 1 to 512"),
        ({"max_ram_percent": 0}, "at most 100"),
        ({"max_ram_percent": 150}, "at most 100"),
        ({"max_ram_percent": math.nan}, "at most 100"),
        ({"max_context": 0}, "1 to 262144"),
        ({"max_context": 262_145}, "1 to 262144"),
        ({"prefill_chunk": 128}, "256 to 4096"),
        ({"max_prefill_wait_minutes": -1}, "0 for no deadline"),
    ],
)
def test_an_option_out_of_range_names_the_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        plan(GEOMETRY, ROOMY, PlanRequest(**options))  # type: ignore[arg-type]


def test_a_forced_resident_head_stays_off_where_a_streamed_one_would_run() -> None:
    forced = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=32_768, mtp_experts="resident"))
    assert forced.draft == "off"
    wanted = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=32_768, mtp_experts="resident", mtp="on"))
    assert wanted.draft == "resident"


def test_a_head_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    with pytest.raises(InsufficientMemory):
        plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=8.1, max_context=32_768, mtp="on", mtp_experts="resident"))


def test_a_head_that_is_not_there_cannot_be_asked_for(tmp_path: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path), compute="bf16")
    with pytest.raises(InvalidRequest, match=r"mtp\.safetensors"):
        plan(geometry, simulate(8, 8, 6), PlanRequest(mtp="on"))


def test_without_a_prefix_cache_its_memory_goes_to_slots() -> None:
    with_cache = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=32_768))
    without = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=32_768, prefix_cache="off"))
    assert without.retained_tokens == 0
    assert without.pool_slots > with_cache.pool_slots


def test_an_explicit_window_that_cannot_be_retained_whole_falls_back_with_a_note() -> None:
    result = plan(GEOMETRY, ROOMY, PlanRequest(memory_gb=16, max_context=131_072))
    assert result.window_tokens == 131_072
    assert result.retained_tokens < 131_072
    assert any("cannot be retained" in note for note in result.notes)


def test_a_small_checkpoint_streams_a_quarter_when_it_asks_to(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path)
    (directory / "slotstream.json").write_text('{"name": "demo", "default_pool_fraction": 0.25}')
    geometry = ModelGeometry.from_checkpoint(directory, compute="float32")
    result = plan(geometry, simulate(8, 8, 6))
    assert result.pool_slots == 128
    assert any("25% of its experts" in note for note in result.notes)
    assert result.target_bytes is not None
    assert result.target_bytes < 1e9
    whole = plan(geometry, simulate(8, 8, 6), PlanRequest(experts_per_layer=64))
    assert whole.fully_resident


def test_a_small_checkpoint_without_a_wish_is_held_whole(tmp_path: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path), compute="float32")
    result = plan(geometry, simulate(8, 8, 6))
    assert result.fully_resident
    assert result.window_tokens == 8192
    assert minimum_target_bytes(geometry) < 1e9


@pytest.mark.parametrize("options", [{}, {"experts_per_layer": 20}, {"memory_gb": 2}])
def test_a_model_without_attention_layers_is_planned_too(tmp_path: Path, options: dict[str, int]) -> None:
    config = copy.deepcopy(CONFIG)
    config["text_config"]["layer_types"] = ["linear_attention"] * 8
    geometry = ModelGeometry.from_checkpoint(write_checkpoint(tmp_path, config=config), compute="float32")
    result = plan(geometry, simulate(8, 8, 6), PlanRequest(**options))  # type: ignore[arg-type]
    assert geometry.kv_bytes_per_token == 0
    assert result.retained_tokens == result.window_tokens == 8192


def test_a_simulated_plan_says_so() -> None:
    result = plan(GEOMETRY, simulate(48))
    assert result.simulated
    assert result.to_json()["simulated"] is True
    real = Machine(kind="linux", ram_bytes=64 * 10**9, available_bytes=UNLIMITED_BYTES, working_set_bytes=None, cores=8)
    assert not plan(GEOMETRY, real).simulated


@pytest.mark.parametrize(
    "request_", [PlanRequest(), PlanRequest(pool_gb=0.3), PlanRequest(memory_gb=40, max_context=32_768)], ids=str
)
def test_a_model_without_full_attention_has_a_plan_too(request_: PlanRequest) -> None:
    recurrent = replace(published_geometry(), full_attention_layers=0, kv_bytes_per_token=0, layers=2)
    chosen = plan(recurrent, Machine.simulated(ram_gb=48), request_)
    assert chosen.expected_peak_bytes == sum(size for name, size in chosen.ledger.lines if name != "planning margin")
