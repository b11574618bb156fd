"""The `openai` package for Python against a real server whose engine plays scripts: chat completions and models."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, ScriptedEngine, Silence, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, live_server

MODEL = "tiny:4bit"
USER: Any = {"role": "user", "content": "Is it warm in Bern?"}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


@contextmanager
def client_of(*scripts: list[Step], keepalive_s: float = 10.0) -> Iterator[openai.OpenAI]:
    engine = ScriptedEngine(list(scripts))
    with (
        live_server(engine, dialects=all_dialects(), keepalive_s=keepalive_s) as live,
        openai.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S) as http,
    ):
        yield openai.OpenAI(base_url=f"{live.url}/v1", api_key="unused", http_client=http, max_retries=0)


def test_models_are_listed_and_retrieved() -> None:
    with client_of(["x"]) as client:
        (model,) = client.models.list().data
        assert (model.id, model.owned_by) == (MODEL, "slotstream")
        assert client.models.retrieve(MODEL).created == model.created
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("gpt-4")
        assert caught.value.code == "model_not_found"


def test_a_reply_and_its_usage_are_typed() -> None:
    with client_of(["Yes", ", ", "it is."]) as client:
        reply = client.chat.completions.create(model=MODEL, messages=[USER], max_tokens=None)
    assert reply.choices[0].message.content == "Yes, it is."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 3
    assert reply.usage.completion_tokens_details is not None


def test_a_stream_joins_to_the_reply_whatever_its_characters() -> None:
    script: list[Step] = ["a\u2028b", "\x85", "\r\n", "\U0001f600", " \x1c", "end"]
    with client_of(script) as client:
        chunks = list(
            client.chat.completions.create(
                model=MODEL, messages=[USER], stream=True, stream_options={"include_usage": True}
            )
        )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "".join(map(str, script))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_stream_helper_accumulates_parallel_calls_and_the_loop_goes_on() -> None:
    first = (
        "I look.\n" + tool_call("weather", {"city": "Bern", "days": 2}) + "\n" + tool_call("weather", {"city": "007"})
    )
    with client_of([*write_in_pieces(first, 6)], ["Warm."]) as client:
        with client.chat.completions.stream(model=MODEL, messages=[USER], tools=[WEATHER]) as stream:
            kinds = {event.type for event in stream}
            reply = stream.get_final_completion()
        assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= kinds
        message = reply.choices[0].message
        calls: list[Any] = list(message.tool_calls or [])
        assert [call.function.arguments for call in calls] == ['{"city":"Bern","days":2}', '{"city":"007"}']
        assert reply.choices[0].finish_reason == "tool_calls"
        turn: Any = message.model_dump()
        results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "20 C"} for call in reversed(calls)]
        second = client.chat.completions.create(model=MODEL, messages=[USER, turn, *results], tools=[WEATHER])
    assert second.choices[0].message.content == "Warm."


def test_reasoning_comes_apart_from_the_answer() -> None:
    with client_of(["hm", "</think>", "\n\nYes"]) as client:
        message: Any = (
            client.chat.completions.create(model=MODEL, messages=[USER], reasoning_effort="low").choices[0].message
        )
    assert (message.reasoning_content, message.content) == ("hm", "Yes")


def test_refusals_and_failures_are_the_clients_own_exceptions() -> None:
    with client_of([Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=MODEL, messages=[USER], n=2)
        assert refused.value.param == "n"
        long: Any = {"role": "user", "content": "x" * 5000}
        with pytest.raises(openai.BadRequestError) as too_long:
            client.chat.completions.create(model=MODEL, messages=[long])
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.InternalServerError, match="3 of 9 bytes"):
            client.chat.completions.create(model=MODEL, messages=[USER])


def test_a_stream_that_fails_raises_and_never_finishes() -> None:
    with client_of(["half ", Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]) as client:
        seen: list[Choice] = []
        with pytest.raises(openai.APIError, match="3 of 9 bytes"):
            _take(client.chat.completions.create(model=MODEL, messages=[USER], stream=True), seen)
    assert "".join(choice.delta.content or "" for choice in seen) == "half "
    assert all(choice.finish_reason is None for choice in seen)


def test_keepalives_in_a_long_silence_are_not_seen() -> None:
    with client_of(["a", Silence(seconds=0.3), "b"], keepalive_s=0.05) as client:
        chunks = list(client.chat.completions.create(model=MODEL, messages=[USER], stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content] == ["a", "b"]


def _take(chunks: Iterable[ChatCompletionChunk], seen: list[Choice]) -> None:
    for chunk in chunks:
        seen.append(chunk.choices[0])
