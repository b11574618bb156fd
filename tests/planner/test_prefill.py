"""Prompts are cut into passes whose query-key product is bounded, and the wait is known or said to be unknown."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotstream_planner import InvalidRequest, published_geometry
from slotstream_planner.prefill import (
    QUERY_KEY_LIMIT,
    PrefillPass,
    estimate_prefill_seconds,
    pass_size,
    resume_boundaries,
    schedule_passes,
)
from slotstream_planner.units import format_rate, format_wait
from slotstream_planner.workspace import (
    barrier_period,
    group_read_scopes,
    pass_workspace_bytes,
    share_reads,
    vision_workspace_bytes,
)

LAST_STARTS = [(4096, 3_920), (2048, 13_984), (1024, 31_040), (512, 63_616), (256, 128_000), (128, 256_384)]


@pytest.mark.parametrize(("size", "last_start"), LAST_STARTS)
def test_a_pass_size_lasts_until_its_documented_position(size: int, last_start: int) -> None:
    assert pass_size(last_start, 4096) == size
    assert pass_size(last_start + 1, 4096) == size // 2
    assert size * (last_start + size) <= QUERY_KEY_LIMIT < size * (last_start + 1 + size)


def test_a_default_window_is_scheduled_as_documented() -> None:
    sizes = Counter(each.tokens for each in schedule_passes(32_768, 4096))
    assert sizes == {4096: 1, 2048: 5, 1024: 17, 512: 2}


def test_a_full_window_is_scheduled_as_documented() -> None:
    passes = list(schedule_passes(262_144, 4096))
    assert Counter(each.tokens for each in passes) == {
        4096: 1,
        2048: 5,
        1024: 17,
        512: 63,
        256: 251,
        128: 1_002,
        64: 88,
    }
    assert sum(each.tokens for each in passes) == 262_144
    assert estimate_prefill_seconds(262_144, 4096) is None


def test_a_short_last_pass_is_timed_at_the_rate_of_its_full_size() -> None:
    assert estimate_prefill_seconds(4096 + 10, 4096) == pytest.approx(4096 / 220 + 10 / 205)


def test_the_last_measured_window_has_an_estimate() -> None:
    assert estimate_prefill_seconds(128_256, 256) is not None
    assert estimate_prefill_seconds(128_257, 256) is None


def test_states_are_saved_at_pass_ends_but_not_at_the_prompt_end() -> None:
    assert resume_boundaries(1000, 256) == [256, 512, 768]
    assert resume_boundaries(1024, 256) == [256, 512, 768]
    assert resume_boundaries(100, 256) == []


def test_a_resumed_prompt_continues_its_positions() -> None:
    passes = list(schedule_passes(600, 512, start=512))
    assert [(each.start, each.tokens) for each in passes] == [(512, 512), (1024, 88)]


@pytest.mark.parametrize(("tokens", "largest", "start"), [(-1, 256, 0), (10, 256, -1), (10, 32, 0), (10, 8192, 0)])
def test_an_impossible_schedule_is_refused(tokens: int, largest: int, start: int) -> None:
    with pytest.raises(InvalidRequest):
        schedule_passes(tokens, largest, start=start)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "unknown"), (3.4, "3 s"), (385.5, "6.4 min"), (7_200, "2.0 h"), (59.4, "59 s")]
)
def test_waits_are_described_in_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert format_wait(seconds) == text


@pytest.mark.parametrize(
    ("rows", "slots", "period"), [(3, 3_648, 4), (255, 3_648, 4), (255, 2_800, 1), (3, 624, 4), (17, 624, 1)]
)
def test_barrier_periods_are_as_documented(rows: int, slots: int, period: int) -> None:
    found = barrier_period(published_geometry(), rows=rows, slots=slots, lookahead=True, reserved_slots=64)
    assert found == period
    assert barrier_period(published_geometry(), rows=rows, slots=slots, lookahead=False, reserved_slots=64) == 1


def test_identical_passes_share_reads_up_to_their_limit() -> None:
    scopes = group_read_scopes(list(schedule_passes(32_768, 256)))
    assert [scope.tokens for scope in scopes] == [8_192] * 4
    assert [len(scope.passes) for scope in group_read_scopes(list(schedule_passes(8_192, 1024)))] == [4, 4]


def test_three_passes_are_too_few_to_share_and_a_short_one_never_does() -> None:
    assert all(len(scope.passes) == 1 for scope in group_read_scopes(list(schedule_passes(768, 256))))
    scopes = group_read_scopes(list(schedule_passes(1_100, 256)))
    assert [scope.tokens for scope in scopes] == [1_024, 76]


def test_large_passes_read_for_themselves() -> None:
    assert all(len(scope.passes) == 1 for scope in group_read_scopes(list(schedule_passes(13_000, 2048))))


def test_a_scope_ends_where_state_is_saved() -> None:
    passes = [PrefillPass(start=n * 256, tokens=256, full_tokens=256) for n in range(10)]
    scopes = group_read_scopes(passes, boundaries=[4 * 256])
    assert [len(scope.passes) for scope in scopes] == [4, 6]


def test_pass_workspace_is_the_larger_of_rows_and_attention() -> None:
    geometry = published_geometry()
    assert pass_workspace_bytes(geometry, tokens=256, extent=256, queries=256) == 256 * 1_300_000
    assert pass_workspace_bytes(geometry, tokens=1, extent=1, queries=1) == 64 * 1_300_000
    assert pass_workspace_bytes(geometry, tokens=256, extent=128_000, queries=256) == 256 * 128_000 * 208
    shared = pass_workspace_bytes(geometry, tokens=256, extent=256, queries=256, scope_tokens=1024)
    assert shared == 256 * 1_300_000 + 768 * 32_768


def test_image_workspace_grows_with_patches() -> None:
    assert vision_workspace_bytes(9_216) == 256 * 9_216 * 64 + 9_216 * 1152 * 32


def test_passes_share_reads_as_far_as_memory_reaches() -> None:
    passes = list(schedule_passes(2_100, 512))
    assert [scope.tokens for scope in share_reads(passes, extra_tokens=0)] == [512, 512, 512, 512, 52]
    assert [scope.tokens for scope in share_reads(passes, extra_tokens=52)] == [512, 512, 512, 564]
    assert [scope.tokens for scope in share_reads(passes, extra_tokens=512)] == [1024, 1024, 52]
    assert [scope.tokens for scope in share_reads(passes, extra_tokens=100_000)] == [2_100]
    assert share_reads([], extra_tokens=100) == []


def test_a_scope_is_bounded_and_only_a_short_last_pass_goes_beyond() -> None:
    for largest, limit in ((256, 8_192), (1024, 4_096), (4096, 4_096)):
        for tokens in (3_000, 10_000, 33_000):
            passes = list(schedule_passes(tokens, largest))
            scopes = share_reads(passes, extra_tokens=1 << 20)
            assert [each for scope in scopes for each in scope.passes] == passes
            assert all(scope.tokens <= limit for scope in scopes[:-1])
            assert scopes[-1].tokens <= limit + 255


def test_many_small_passes_deep_in_a_context_share_reads_too() -> None:
    passes = list(schedule_passes(2_048, 256, start=200_000))
    assert {each.tokens for each in passes} == {128}
    assert [scope.tokens for scope in share_reads(passes, extra_tokens=1 << 20)] == [2_048]


def test_a_pass_ends_before_a_turn_that_leaves_it_enough_tokens() -> None:
    passes = list(schedule_passes(700, 256, turns=[0, 63, 100, 130, 164, 600]))
    assert [(each.start, each.tokens) for each in passes] == [(0, 100), (100, 64), (164, 256), (420, 180), (600, 100)]
    assert {each.full_tokens for each in passes} == {256}
    assert resume_boundaries(700, 256, turns=[0, 63, 100, 130, 164, 600]) == [100, 164, 420, 600]


@given(
    turns=st.lists(st.integers(0, 3_000), max_size=30, unique=True).map(sorted),
    tokens=st.integers(0, 3_000),
    kept=st.integers(0, 3_000),
)
def test_where_passes_end_depends_on_nothing_behind_their_end(turns: list[int], tokens: int, kept: int) -> None:
    whole = resume_boundaries(tokens, 256, turns=turns)
    part = resume_boundaries(min(kept, tokens), 256, turns=[each for each in turns if each < kept])
    assert part == [end for end in whole if end < kept]
    assert all(later - earlier >= 64 for earlier, later in itertools.pairwise([0, *whole]))
    for end in whole:
        rest = schedule_passes(tokens - end, 256, start=end, turns=turns)
        assert [each.start + each.tokens for each in rest][:-1] == [each for each in whole if each > end]


@pytest.mark.parametrize(
    ("rate", "text"), [(0.284, "0.28"), (7.21, "7.2"), (9.97, "10"), (171.2, "170"), (6_212.0, "6,200")]
)
def test_rates_are_written_with_two_digits_and_no_exponent(rate: float, text: str) -> None:
    assert format_rate(rate) == text
