"""Through the page cache or past it: what is measured, and what is made of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import SettingError
from slotstream_core.experts import probing, sources
from slotstream_core.experts.packed import find_repacked
from slotstream_core.experts.probing import ReadProbe, choose_access, favours_direct, probe_reads
from slotstream_core.experts.repacking import repack_checkpoint, stacked_layouts
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.loading import load_model
from slotstream_core.options import ACCESS_VARIABLE, EngineOptions
from slotstream_planner import PlanRequest
from tests.core.expert_files import ExpertFile, expert_file


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), experts=40) as opened:
        yield opened


def probe(*, cached: float, direct: float) -> ReadProbe:
    return ReadProbe(cached_bytes_per_s=cached, direct_bytes_per_s=direct, seconds=0.2)


def test_the_faster_way_is_taken_and_a_near_tie_goes_past_the_cache() -> None:
    assert favours_direct(probe(cached=1e9, direct=2e9), cached_share=0)
    assert favours_direct(probe(cached=1e9, direct=0.95e9), cached_share=0)
    assert not favours_direct(probe(cached=2e9, direct=1e9), cached_share=0)


def test_what_the_cache_would_hold_counts_for_it() -> None:
    measured = probe(cached=1e9, direct=1.2e9)
    assert favours_direct(measured, cached_share=0.05)
    assert not favours_direct(measured, cached_share=0.5)


def test_nothing_is_measured_when_memory_holds_all_experts(stored: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe_reads", lambda _layout: pytest.fail("measured"))
    access = choose_access(stored.layout(), available_bytes=1 << 40)
    assert not access.direct
    assert access.probe is None
    assert access.reason == "memory can hold them all"


def test_otherwise_both_ways_are_measured_within_the_time_allowed(stored: ExpertFile) -> None:
    measured = probe_reads(stored.layout())
    assert measured is not None
    assert measured.cached_bytes_per_s > 0
    assert measured.direct_bytes_per_s > 0
    assert 2 * probing.ROUNDS * probing.ROUND_S < 0.3
    access = choose_access(stored.layout(), available_bytes=0)
    assert access.probe is not None
    assert access.direct == favours_direct(access.probe, cached_share=0)
    assert "MB/s past it" in access.reason


def test_a_round_that_is_over_before_its_threads_get_a_processor_measures_all_the_same(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ROUND_S", 0.0)
    assert probe_reads(stored.layout()) is not None


@pytest.mark.parametrize(("patience_s", "rounds"), [(0.0, 2), (1e9, 4)])
def test_a_slow_disk_is_asked_once_each_way(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch, patience_s: float, rounds: int
) -> None:
    asked: list[bool] = []

    def run(_source: StoredExperts, _places: object, *, past: bool) -> tuple[int, float]:
        asked.append(past)
        return 1000, 0.5

    monkeypatch.setattr(probing, "_run", run)
    monkeypatch.setattr(probing, "PATIENCE_S", patience_s)
    measured = probe_reads(stored.layout())
    assert measured is not None
    assert measured.direct_bytes_per_s == measured.cached_bytes_per_s == 2000
    assert asked == [False, True, False, True][:rounds]


def test_a_repacked_layout_is_measured_in_whole_records(tmp_path: Path) -> None:
    model = testing.write_tiny_model(tmp_path / "model")
    repack_checkpoint(model)
    with Checkpoint.open(model) as checkpoint:
        layout = find_repacked(model, stacked_layouts(checkpoint)["trunk"], "trunk")
    assert layout is not None
    with StoredExperts(layout) as cached, StoredExperts(layout, direct=True) as direct:
        reads = list(itertools.islice(probing._reads(cached, direct, seed=0), layout.record_count))
    assert len(reads) == layout.record_count
    assert {read.byte_count for read in reads} == {layout.extents(0, 1)[0].offset - layout.extents(0, 0)[0].offset}
    assert len({(read.descriptors, read.offset) for read in reads}) == layout.record_count


@pytest.mark.parametrize("switch", ["auto", "direct"])
def test_a_file_system_without_direct_reads_is_read_ordinarily(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch, switch: probing.AccessSwitch
) -> None:
    monkeypatch.setattr(sources, "open_past_cache", lambda _paths: {})
    access = choose_access(stored.layout(), available_bytes=0, switch=switch)
    assert not access.direct
    assert access.reason == "the file system has no usable reads past it"


def test_a_disk_that_fails_is_not_measured(stored: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(StoredExperts, "read", broken)
    assert probe_reads(stored.layout()) is None


def test_either_way_can_be_asked_for(stored: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe_reads", lambda _layout: pytest.fail("measured"))
    for value, direct in (("0", False), ("1", True)):
        options = EngineOptions.from_environment({ACCESS_VARIABLE: value})
        access = choose_access(stored.layout(), available_bytes=0, switch=options.access)
        assert (access.direct, access.reason) == (direct, "as asked")
    with pytest.raises(SettingError, match=f"{ACCESS_VARIABLE} is 'yes'"):
        EngineOptions.from_environment({ACCESS_VARIABLE: "yes"})


def test_a_loaded_model_says_how_its_experts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = testing.write_tiny_model(tmp_path / "model")
    for value, words in (("0", "through the page cache (as asked)"), ("1", "past the page cache (as asked)")):
        monkeypatch.setenv(ACCESS_VARIABLE, value)
        with load_model(model, request=PlanRequest(experts_per_layer=4)) as loaded:
            assert loaded.reading.describe() == f"experts are read from stacked tensors, {words}"
            assert loaded.reading.direct is (value == "1")
