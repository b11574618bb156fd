"""How a reply looks in the Responses API: exact events, their order, and the object they build."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from slotstream_serve.dialects.base import Frame, ReplyEncoder
from slotstream_serve.dialects.openai_responses import OpenAIResponses
from slotstream_serve.errors import Failure
from slotstream_serve.reply import ReplyEvent, ReplyFailed, TextDelta, ThinkingDelta
from tests.serve.replies import ADMITTED, FAILED, UNIQUE, begun_call, call, context, finished, frames, text, thinking

SEARCH = {"type": "function", "name": "search", "parameters": {"type": "object"}}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "docs", "tools": [SEARCH]},
    {"type": "custom", "name": "apply_patch"},
]
EVERYTHING: list[ReplyEvent] = [
    ADMITTED,
    *thinking("Let me ", "see."),
    *text("It ", "is"),
    *call(0, "weather", '{"city":', '"Bern"}'),
    *call(1, "docs.search", "{}"),
    *call(2, "apply_patch", '{"input":"*** Begin\\n"}'),
    finished("tool_calls"),
]


def encoder(**fields: Any) -> ReplyEncoder:
    body = {"model": "tiny", "input": "hi", "tools": TOOLS, **fields}
    return OpenAIResponses().parse(body, context()).encoder


def sent(events: Sequence[ReplyEvent], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for number, frame in enumerate(frames(encoder(**fields), events)):
        payload = json.loads(frame.data)
        assert frame.event == payload.pop("type")
        assert payload.pop("sequence_number") == number
        found.append((frame.event or "", payload))
    return found


def names(events: Sequence[ReplyEvent]) -> list[str]:
    return [name.removeprefix("response.") for name, _payload in sent(events)]


def test_events_come_in_the_order_clients_expect() -> None:
    assert names(EVERYTHING) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]


def test_the_events_of_a_message_are_exactly_these() -> None:
    item = f"msg_{UNIQUE[:12]}_0"
    place = {"item_id": item, "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Hello", "annotations": []}
    message = {"id": item, "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    events = sent([ADMITTED, *text("Hell", "o"), finished()])
    assert events[2:-1] == [
        (
            "response.output_item.added",
            {"output_index": 0, "item": {**message, "status": "in_progress", "content": []}},
        ),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**place, "delta": "Hell", "logprobs": []}),
        ("response.output_text.delta", {**place, "delta": "o", "logprobs": []}),
        ("response.output_text.done", {**place, "text": "Hello", "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
    ]
    name, last = events[-1]
    assert name == "response.completed"
    assert last["response"]["output"] == [message]
    assert last["response"]["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }


def test_calls_are_delivered_whole_and_names_are_split_again() -> None:
    done = [payload["item"] for name, payload in sent(EVERYTHING) if name == "response.output_item.done"][2:]
    assert [item["id"].split("_")[0] for item in done] == ["fc", "fc", "ctc"]
    assert [item["type"] for item in done] == ["function_call", "function_call", "custom_tool_call"]
    assert done[0]["arguments"] == '{"city":"Bern"}'
    assert "namespace" not in done[0]
    assert (done[1]["name"], done[1]["namespace"]) == ("search", "docs")
    assert done[2]["input"] == "*** Begin\n"
    assert len({item["call_id"] for item in done}) == 3
    assert all(item["status"] == "completed" for item in done)
    added = [payload["item"] for name, payload in sent(EVERYTHING) if name == "response.output_item.added"][2:]
    assert [item.get("arguments", item.get("input")) for item in added] == ["", "", ""]


def test_a_whole_reply_is_the_response_that_the_stream_ends_with() -> None:
    streamed = sent(EVERYTHING)[-1][1]["response"]
    assert encoder().whole(EVERYTHING) == streamed


def test_deltas_join_to_what_the_finished_items_say() -> None:
    events = sent(EVERYTHING)
    for index, item in enumerate(events[-1][1]["response"]["output"]):
        deltas = [
            payload["delta"] for name, payload in events if name.endswith(".delta") and payload["output_index"] == index
        ]
        part = (item.get("summary") or item.get("content") or [{}])[0]
        assert "".join(deltas) == part.get("text", item.get("arguments", item.get("input")))


def test_the_response_repeats_the_request() -> None:
    response = encoder(
        instructions="Be brief.", temperature=0.5, max_output_tokens=9, reasoning={"effort": "low"}, metadata={"a": "b"}
    ).whole(EVERYTHING)
    assert response["id"] == f"resp_{UNIQUE}"
    assert response["object"] == "response"
    assert response["model"] == "tiny:4bit"
    assert response["tools"] == TOOLS
    assert (response["instructions"], response["temperature"], response["max_output_tokens"]) == ("Be brief.", 0.5, 9)
    assert response["reasoning"] == {"effort": "low"}
    assert response["text"] == {"format": {"type": "text"}}
    assert (response["tool_choice"], response["parallel_tool_calls"], response["truncation"]) == (
        "auto",
        True,
        "disabled",
    )
    assert response["metadata"] == {"a": "b"}
    assert (response["store"], response["background"], response["previous_response_id"]) == (False, False, None)
    assert response["status"] == "completed"
    assert (response["error"], response["incomplete_details"]) == (None, None)


@pytest.mark.parametrize("reason", ["length", "window"])
def test_a_reply_that_ran_out_of_tokens_is_incomplete(reason: Any) -> None:
    name, payload = sent([ADMITTED, *text("so"), *begun_call(0, "weather", '{"city":'), finished(reason)])[-1]
    assert name == "response.incomplete"
    assert payload["response"]["status"] == "incomplete"
    assert payload["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = payload["response"]["output"]
    assert (item["type"], item["status"]) == ("message", "incomplete")


def test_a_complete_call_completes_a_reply_that_ran_out_of_tokens() -> None:
    events = [ADMITTED, *call(0, "weather", "{}"), *begun_call(1, "weather"), finished("tool_calls")]
    name, payload = sent(events)[-1]
    assert name == "response.completed"
    assert [item["type"] for item in payload["response"]["output"]] == ["function_call"]


def test_a_failure_in_the_middle_is_no_success() -> None:
    events = sent([ADMITTED, *text("so"), *call(0, "weather", "{}"), FAILED])
    assert [name for name, _payload in events if name in ("response.completed", "response.incomplete")] == []
    name, payload = events[-1]
    assert name == "response.failed"
    assert payload["response"]["status"] == "failed"
    assert payload["response"]["error"] == {"code": "inference_error", "message": "experts.bin: read 3 of 9 bytes"}
    assert payload["response"]["output"] == []


def test_silence_is_filled_with_a_numbered_event() -> None:
    one = encoder()
    frames(one, [ADMITTED])
    (frame,) = one.keepalive()
    payload = json.loads(frame.data)
    assert (frame.event, payload["sequence_number"]) == ("response.in_progress", 2)
    assert payload["response"]["status"] == "in_progress"


@pytest.mark.parametrize("kind", ["message", "reasoning"])
def test_what_fills_a_silence_carries_the_output_so_far(kind: str) -> None:
    one = encoder()
    delta: ReplyEvent = TextDelta(text="half") if kind == "message" else ThinkingDelta(text="half")
    frames(one, [ADMITTED, delta])
    (frame,) = one.keepalive()
    (item,) = json.loads(frame.data)["response"]["output"]
    assert item["type"] == kind
    assert item["content" if kind == "message" else "summary"][0]["text"] == "half"


def test_payloads_have_sorted_keys_and_no_bare_line_separators() -> None:
    def check(frame: Frame) -> None:
        assert list(json.loads(frame.data)) == sorted(json.loads(frame.data))
        assert "\u2028" not in frame.data

    for frame in frames(encoder(), [ADMITTED, *text("a\u2028b"), finished()]):
        check(frame)


def test_errors_have_openais_shape() -> None:
    dialect = OpenAIResponses()
    overflow = Failure(
        code="context_length_exceeded", message="prompt is too long: 9 tokens > 7 maximum", details={"prompt_tokens": 9}
    )
    assert dialect.error_body(overflow) == {
        "error": {
            "message": "prompt is too long: 9 tokens > 7 maximum",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
            "details": {"prompt_tokens": 9},
        }
    }
    assert dialect.error_body(Failure(code="inference_error", message="x"))["error"]["type"] == "server_error"
    failed = sent([ReplyFailed(failure=overflow)])
    assert failed[0][1]["response"]["error"]["code"] == "context_length_exceeded"
