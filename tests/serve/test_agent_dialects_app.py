"""Responses, Messages and the gateway through the application, with an engine that plays scripts.

The same model output is asked for in every dialect, because a fault in one is a fault in all.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.testing import Fault, ScriptedEngine, Step, tool_call, write_in_pieces
from tests.serve.conftest import ask, served_app

NAMES = ("responses", "messages", "gateway")
GATEWAY_HEADERS = {"ai-language-model-specification-version": "4", "ai-language-model-id": "slotstream/tiny"}


@dataclass(frozen=True)
class Reply:
    """What a client of any dialect makes of a reply."""

    text: str
    thinking: str
    calls: tuple[tuple[str, Any], ...]
    end: str


def body_of(dialect: str, *, tools: dict[str, Any], thinking: bool, budget: int, stream: bool) -> dict[str, Any]:
    if dialect == "responses":
        declared = [{"type": "function", "name": name, "parameters": schema} for name, schema in tools.items()]
        effort = {"effort": "low" if thinking else "none"}
        return {
            "model": "tiny", "input": "hi", "tools": declared, "reasoning": effort, "max_output_tokens": budget,
            "stream": stream,
        }  # fmt: skip
    if dialect == "messages":
        declared = [{"name": name, "input_schema": schema} for name, schema in tools.items()]
        return {
            "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": declared, "max_tokens": budget,
            "thinking": {"type": "adaptive" if thinking else "disabled"}, "stream": stream,
        }  # fmt: skip
    declared = [{"type": "function", "name": name, "inputSchema": schema} for name, schema in tools.items()]
    return {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "tools": declared,
        "maxOutputTokens": budget, "reasoning": "low" if thinking else "none",
    }  # fmt: skip


PATHS = {"responses": "/v1/responses", "messages": "/v1/messages", "gateway": "/v4/ai/language-model"}


def asked(
    dialect: str,
    script: Sequence[Step],
    *,
    tools: dict[str, Any] | None = None,
    thinking: bool = False,
    budget: int = 1000,
    stream: bool = True,
    **fields: Any,
) -> httpx.Response:
    body = body_of(dialect, tools=tools or {}, thinking=thinking, budget=budget, stream=stream)
    headers = {**GATEWAY_HEADERS, "ai-language-model-streaming": str(stream).lower()}
    app = served_app(ScriptedEngine([list(script)]))
    return ask(app, "POST", PATHS[dialect], json={**body, **fields}, headers=headers)


def payloads(response: httpx.Response) -> list[Any]:
    data = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(value) for value in data if value != "[DONE]"]


def read_whole(dialect: str, body: dict[str, Any]) -> Reply:
    text = thinking = ""
    calls: list[tuple[str, Any]] = []
    if dialect == "responses":
        for item in body["output"]:
            if item["type"] == "message":
                text += item["content"][0]["text"]
            elif item["type"] == "reasoning":
                thinking += item["summary"][0]["text"]
            else:
                calls.append((item["name"], json.loads(item["arguments"])))
        end = (body["incomplete_details"] or {}).get("reason") or body["status"]
    else:
        for block in body["content"]:
            if block["type"] == "text":
                text += block["text"]
            elif block["type"] in ("thinking", "reasoning"):
                thinking += block.get("thinking", block.get("text"))
            elif block["type"] == "tool_use":
                calls.append((block["name"], block["input"]))
            else:
                calls.append((block["toolName"], json.loads(block["input"])))
        end = body["stop_reason"] if dialect == "messages" else body["finishReason"]["unified"]
    return Reply(text, thinking, tuple(calls), end)


def read_stream(dialect: str, events: Sequence[Any]) -> Reply:
    if dialect == "responses":
        return read_whole(dialect, events[-1]["response"])
    text = thinking = end = ""
    calls: list[tuple[str, Any]] = []
    for event in events:
        delta = event.get("delta", "")
        match event["type"]:
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls.append((event["content_block"]["name"], None))
            case "content_block_delta":
                text += delta.get("text", "")
                thinking += delta.get("thinking", "")
                if "partial_json" in delta:
                    calls[-1] = (calls[-1][0], json.loads(delta["partial_json"]))
            case "message_delta":
                end = delta["stop_reason"]
            case "text-delta":
                text += delta
            case "reasoning-delta":
                thinking += delta
            case "tool-call":
                calls.append((event["toolName"], json.loads(event["input"])))
            case "finish":
                end = event["finishReason"]["unified"]
    return Reply(text, thinking, tuple(calls), end)


def replied(dialect: str, script: Sequence[Step], **options: Any) -> Reply:
    """Return the reply, having checked that it is the same streamed and whole."""
    streamed = read_stream(dialect, payloads(asked(dialect, script, **options)))
    whole = asked(dialect, script, stream=False, **options)
    assert whole.status_code == 200, whole.text
    assert read_whole(dialect, whole.json()) == streamed
    return streamed


WRITE = {
    "write": {
        "type": "object",
        "properties": {
            "ref": {"$ref": "#/$defs/name"},
            "nullable": {"type": ["string", "null"]},
            "optional": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "big": {"type": "integer"},
            "infinite": {"type": "number"},
            "flag": {"type": "string"},
        },
        "$defs": {"name": {"type": "string"}},
    },
    "now": {"type": "object", "properties": {}},
}


@pytest.mark.parametrize("dialect", NAMES)
def test_arguments_keep_their_declared_types(dialect: str) -> None:
    given = {"ref": "00123", "nullable": "2024", "optional": "007", "big": "1e20", "infinite": "inf", "flag": "false"}
    (call,) = replied(dialect, write_in_pieces(tool_call("write", given), 5), tools=WRITE).calls
    assert call == (
        "write",
        {"ref": "00123", "nullable": "2024", "optional": "007", "big": 1e20, "infinite": "inf", "flag": "false"},
    )


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_no_tag_leaks_however_the_text_is_cut(dialect: str, size: int) -> None:
    script = "Look: a < b.\n\n" + tool_call("now", {}) + "\n" + tool_call("write", {"ref": "</parameter"}) + "\n"
    reply = replied(dialect, write_in_pieces(script, size), tools=WRITE)
    assert reply.text == "Look: a < b."
    assert reply.calls == (("now", {}), ("write", {"ref": "</parameter"}))
    assert reply.end in ("completed", "tool_use", "tool-calls")


@pytest.mark.parametrize("dialect", NAMES)
def test_text_after_a_call_is_kept_unless_it_is_blank(dialect: str) -> None:
    assert replied(dialect, [tool_call("now", {}), "\n", "Done.\n"], tools=WRITE).text.strip() == "Done."
    assert replied(dialect, [tool_call("now", {}), "\n", " \n"], tools=WRITE).text == ""


@pytest.mark.parametrize("dialect", NAMES)
def test_thinking_is_apart_and_the_answer_does_not_begin_with_blank_lines(dialect: str) -> None:
    reply = replied(dialect, write_in_pieces("hm, </th</think>\n\nYes", 1), thinking=True)
    assert (reply.thinking, reply.text) == ("hm, </th", "Yes")


@pytest.mark.parametrize(("dialect", "field"), [("messages", "stop_sequences"), ("gateway", "stopSequences")])
def test_a_stop_text_is_not_looked_for_in_the_thinking(dialect: str, field: str) -> None:
    script = ["say END", "</think>", "one ", "END", " two"]
    reply = replied(dialect, script, thinking=True, **{field: ["END"]})
    assert (reply.thinking, reply.text) == ("say END", "one ")


@pytest.mark.parametrize(
    ("dialect", "end"), [("responses", "max_output_tokens"), ("messages", "max_tokens"), ("gateway", "length")]
)
def test_a_budget_that_ends_in_a_call_drops_it(dialect: str, end: str) -> None:
    pieces = write_in_pieces(tool_call("write", {"ref": "a long text"}), 5)
    reply = replied(dialect, pieces, tools=WRITE, budget=len(pieces) - 3)
    assert (reply.calls, reply.end) == ((), end)
    assert "<" not in reply.text


@pytest.mark.parametrize("dialect", ["responses", "messages"])
@pytest.mark.parametrize("script", ["<tool_call>\n<function=now>\n", tool_call("unheard_of", {})])
def test_a_call_that_cannot_be_used_fails_the_reply(dialect: str, script: str) -> None:
    whole = asked(dialect, [script], tools=WRITE, stream=False)
    assert whole.status_code == 500
    events = payloads(asked(dialect, ["so ", script], tools=WRITE))
    assert events[-1]["type"] in ("response.failed", "error")


def test_the_gateway_shows_a_call_that_cannot_be_used_as_text() -> None:
    reply = replied("gateway", [tool_call("unheard_of", {})], tools=WRITE)
    assert reply.text == tool_call("unheard_of", {})
    assert (reply.calls, reply.end) == ((), "stop")


@pytest.mark.parametrize("dialect", NAMES)
def test_a_failure_in_the_middle_has_no_sign_of_success(dialect: str) -> None:
    script: list[Step] = ["so", tool_call("now", {}), Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]
    response = asked(dialect, script, tools=WRITE)
    assert response.status_code == 200
    last = payloads(response)[-1]
    assert last["type"] in ("response.failed", "error")
    assert "read 3 of 9 bytes" in json.dumps(last)
    for sign in (
        "response.completed",
        "response.incomplete",
        "message_stop",
        'stop_reason":"',
        "[DONE]",
        "finishReason",
    ):
        assert sign not in response.text
    whole = asked(dialect, script, tools=WRITE, stream=False)
    assert whole.status_code == 500
    assert "read 3 of 9 bytes" in whole.text


@pytest.mark.parametrize("dialect", NAMES)
def test_a_prompt_that_does_not_fit_is_refused_before_the_stream(dialect: str) -> None:
    tools = {"long": {"type": "object", "description": "x" * 5000}}
    response = asked(dialect, ["x"], tools=tools)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["details"]["window_tokens"] == 4096
    assert "prompt is too long: " in error["message"] or error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("dialect", NAMES)
def test_errors_before_a_request_is_understood_have_the_dialects_shape(dialect: str) -> None:
    app = served_app(ScriptedEngine([["x"]]))
    for content in (b"{", b"[]", b'"x"', b"\xff", b'{"a":1}'):
        response = ask(app, "POST", PATHS[dialect], content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert isinstance(response.json()["error"]["message"], str)
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_claude_codes_address_works_and_ignored_fields_are_named() -> None:
    body = body_of("messages", tools={}, thinking=False, budget=9, stream=False)
    app = served_app(ScriptedEngine([["x"]]))
    response = ask(app, "POST", "/v1/messages?beta=true", json={**body, "speed": "fast", "metadata": {"user_id": "u"}})
    assert response.status_code == 200
    assert response.headers["x-slotstream-ignored-fields"] == "speed"
    count = ask(app, "POST", "/v1/messages/count_tokens?beta=true", json={**body, "max_tokens": None})
    assert count.json()["input_tokens"] == response.json()["usage"]["input_tokens"]


def test_an_unsatisfied_choice_ends_the_gateways_stream_with_an_error_and_its_finish() -> None:
    response = asked("gateway", ["No."], tools=WRITE, toolChoice={"type": "required"})
    kinds = [part["type"] for part in payloads(response)]
    assert kinds[-3:] == ["error", "text-end", "finish"]
    assert payloads(response)[-1]["finishReason"]["unified"] == "error"
    for dialect, choice in (("responses", {"tool_choice": "required"}), ("messages", {"tool_choice": {"type": "any"}})):
        assert asked(dialect, ["No."], tools=WRITE, stream=False, **choice).status_code == 500


@pytest.mark.parametrize(
    "path", ["/coding-agent/v1/models", "/coding-agent/v1/credits", "/v4/ai/config", "/api/v1/models"]
)
def test_lists_answer_get_and_head(path: str) -> None:
    app = served_app(ScriptedEngine([["x"]]))
    assert ask(app, "GET", path).status_code == 200
    head = ask(app, "HEAD", path)
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_responses_are_not_stored(method: str) -> None:
    response = ask(served_app(ScriptedEngine([["x"]])), method, "/v1/responses/resp_1")
    assert response.status_code == 404
    assert "resp_1" in response.json()["error"]["message"]
