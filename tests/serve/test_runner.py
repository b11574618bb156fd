"""The engine's thread: order, leaving, deadlines, stopping."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from slotstream_core.errors import CheckpointMissing
from slotstream_serve.errors import Failure, ServerStopping
from slotstream_serve.reply import ReplyEvent, ReplyFailed, ReplyFinished
from slotstream_serve.runner import PrefillPace, Runner, Ticket
from slotstream_serve.serving import prepare
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Silence
from tests.serve.clocks import SteppedLoop
from tests.serve.conftest import PATIENCE_S
from tests.serve.plain_dialect import plain_request

STOP = Failure(code="server_stopping", message="stopping")


def held() -> tuple[Hold, threading.Event, threading.Event]:
    release, reached = threading.Event(), threading.Event()
    return Hold(release, reached), release, reached


def ticket_for(engine: ScriptedEngine, text: str = "hi", *, limit_s: float | None = None) -> Ticket:
    return Ticket(prepare(engine, plain_request(text)), accepted_s=time.monotonic(), limit_s=limit_s)


async def read(ticket: Ticket) -> list[ReplyEvent]:
    events: list[ReplyEvent] = []
    while not events or not isinstance(events[-1], ReplyFinished | ReplyFailed):
        more = await ticket.next_events()
        assert more
        events += more
    return events


def outcome(events: Sequence[ReplyEvent]) -> str:
    last = events[-1]
    return last.failure.code if isinstance(last, ReplyFailed) else "finished"


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run in an event loop whose clock stands still: only what `pass_time` lets pass can be too much."""
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        runner.run(work)


