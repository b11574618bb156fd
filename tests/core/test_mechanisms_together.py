"""Drafts together with everything else that makes replies faster: the ids are those of the plainest engine."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.events import Finished
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.options import SWEEP_VARIABLE, WARM_VARIABLE
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest

PROMPT = [(7 * i * i + 3 * i + 5) % 250 for i in range(600)]
MORE = [11, 12, 13]
SAMPLED = SamplingParams(temperature=0.8, presence_penalty=0.5, seed=5)
PLAINEST = PlanRequest(experts_per_layer=2, mtp="off", lookahead="off", prefix_cache="off")


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("together"), draft=True)


@pytest.fixture(scope="module")
def expected(drafting_model: Path) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    with pytest.MonkeyPatch.context() as environment, load(drafting_model, request=PLAINEST) as engine:
        environment.setenv(SWEEP_VARIABLE, "0")
        first, second = two_turns(engine)
        yield first.token_ids, second.token_ids


def two_turns(engine: Engine) -> tuple[Finished, Finished]:
    first = reply(engine, PROMPT)
    return first, reply(engine, [*PROMPT, *first.token_ids, *MORE])


def reply(engine: Engine, prompt: list[int]) -> Finished:
    *_, last = engine.generate(prompt, sampling=SAMPLED, max_tokens=12)
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize(("lookahead", "sweep", "warm", "kept"), list(product((False, True), repeat=4)))
def test_drafts_beside_other_mechanisms_change_no_reply(
    drafting_model: Path,
    expected: tuple[tuple[int, ...], tuple[int, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lookahead: bool,
    sweep: bool,
    warm: bool,
    kept: bool,
) -> None:
    monkeypatch.setenv(SWEEP_VARIABLE, str(int(sweep)))
    monkeypatch.setenv(WARM_VARIABLE, str(int(warm)))
    request = replace(
        PLAINEST,
        experts_per_layer=None if kept else 2,  # a pool this small leaves conversations no memory
        mtp="on",
        mtp_experts="streamed",
        lookahead="on" if lookahead else "off",
        prefix_cache="on" if kept else "off",
    )
    for start in range(1 + warm):  # a second start fills the pool by what the first one used
        with load(drafting_model, request=request, warm_directory=tmp_path) as engine:
            first, second = two_turns(engine)
        assert (first.token_ids, second.token_ids) == expected, f"start {start}"
        assert first.drafts is not None
        assert first.drafts.drafted > 0
        assert (first.experts.ahead_records > 0) == (lookahead and not kept)  # else every expert is there
        assert (second.usage.cached_tokens > 0) == kept
