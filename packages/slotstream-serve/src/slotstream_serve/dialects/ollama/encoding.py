"""Ollama replies: whole bodies, lines and errors."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

from slotstream_serve.dialects.base import Frame, JsonObject, RequestContext
from slotstream_serve.dialects.collected import collect_reply
from slotstream_serve.dialects.text_frames import TEXT, TextFrames
from slotstream_serve.dialects.tools import derived_hex, json_text
from slotstream_serve.errors import Failure
from slotstream_serve.reply import (
    FinishReason,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyUsage,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
)

DONE_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "window": "length",
    "tool_calls": "stop",
}
NANOSECONDS = 10**9


class OllamaEncoder:
    """Encodes one reply of either route."""

    def __init__(self, context: RequestContext, route: Literal["chat", "generate"]) -> None:
        """Prepare the values that every line repeats."""
        self._unique = context.unique
        self._route = route
        self._head: JsonObject = {"model": context.model.name, "created_at": rfc3339(context.now_s)}

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the lines an event completes."""
        match event:
            case TextDelta():
                return [self._texts.frame(event.text)] if event.text else []
            case ThinkingDelta():
                return [self._thoughts.frame(event.text)] if event.text else []
            case ToolCallFinished():
                return [self._line(calls=[event])]
            case ReplyFinished():
                return [Frame(data=json_text({**self._said(), **self._end(event)}))]
            case ReplyFailed():
                return [Frame(data=json_text(last_error_line(event.failure)))]
            case _:
                return []

    def keepalive(self) -> Sequence[Frame]:
        """Return a line that adds nothing."""
        return [self._line()]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return the one body of a reply."""
        reply = collect_reply(events)
        return {**self._said(text=reply.text, thinking=reply.thinking, calls=reply.calls), **self._end(reply.end)}

    def loaded(self) -> JsonObject:
        """Return the answer to a client that only asks whether the model is loaded."""
        return {**self._said(), "done": True, "done_reason": "load"}

    @cached_property
    def _texts(self) -> TextFrames:
        return TextFrames(self._going_on(text=TEXT))

    @cached_property
    def _thoughts(self) -> TextFrames:
        return TextFrames(self._going_on(thinking=TEXT))

    def _line(self, **said: Any) -> Frame:
        return Frame(data=json_text(self._going_on(**said)))

    def _going_on(self, **said: Any) -> JsonObject:
        return {**self._said(**said), "done": False}

    def _said(self, *, text: str = "", thinking: str = "", calls: Sequence[ToolCallFinished] = ()) -> JsonObject:
        reasoning = {"thinking": thinking} if thinking else {}
        if self._route == "generate":
            return {**self._head, "response": text, **reasoning}
        message: JsonObject = {"role": "assistant", "content": text, **reasoning}
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        return {**self._head, "message": message}

    def _call(self, call: ToolCallFinished) -> JsonObject:
        function = {"index": call.index, "name": call.name, "arguments": json.loads(call.arguments)}
        return {"id": f"call_{derived_hex(self._unique, f'call {call.index}', 8)}", "function": function}

    def _end(self, event: ReplyFinished) -> JsonObject:
        return {"done": True, "done_reason": DONE_REASONS[event.reason], **_counts(event.usage)}


def error_body(failure: Failure) -> JsonObject:
    """Return an error before a stream has begun."""
    body: JsonObject = {"error": error_message(failure)}
    if failure.code != "invalid_request":
        body["code"] = failure.code
    if failure.details:
        body["details"] = {"code": failure.code, "message": body["error"], **failure.details}
    return body


def last_error_line(failure: Failure) -> JsonObject:
    """Return the last line of a stream that failed."""
    return {"error": error_message(failure), "code": failure.code}


def error_message(failure: Failure) -> str:
    """Return a failure's message; a prompt that is too long is compared with the window that clients set."""
    if (sizes := failure.prompt_and_window) is not None:
        prompt, window = sizes
        return (
            f"the prompt has {prompt}, and the context window has {window}, one of them for the reply; "
            "send less input, or serve a larger window with --max-context"
        )
    return failure.message


def rfc3339(seconds: float) -> str:
    """Return a point in time, in seconds since the epoch, with microseconds and in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _counts(usage: ReplyUsage) -> JsonObject:
    """Return token counts, and durations in nanoseconds."""
    return {
        "total_duration": round((usage.queue_s + usage.prefill_s + usage.decode_s) * NANOSECONDS),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round(usage.prefill_s * NANOSECONDS),
        "eval_count": usage.completion_tokens,
        "eval_duration": round(usage.decode_s * NANOSECONDS),
    }