async def pass_time(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    await loop.step(seconds)


async def reached_in_thread(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


def test_requests_are_answered_in_the_order_they_came() -> None:
    hold, release, reached = held()
    engine = ScriptedEngine([[hold, "x"]])
    runner = Runner(lambda: engine)
    ended: list[str] = []

    async def one(ticket: Ticket, name: str) -> None:
        assert outcome(await read(ticket)) == "finished"
        ended.append(name)

    async def work() -> None:
        tickets = [ticket_for(engine, name) for name in "abcd"]
        for ticket in tickets:
            runner.submit(ticket)
        await reached_in_thread(reached)
        assert runner.queued == 3
        assert runner.running is tickets[0]
        release.set()
        await asyncio.gather(*(one(ticket, name) for ticket, name in zip(tickets, "abcd", strict=True)))

    run_async(work())
    assert ended == list("abcd")
    assert [request.prompt.count('"a"') for request in engine.requests] == [1, 0, 0, 0]
    runner.stop(STOP)
    assert runner.join(PATIENCE_S)
    assert engine.closed


def test_a_client_that_leaves_the_queue_never_reaches_the_engine() -> None:
    hold, release, reached = held()
    engine = ScriptedEngine([[hold, "x"]])
    runner = Runner(lambda: engine)

    async def work() -> None:
        first, leaving, last = (ticket_for(engine) for _ in range(3))
        for ticket in (first, leaving, last):
            runner.submit(ticket)
        await reached_in_thread(reached)
        runner.withdraw(leaving)
        assert runner.queued == 1
        assert outcome(await read(leaving)) == "client_cancelled"
        release.set()
        assert outcome(await read(first)) == "finished"
        assert outcome(await read(last)) == "finished"

    run_async(work())
    assert len(engine.requests) == 2
    runner.stop(STOP)


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_client_that_leaves_stops_the_engine(where: str) -> None:
    hold, _release, reached = held()
    engine = ScriptedEngine([["a", hold, "b"], ["next"]], reading=[hold] if where == "prefill" else [])
    runner = Runner(lambda: engine)

    async def work() -> None:
        leaving = ticket_for(engine)
        runner.submit(leaving)
        await reached_in_thread(reached)
        assert leaving.phase == where
        runner.withdraw(leaving)
        assert outcome(await read(leaving)) == "client_cancelled"
        engine.reading = []
        following = ticket_for(engine)
        runner.submit(following)
        assert outcome(await read(following)) == "finished"

    run_async(work())
    assert engine.cancelled == 1
    runner.stop(STOP)


def test_a_deadline_passes_while_waiting_and_while_reading() -> None:
    hold, _release, reached = held()
    engine = ScriptedEngine([["x"]], reading=[hold])
    runner = Runner(lambda: engine)

    async def work() -> None:
        reading = ticket_for(engine, limit_s=7200)
        waiting = ticket_for(engine, limit_s=3600)
        runner.submit(reading)
        runner.submit(waiting)
        await reached_in_thread(reached)
        await pass_time(3600)
        assert outcome(await read(waiting)) == "prefill_deadline_exceeded"
        assert runner.running is reading
        await pass_time(3600)
        assert outcome(await read(reading)) == "prefill_deadline_exceeded"

    run_async(work())
    assert len(engine.requests) == 1
    runner.stop(STOP)


def test_a_deadline_does_not_touch_a_reply_that_has_begun() -> None:
    hold, release, reached = held()
    engine = ScriptedEngine([["a", hold, "b"]])
    runner = Runner(lambda: engine)

    async def work() -> None:
        ticket = ticket_for(engine, limit_s=3600)
        runner.submit(ticket)
        await reached_in_thread(reached)
        await pass_time(7200)
        release.set()
        assert outcome(await read(ticket)) == "finished"

    run_async(work())
    runner.stop(STOP)


def test_a_prompt_that_would_take_too_long_is_refused_before_it_is_read() -> None:
    engine = ScriptedEngine([["x"]], reading=[Silence(seconds=0.2)])
    runner = Runner(lambda: engine)

    async def work() -> None:
        measured = ticket_for(engine, "x" * 1000)
        runner.submit(measured)
        assert outcome(await read(measured)) == "finished"
        large = ticket_for(engine, "x" * 3000, limit_s=0.3)
        runner.submit(large)
        events = await read(large)
        assert outcome(events) == "prefill_wait_exceeded"
        assert isinstance(events[-1], ReplyFailed)
        details = events[-1].failure.details
        assert details["estimated_seconds"] > details["limit_seconds"] == 0.3
        unlimited = ticket_for(engine, "x" * 3000)
        runner.submit(unlimited)
        assert outcome(await read(unlimited)) == "finished"

    run_async(work())
    assert len(engine.requests) == 2
    runner.stop(STOP)


def test_a_request_that_waited_too_long_for_its_prompt_is_told_so() -> None:
    engine = ScriptedEngine([["x"]])

    async def work() -> None:
        ticket = Ticket(prepare(engine, plain_request("hi")), accepted_s=time.monotonic() - 50, limit_s=60)
        failure = ticket.deadline_failure(estimated_s=20.0)
        assert failure.code == "prefill_deadline_exceeded"
        assert failure.http_status == 503
        assert failure.details["elapsed_seconds"] >= 50

    run_async(work())


def test_nothing_is_estimated_before_a_long_prompt_was_read() -> None:
    pace = PrefillPace()
    pace.note(100, 10.0)
    assert pace.estimate_s(1000) is None
    pace.note(500, 5.0)
    assert pace.estimate_s(1000) == 10.0


def test_stopping_ends_waiting_and_running_requests_and_takes_no_more() -> None:
    hold, _release, reached = held()
    engine = ScriptedEngine([["a", hold, "b"]])
    runner = Runner(lambda: engine)

    async def work() -> None:
        running, waiting = ticket_for(engine), ticket_for(engine)
        runner.submit(running)
        runner.submit(waiting)
        await reached_in_thread(reached)
        runner.stop(STOP)
        assert outcome(await read(running)) == "server_stopping"
        assert outcome(await read(waiting)) == "server_stopping"
        with pytest.raises(ServerStopping):
            runner.submit(ticket_for(engine))

    run_async(work())
    assert runner.join(PATIENCE_S)


def test_an_engine_that_cannot_be_opened_says_why_where_it_was_asked_for() -> None:
    def fail() -> ScriptedEngine:
        raise CheckpointMissing("no such directory: /nowhere")

    runner = Runner(fail)
    with pytest.raises(CheckpointMissing, match="/nowhere"):
        runner.start()


def test_the_engine_is_opened_used_and_closed_on_one_thread() -> None:
    seen: list[str] = []

    class Watched(ScriptedEngine):
        def chat_ids(self, *arguments: Any, **options: Any) -> list[int]:
            return super().chat_ids(*arguments, **options)

        def generate(self, *arguments: Any, **options: Any) -> Any:
            seen.append(threading.current_thread().name)
            return super().generate(*arguments, **options)

        def close(self) -> None:
            seen.append(threading.current_thread().name)
            super().close()

    def open_engine() -> ScriptedEngine:
        seen.append(threading.current_thread().name)
        return Watched([["x"]])

    runner = Runner(open_engine)
    engine = runner.start()
    assert isinstance(engine, ScriptedEngine)

    async def work() -> None:
        ticket = ticket_for(engine)
        runner.submit(ticket)
        assert outcome(await read(ticket)) == "finished"

    run_async(work())
    runner.stop(STOP)
    assert runner.join(PATIENCE_S)
    assert seen == ["slotstream-engine"] * 3


def test_an_engine_that_was_handed_in_stays_open() -> None:
    engine = ScriptedEngine([["x"]])
    runner = Runner(lambda: engine, closes_engine=False)
    runner.start()
    runner.stop(STOP)
    assert runner.join(PATIENCE_S)
    assert not engine.closed


def test_a_fault_fails_its_request_and_the_next_is_served() -> None:
    engine = ScriptedEngine([["a", Fault(OSError("disk"))], ["b"]])
    runner = Runner(lambda: engine)
    records: list[str] = []
    runner.observe = lambda ticket: records.append(ticket.record.outcome if ticket.record else "none")

    async def work() -> None:
        for expected in ("inference_error", "finished"):
            ticket = ticket_for(engine)
            runner.submit(ticket)
            assert outcome(await read(ticket)) == expected

    run_async(work())
    assert records == ["inference_error", "finished"]
    runner.stop(STOP)


def test_a_finished_request_keeps_no_timer_alive() -> None:
    engine = ScriptedEngine([["x"]])
    runner = Runner(lambda: engine)

    async def work() -> None:
        ticket = ticket_for(engine, limit_s=3600)
        runner.submit(ticket)
        await read(ticket)
        pending = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert [handle for handle in pending if not handle.cancelled()] == []

    run_async(work())
    runner.stop(STOP)
