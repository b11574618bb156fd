"""How a reply and the catalogues look in the gateway protocol."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from slotstream_serve.dialects.ai_gateway import AIGateway
from slotstream_serve.dialects.base import ReplyEncoder
from slotstream_serve.errors import Failure, FailureCode
from slotstream_serve.reply import ReplyEvent, ReplyFailed
from tests.serve.replies import (
    ADMITTED,
    FAILED,
    begun_call,
    call,
    context,
    finished,
    frames,
    payloads,
    text,
    thinking,
)

HEADERS = {"ai-language-model-specification-version": "4", "ai-language-model-id": "slotstream/tiny"}
EVERYTHING: list[ReplyEvent] = [
    ADMITTED,
    *thinking("Let me ", "see."),
    *text("It ", "is"),
    *call(0, "weather", '{"city":', '"Bern"}'),
    *text("and"),
    *call(1, "search", "{}"),
    finished("tool_calls"),
]


def encoder() -> ReplyEncoder:
    body = {"prompt": [{"role": "user", "content": "hi"}]}
    return AIGateway().parse(body, replace(context(), headers=HEADERS)).encoder


def sent(events: Sequence[ReplyEvent]) -> list[dict[str, Any]]:
    return payloads(frames(encoder(), events))


def test_the_parts_of_a_reply_are_exactly_these() -> None:
    found = frames(encoder(), [ADMITTED, *text("Hell", "o"), finished()])
    assert [frame.event for frame in found] == [None] * len(found)
    assert found[-1].data == "[DONE]"
    parts = payloads(found)
    generation = parts[1].pop("id")
    assert generation.startswith("gen_")
    assert len(generation) == 12
    assert parts == [
        {"type": "stream-start", "warnings": []},
        {"type": "response-metadata", "modelId": "slotstream/tiny", "timestamp": "2026-09-21T14:13:20.250Z"},
        {"type": "text-start", "id": "t0"},
        {"type": "text-delta", "id": "t0", "delta": "Hell"},
        {"type": "text-delta", "id": "t0", "delta": "o"},
        {"type": "text-end", "id": "t0"},
        {
            "type": "finish",
            "finishReason": {"unified": "stop", "raw": "stop"},
            "usage": {
                "inputTokens": {"total": 11, "noCache": 7, "cacheRead": 4, "cacheWrite": 0},
                "outputTokens": {"total": 7, "text": 5, "reasoning": 2},
            },
        },
    ]


def test_blocks_open_and_close_in_order_and_calls_are_delivered_whole() -> None:
    parts = sent(EVERYTHING)
    assert [(part["type"], part.get("id")) for part in parts[2:9]] == [
        ("reasoning-start", "r0"),
        ("reasoning-delta", "r0"),
        ("reasoning-delta", "r0"),
        ("reasoning-end", "r0"),
        ("text-start", "t0"),
        ("text-delta", "t0"),
        ("text-delta", "t0"),
    ]
    start, delta, end, whole = parts[10:14]
    call_id = whole["toolCallId"]
    assert start == {"type": "tool-input-start", "id": call_id, "toolName": "weather"}
    assert delta == {"type": "tool-input-delta", "id": call_id, "delta": '{"city":"Bern"}'}
    assert end == {"type": "tool-input-end", "id": call_id}
    assert whole == {"type": "tool-call", "toolCallId": call_id, "toolName": "weather", "input": '{"city":"Bern"}'}
    assert call_id.startswith("call_")
    assert len(call_id) == 13
    assert [part["id"] for part in parts if part["type"] == "text-start"] == ["t0", "t1"]
    assert parts[-1]["finishReason"]["unified"] == "tool-calls"


def test_a_whole_reply_says_what_the_stream_says() -> None:
    parts, whole = sent(EVERYTHING), encoder().whole(EVERYTHING)
    texts: dict[str, str] = {}
    for part in parts:
        if part["type"] in ("text-delta", "reasoning-delta"):
            texts[part["id"]] = texts.get(part["id"], "") + part["delta"]
    calls = [part for part in parts if part["type"] == "tool-call"]
    assert whole["content"] == [
        {"type": "reasoning", "text": texts["r0"]},
        {"type": "text", "text": texts["t0"]},
        calls[0],
        {"type": "text", "text": texts["t1"]},
        calls[1],
    ]
    assert whole["finishReason"] == parts[-1]["finishReason"]
    assert whole["usage"] == parts[-1]["usage"]
    assert whole["warnings"] == []


@pytest.mark.parametrize(
    ("reason", "unified"),
    [
        ("stop", "stop"),
        ("stop_string", "stop"),
        ("length", "length"),
        ("window", "length"),
        ("tool_calls", "tool-calls"),
    ],
)
def test_finish_reasons(reason: Any, unified: str) -> None:
    assert sent([ADMITTED, finished(reason)])[-1]["finishReason"] == {"unified": unified, "raw": reason}


def test_a_call_that_was_cut_off_leaves_no_trace() -> None:
    parts = sent([ADMITTED, *begun_call(0, "weather", '{"ci'), finished("length")])
    assert [part["type"] for part in parts] == ["stream-start", "response-metadata", "finish"]


def test_a_failure_in_the_middle_is_no_success() -> None:
    found = frames(encoder(), [ADMITTED, *text("so"), FAILED])
    assert "[DONE]" not in [frame.data for frame in found]
    parts = payloads(found)
    assert parts[-1] == {
        "type": "error",
        "error": {
            "code": "inference_error",
            "message": "experts.bin: read 3 of 9 bytes",
            "type": "internal_server_error",
        },
    }
    assert "finish" not in {part["type"] for part in parts}


def test_an_unsatisfied_tool_choice_is_an_error_and_a_finish_that_says_so() -> None:
    failure = Failure(code="tool_choice_unsatisfied", message="no call")
    found = frames(encoder(), [ADMITTED, *text("so"), ReplyFailed(failure=failure)])
    parts = payloads(found)
    assert [part["type"] for part in parts[-3:]] == ["error", "text-end", "finish"]
    assert parts[-1]["finishReason"] == {"unified": "error", "raw": "tool_choice_unsatisfied"}
    assert parts[-1]["usage"]["inputTokens"]["total"] == 11
    assert "[DONE]" not in [frame.data for frame in found]


def test_silence_is_filled_with_a_comment() -> None:
    assert [frame.comment for frame in encoder().keepalive()] == ["keepalive"]


def test_parts_have_sorted_keys() -> None:
    for frame in frames(encoder(), EVERYTHING)[:-1]:
        assert list(json.loads(frame.data)) == sorted(json.loads(frame.data))


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        ("invalid_request", "template_error", "template_error"),
        ("invalid_request", "empty_prompt", "empty_prompt"),
        ("context_length_exceeded", None, "context_length_exceeded"),
        ("insufficient_memory", None, "insufficient_memory"),
    ],
)
def test_errors_of_the_engine_have_their_codes(code: FailureCode, reason: str | None, expected: str) -> None:
    details = {} if reason is None else {"reason": reason}
    error = AIGateway().error_body(Failure(code=code, message="why", details=details))["error"]
    assert (error["code"], error["message"]) == (expected, "why")


def body_of(path: str, **model: Any) -> dict[str, Any]:
    (route,) = [route for route in AIGateway().info_routes if route.path == path]
    body: dict[str, Any] = route.answer({}, context(path, **model)).body
    return body


def test_the_catalogue_lists_the_model_and_its_aliases_with_room_for_a_reply() -> None:
    entries = body_of("/coding-agent/v1/models", window_tokens=65_536, max_output_tokens=8192)["data"]
    assert [entry["id"] for entry in entries] == [
        "slotstream/tiny:4bit",
        "moonshotai/kimi-k3",
        "openai/gpt-5.6-luna",
        "google/gemini-2.5-flash",
    ]
    assert [(entry["context_window"], entry["max_tokens"]) for entry in entries] == [
        (65_536, 8192),
        (65_536, 8192),
        (8192, 512),
        (65_536, 8192),
    ]
    assert entries[0]["reasoning_options"] == [{"type": "effort", "values": ["none", "low", "medium", "xhigh"]}]
    assert all(entry["tags"] == ["tool-use"] for entry in entries)
    assert body_of("/coding-agent/v1/models", vision=True)["data"][0]["tags"] == ["tool-use", "vision"]


@pytest.mark.parametrize("window", [2, 200, 512, 4096])
def test_every_reply_budget_is_smaller_than_its_window(window: int) -> None:
    budget = max(1, min(8192, max(256, window // 4), window - 1))
    for entry in body_of("/coding-agent/v1/models", window_tokens=window, max_output_tokens=budget)["data"]:
        assert 0 < entry["max_tokens"] < entry["context_window"] <= window


@pytest.mark.parametrize(
    ("path", "version"), [("/v3/ai/config", "v3"), ("/v1/ai/config", "v3"), ("/v4/ai/config", "v4")]
)
def test_each_config_route_has_the_shape_of_its_specification(path: str, version: str) -> None:
    (entry,) = body_of(path)["models"]
    assert entry["specification"] == {
        "specificationVersion": version,
        "provider": "slotstream",
        "modelId": "slotstream/tiny:4bit",
    }
    assert entry["modelType"] == "language"


@pytest.mark.parametrize("path", ["/coding-agent/v1/credits", "/v1/credits"])
def test_there_are_no_credits(path: str) -> None:
    assert body_of(path) == {"balance": "0", "total_used": "0"}


def test_the_installed_models_give_the_served_window_in_both_forms() -> None:
    body = body_of("/api/v1/models", window_tokens=4096)
    assert body["data"][0]["context_length"] == 4096
    assert body["models"][0]["key"] == body["data"][0]["id"] == "tiny:4bit"
    assert body["models"][0]["loaded_instances"][0]["config"]["context_length"] == 4096
