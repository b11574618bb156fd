"""The `anthropic` package against a real server whose engine plays scripts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Silence, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, LiveServer, live_server

MODEL = "tiny:4bit"
HELLO: Any = [{"role": "user", "content": "Is it warm?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "Says it.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer"}},
        "$defs": {"name": {"type": "string"}},
    },
}


@contextmanager
def server_of(*scripts: Sequence[Step], **settings: Any) -> Iterator[tuple[anthropic.Anthropic, LiveServer]]:
    engine = ScriptedEngine(list(scripts))
    with live_server(engine, dialects=all_dialects(), **settings) as live:
        http = anthropic.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
        with anthropic.Anthropic(base_url=live.url, api_key="unused", max_retries=0, http_client=http) as client:
            yield client, live


@contextmanager
def client_of(*scripts: Sequence[Step], **settings: Any) -> Iterator[anthropic.Anthropic]:
    with server_of(*scripts, **settings) as (client, _live):
        yield client


def streamed(client: anthropic.Anthropic, **request: Any) -> Message:
    with client.messages.stream(model=MODEL, max_tokens=256, **request) as stream:
        return stream.get_final_message()


def contents(message: Message) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.to_dict().items() if key != "id"} for block in message.content]


def test_a_message_is_whole_or_streamed_and_says_the_same() -> None:
    script: list[Step] = ["a\u2028b", "\x85", "\r\n", "\U0001f600", "end"]
    with client_of(script) as client:
        whole = client.messages.create(model=MODEL, max_tokens=64, messages=HELLO, system="Be brief.")
        final = streamed(client, messages=HELLO, system="Be brief.")
    assert contents(whole) == contents(final) == [{"type": "text", "text": "".join(map(str, script))}]
    assert (whole.stop_reason, whole.model, whole.role) == ("end_turn", MODEL, "assistant")
    assert (whole.usage.output_tokens, final.usage.output_tokens) == (5, 5)
    assert whole.usage.input_tokens == final.usage.input_tokens > 10


def test_the_beta_address_is_the_same() -> None:
    with client_of(["Yes"]) as client:
        message = client.beta.messages.create(model=MODEL, max_tokens=9, messages=HELLO, betas=["x-2026-01-01"])
        count = client.beta.messages.count_tokens(model=MODEL, messages=HELLO)
    assert message.content[0].type == "text"
    assert count.input_tokens == message.usage.input_tokens


@pytest.mark.parametrize("display", ["omitted", "summarized"])
def test_thinking_comes_back_to_the_model_even_when_hidden(display: str) -> None:
    thinking: Any = {"type": "adaptive", "display": display}
    with server_of(["hm", "</think>", "\n\nYes"], ["No"]) as (client, live):
        first = streamed(client, messages=HELLO, thinking=thinking)
        block = first.content[0]
        assert block.type == "thinking"
        assert block.thinking == ("" if display == "omitted" else "hm")
        history = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": "Sure?"}]
        client.messages.create(model=MODEL, max_tokens=9, messages=history)
        assert '"reasoning_content": "hm"' in live.engine.requests[1].prompt


def test_a_loop_of_parallel_calls_is_played_to_its_end() -> None:
    calls = (
        "Looking.\n\n"
        + tool_call("weather", {"city": "00123"})
        + "\n"
        + tool_call("weather", {"city": "Chur", "days": 2})
    )
    with server_of(write_in_pieces(calls, 3), ["Warm."]) as (client, live):
        first = streamed(client, messages=HELLO, tools=[WEATHER])
        assert first.stop_reason == "tool_use"
        used = [block for block in first.content if block.type == "tool_use"]
        assert [block.input for block in used] == [{"city": "00123"}, {"city": "Chur", "days": 2}]
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{index} C"}
            for index, block in enumerate(used)
        ]
        history = [
            *HELLO,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": results[::-1]},
        ]
        last = client.messages.create(model=MODEL, max_tokens=64, messages=history, tools=[WEATHER])
        prompt = live.engine.requests[1].prompt
    assert last.content[0].type == "text"
    assert prompt.index("0 C") < prompt.index("1 C")


def test_a_demanded_call_that_does_not_come_is_an_error() -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    with client_of(["No."]) as client, pytest.raises(anthropic.InternalServerError, match="tool_choice"):
        client.messages.create(model=MODEL, max_tokens=64, messages=HELLO, tools=[WEATHER], tool_choice=choice)


def test_one_call_at_most_ends_the_reply() -> None:
    calls = tool_call("weather", {"city": "Bern"}) + "\n" + tool_call("weather", {"city": "Chur"})
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    with client_of(write_in_pieces(calls, 4)) as client:
        message = streamed(client, messages=HELLO, tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in message.content] == ["tool_use"]
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("request_fields", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "max_tokens", None),
        ({"max_tokens": 64, "stop_sequences": ["two"]}, "stop_sequence", "two"),
        ({"max_tokens": 1_000_000}, "end_turn", None),
    ],
)
def test_stop_reasons(request_fields: Any, reason: str, sequence: str | None) -> None:
    with client_of(["one", "two", "three"]) as client:
        message = client.messages.create(model=MODEL, messages=HELLO, **request_fields)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


def test_a_reply_that_fills_the_window_says_so() -> None:
    with client_of(["x"] * 5000) as client:
        message = client.messages.create(
            model=MODEL, max_tokens=100_000, messages=[{"role": "user", "content": "x" * 4000}]
        )
    assert message.stop_reason == "model_context_window_exceeded"


def test_a_failure_in_the_middle_raises() -> None:
    fault = Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))
    with client_of(["so", fault]) as client:
        with pytest.raises(anthropic.APIStatusError, match="read 3 of 9"):
            streamed(client, messages=HELLO)
        with pytest.raises(anthropic.InternalServerError, match="read 3 of 9"):
            client.messages.create(model=MODEL, max_tokens=64, messages=HELLO)


def test_a_stream_survives_silence() -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    until = Event()
    script: list[Step] = [Silence(seconds=0.2), "hm", Hold(until, Event()), "</think>", "Yes"]
    kinds: list[str] = []
    with client_of(script, keepalive_s=0.05) as client:
        with client.messages.create(
            model=MODEL, max_tokens=64, messages=HELLO, thinking=thinking, stream=True
        ) as stream:
            for event in stream:
                kinds.append(event.type)
                if kinds.count("content_block_delta") > 2:
                    until.set()
        message = streamed(client, messages=HELLO, thinking=thinking)
    assert kinds.count("content_block_delta") > 2
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_tokens_are_counted_while_another_request_runs() -> None:
    until, reached = Event(), Event()
    with client_of([Hold(until, reached), "x"]) as client:
        running = Thread(target=lambda: streamed(client, messages=HELLO))
        running.start()
        try:
            assert reached.wait(PATIENCE_S)
            plain = client.messages.count_tokens(model=MODEL, messages=HELLO)
            tools = client.messages.count_tokens(
                model=MODEL, messages=[*HELLO, {"role": "assistant", "content": "So"}], tools=[WEATHER]
            )
        finally:
            until.set()
            running.join(PATIENCE_S)
    assert 0 < plain.input_tokens < tools.input_tokens


def test_refusals_are_the_errors_of_the_package() -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with client_of(["x"]) as client:
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="claude-x", max_tokens=9, messages=HELLO)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4095 maximum"):
            client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x" * 5000}])
        with pytest.raises(anthropic.BadRequestError, match="messages.0.content.0"):
            client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": [image]}])
