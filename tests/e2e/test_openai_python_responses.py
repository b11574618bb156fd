"""The `openai` package's Responses client against a real server whose engine plays scripts."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, live_server

MODEL = "tiny:4bit"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "strict": False,
}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Edits files."}


@contextmanager
def client_of(*scripts: Sequence[Step], **settings: Any) -> Iterator[openai.OpenAI]:
    engine = ScriptedEngine(list(scripts))
    with live_server(engine, dialects=all_dialects(), **settings) as live:
        http = openai.DefaultHttpxClient(trust_env=False, timeout=PATIENCE_S)
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0, http_client=http) as client:
            yield client


def streamed(client: openai.OpenAI, **request: Any) -> Response:
    with client.responses.stream(model=MODEL, **request) as stream:
        for _event in stream:
            pass
        return stream.get_final_response()


def test_a_response_is_whole_or_streamed_and_says_the_same() -> None:
    script: list[Step] = ["a\u2028b", "\x85", "\r\n", "\U0001f600", "end"]
    with client_of(script) as client:
        whole = client.responses.create(model=MODEL, instructions="Be brief.", input="hi")
        final = streamed(client, instructions="Be brief.", input="hi")
    assert whole.output_text == final.output_text == "".join(map(str, script))
    assert (whole.status, whole.model) == ("completed", MODEL)
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + 5


def test_reasoning_is_the_summary_and_is_read_back() -> None:
    with client_of(["hm", "</think>", "\n\nYes"], ["No"]) as client:
        first = client.responses.create(model=MODEL, input="Is it?", reasoning={"effort": "low"})
        history: Any = [{"role": "user", "content": "Is it?"}, *[item.to_dict() for item in first.output]]
        again = client.responses.create(model=MODEL, input=[*history, {"role": "user", "content": "Sure?"}])
    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert first.output_text == "Yes"
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    assert again.output_text == "No"


def test_a_loop_of_parallel_calls_is_played_to_its_end() -> None:
    calls = (
        "Looking.\n\n"
        + tool_call("weather", {"city": "00123"})
        + "\n"
        + tool_call("weather", {"city": "Chur", "days": 2})
    )
    with client_of(write_in_pieces(calls, 3), ["Warm."]) as client:
        history: list[Any] = [{"role": "user", "content": "Is it warm?"}]
        first = streamed(client, input=history, tools=[WEATHER])
        made = [item for item in first.output if item.type == "function_call"]
        assert [json.loads(item.arguments) for item in made] == [{"city": "00123"}, {"city": "Chur", "days": 2}]
        history += [item.to_dict() for item in first.output]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "20 C"} for item in reversed(made)
        ]
        last = client.responses.create(model=MODEL, input=history, tools=[WEATHER])
    assert last.output_text == "Warm."


def test_a_freeform_call_has_its_text() -> None:
    with client_of([tool_call("apply_patch", {"input": "*** Begin\n+ a"})]) as client:
        (item,) = streamed(client, input="Edit.", tools=[PATCH]).output
    assert item.type == "custom_tool_call"
    assert item.input == "*** Begin\n+ a"


def test_too_few_tokens_make_the_response_incomplete() -> None:
    with client_of(["one", "two", "three"]) as client:
        whole = client.responses.create(model=MODEL, input="Count.", max_output_tokens=2)
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.output_text == "onetwo"


def test_a_failure_in_the_middle_raises_or_is_seen() -> None:
    fault = Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))
    with client_of(["so", fault]) as client:
        with pytest.raises(openai.InternalServerError, match="read 3 of 9"):
            client.responses.create(model=MODEL, input="hi")
        with client.responses.create(model=MODEL, input="hi", stream=True) as stream:
            events = list(stream)
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert "read 3 of 9" in events[-1].response.error.message
        with pytest.raises(RuntimeError):
            streamed(client, input="hi")


def test_silence_is_filled_with_events() -> None:
    until = Event()
    script: list[Step] = [Hold(until, Event()), "x"]
    kinds: list[str] = []
    with (
        client_of(script, keepalive_s=0.05) as client,
        client.responses.create(model=MODEL, input="hi", stream=True) as stream,
    ):
        for event in stream:
            kinds.append(event.type)
            if kinds.count("response.in_progress") > 2:
                until.set()
    assert kinds[-1] == "response.completed"


def test_refusals_are_the_errors_of_the_package() -> None:
    with client_of(["x"]) as client:
        with pytest.raises(openai.BadRequestError) as wrong:
            client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        assert wrong.value.code == "stored_state_unsupported"
        assert wrong.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError) as long:
            client.responses.create(model=MODEL, input="x" * 5000)
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")
        with pytest.raises(openai.NotFoundError):
            client.responses.delete("resp_1")
