"""Text of a fast reply is gathered for a moment: never reordered, never lost, never held longer than promised."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from slotstream_serve.gathering import FAST_S, GATHER_S, LOOK_S, STEADY, Text, TextGatherer
from slotstream_serve.reply import TextDelta
from tests.serve.clocks import SteppedLoop

A_PICTURE_S = 1 / 60


class Wire:
    """Keeps what is written, takes no more after `full`, and fails once on `broken`."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.threads: list[int] = []
        self.stuck = 0
        self.failed = False

    def write(self, events: Sequence[Text]) -> bool:
        if not self.failed and any(event.text == "broken" for event in events):
            self.failed = True
            raise OSError("this text cannot be written")
        self.pieces.append("".join(event.text for event in events))
        self.threads.append(threading.get_ident())
        return "full" not in self.pieces[-1]

    def note_stuck(self) -> None:
        self.stuck += 1


Work = Callable[[SteppedLoop, Wire, TextGatherer], Awaitable[None]]


def play(work: Work) -> Wire:
    loop, wire = SteppedLoop(), Wire()

    async def run() -> None:
        await work(loop, wire, TextGatherer(wire.write, stuck=wire.note_stuck, clock=loop.time))

    loop.run_until_complete(run())
    loop.close()
    return wire


def words(events: Sequence[Text]) -> list[str]:
    return [event.text for event in events]


def say(gatherer: TextGatherer, *said: str) -> list[bool]:
    return [gatherer.send(TextDelta(text=word)) for word in said]


def make_steady(loop: SteppedLoop, gatherer: TextGatherer, wire: Wire) -> None:
    """Say enough in a row for what follows to be gathered, and forget it."""
    gatherer.open()
    for _ in range(STEADY + 1):
        loop.now_s += GATHER_S
        say(gatherer, "slow")
    loop.now_s += GATHER_S
    say(gatherer, *["fast"] * STEADY)
    wire.pieces.clear()


def test_what_waits_is_sent_before_a_display_shows_its_next_picture_or_a_person_notices() -> None:
    assert GATHER_S < A_PICTURE_S
    assert LOOK_S <= 0.1


def test_slow_text_is_sent_as_it_comes() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        gatherer.open()
        for number in range(3 * STEADY):
            assert say(gatherer, f"{number}") == [True]
            assert wire.pieces[-1] == f"{number}"
            await loop.step(FAST_S * 1.01)

    assert len(play(work).pieces) == 3 * STEADY


def test_fast_text_goes_out_together_once_it_is_steady() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        gatherer.open()
        for word in "abcdefghijk":
            say(gatherer, word)
            loop.now_s += GATHER_S / 4.8

    assert play(work).pieces == ["a", "b", "c", "d", "efghi"]


def test_a_pause_sends_what_waits_with_the_word_after_it() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        make_steady(loop, gatherer, wire)
        say(gatherer, "a", "b")
        assert wire.pieces == []
        loop.now_s += FAST_S * 1.01
        say(gatherer, "c", "d")

    assert play(work).pieces == ["abc", "d"]


def test_text_that_nothing_follows_is_sent_by_the_event_loop() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        make_steady(loop, gatherer, wire)
        say(gatherer, "a", "b")
        await loop.step(0.0)
        assert wire.pieces == []
        await loop.step(LOOK_S)
        assert wire.pieces == ["ab"]
        say(gatherer, "c")
        assert wire.pieces == ["ab", "c"]

    play(work)


def test_the_event_loop_is_called_once_however_much_waits_and_rests_when_nothing_comes() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        make_steady(loop, gatherer, wire)
        scheduled = loop._scheduled  # type: ignore[attr-defined]
        for _ in range(5):
            say(gatherer, *["x"] * 100)
            await loop.step(LOOK_S / 4)
            assert len(scheduled) == 1
        await loop.step(LOOK_S)
        await loop.step(LOOK_S)
        assert len(scheduled) == 0

    assert "".join(play(work).pieces) == "x" * 500


def test_what_still_waits_is_taken_first_and_nothing_is_sent_until_opened_again() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        make_steady(loop, gatherer, wire)
        say(gatherer, "b", "c")
        assert words(gatherer.take()) == ["b", "c"]
        await loop.step(2 * LOOK_S)
        assert say(gatherer, "d") == [True]
        await loop.step(2 * LOOK_S)
        assert wire.pieces == []
        gatherer.open()
        say(gatherer, "e")

    assert play(work).pieces == ["de"]


def test_a_connection_that_takes_no_more_is_left_to_the_event_loop() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        gatherer.open()
        assert say(gatherer, "full") == [False]
        assert wire.stuck == 0
        gatherer.take()
        make_steady(loop, gatherer, wire)
        assert say(gatherer, "full") == [True]
        await loop.step(0.0)
        await loop.step(LOOK_S)
        assert wire.pieces == ["full"]
        assert wire.stuck == 1
        assert say(gatherer, "late") == [True]
        await loop.step(2 * LOOK_S)
        assert words(gatherer.take()) == ["late"]

    assert play(work).pieces == ["full"]


def test_text_that_the_event_loop_fails_to_write_is_left_to_whoever_takes_over() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        failures: list[object] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        make_steady(loop, gatherer, wire)
        say(gatherer, "a", "broken")
        await loop.step(0.0)
        await loop.step(LOOK_S)
        assert (len(failures), wire.stuck) == (1, 1)
        assert say(gatherer, "late") == [True]
        await loop.step(2 * LOOK_S)
        assert words(gatherer.take()) == ["a", "broken", "late"]

    assert play(work).pieces == []


def test_the_thread_that_speaks_meets_its_own_failure_to_write() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        gatherer.open()
        with pytest.raises(OSError, match="cannot be written"):
            say(gatherer, "broken")
        assert gatherer.take() == []

    assert play(work).pieces == []


def test_nothing_is_sent_after_the_end() -> None:
    async def work(loop: SteppedLoop, wire: Wire, gatherer: TextGatherer) -> None:
        make_steady(loop, gatherer, wire)
        say(gatherer, "a", "b")
        await loop.step(0.0)
        gatherer.stop()
        await loop.step(2 * LOOK_S)

    assert play(work).pieces == []


@pytest.mark.parametrize("pause_s", [0.0, 0.0005])
def test_threads_that_speak_and_look_at_once_lose_nothing_and_keep_the_order(pause_s: float) -> None:
    wire = Wire()
    said = [f"{number} " for number in range(400)]

    async def run() -> list[str]:
        gatherer = TextGatherer(wire.write, stuck=wire.note_stuck)
        gatherer.open()
        pause = threading.Event()

        def speak() -> None:
            for word in said:
                gatherer.send(TextDelta(text=word))
                if pause_s:
                    pause.wait(pause_s)

        await asyncio.to_thread(speak)
        rest = words(gatherer.take())
        gatherer.stop()
        return rest

    rest = asyncio.run(run())
    assert "".join(wire.pieces) + "".join(rest) == "".join(said)
