"""The check that a person runs on a draft head: what it finds, and that it can fail."""

from collections.abc import Generator
from pathlib import Path

import pytest

from slotstream_core.diagnostics import drafts
from slotstream_core.diagnostics.drafts import DEPTHS, check_drafts
from slotstream_core.diagnostics.reporting import CheckReport
from slotstream_core.errors import CheckpointError
from slotstream_core.experts import StoredExperts
from slotstream_core.generation.decoding import Row
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.loading import LoadedModel
from slotstream_core.models.qwen4_exp.draft_state import DraftState
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest

TOKENS = 10


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("drafting"), draft=True)


def failed(report: CheckReport) -> list[str]:
    assert report.passed == (not any(not item.passed for item in report.items))
    return [item.name for item in report.items if not item.passed]


def test_drafts_leave_the_ids_alone_wherever_the_head_lives(drafting_model: Path) -> None:
    report = check_drafts(drafting_model, max_tokens=TOKENS)
    assert report.passed, report.to_text()
    assert len(report.facts["ids"]) == TOKENS
    runs = report.facts["with_head"]
    assert [(run["placement"], run["depth"]) for run in runs] == [
        (placement, depth) for placement in ("streamed", "resident") for depth in (0, *DEPTHS)
    ]
    assert [run["drafted"] > 0 for run in runs] == [False, True, True, True] * 2
    assert [run["accepted"] for run in runs[:4]] == [run["accepted"] for run in runs[4:]]
    assert all(run["tokens_per_s"] > 0 for run in runs)
    assert "5 of 5 rows" in report.to_text()


def test_a_reply_that_drafting_changes_fails(drafting_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = SpeculativeDecoder.tokens

    def changed(decoder: SpeculativeDecoder, row: Row, *, limit: int) -> Generator[int, None, None]:
        for place, token in enumerate(tokens(decoder, row, limit=limit)):
            yield token ^ (place == 3)

    monkeypatch.setattr(SpeculativeDecoder, "tokens", changed)
    report = check_drafts(drafting_model, max_tokens=TOKENS)
    assert failed(report) == [
        f"a {placement} head that drafts {depth} leaves the ids alone"
        for placement in ("streamed", "resident")
        for depth in DEPTHS
    ]
    assert "first difference at id 3" in report.to_text()


def test_a_recurrent_state_that_is_not_cut_fails(drafting_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaState, "trim", lambda _state, _length: None)
    names = failed(check_drafts(drafting_model, max_tokens=TOKENS))
    assert any(name.startswith("a pass cut anywhere goes on") for name in names)
    assert not any(name.startswith("a row of a pass of 5") for name in names)


def test_a_head_that_goes_on_from_another_row_fails(drafting_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trim = DraftState.trim

    def forgetful(state: DraftState, length: int) -> None:
        trim(state, length)
        state.streams = state.streams * 0 - 1

    monkeypatch.setattr(DraftState, "trim", forgetful)
    assert failed(check_drafts(drafting_model, max_tokens=TOKENS)) == ["a pass cut anywhere drafts as a shorter one"]


@pytest.mark.usefixtures("read_by_python")
def test_a_head_that_cannot_be_read_fails_and_says_so(drafting_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, read = drafts._load, StoredExperts.read

    def refuse_head(source: StoredExperts, fd: int, *rest: object) -> int:
        if source.path(fd).name == "mtp.safetensors":
            raise OSError("the disk is gone")
        return read(source, fd, *rest)  # type: ignore[arg-type]

    def only_the_head_fails(directory: Path, request: PlanRequest) -> LoadedModel:
        monkeypatch.setattr(StoredExperts, "read", read)
        loaded = load(directory, request)
        if loaded.plan.draft == "streamed":
            monkeypatch.setattr(StoredExperts, "read", refuse_head)
        return loaded

    monkeypatch.setattr(drafts, "_load", only_the_head_fails)
    monkeypatch.setattr(drafts, "_check_rows", lambda *_: [])
    report = check_drafts(drafting_model, max_tokens=TOKENS)
    assert "a streamed head reads its experts and uses them again" in failed(report)
    assert "1 failed reads" in report.to_text()


@pytest.mark.usefixtures("without_memory_for_a_resident_head")
def test_without_memory_for_a_resident_head_the_rest_is_checked(drafting_model: Path) -> None:
    report = check_drafts(drafting_model, max_tokens=TOKENS)
    assert report.passed, report.to_text()
    assert report.facts["left_out"] == "a resident head: it needs 2 GB more"
    assert {run["placement"] for run in report.facts["with_head"]} == {"streamed"}


def test_a_model_without_a_head_has_nothing_to_check(tiny_model: Path) -> None:
    with pytest.raises(CheckpointError, match="no draft head"):
        check_drafts(tiny_model)
