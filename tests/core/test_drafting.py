"""The engine with a draft head: the plan says where it lives, replies stay the same, counts tell what it did."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from slotstream_core.drafting import choose_depths
from slotstream_core.engine import load
from slotstream_core.errors import PlanError
from slotstream_core.events import Finished, GenerationEvent
from slotstream_core.experts import StoredExperts
from slotstream_core.generation.draft_depth import FixedDepth, GatedDepth
from slotstream_core.generation.sampling import GREEDY, SamplingParams
from slotstream_core.options import EngineOptions
from slotstream_core.testing import write_tiny_model
from slotstream_planner import InvalidRequest, Machine, ModelGeometry, PlanRequest, plan

PROMPT = "Tell me about slots."
SAMPLED = SamplingParams(temperature=0.9, presence_penalty=0.5, seed=11)
OFF = PlanRequest(mtp="off")


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("drafting"), draft=True)


def last(events: Iterable[GenerationEvent]) -> Finished:
    *_, finished = events
    assert isinstance(finished, Finished)
    return finished


@pytest.mark.parametrize("placement", ["resident", "streamed"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_replies_are_the_same_with_and_without_the_draft_head(
    drafting_model: Path, placement: Literal["resident", "streamed"], sampling: SamplingParams
) -> None:
    with load(drafting_model, request=OFF) as engine:
        plain = last(engine.generate(PROMPT, sampling=sampling, max_tokens=40))
    request = replace(OFF, mtp="on", mtp_experts=placement)
    with load(drafting_model, request=request) as engine:
        drafted = last(engine.generate(PROMPT, sampling=sampling, max_tokens=40))
        again = last(engine.generate(PROMPT, sampling=sampling, max_tokens=40))
        assert engine.plan.draft == placement
    assert plain.drafts is None
    assert drafted.token_ids == again.token_ids == plain.token_ids
    assert drafted.reason == plain.reason
    assert drafted.usage == plain.usage
    assert drafted.drafts is not None
    assert drafted.drafts.drafted >= drafted.drafts.accepted
    assert sum(drafted.drafts.passes_by_depth[1:]) > 0
    assert (drafted.drafts.bytes_read > 0) == (placement == "streamed")


def test_auto_changes_no_reply_either(drafting_model: Path) -> None:
    with load(drafting_model, request=OFF) as engine:
        expected = [last(engine.generate(PROMPT, sampling=SAMPLED, max_tokens=n)).token_ids for n in (1, 2, 3, 60)]
    with load(drafting_model, request=replace(OFF, mtp="auto", experts_per_layer=16)) as engine:
        got = [last(engine.generate(PROMPT, sampling=SAMPLED, max_tokens=n)) for n in (1, 2, 3, 60)]
    assert [finished.token_ids for finished in got] == expected
    assert got[0].drafts is not None
    assert got[0].drafts.drafted == 0


def test_the_draft_head_is_charged_by_the_plan(drafting_model: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(drafting_model, compute="float32")
    with load(drafting_model, request=replace(OFF, mtp="on")) as engine:
        charge = engine.plan.ledger.mtp_resident_bytes
    assert charge >= geometry.draft_bytes > 0


def test_a_checkpoint_without_a_draft_head_refuses_to_be_forced(tiny_model: Path, drafting_model: Path) -> None:
    with pytest.raises(InvalidRequest, match="needs a draft head"):
        load(tiny_model, request=PlanRequest(mtp="on"))
    geometry = ModelGeometry.from_checkpoint(drafting_model, compute="float32")
    with pytest.raises(PlanError):
        load(tiny_model, plan(geometry, Machine.current(), replace(OFF, mtp="on", experts_per_layer=16)))


@pytest.mark.usefixtures("read_by_python")
def test_a_draft_head_that_cannot_be_read_costs_no_reply(drafting_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(drafting_model, request=replace(OFF, mtp="off")) as engine:
        expected = last(engine.generate(PROMPT, sampling=SAMPLED, max_tokens=20)).token_ids
    request = replace(OFF, mtp="on", mtp_experts="streamed")
    read = StoredExperts.read

    def refuse_head(source: StoredExperts, fd: int, *rest: object) -> int:
        if source.path(fd).name == "mtp.safetensors":
            raise OSError("the disk is gone")
        return read(source, fd, *rest)  # type: ignore[arg-type]

    with load(drafting_model, request=request) as engine:
        monkeypatch.setattr(StoredExperts, "read", refuse_head)
        finished = last(engine.generate(PROMPT, sampling=SAMPLED, max_tokens=20))
        assert finished.token_ids == expected
        assert finished.drafts is not None
        assert (finished.drafts.failed_reads, finished.drafts.drafted) == (1, 0)
        monkeypatch.undo()
        recovered = last(engine.generate(PROMPT, sampling=SAMPLED, max_tokens=20))
        assert recovered.drafts is not None
        assert (recovered.drafts.failed_reads, recovered.token_ids) == (0, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("16", 16), ("17", None), ("0", None), ("-1", None), ("two", None), ("", None), ("١", None)],
)
def test_an_impossible_depth_in_the_environment_means_the_default(text: str, expected: int | None) -> None:
    assert EngineOptions.from_environment({"SLOTSTREAM_DRAFT_DEPTH": text}).draft_depth == expected


def test_on_drafts_at_a_fixed_depth_and_auto_as_deep_as_it_pays(drafting_model: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(drafting_model, compute="float32")
    plans = {mtp: plan(geometry, Machine.simulated(ram_gb=16), replace(OFF, mtp=mtp)) for mtp in ("on", "auto")}
    fixed, adaptive = choose_depths(plans["on"], EngineOptions()), choose_depths(plans["auto"], EngineOptions())
    assert isinstance(fixed, FixedDepth)
    assert fixed.limit == 2
    assert isinstance(adaptive, GatedDepth)
    assert adaptive.limit == 4
    deep, exact = EngineOptions(draft_depth=16), EngineOptions(draft_depth=16, row_invariant=True)
    for options, limit in ((deep, 16), (exact, 6)):
        for chosen in (choose_depths(plans[mtp], options) for mtp in ("on", "auto")):
            assert isinstance(chosen, FixedDepth | GatedDepth)
            assert chosen.limit == limit
