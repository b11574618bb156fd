"""Ollama replies: exact lines, whole bodies, errors, descriptions of the model."""

import json
from datetime import datetime
from typing import Any, Literal

import pytest

from slotstream_serve.dialects.base import Answer
from slotstream_serve.dialects.ollama.dialect import API_VERSION, Ollama
from slotstream_serve.dialects.ollama.encoding import OllamaEncoder
from slotstream_serve.errors import Failure, Refused
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

Route = Literal["chat", "generate"]
ROUTES: tuple[Route, ...] = ("chat", "generate")
HEAD = {"model": "tiny:4bit", "created_at": "2026-09-21T14:13:20.250000Z"}
COUNTS = {
    "total_duration": 3_750_000_000,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 1_250_000_000,
    "eval_count": 7,
    "eval_duration": 2_000_000_000,
}


def encoder(route: Route = "chat") -> OllamaEncoder:
    return OllamaEncoder(context(), route)


def said(**message: Any) -> dict[str, Any]:
    return {**HEAD, "message": {"role": "assistant", **message}, "done": False}


def test_a_chat_streams_one_line_a_delta_and_ends_with_counts() -> None:
    sent = payloads(frames(encoder(), [ADMITTED, *thinking("hm"), *text("Good", "", " day"), finished()]))
    assert sent == [
        said(content="", thinking="hm"),
        said(content="Good"),
        said(content=" day"),
        {**said(content=""), "done": True, "done_reason": "stop", **COUNTS},
    ]


def test_a_generated_text_has_its_words_at_the_top() -> None:
    sent = payloads(frames(encoder("generate"), [ADMITTED, *thinking("hm"), *text("Good"), finished("length")]))
    assert sent == [
        {**HEAD, "response": "", "thinking": "hm", "done": False},
        {**HEAD, "response": "Good", "done": False},
        {**HEAD, "response": "", "done": True, "done_reason": "length", **COUNTS},
    ]


def test_a_whole_reply_is_the_last_line_with_the_whole_text() -> None:
    chat = encoder().whole([ADMITTED, *thinking("h", "m"), *text("Good", " day"), finished()])
    assert chat == {**said(content="Good day", thinking="hm"), "done": True, "done_reason": "stop", **COUNTS}
    generated = encoder("generate").whole([ADMITTED, *thinking("hm"), finished("window")])
    assert generated == {**HEAD, "response": "", "thinking": "hm", "done": True, "done_reason": "length", **COUNTS}


def test_a_call_comes_whole_with_its_arguments_as_an_object() -> None:
    events = [
        ADMITTED,
        *text("Look."),
        *call(0, "f", '{"a":', "[1,null]}"),
        *call(1, "g", "{}"),
        finished("tool_calls"),
    ]
    _, first, second, last = payloads(frames(encoder(), events))
    assert first["message"]["content"] == ""
    (made,) = first["message"]["tool_calls"]
    assert made["function"] == {"index": 0, "name": "f", "arguments": {"a": [1, None]}}
    assert second["message"]["tool_calls"][0]["function"] == {"index": 1, "name": "g", "arguments": {}}
    assert made["id"] != second["message"]["tool_calls"][0]["id"]
    assert last["done_reason"] == "stop"
    whole = encoder().whole(events)
    assert whole["message"]["tool_calls"] == [made, *second["message"]["tool_calls"]]
    assert whole["message"]["content"] == "Look."


def test_a_cut_call_is_never_shown() -> None:
    events = [ADMITTED, *text("x"), *begun_call(0, "f", '{"a":"lo'), finished("length")]
    sent = payloads(frames(encoder(), events))
    assert not any("tool_calls" in line["message"] for line in sent)
    assert sent[-1]["done_reason"] == "length"
    assert "tool_calls" not in encoder().whole(events)["message"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("reason", "expected"),
    [("stop", "stop"), ("stop_string", "stop"), ("length", "length"), ("window", "length"), ("tool_calls", "stop")],
)
def test_every_end_has_its_reason(route: Route, reason: FinishReason, expected: str) -> None:
    assert encoder(route).whole([ADMITTED, finished(reason)])["done_reason"] == expected


@pytest.mark.parametrize("route", ROUTES)
def test_streamed_lines_join_to_the_whole_reply(route: Route) -> None:
    events = [ADMITTED, *thinking("so ", "so"), *text("\U0001f600", "é\n", "z"), finished("stop_string")]
    sent, whole = payloads(frames(encoder(route), events)), encoder(route).whole(events)

    def words(line: dict[str, Any], key: str) -> str:
        values = line["message"] if route == "chat" else line
        return str(values.get(key, ""))

    for key in ("content" if route == "chat" else "response", "thinking"):
        assert "".join(words(line, key) for line in sent) == words(whole, key)
    assert [line["done"] for line in sent] == [False] * (len(sent) - 1) + [True]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("before", [[], [ADMITTED], [ADMITTED, *text("half of it")], [ADMITTED, *call(0, "f", "{}")]])
def test_a_failure_in_the_middle_cannot_be_taken_for_success(route: Route, before: list[ReplyEvent]) -> None:
    *lines, last = payloads(frames(encoder(route), [*before, FAILED]))
    assert last == {"error": "experts.bin: read 3 of 9 bytes", "code": "inference_error"}
    assert all(line["done"] is False for line in lines)


@pytest.mark.parametrize("route", ROUTES)
def test_a_keepalive_is_a_line_that_adds_nothing(route: Route) -> None:
    (line,) = payloads(encoder(route).keepalive())
    assert line["done"] is False
    assert (line["message"]["content"] if route == "chat" else line["response"]) == ""


