"""A reply in two phases: separate sampling and budgets, one live state, nothing read twice."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.errors import ContextLengthExceeded, EngineBusy, GenerationCancelled, RequestError
from slotstream_core.events import Finished, GenerationEvent, PromptProgress, TextDelta, ThinkingDelta
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.phases import Phase
from slotstream_core.generation.sampling import GREEDY, SamplingParams
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest

PROMPT = "Tell me about slots."
SAMPLED = SamplingParams(temperature=0.9, presence_penalty=0.5, seed=11)
THINK = Phase(sampling=SAMPLED, max_tokens=7, thinking=True, ends_with_thinking=True)
ANSWER = Phase(sampling=GREEDY, max_tokens=9)


@pytest.fixture(scope="module")
def drafting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("phases"), draft=True)


def ends(events: Iterable[GenerationEvent]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]


def closing(engine: Engine) -> list[int]:
    return engine.tokenizer.encode("</think>\n\n")


@pytest.mark.parametrize("mtp", ["off", "on"])
def test_both_phases_are_what_two_requests_would_make(drafting_model: Path, mtp: str) -> None:
    with load(drafting_model, request=PlanRequest(mtp="off")) as engine:
        ids = engine.chat_ids(PROMPT, thinking=True)
        (first,) = ends(engine.generate(ids, sampling=SAMPLED, max_tokens=7, thinking=True))
        continued = [*ids, *first.token_ids, *closing(engine)]
        (second,) = ends(engine.generate(continued, sampling=GREEDY, max_tokens=9))
    with load(drafting_model, request=PlanRequest(mtp="on" if mtp == "on" else "off")) as engine:
        seen: list[Finished] = []

        def transition(finished: Finished) -> Sequence[int]:
            seen.append(finished)
            return closing(engine)

        events = list(engine.generate_phases(PROMPT, THINK, ANSWER, transition))
    one, two = ends(events)
    assert seen == [one]
    assert (one.token_ids, two.token_ids) == (first.token_ids, second.token_ids)
    assert one.usage.thinking_tokens == 7
    assert two.usage.prompt_tokens == len(continued)
    assert two.usage.cached_tokens == len(ids) + len(first.token_ids) - 1
    kinds = [type(event) for event in events if isinstance(event, ThinkingDelta | TextDelta)]
    assert kinds == sorted(kinds, key=lambda kind: kind is TextDelta)
    read = [event.total_tokens for event in events if isinstance(event, PromptProgress)]
    assert read[-1] == len(continued)


def test_the_first_phase_ends_where_the_thinking_does(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotstream_core.generation.sampling import Sampler

    with load(tiny_model) as engine:
        script = iter([65, *engine.tokenizer.encode("</think>"), 66])
        monkeypatch.setattr(Sampler, "sample", lambda *_: next(script))
        events = engine.generate_phases(PROMPT, Phase(thinking=True, ends_with_thinking=True), ANSWER, lambda _: [])
        first = next(event for event in events if isinstance(event, Finished))
        assert first.reason == "stop"
        assert first.token_ids[0] == 65
        assert 66 not in first.token_ids
        with pytest.raises(RequestError, match="at least one id"):
            next(events)


def test_a_first_phase_that_leaves_no_room_is_told_apart(tiny_model: Path) -> None:
    with load(tiny_model, request=PlanRequest(max_context=60)) as engine:
        events = engine.generate_phases([5] * 30, Phase(sampling=GREEDY, max_tokens=8), ANSWER, lambda _: [1] * 40)
        with pytest.raises(ContextLengthExceeded):
            list(events)
        assert ends(engine.generate([5] * 30, sampling=GREEDY, max_tokens=3))[0].usage.completion_tokens <= 3


def test_ids_outside_the_vocabulary_are_refused(tiny_model: Path) -> None:
    with load(tiny_model) as engine, pytest.raises(RequestError, match="outside the vocabulary"):
        list(engine.generate_phases(PROMPT, Phase(max_tokens=2), ANSWER, lambda _: [10**6]))


def test_cancelling_reaches_the_second_phase_and_the_gate_opens_again(tiny_model: Path) -> None:
    cancel = CancelToken()
    with load(tiny_model) as engine:
        events = engine.generate_phases(
            PROMPT, Phase(sampling=GREEDY, max_tokens=3), ANSWER, lambda _: [1], cancel=cancel
        )
        next(events)
        with pytest.raises(EngineBusy):
            next(engine.generate(PROMPT, max_tokens=1))
        next(event for event in events if isinstance(event, Finished))
        cancel.cancel()
        with pytest.raises(GenerationCancelled):
            list(events)
        assert ends(engine.generate(PROMPT, sampling=GREEDY, max_tokens=2))
