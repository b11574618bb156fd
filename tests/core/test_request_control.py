"""What a request is held to at its safe boundaries: a time to its first token, and the memory there is."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slotstream_core import memory
from slotstream_core.engine import Engine, load
from slotstream_core.errors import DeadlineExceeded, GenerationCancelled, MemoryUnavailable, RequestError
from slotstream_core.events import Finished, GenerationEvent, PromptProgress
from slotstream_core.generation import control, room
from slotstream_core.generation.control import CancelToken, FirstTokenDeadline
from slotstream_core.generation.phases import Phase
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.memory import Footprint
from slotstream_planner import Machine, MachineError, PlanRequest
from slotstream_planner.sensors import DeviceMemory

PROMPT = [1 + number % 200 for number in range(900)]
"""Three passes of 256 and a shorter one."""

REPLY = 120
"""Tokens that take such a prompt close enough to 1,024 for its cache to be looked at."""


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


class Memory:
    """The memory that a test says there is, of a machine of either kind, and how often it was asked for."""

    total_bytes = 100 * 10**9

    def __init__(self) -> None:
        self.free_bytes = self.total_bytes
        self.questions = 0

    @property
    def reserve_bytes(self) -> int:
        return self.total_bytes // 20 // room.RESERVE_DIVISOR

    def device(self) -> DeviceMemory:
        self.questions += 1
        return DeviceMemory(name="", total_bytes=self.total_bytes, free_bytes=self.free_bytes)

    def machine(self, **accelerator: int) -> Machine:
        """Stand for `Machine.current`, which is told of a device when that is the memory in question."""
        if accelerator:
            assert accelerator["accelerator_available_bytes"] == self.free_bytes
        else:
            self.questions += 1
        return Machine(
            kind="cuda" if accelerator else "linux",
            ram_bytes=self.total_bytes,
            available_bytes=self.free_bytes,
            working_set_bytes=None,
            cores=2,
        )


@pytest.fixture(params=["linux", "cuda"])
def planned(
    request: pytest.FixtureRequest, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, Memory]]:
    """An engine whose plan divides a host's memory or a device's, and that memory; every growth is looked at."""
    there = Memory()
    with load(tiny_model, request=PlanRequest(prefill_chunk=256)) as engine:
        engine.adopt(replace(engine.plan, machine=replace(engine.plan.machine, kind=request.param)))
        monkeypatch.setattr(engine.tokenizer, "eos_ids", ())
        monkeypatch.setattr(room, "LEAST_CHECKED_BYTES", 0)
        monkeypatch.setattr(room, "unused_bytes", lambda _: 10**9)
        monkeypatch.setattr(memory, "device_memory", there.device)
        monkeypatch.setattr(Machine, "current", there.machine)
        yield engine, there


def test_passes_that_there_is_no_memory_for_are_refused_and_later_ones_are_not(planned: tuple[Engine, Memory]) -> None:
    engine, there = planned
    expected = ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4))
    engine.memory.clear()
    there.free_bytes = there.reserve_bytes
    with pytest.raises(MemoryUnavailable, match="close other programs") as caught:
        list(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4))
    assert caught.value.available_bytes == there.reserve_bytes < caught.value.required_bytes
    there.free_bytes = there.total_bytes
    assert ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=4)) == expected


def test_a_reply_ends_where_its_cache_would_grow_into_memory_that_is_not_there(planned: tuple[Engine, Memory]) -> None:
    engine, there = planned
    expected = ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=REPLY))
    assert len(expected) == REPLY
    engine.memory.clear()
    events = engine.generate(PROMPT, sampling=GREEDY, max_tokens=REPLY)
    for event in events:
        if isinstance(event, PromptProgress) and event.done_tokens == len(PROMPT):
            break
    there.free_bytes = there.reserve_bytes
    with pytest.raises(MemoryUnavailable):
        list(events)
    engine._loaded.experts.pool.check_integrity()
    there.free_bytes, there.questions = there.total_bytes, 0
    *_, finished = engine.generate(PROMPT, sampling=GREEDY, max_tokens=REPLY)
    assert isinstance(finished, Finished)
    assert finished.token_ids == expected
    assert finished.usage.cached_tokens > 0  # the conversation is still known
    passes_read = -(-(len(PROMPT) - finished.usage.cached_tokens) // 256)
    assert there.questions <= passes_read + 1  # one of the steps of the cache is passed, and looked at once


def test_a_second_phase_is_not_read_without_memory_either(planned: tuple[Engine, Memory]) -> None:
    engine, there = planned
    answer = Phase(sampling=GREEDY, max_tokens=2)

    def transition(_: Finished) -> list[int]:
        there.free_bytes = there.reserve_bytes
        return [4] * 20

    with pytest.raises(MemoryUnavailable):
        list(engine.generate_phases(PROMPT[:300], answer, answer, transition))


def test_a_device_that_cannot_be_asked_is_not_taken_for_its_host(
    planned: tuple[Engine, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, there = planned
    engine.adopt(replace(engine.plan, machine=replace(engine.plan.machine, kind="cuda")))
    monkeypatch.setattr(memory, "device_memory", lambda: None)
    there.free_bytes = there.reserve_bytes
    assert ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=2))


def test_freed_buffers_are_given_back_before_a_request_is_refused(
    planned: tuple[Engine, Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, there = planned
    there.free_bytes = there.reserve_bytes

    def drop() -> int:
        there.free_bytes += 10**9
        return 10**9

    monkeypatch.setattr(room, "drop_buffer_cache", drop)
    assert ids_of(engine.generate(PROMPT, sampling=GREEDY, max_tokens=2))


def test_beside_a_device_only_what_lies_there_counts_as_used(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "footprint", lambda: Footprint(current_bytes=10**12, peak_bytes=10**12))
    with load(tiny_model) as engine:
        held = {
            kind: room.unused_bytes(replace(engine.plan, machine=replace(engine.plan.machine, kind=kind)))
            for kind in ("linux", "cuda")
        }
    allowed_bytes = engine.plan.target_bytes or engine.plan.expected_peak_bytes
    assert held["linux"] == allowed_bytes - 10**12
    assert 0 < held["cuda"] < allowed_bytes


def test_nothing_is_asked_of_the_machine_for_what_takes_next_to_nothing(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: int) -> Machine:
        raise MachineError("asked")

    with load(tiny_model) as engine:
        engine.memory.clear()
        monkeypatch.setattr(Machine, "current", lambda **_: pytest.fail("asked"))
        assert ids_of(engine.generate([1, 2, 3], sampling=GREEDY, max_tokens=2))
        monkeypatch.setattr(room, "LEAST_CHECKED_BYTES", 0)
        monkeypatch.setattr(Machine, "current", fail)
        assert ids_of(engine.generate([4, 2, 3], sampling=GREEDY, max_tokens=2))