def test_no_character_of_a_reply_breaks_a_line() -> None:
    difficult = "a\u2028b\u2029c\x85d\r\ne\x00\x1c\x0b\U0001f600"
    sent = frames(encoder(), [ADMITTED, *text(difficult), finished()])
    assert all(len(frame.data.splitlines()) == 1 for frame in sent)
    assert payloads(sent)[0]["message"]["content"] == difficult


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure(code="invalid_request", message="m", param="messages.0"), {"error": "m"}),
        (Failure(code="not_implemented", message="m"), {"error": "m", "code": "not_implemented"}),
        (
            Failure(code="insufficient_memory", message="m", details={"required_bytes": 9}),
            {
                "error": "m",
                "code": "insufficient_memory",
                "details": {"code": "insufficient_memory", "message": "m", "required_bytes": 9},
            },
        ),
    ],
)
def test_errors_have_the_dialects_shape(failure: Failure, expected: dict[str, Any]) -> None:
    assert Ollama(version="1").error_body(failure) == expected


def test_a_prompt_that_is_too_long_is_compared_with_the_window() -> None:
    details = {"prompt_tokens": 5000, "window_tokens": 4096}
    body = Ollama(version="1").error_body(Failure(code="context_length_exceeded", message="m", details=details))
    assert body["error"].startswith("the prompt has 5000 tokens, and the context window has 4096")
    assert body["code"] == "context_length_exceeded"
    failure = Failure(code="context_length_exceeded", message="m", details={**details, "prompt_tokens_at_least": True})
    assert Ollama(version="1").error_body(failure)["error"].startswith("the prompt has at least 5000 tokens, and")


PLAN = {"experts_per_layer_cached": 3.0, "target_bytes": 12}


def answer(path: str, body: dict[str, Any] | None = None, **model: Any) -> Answer:
    routes = {route.path: route for route in Ollama(version="0.1.0").info_routes}
    return routes[path].answer(body or {}, context(path, resident_bytes=77, memory_plan=PLAN, **model))


def test_the_model_is_listed_with_its_weights_and_its_plan() -> None:
    (card,) = answer("/api/tags", experts_per_layer=8).body["models"]
    assert {key: card[key] for key in ("name", "model", "size", "digest")} == {
        "name": "tiny:4bit",
        "model": "tiny:4bit",
        "size": 500,
        "digest": "tiny-1",
    }
    assert datetime.fromisoformat(card["modified_at"]).timestamp() == 1_700_000_000
    assert card["details"] == {
        "parent_model": "",
        "format": "safetensors",
        "family": "qwen4_exp",
        "families": ["qwen4_exp"],
        "parameter_size": "1K",
        "quantization_level": "4bit",
        "expert_cache_per_layer": 3.0,
        "experts_per_layer": 8,
        "memory_plan": PLAN,
    }


def test_the_running_model_is_as_large_as_the_process_and_stays_an_hour() -> None:
    (card,) = answer("/api/ps").body["models"]
    assert (card["size"], card["size_vram"]) == (77, 77)
    assert datetime.fromisoformat(card["expires_at"]).timestamp() == 1_790_003_600.25
    assert card["context_length"] == 4096


@pytest.mark.parametrize(
    "body",
    [
        {"model": "tiny"},
        {"model": "", "name": "tiny:4bit"},
        {"name": "tiny", "verbose": True},
        {"model": "tiny", "name": "", "system": "", "template": "", "options": {}, "verbose": False},
        {"model": "tiny", "system": None, "options": None},
    ],
)
def test_the_model_is_described_also_to_older_clients(body: dict[str, Any]) -> None:
    shown = answer("/api/show", body, context_policy={"configured_window": 4096}).body
    assert shown["parameters"] == "num_ctx 4096"
    assert shown["template"] == "{{ .Prompt }}"
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["max_context_tokens"] == 4096
    assert shown["context_policy"] == {"configured_window": 4096}
    assert shown["model_info"] == {
        "general.architecture": "qwen4_exp",
        "general.parameter_count": 1000,
        "qwen4_exp.context_length": 4096,
    }
    assert json.loads(json.dumps(shown)) == shown


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"model": ""}, 400),
        ({"model": "other"}, 404),
        ({"model": "tiny", "system": "be brief"}, 400),
        ({"model": "tiny", "template": "x"}, 400),
        ({"model": "tiny", "options": {"seed": 1}}, 400),
        ({"model": "tiny", "license": "x"}, 400),
        ({"model": 1}, 400),
        ({"model": "tiny", "verbose": 1}, 400),
    ],
)
def test_what_would_change_the_model_is_not_shown(body: dict[str, Any], status: int) -> None:
    with pytest.raises(Refused) as caught:
        answer("/api/show", body)
    assert caught.value.failure.http_status == status


@pytest.mark.parametrize(
    ("path", "status"), [("/api/embed", 400), ("/api/embeddings", 400), ("/api/pull", 501), ("/api/create", 501)]
)
def test_what_this_server_does_not_do_says_what_to_do_instead(path: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        answer(path, {"model": "tiny"})
    assert caught.value.failure.http_status == status
    assert "use" in str(caught.value) or "slotstream pull" in str(caught.value)


def test_the_version_is_the_servers_own() -> None:
    expected = {"version": API_VERSION, "server": "slotstream", "server_version": "0.1.0"}
    assert answer("/api/version").body == expected


def test_an_image_capable_model_says_so() -> None:
    assert "vision" in answer("/api/show", {"model": "tiny"}, vision=True).body["capabilities"]
