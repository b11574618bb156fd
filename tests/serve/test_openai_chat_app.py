"""Chat Completions through the application, with an engine that plays scripts."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, ask, live_server, served_app

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BODY = {"model": "tiny", "messages": [USER]}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WRITE = {"tools": [tool("write", path={"type": "string"}, text={"type": "string"}), tool("now")]}


def engine_of(*script: Step) -> ScriptedEngine:
    return ScriptedEngine([list(script)])


def events_of(text: str) -> list[Any]:
    """Return the payloads of a stream; `[DONE]` as it is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [value if value == "[DONE]" else json.loads(value) for value in data]


def stream(engine: ScriptedEngine, **fields: Any) -> list[Any]:
    response = ask(served_app(engine), "POST", PATH, json={**BODY, **fields, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def whole(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    response = ask(served_app(engine), "POST", PATH, json={**BODY, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def deltas(events: Sequence[Any], key: str) -> list[Any]:
    found = [event["choices"][0]["delta"].get(key) for event in events if event != "[DONE]"]
    return [value for value in found if value is not None]


def arguments_in(events: Sequence[Any]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for (part,) in deltas(events, "tool_calls"):
        joined[part["index"]] = joined.get(part["index"], "") + part["function"]["arguments"]
    return joined


def test_streamed_text_is_the_whole_text_token_by_token() -> None:
    script = ["Good", " ", "day", " \U0001f600", "\n"]
    events = stream(engine_of(*script))
    assert deltas(events, "role") == ["assistant"]
    assert deltas(events, "content") == script
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"
    body = whole(engine_of(*script))
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "".join(script)}
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


def test_reasoning_never_leaks_into_the_answer_nor_do_the_blank_lines_after_it() -> None:
    script = ["I wonder", "</t", "hink>\n", "\n", "Yes", "."]
    events = stream(engine_of(*script), think=True)
    message = whole(engine_of(*script), reasoning_effort="high")["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "I wonder"}
    assert "".join(deltas(events, "content")) == "Yes."
    assert "".join(deltas(events, "reasoning_content")) == "I wonder"


def test_a_stop_text_is_not_looked_for_in_the_reasoning() -> None:
    body = whole(engine_of("so STOP then", "</think>", "a b ST", "OP c"), think=True, stop="STOP")
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("so STOP then", "a b ")
    assert body["choices"][0]["finish_reason"] == "stop"


def test_usage_is_streamed_only_when_asked_for() -> None:
    assert not any("usage" in event for event in stream(engine_of("x"))[:-1])
    events = stream(engine_of("x"), stream_options={"include_usage": True})
    assert events[-2]["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "string"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"$ref": "#/properties/path"},
    ],
)
def test_a_long_text_argument_streams_while_it_is_written(declared: dict[str, Any]) -> None:
    tools = [tool("write", path={"type": "string"}, text=declared)]
    text = 'line "one"\nline two \\ tab\t\U0001f600 ' * 20
    script = write_in_pieces("I write." + "\n" + tool_call("write", {"path": "00123", "text": text}), 7)
    events = stream(engine_of(*script), tools=tools)
    fragments = [part for (part,) in deltas(events, "tool_calls")]
    assert len(fragments) > 20
    assert fragments[0]["function"] == {"name": "write", "arguments": ""}
    assert json.loads(arguments_in(events)[0]) == {"path": "00123", "text": text}
    assert "".join(deltas(events, "content")) == "I write."
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = whole(engine_of(*script), tools=tools)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == arguments_in(events)[0]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_several_calls_have_their_own_ids_and_nothing_between_them_leaks(size: int) -> None:
    text = tool_call("now", {}) + "\n" + tool_call("write", {"path": "a", "text": "<tool_call> is text here"})
    events = stream(engine_of(*write_in_pieces(text, size)), **WRITE)
    assert deltas(events, "content") == []
    calls = whole(engine_of(*write_in_pieces(text, size)), **WRITE)["choices"][0]["message"]
    assert calls["content"] is None
    assert [call["function"]["name"] for call in calls["tool_calls"]] == ["now", "write"]
    assert len({call["id"] for call in calls["tool_calls"]}) == 2
    assert arguments_in(events) == {
        index: call["function"]["arguments"] for index, call in enumerate(calls["tool_calls"])
    }


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "2024", "2024"),
        ({"type": ["string", "null"]}, "00123", "00123"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "false", "false"),
        ({"$ref": "#/$defs/code"}, "00123", "00123"),
        ({"$ref": "#/$defs/amount"}, "1.5", 1.5),
        ({"type": "integer"}, "100000000000000000000", 10**20),
        ({"type": "number"}, "1e20", 1e20),
        ({"type": "number"}, "inf", "inf"),
        ({"type": "array"}, "[1e999]", "[1e999]"),
        ({"type": "boolean"}, "true", True),
    ],
)
def test_arguments_keep_their_declared_types(schema: dict[str, Any], text: str, value: Any) -> None:
    definitions = {"code": {"type": "string"}, "amount": {"type": "number"}}
    declared = tool("f", a=schema)
    declared["function"]["parameters"]["$defs"] = definitions
    script = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    events = stream(engine_of(*write_in_pieces(script, 3)), tools=[declared])
    assert json.loads(arguments_in(events)[0]) == {"a": value}


def test_a_schema_and_arguments_with_nulls_reach_the_model() -> None:
    engine = engine_of("ok")
    declared = tool("f", a={"type": "string", "default": None})
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": null}'}}],
    }
    result = {"role": "tool", "tool_call_id": "a", "content": '{"x": null}'}
    whole(engine, tools=[declared], messages=[USER, turn, result])
    assert '"default": null' in engine.requests[0].prompt
    assert '"arguments": {"a": null}' in engine.requests[0].prompt


def test_the_budget_ending_inside_a_required_call_is_a_length_with_usage_and_done() -> None:
    script = write_in_pieces(tool_call("write", {"path": "a", "text": "long " * 50}), 5)
    choice = {"tool_choice": "required", "max_tokens": 30, "stream_options": {"include_usage": True}}
    events = stream(engine_of(*script), **WRITE, **choice)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-2]["usage"]["completion_tokens"] == 30
    body = whole(engine_of(*script), **WRITE, **choice)
    assert body["choices"][0]["finish_reason"] == "length"
    assert "tool_calls" not in body["choices"][0]["message"]


