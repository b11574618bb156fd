"""Chat Completions replies: exact chunks, whole bodies, errors."""

import json
from typing import Any

import pytest

from slotstream_serve.dialects.openai_chat.dialect import OpenAIChat
from slotstream_serve.dialects.openai_chat.encoding import ChatCompletionEncoder
from slotstream_serve.errors import Failure
from slotstream_serve.reply import FinishReason, ReplyEvent
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

HEAD = {"id": "chatcmpl-01234567-89ab-cdef-0123-456789abcdef", "created": 1_790_000_000, "model": "tiny:4bit"}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def encoder(*, include_usage: bool = False) -> ChatCompletionEncoder:
    return ChatCompletionEncoder(context(), include_usage=include_usage)


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], **more}


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a streamed message together the way clients do."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = None
    for value in chunks:
        choice = value["choices"][0]
        reason = choice["finish_reason"] or reason
        for key in ("content", "reasoning_content"):
            message[key] += choice["delta"].get(key, "")
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            message["tool_calls"][part["index"]]["arguments"] += part["function"]["arguments"]
    return {**message, "finish_reason": reason}


def test_a_streamed_answer_is_role_deltas_finish_and_done() -> None:
    sent = frames(encoder(), [ADMITTED, *thinking("hm", "m"), *text("Good", "", " day"), finished()])
    assert payloads(sent) == [
        chunk({"role": "assistant"}),
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "Good"}),
        chunk({"content": " day"}),
        chunk({}, "stop"),
    ]
    assert sent[-1].data == "[DONE]"
    assert all(frame.event is None for frame in sent)


def test_usage_comes_in_the_last_chunk_when_it_was_asked_for() -> None:
    sent = payloads(frames(encoder(include_usage=True), [ADMITTED, *text("x"), finished()]))
    assert sent[-1] == chunk({}, "stop", usage=USAGE)
    assert not any("usage" in value for value in sent[:-1])


def test_calls_stream_their_names_first_and_then_fragments_by_index() -> None:
    events = [
        ADMITTED,
        *call(0, "write", '{"path":"', "a", '"}'),
        *call(1, "list", "{}"),
        finished("tool_calls"),
    ]
    sent = payloads(frames(encoder(), events))
    first, second = (value["choices"][0]["delta"]["tool_calls"][0] for value in (sent[1], sent[5]))
    assert (first["index"], first["type"], first["function"]) == (0, "function", {"name": "write", "arguments": ""})
    assert (second["index"], second["function"]) == (1, {"name": "list", "arguments": ""})
    assert first["id"] != second["id"]
    assert all(len(part["id"]) == 37 and part["id"].startswith("call_") for part in (first, second))
    assert sent[2] == chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"path":"'}}]})
    assert sent[-1] == chunk({}, "tool_calls")


def test_a_whole_reply_has_calls_reasoning_and_null_content_when_it_is_only_calls() -> None:
    body = encoder().whole([ADMITTED, *thinking("hm"), *call(0, "f", "{}"), finished("tool_calls")])
    message = body["choices"][0]["message"]
    assert body == {
        **HEAD,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": USAGE,
    }
    assert (message["role"], message["content"], message["reasoning_content"]) == ("assistant", None, "hm")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_a_whole_answer_has_no_keys_for_what_it_does_not_have() -> None:
    body = encoder().whole([ADMITTED, *text("Good", "bye"), finished()])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Goodbye"}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("stop_string", "stop"),
        ("length", "length"),
        ("window", "length"),
        ("tool_calls", "tool_calls"),
    ],
)
def test_every_end_has_its_finish_reason(reason: FinishReason, expected: str) -> None:
    assert encoder().whole([ADMITTED, finished(reason)])["choices"][0]["finish_reason"] == expected
    assert payloads(frames(encoder(), [finished(reason)]))[-1]["choices"][0]["finish_reason"] == expected


