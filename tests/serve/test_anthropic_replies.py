"""How a reply looks in the Messages API: exact events, their order, and the message they build."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from slotstream_serve.dialects.anthropic_messages import AnthropicMessages
from slotstream_serve.dialects.anthropic_messages.signing import sign_thinking
from slotstream_serve.dialects.base import ReplyEncoder
from slotstream_serve.errors import Failure, FailureCode
from slotstream_serve.reply import ReplyEvent, ReplyFailed, ReplyFinished
from tests.serve.replies import (
    ADMITTED,
    FAILED,
    UNIQUE,
    USAGE,
    begun_call,
    call,
    context,
    finished,
    frames,
    text,
    thinking,
)

EVERYTHING: list[ReplyEvent] = [
    ADMITTED,
    *thinking("Let me ", "see."),
    *text("It ", "is"),
    *call(0, "weather", '{"city":', '"Bern"}'),
    *call(1, "search", "{}"),
    finished("tool_calls"),
]


def encoder(**thinking_settings: Any) -> ReplyEncoder:
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    if thinking_settings:
        body["thinking"] = {"type": "adaptive", **thinking_settings}
    return AnthropicMessages().parse(body, context()).encoder


def sent(events: Sequence[ReplyEvent], **thinking_settings: Any) -> list[dict[str, Any]]:
    found = []
    for frame in frames(encoder(**thinking_settings), events):
        payload: dict[str, Any] = json.loads(frame.data)
        assert frame.event == payload["type"]
        found.append(payload)
    return found


def test_the_events_of_a_message_are_exactly_these() -> None:
    counts = {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    assert sent([ADMITTED, *text("Hell", "o"), finished()]) == [
        {
            "type": "message_start",
            "message": {
                "id": f"msg_{UNIQUE}",
                "type": "message",
                "role": "assistant",
                "model": "tiny:4bit",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**counts, "output_tokens": 0},
            },
        },
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hell"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "o"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**counts, "output_tokens": 7},
        },
        {"type": "message_stop"},
    ]


def test_thinking_and_calls_have_blocks_of_their_own() -> None:
    events = [event for event in sent(EVERYTHING, display="summarized") if "index" in event]
    kinds = [
        (event["index"], event["type"].removeprefix("content_block_"), event.get("delta", {}).get("type"))
        for event in events
    ]
    assert kinds == [
        (0, "start", None),
        (0, "delta", "thinking_delta"),
        (0, "delta", "thinking_delta"),
        (0, "delta", "signature_delta"),
        (0, "stop", None),
        (1, "start", None),
        (1, "delta", "text_delta"),
        (1, "delta", "text_delta"),
        (1, "stop", None),
        (2, "start", None),
        (2, "delta", "input_json_delta"),
        (2, "stop", None),
        (3, "start", None),
        (3, "delta", "input_json_delta"),
        (3, "stop", None),
    ]
    assert events[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert events[3]["delta"]["signature"] == sign_thinking("Let me see.")
    start = events[9]["content_block"]
    assert (start["type"], start["name"], start["input"]) == ("tool_use", "weather", {})
    assert start["id"].startswith("toolu_")
    assert len(start["id"]) == 30
    assert events[10]["delta"]["partial_json"] == '{"city":"Bern"}'


@pytest.mark.parametrize("display", ["omitted", "summarized"])
def test_a_whole_reply_is_what_the_stream_builds(display: str) -> None:
    events = sent(EVERYTHING, display=display)
    built: dict[str, Any] = dict(events[0]["message"])
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name, value in delta.items():
                target = {"partial_json": "partial"}.get(name, name)
                if name != "type":
                    blocks[-1][target] += value
        elif event["type"] == "message_delta":
            built |= {**event["delta"], "usage": event["usage"]}
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    built["content"] = blocks
    assert encoder(display=display).whole(EVERYTHING) == built


def test_omitted_thinking_keeps_its_signature_and_says_nothing() -> None:
    whole = encoder(display="omitted").whole(EVERYTHING)
    signature = sign_thinking("Let me see.")
    assert whole["content"][0] == {"type": "thinking", "thinking": "", "signature": signature}
    deltas = [
        event["delta"] for event in sent(EVERYTHING, display="omitted") if event.get("index") == 0 and "delta" in event
    ]
    assert deltas == [{"type": "signature_delta", "signature": signature}]


def test_silence_is_filled_with_a_ping_or_an_empty_delta_while_thinking_is_hidden() -> None:
    hidden, shown = encoder(display="omitted"), encoder(display="summarized")
    for one in (hidden, shown):
        frames(one, [ADMITTED])
        assert json.loads(one.keepalive()[0].data) == {"type": "ping"}
        frames(one, thinking("Hm"))
    (frame,) = hidden.keepalive()
    assert frame.event == "content_block_delta"
    assert json.loads(frame.data)["delta"] == {"type": "thinking_delta", "thinking": ""}
    assert json.loads(shown.keepalive()[0].data) == {"type": "ping"}


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("stop", "end_turn"),
        ("stop_string", "stop_sequence"),
        ("tool_calls", "tool_use"),
        ("length", "max_tokens"),
        ("window", "model_context_window_exceeded"),
    ],
)
def test_stop_reasons(reason: Any, stop_reason: str) -> None:
    end = ReplyFinished(reason=reason, stop_string="END" if reason == "stop_string" else None, usage=USAGE)
    whole = encoder().whole([ADMITTED, *text("x"), end])
    assert whole["stop_reason"] == stop_reason
    assert whole["stop_sequence"] == ("END" if reason == "stop_string" else None)


def test_a_call_that_the_budget_cut_off_is_not_delivered() -> None:
    events = sent([ADMITTED, *begun_call(0, "weather", '{"city":'), finished("length")])
    assert [event["type"] for event in events] == ["message_start", "ping", "message_delta", "message_stop"]
    assert events[2]["delta"]["stop_reason"] == "max_tokens"


def test_after_an_error_nothing_follows() -> None:
    events = sent([ADMITTED, *text("so"), FAILED])
    assert events[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "experts.bin: read 3 of 9 bytes"},
    }
    assert not {"message_stop", "message_delta"} & {event["type"] for event in events}
    assert sent([FAILED])[0]["type"] == "error"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid_request", None, "invalid_request_error"),
        ("context_length_exceeded", None, "invalid_request_error"),
        ("unauthorized", None, "authentication_error"),
        ("forbidden", None, "permission_error"),
        ("not_found", None, "not_found_error"),
        ("model_not_found", None, "not_found_error"),
        ("payload_too_large", None, "request_too_large"),
        ("headers_too_large", None, "request_too_large"),
        ("invalid_request", 429, "rate_limit_error"),
        ("inference_error", None, "api_error"),
        ("tool_choice_unsatisfied", None, "api_error"),
        ("not_implemented", None, "api_error"),
        ("server_busy", None, "overloaded_error"),
        ("insufficient_memory", None, "overloaded_error"),
        ("prefill_deadline_exceeded", None, "overloaded_error"),
        ("server_busy", 529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(code: FailureCode, status: int | None, kind: str) -> None:
    body = AnthropicMessages().error_body(Failure(code=code, message="why", status=status))
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_failure_carries_its_numbers() -> None:
    failure = Failure(code="insufficient_memory", message="why", details={"required_bytes": 9, "available_bytes": 3})
    (event,) = sent([ReplyFailed(failure=failure)])
    assert event["error"]["details"] == {"required_bytes": 9, "available_bytes": 3}