def test_without_parallel_calls_the_reply_ends_after_the_first() -> None:
    script = [tool_call("now", {}), "\n", tool_call("now", {}), "and so on"]
    body = whole(engine_of(*script), parallel_tool_calls=False, **WRITE)
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (["no call"], {"tool_choice": "required"}),
        ([tool_call("now", {})], {"tool_choice": {"type": "function", "function": {"name": "write"}}}),
        ([tool_call("unheard_of", {})], {}),
        (["<tool_call>\n<function=now>\n"], {}),
        (["half", Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))], {}),
    ],
)
def test_a_reply_that_fails_is_a_500_or_an_error_event_without_done(script: list[Step], fields: dict[str, Any]) -> None:
    response = ask(served_app(ScriptedEngine([script])), "POST", PATH, json={**BODY, **WRITE, **fields})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    events = stream(ScriptedEngine([script]), **WRITE, **fields)
    assert events[-1]["error"]["message"] == response.json()["error"]["message"]
    assert "[DONE]" not in events
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


def test_profiles_and_budgets_reach_the_engine() -> None:
    engine = ScriptedEngine([["x"]])
    app = served_app(engine)
    for fields in ({}, {"think": True}, {**WRITE, "think": True}, {"temperature": 0, "seed": 5, "max_tokens": 9}):
        assert ask(app, "POST", PATH, json={**BODY, **fields}).status_code == 200
    plain, thinking, agent, own = (request.sampling for request in engine.requests)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.presence_penalty) == (0.7, 0.8, 20, 1.5)
    assert plain.seed is None
    assert (thinking.temperature, thinking.top_p, thinking.presence_penalty) == (1.0, 0.95, 0.0)
    assert (agent.temperature, agent.top_p, agent.presence_penalty) == (0.2, 0.9, 0.0)
    assert (own.temperature, own.top_p, own.seed) == (0.0, 0.8, 5)
    assert [request.max_tokens for request in engine.requests] == [1024, 1024, 1024, 9]


def test_num_ctx_bounds_prompt_and_reply_together() -> None:
    engine = engine_of("x")
    used = whole(engine)["usage"]["prompt_tokens"]
    whole(engine, options={"num_ctx": used + 3})
    assert engine.requests[-1].max_tokens == 3
    response = ask(served_app(engine), "POST", PATH, json={**BODY, "options": {"num_ctx": used}})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert f"maximum context length is {used} tokens" in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]"])
def test_a_body_that_is_no_json_is_an_invalid_request(body: bytes) -> None:
    response = ask(served_app(engine_of("x")), "POST", PATH, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"].startswith("invalid JSON body")


def test_a_refusal_has_a_status_also_when_the_client_wants_a_stream() -> None:
    response = ask(served_app(engine_of("x")), "POST", PATH, json={**BODY, "stream": True, "n": 2})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"


def test_a_chunked_body_is_accepted_and_query_and_slash_do_not_matter() -> None:
    raw = json.dumps(BODY).encode()
    pieces = [raw[at : at + 5] for at in range(0, len(raw), 5)]
    with live_server(engine_of("x"), dialects=all_dialects()) as live, live.client() as client:
        response = client.post(f"{PATH}/?x=1", content=iter(pieces))
    assert response.request.headers["transfer-encoding"] == "chunked"
    assert response.json()["choices"][0]["message"]["content"] == "x"


def test_models_answer_also_to_head_and_while_a_reply_is_written() -> None:
    release, reached = threading.Event(), threading.Event()
    app = served_app(ScriptedEngine([[Hold(release, reached), "done"]]))
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(ask(app, "POST", PATH, json=BODY).status_code))
    asking.start()
    assert reached.wait(PATIENCE_S)
    assert ask(app, "GET", "/v1/models").json()["data"][0]["id"] == "tiny:4bit"
    assert ask(app, "HEAD", "/v1/models").status_code == 200
    assert ask(app, "GET", "/v1/models/tiny").json()["id"] == "tiny:4bit"
    missing = ask(app, "GET", "/v1/models/gpt-4")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    release.set()
    asking.join(PATIENCE_S)
    assert answers == [200]
