"""A stream says the same whichever way its text takes, and is silent never longer than allowed."""

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import pytest

from slotstream_serve.dialects.base import Frame
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.reply import TextDelta, ThinkingDelta
from slotstream_serve.runner import Ticket
from slotstream_serve.serving import prepare
from slotstream_serve.streaming import SilenceTimer, frame_text
from slotstream_serve.testing import Fault, Hold, Script, ScriptedEngine, Silence, tool_call, write_in_pieces
from tests.serve.clocks import SteppedLoop
from tests.serve.conftest import LOOPS, PATIENCE_S, Loop, ask, live_server, plain_app, served_app, sse_events
from tests.serve.plain_dialect import plain_request
from tests.serve.replies import FAILED, finished

TURN = [{"role": "user", "content": "hi"}]
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
SCRIPT: Script = [
    *write_in_pieces("Let me think about \u2028 it.</think>So ", 3),
    *write_in_pieces(tool_call("weather", {"city": "Bern"}), 5),
]
GATEWAY_HEADERS = {
    "ai-language-model-id": "tiny",
    "ai-language-model-specification-version": "3",
    "ai-language-model-streaming": "true",
}
REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "ollama": (
        "/api/chat",
        {"model": "tiny", "messages": TURN, "think": True, "tools": [{"type": "function", "function": TOOL}]},
        {},
    ),
    "openai_chat": (
        "/v1/chat/completions",
        {
            "model": "tiny",
            "messages": TURN,
            "stream": True,
            "reasoning_effort": "low",
            "tools": [{"type": "function", "function": TOOL}],
        },
        {},
    ),
    "openai_responses": (
        "/v1/responses",
        {
            "model": "tiny",
            "input": "hi",
            "stream": True,
            "reasoning": {"effort": "low"},
            "tools": [{"type": "function", **TOOL}],
        },
        {},
    ),
    "anthropic_messages": (
        "/v1/messages",
        {
            "model": "tiny",
            "max_tokens": 500,
            "messages": TURN,
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 100},
            "tools": [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}],
        },
        {},
    ),
    "ai_gateway": (
        "/v3/ai/language-model",
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
            "tools": [{"type": "function", "name": TOOL["name"], "inputSchema": TOOL["parameters"]}],
        },
        GATEWAY_HEADERS,
    ),
}
VARYING = ("id", "created", "created_at", "timestamp", "item_id", "call_id", "toolCallId", "total_duration")


