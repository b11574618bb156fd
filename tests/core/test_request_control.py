"""What a request is held to at its safe boundaries: a time to its first token, and the memory there is."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from slotstream_core.engine import load
from slotstream_core.errors import DeadlineExceeded, GenerationCancelled, MemoryUnavailable, RequestError
from slotstream_core.events import Finished, GenerationEvent, PromptProgress
from slotstream_core.generation import control, sharing
from slotstream_core.generation.control import CancelToken, FirstTokenDeadline
from slotstream_core.generation.phases import Phase
from slotstream_core.generation.sampling import GREEDY
from slotstream_planner import Machine, MachineError, PlanRequest

PROMPT = [1 + number % 200 for number in range(900)]
"""Three passes of 256 and a shorter one."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(control, "time", clock)
    return clock


def ids_of(events: Iterable[GenerationEvent]) -> tuple[int, ...]:
    (finished,) = [event for event in events if isinstance(event, Finished)]
    return finished.token_ids


def test_a_prompt_that_is_late_ends_between_two_passes_and_the_engine_goes_on(tiny_model: Path, clock: Clock) -> None:
    with load(tiny_model, request=PlanRequest(prefill_chunk=256)) as engine:
        expected = ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4))
        engine.memory.clear()
        events = engine.generate(PROMPT, sampling=GREEDY, max_tokens=4, first_token_s=5.0)
        for event in (next(events), next(events)):
            assert isinstance(event, PromptProgress)
            clock.now_s += 3.5
        with pytest.raises(DeadlineExceeded, match=r"not read after 7\.0 s and the request allows 5 s") as caught:
            next(events)
        assert (caught.value.limit_s, caught.value.elapsed_s) == (5.0, 7.0)
        assert ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4, first_token_s=5.0)) == expected


def test_the_time_ends_with_the_first_token(tiny_model: Path, clock: Clock) -> None:
    with load(tiny_model) as engine:
        expected = ids_of(engine.generate([1, 2, 3], sampling=GREEDY, max_tokens=6))
        found: list[GenerationEvent] = []
        for event in engine.generate([1, 2, 3], sampling=GREEDY, max_tokens=6, first_token_s=5.0):
            found.append(event)
            clock.now_s += 4.0 if isinstance(event, PromptProgress) else 100.0
        assert ids_of(found) == expected


def test_the_time_runs_from_the_request_and_not_from_its_first_event(tiny_model: Path, clock: Clock) -> None:
    with load(tiny_model) as engine:
        answer = Phase(sampling=GREEDY, max_tokens=2)
        events = engine.generate([1, 2, 3], sampling=GREEDY, max_tokens=2, first_token_s=5.0)
        phased = engine.generate_phases([1, 2, 3], answer, answer, lambda _: [4], first_token_s=5.0)
        clock.now_s += 6.0
        for late in (events, phased):
            with pytest.raises(DeadlineExceeded):
                list(late)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(RequestError, match="positive number of seconds"):
        FirstTokenDeadline(CancelToken(), limit_s)


def test_a_caller_who_has_left_is_told_so_whatever_the_time(clock: Clock) -> None:
    cancel = CancelToken()
    deadline = FirstTokenDeadline(cancel, 1.0)
    clock.now_s += 2.0
    cancel.cancel()
    with pytest.raises(GenerationCancelled):
        deadline.check()


def test_passes_that_the_machine_has_no_memory_for_are_refused_and_later_ones_are_not(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Machine.current()
    monkeypatch.setattr(sharing, "LEAST_CHECKED_BYTES", 0)
    monkeypatch.setattr(sharing, "_unused_bytes", lambda _: 10**9)
    with load(tiny_model) as engine:
        expected = ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4))
        engine.memory.clear()
        with monkeypatch.context() as short:
            full = replace(there, available_bytes=there.slack_bytes // sharing.RESERVE_DIVISOR)
            short.setattr(Machine, "current", lambda: full)
            with pytest.raises(MemoryUnavailable, match="close other programs") as caught:
                list(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4))
        assert caught.value.available_bytes == full.available_bytes
        assert caught.value.required_bytes > caught.value.available_bytes
        assert ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4)) == expected


def test_nothing_is_asked_of_the_machine_for_passes_that_take_next_to_nothing(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Machine:
        raise MachineError("asked")

    with load(tiny_model) as engine:
        engine.memory.clear()
        monkeypatch.setattr(Machine, "current", lambda: pytest.fail("asked"))
        assert ids_of(engine.generate([1, 2, 3], sampling=GREEDY, max_tokens=2))
        monkeypatch.setattr(sharing, "LEAST_CHECKED_BYTES", 0)
        monkeypatch.setattr(Machine, "current", fail)
        assert ids_of(engine.generate([4, 2, 3], sampling=GREEDY, max_tokens=2))