REPLIES: dict[str, list[ReplyEvent]] = {
    "text": [ADMITTED, *text("a", "b\n", "c"), finished()],
    "thinking only": [ADMITTED, *thinking("so", "so"), finished("length")],
    "both": [ADMITTED, *thinking("t"), *text("\U0001f600", "é"), finished("stop_string")],
    "calls after text": [
        ADMITTED,
        *text("Look: "),
        *call(0, "f", '{"a":', "1}"),
        *call(1, "g", "{}"),
        finished("tool_calls"),
    ],
    "a cut call": [ADMITTED, *text("x"), *begun_call(0, "f", '{"a":"lo'), finished("length")],
    "a call and a cut one": [ADMITTED, *call(0, "f", "{}"), *begun_call(1, "g", '{"b'), finished("tool_calls")],
    "nothing": [ADMITTED, finished()],
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_streamed_reply_says_what_the_whole_one_says(name: str) -> None:
    streamed = joined(payloads(frames(encoder(), REPLIES[name])))
    body = encoder().whole(REPLIES[name])
    message = body["choices"][0]["message"]
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning_content"] == message.get("reasoning_content", "")
    assert streamed["finish_reason"] == body["choices"][0]["finish_reason"]
    complete = streamed["tool_calls"][: len(message.get("tool_calls", []))]
    assert [(part["id"], part["name"], part["arguments"]) for part in complete] == [
        (part["id"], part["function"]["name"], part["function"]["arguments"]) for part in message.get("tool_calls", [])
    ]


@pytest.mark.parametrize("name", ["a cut call", "a call and a cut one"])
def test_a_cut_call_ends_with_length_so_that_nobody_executes_it(name: str) -> None:
    sent = frames(encoder(include_usage=True), REPLIES[name])
    assert payloads(sent)[-1] == chunk({}, "length", usage=USAGE)
    assert sent[-1].data == "[DONE]"
    calls = encoder().whole(REPLIES[name])["choices"][0]["message"].get("tool_calls", [])
    assert "g" not in [part["function"]["name"] for part in calls]


@pytest.mark.parametrize("before", [[], [ADMITTED], [ADMITTED, *text("half of it")], [ADMITTED, *call(0, "f", "{}")]])
def test_a_failure_in_the_middle_cannot_be_taken_for_success(before: list[ReplyEvent]) -> None:
    sent = frames(encoder(include_usage=True), [*before, FAILED])
    assert "[DONE]" not in [frame.data for frame in sent]
    *chunks, error = payloads(sent)
    assert error == {
        "error": {"message": "experts.bin: read 3 of 9 bytes", "type": "server_error", "code": "inference_error"}
    }
    assert all(value["choices"][0]["finish_reason"] is None for value in chunks)


def test_keepalives_are_comments_that_clients_skip() -> None:
    assert [(frame.comment, frame.data) for frame in encoder().keepalive()] == [("keepalive", "")]


def test_no_character_of_a_reply_breaks_a_line() -> None:
    difficult = "a\u2028b\u2029c\x85d\r\ne\x00\x1c\U0001f600"
    sent = frames(encoder(), [ADMITTED, *text(difficult), finished()])
    assert all(len(frame.data.splitlines()) == 1 for frame in sent)
    assert joined(payloads(sent))["content"] == difficult


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (
            Failure(code="invalid_request", message="m", param="messages.0", dialect_code="unsupported_field"),
            {"message": "m", "type": "invalid_request_error", "code": "unsupported_field", "param": "messages.0"},
        ),
        (Failure(code="invalid_request", message="m"), {"message": "m", "type": "invalid_request_error"}),
        (
            Failure(code="unauthorized", message="m"),
            {"message": "m", "type": "authentication_error", "code": "unauthorized"},
        ),
        (Failure(code="forbidden", message="m"), {"message": "m", "type": "permission_error", "code": "forbidden"}),
        (
            Failure(code="prefill_deadline_exceeded", message="m", details={"limit_seconds": 3}),
            {
                "message": "m",
                "type": "server_error",
                "code": "prefill_deadline_exceeded",
                "details": {"limit_seconds": 3},
            },
        ),
        (
            Failure(code="payload_too_large", message="m"),
            {"message": "m", "type": "invalid_request_error", "code": "payload_too_large"},
        ),
    ],
)
def test_errors_have_the_dialects_shape(failure: Failure, expected: dict[str, Any]) -> None:
    assert OpenAIChat().error_body(failure) == {"error": expected}


def test_a_prompt_that_is_too_long_is_said_in_the_words_clients_look_for() -> None:
    details = {"prompt_tokens": 5000, "window_tokens": 4096}
    error = OpenAIChat().error_body(Failure(code="context_length_exceeded", message="m", details=details))["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 4096 tokens, and the prompt has 5000")
    failure = Failure(code="context_length_exceeded", message="m", details={**details, "prompt_tokens_at_least": True})
    assert "and the prompt has at least 5000 tokens; " in OpenAIChat().error_body(failure)["error"]["message"]


def test_the_model_list_names_the_window_and_the_reply_budget() -> None:
    routes = {route.path: route for route in OpenAIChat().info_routes}
    listed = routes["/v1/models"].answer({}, context("/v1/models", context_policy={"configured_window": 4096})).body
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"], card["owned_by"], card["created"]) == (
        "tiny:4bit",
        "model",
        "slotstream",
        1_700_000_000,
    )
    assert (card["context_window"], card["context_length"], card["max_output_tokens"]) == (4096, 4096, 1024)
    assert card["context_policy"] == {"configured_window": 4096}
    assert "vision" not in card["capabilities"]
    one = routes["/v1/models/{name}"].answer({}, context("/v1/models/tiny:4bit", vision=True)).body
    assert one["id"] == "tiny:4bit"
    assert "vision" in one["capabilities"]
    assert json.loads(json.dumps(one)) == one
