"""The `ollama` package for Python against a real server whose engine plays scripts."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

import ollama
import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, live_server

MODEL = "tiny:4bit"
USER = {"role": "user", "content": "Is it warm in Bern?"}


def weather(city: str, days: int = 1) -> str:
    """Tell the weather.

    Args:
        city: Where.
        days: How many days ahead.
    """
    return f"{city} in {days} days: 20 C"


@contextmanager
def client_of(*scripts: list[Step], keepalive_s: float = 10.0) -> Iterator[ollama.Client]:
    engine = ScriptedEngine(list(scripts))
    with live_server(engine, dialects=all_dialects(), keepalive_s=keepalive_s) as live:
        client = ollama.Client(live.url, trust_env=False, timeout=PATIENCE_S)
        try:
            yield client
        finally:
            client._client.close()


def test_the_model_is_listed_shown_and_running() -> None:
    with client_of(["x"]) as client:
        (listed,) = client.list().models
        assert (listed.model, int(listed.size or 0)) == (MODEL, 500)
        assert listed.details is not None
        assert listed.details.family == "qwen4_exp"
        (running,) = client.ps().models
        assert (running.size_vram or 0) > 10_000_000
        assert running.expires_at is not None
        shown = client.show(MODEL)
        assert shown.capabilities == ["completion", "tools", "thinking"]
        assert (shown.modelinfo or {})["qwen4_exp.context_length"] == 4096
        with pytest.raises(ollama.ResponseError) as caught:
            client.show("llama3")
        assert caught.value.status_code == 404


def test_a_chat_is_whole_or_streamed_whatever_its_characters() -> None:
    script: list[Step] = ["a\u2028b", "\x85", "\r\n", "\U0001f600", " \x1c\x0b", "end"]
    with client_of(script) as client:
        whole = client.chat(MODEL, messages=[USER], options={"seed": 1})
        lines = list(client.chat(MODEL, messages=[USER], stream=True))
    assert whole.message.content == "".join(map(str, script))
    assert "".join(line.message.content or "" for line in lines) == whole.message.content
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (whole.done_reason, whole.eval_count) == ("stop", 6)


def test_thinking_comes_apart_from_the_answer() -> None:
    with client_of(["hm", "</think>", "\n\nYes"]) as client:
        chat = client.chat(MODEL, messages=[USER], think=True)
        generated = client.generate(MODEL, "Is it?", think=True)
    assert (chat.message.thinking, chat.message.content) == ("hm", "Yes")
    assert (generated.thinking, generated.response) == ("hm", "Yes")


def test_a_prompt_is_completed_whole_streamed_and_raw() -> None:
    with client_of(["Once", " upon"]) as client:
        assert client.generate(MODEL, "Tell", system="Briefly.").response == "Once upon"
        assert "".join(line.response or "" for line in client.generate(MODEL, "Tell", stream=True)) == "Once upon"
        assert client.generate(MODEL, "Tell", raw=True, suffix="", template="").response == "Once upon"
        loaded = client.generate(MODEL, keep_alive=-1)
    assert (loaded.done_reason, loaded.response) == ("load", "")


@pytest.mark.parametrize("stream", [False, True])
def test_a_python_function_is_called_and_the_loop_goes_on(*, stream: bool) -> None:
    first = (
        "I look.\n" + tool_call("weather", {"city": "Bern", "days": 2}) + "\n" + tool_call("weather", {"city": "007"})
    )
    with client_of([*write_in_pieces(first, 6)], ["Warm."]) as client:
        messages: list[Any] = [USER]
        if stream:
            lines = list(client.chat(MODEL, messages=messages, tools=[weather], stream=True))
            calls = [call for line in lines for call in line.message.tool_calls or []]
            content = "".join(line.message.content or "" for line in lines)
            messages.append(ollama.Message(role="assistant", content=content, tool_calls=calls))
        else:
            reply = client.chat(MODEL, messages=messages, tools=[weather])
            calls = list(reply.message.tool_calls or [])
            messages.append(reply.message)
        assert [dict(call.function.arguments) for call in calls] == [{"city": "Bern", "days": 2}, {"city": "007"}]
        for call in calls:
            result = weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
        last = client.chat(MODEL, messages=messages, tools=[weather])
    assert last.message.content == "Warm."


def test_refusals_and_failures_are_the_clients_own_exception() -> None:
    with client_of(["half ", Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]) as client:
        refusals: list[tuple[Any, int]] = [
            (lambda: client.chat("llama3", messages=[USER]), 400),
            (lambda: client.chat(MODEL, messages=[USER], think="high"), 400),
            (lambda: client.chat(MODEL, messages=[USER], format="json"), 400),
            (lambda: client.chat(MODEL, messages=[{**USER, "images": [b"\x89PNG"]}]), 400),
            (lambda: client.embed(MODEL, "x"), 400),
            (lambda: client.pull("llama3"), 501),
            (lambda: client.chat(MODEL, messages=[USER]), 500),
        ]
        for refused, status in refusals:
            with pytest.raises(ollama.ResponseError) as caught:
                refused()
            assert caught.value.status_code == status
            assert caught.value.error


def test_a_stream_that_fails_raises_and_is_never_done() -> None:
    with client_of(["half ", Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]) as client:
        seen: list[ollama.ChatResponse] = []
        with pytest.raises(ollama.ResponseError, match="3 of 9 bytes"):
            _take(client.chat(MODEL, messages=[USER], stream=True), seen)
    assert "".join(line.message.content or "" for line in seen) == "half "
    assert not any(line.done for line in seen)


def test_keepalives_in_a_long_silence_add_nothing() -> None:
    until, lines = Event(), list[ollama.ChatResponse]()
    with client_of(["a", Hold(until, Event()), "b"], keepalive_s=0.05) as client:
        for line in client.chat(MODEL, messages=[USER], stream=True):
            lines.append(line)
            if len(lines) > 3:
                until.set()
    assert "".join(line.message.content or "" for line in lines) == "ab"


def _take(lines: Iterator[ollama.ChatResponse], seen: list[ollama.ChatResponse]) -> None:
    for line in lines:
        seen.append(line)