def said(text: str) -> list[Any]:
    """Return a stream's JSON values without the ids and times that every request has of its own."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [_without_varying(json.loads(line)) for line in lines if line.startswith("{")]


def _without_varying(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_varying(item) for item in value]
    if isinstance(value, dict):
        shown = {name: _without_varying(item) for name, item in value.items() if name not in VARYING}
        return {name: item for name, item in shown.items() if not name.endswith("_duration")}
    return value


def test_every_dialect_has_a_request_here() -> None:
    assert set(REQUESTS) == {dialect.name for dialect in all_dialects()}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_says_the_same_on_a_connection_and_through_asgi_messages(name: str) -> None:
    path, body, headers = REQUESTS[name]
    script: Script = [step for piece in SCRIPT for step in (piece, Silence(seconds=0.001))]
    asgi = ask(served_app(ScriptedEngine([script])), "POST", path, json=body, headers=headers)
    with live_server(ScriptedEngine([script]), dialects=all_dialects()) as live, live.client() as client:
        direct = client.post(path, json=body, headers=headers)
    assert asgi.status_code == direct.status_code == 200
    assert len(said(asgi.text)) > 8
    assert said(direct.text) == said(asgi.text)
    assert direct.headers["content-type"] == asgi.headers["content-type"]
    assert '"weather"' in direct.text


@pytest.mark.parametrize("kind", LOOPS)
def test_text_of_a_waiting_stream_needs_no_event_loop(kind: Loop) -> None:
    """While the event loop is busy with something else, text goes on arriving."""
    first, second = Hold(threading.Event(), threading.Event()), Hold(threading.Event(), threading.Event())
    engine = ScriptedEngine([["one ", first, "two ", second, "three"]])
    busy, over = threading.Event(), threading.Event()

    def keep_busy() -> None:
        busy.set()
        over.wait(PATIENCE_S)

    with live_server(engine, loop=kind) as live, contextlib.closing(live.connect()) as connection:
        body = json.dumps({"text": "hi", "stream": True}).encode()
        connection.sendall(b"POST /plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        raw = b""
        while b"one " not in raw:
            raw += connection.recv(65_536)
        assert first.reached.wait(PATIENCE_S)
        loop = live.service.runner.running._loop  # type: ignore[union-attr]
        loop.call_soon_threadsafe(keep_busy)
        assert busy.wait(PATIENCE_S)
        first.until.set()
        while b"two " not in raw:
            raw += connection.recv(65_536)
        over.set()
        second.until.set()
        while b"ReplyFinished" not in raw:
            raw += connection.recv(65_536)
    assert [raw.index(word) for word in (b"one ", b"two ", b"three")] == sorted(
        raw.index(word) for word in (b"one ", b"two ", b"three")
    )


@pytest.mark.parametrize("kind", LOOPS)
def test_a_client_that_reads_late_gets_every_word_in_order(kind: Loop) -> None:
    words = [f"{number:07d}" * 4000 for number in range(60)]  # 1.7 MB, far more than the sockets hold
    engine = ScriptedEngine([words], window_tokens=10**7)
    with live_server(engine, loop=kind) as live, contextlib.closing(live.connect()) as connection:
        body = json.dumps({"text": "hi", "stream": True, "max_output_tokens": 100}).encode()
        connection.sendall(
            b"POST /plain-lines HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        raw = b""
        while piece := connection.recv(1 << 20):
            raw += piece
        http10 = [json.loads(line) for line in raw.partition(b"\r\n\r\n")[2].splitlines()]
        with live.client() as client:
            http11 = [json.loads(line) for line in client.post("/plain-lines", content=body).text.splitlines()]
    for lines in (http10, http11):
        assert [line["text"] for line in lines if line["type"] == "TextDelta"] == words


@pytest.mark.parametrize("kind", LOOPS)
def test_fast_text_keeps_a_frame_for_every_token(kind: Loop) -> None:
    words = [f"{number} " for number in range(300)]
    with live_server(ScriptedEngine([words]), loop=kind) as live, live.client() as client:
        body = {"text": "hi", "stream": True, "max_output_tokens": 400}
        lines = [json.loads(line) for line in client.post("/plain-lines", json=body).text.splitlines()]
    assert [line["text"] for line in lines if line["type"] == "TextDelta"] == words


def test_a_fault_after_text_of_the_short_way_ends_the_stream_with_its_failure() -> None:
    engine = ScriptedEngine([["a ", Silence(seconds=0.01), "b ", Silence(seconds=0.01), Fault(OSError("disk"))]])
    with live_server(engine) as live, live.client() as client:
        events = sse_events(client.post("/plain", json={"text": "hi", "stream": True}).text)
    assert [event["type"] for event in events] == ["Admitted", "TextDelta", "TextDelta", "ReplyFailed"]


def test_silence_is_noticed_after_its_period_with_one_timer_however_much_is_said() -> None:
    loop = SteppedLoop()
    started_s = loop.now_s
    noticed_s: list[float] = []

    async def work() -> None:
        timer = SilenceTimer(10.0, lambda: noticed_s.append(loop.now_s - started_s))
        for second in range(1, 60):
            loop.now_s = started_s + second
            if second <= 23:
                timer.broken()
            for _ in range(2):  # once for timers that are over, once for what they call
                await asyncio.sleep(0)
            scheduled = loop._scheduled  # type: ignore[attr-defined]
            assert len(scheduled) == 1
        timer.stop()

    loop.run_until_complete(work())
    loop.close()
    assert noticed_s == [33.0, 43.0, 53.0]


class Taken:
    """A short way that keeps what takes it, and is closed by one word."""

    def __init__(self) -> None:
        self.events: list[TextDelta | ThinkingDelta] = []

    def __call__(self, event: TextDelta | ThinkingDelta) -> bool:
        self.events.append(event)
        return event.text != "full"


def ticket_for(engine: ScriptedEngine) -> Ticket:
    return Ticket(prepare(engine, plain_request("hi")), accepted_s=time.monotonic(), limit_s=None)


def text(word: str) -> TextDelta:
    return TextDelta(text=word)


def test_the_short_way_is_open_only_while_the_event_loop_waits() -> None:
    taken = Taken()

    async def work() -> None:
        ticket = ticket_for(ScriptedEngine([]))
        ticket.deliver(text("early"))
        assert await ticket.next_events(taken) == [text("early")]
        ticket.deliver(text("between"))
        assert await ticket.next_events(taken) == [text("between")]
        waiting = asyncio.ensure_future(ticket.next_events(taken))
        await asyncio.sleep(0)
        for word in ("short", "full", "after"):
            ticket.deliver(text(word))
        ticket.deliver(finished())
        assert await waiting == [text("after"), finished()]

    asyncio.run(work())
    assert taken.events == [text("short"), text("full")]


def test_nothing_takes_the_short_way_past_an_event_that_does_not() -> None:
    taken = Taken()

    async def work() -> None:
        ticket = ticket_for(ScriptedEngine([]))
        waiting = asyncio.ensure_future(ticket.next_events(taken))
        await asyncio.sleep(0)
        ticket.deliver(FAILED)
        ticket.deliver(text("late"))
        assert await waiting == [FAILED, text("late")]

    asyncio.run(work())
    assert taken.events == []


def test_a_wait_that_was_cancelled_or_nudged_closes_the_short_way() -> None:
    taken = Taken()

    async def work() -> None:
        ticket = ticket_for(ScriptedEngine([]))
        waiting = asyncio.ensure_future(ticket.next_events(taken))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        ticket.deliver(text("one"))
        assert await ticket.next_events() == [text("one")]
        nudged = asyncio.ensure_future(ticket.next_events(taken))
        await asyncio.sleep(0)
        ticket.nudge()
        assert await nudged == []
        ticket.deliver(text("two"))
        assert await ticket.next_events() == [text("two")]

    asyncio.run(work())
    assert taken.events == []


def test_a_wait_with_a_short_way_is_woken_for_its_end_only() -> None:
    taken, woken = Taken(), []

    class CountedTicket(Ticket):
        def _wake(self) -> None:
            woken.append(1)
            super()._wake()

    async def work() -> None:
        prepared = prepare(ScriptedEngine([]), plain_request("hi"))
        ticket = CountedTicket(prepared, accepted_s=time.monotonic(), limit_s=None)
        waiting = asyncio.ensure_future(ticket.next_events(taken))
        await asyncio.sleep(0)

        def speak() -> None:
            for _ in range(100):
                ticket.deliver(text("x"))
            ticket.deliver(finished())

        await asyncio.to_thread(speak)
        assert await waiting == [finished()]

    asyncio.run(work())
    assert len(taken.events) == 100
    assert len(woken) == 1


def test_a_whole_reply_that_comes_slowly_has_every_word() -> None:
    script: Script = [step for word in ("a ", "b ", "c") for step in (word, Silence(seconds=0.005))]
    body = ask(plain_app(ScriptedEngine([script])), "POST", "/plain", json={"text": "hi"}).json()
    assert [event.get("text") for event in body["events"][1:-1]] == ["a ", "b ", "c"]
    assert body["events"][-1]["type"] == "ReplyFinished"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (Frame(data="{}"), "data: {}\n\n"),
        (Frame(data="{}", event="x"), "event: x\ndata: {}\n\n"),
        (Frame(comment="keepalive"), ": keepalive\n\n"),
        (Frame(data="a\nb"), "data: a\ndata: b\n\n"),
    ],
)
def test_events_are_framed_as_the_standard_says(frame: Frame, expected: str) -> None:
    assert frame_text(frame, "sse") == expected


def test_lines_are_framed_by_their_ends() -> None:
    assert frame_text(Frame(data="{}"), "ndjson") == "{}\n"
