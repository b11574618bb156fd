"""Chat Completions replies: whole bodies, chunks and errors."""

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from slotstream_serve.dialects.base import Frame, JsonObject, RequestContext
from slotstream_serve.dialects.collected import collect_reply
from slotstream_serve.dialects.text_frames import TEXT, TextFrames
from slotstream_serve.dialects.tools import derived_hex, json_text
from slotstream_serve.errors import Failure
from slotstream_serve.reply import (
    Admitted,
    FinishReason,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyUsage,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)

FINISH_REASONS: Mapping[FinishReason, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "window": "length",
    "tool_calls": "tool_calls",
}
DONE = Frame(data="[DONE]")
KEEPALIVE = Frame(comment="keepalive")


class ChatCompletionEncoder:
    """Encodes one reply."""

    def __init__(self, context: RequestContext, *, include_usage: bool) -> None:
        """Prepare the values that every chunk repeats."""
        self._unique = context.unique
        self._head: JsonObject = {
            "id": f"chatcmpl-{uuid.UUID(hex=context.unique)}",
            "created": int(context.now_s),
            "model": context.model.name,
        }
        self._include_usage = include_usage
        self._open_calls: set[int] = set()

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the chunks an event completes."""
        match event:
            case Admitted():
                return [self._chunk({"role": "assistant"})]
            case TextDelta():
                return [self._texts.frame(event.text)] if event.text else []
            case ThinkingDelta():
                return [self._thoughts.frame(event.text)] if event.text else []
            case ToolCallStarted():
                self._open_calls.add(event.index)
                return [self._call(event.index, event.name)]
            case ToolCallArguments():
                call = {"index": event.index, "function": {"arguments": event.fragment}}
                return [self._chunk({"tool_calls": [call]})] if event.fragment else []
            case ToolCallFinished():
                self._open_calls.discard(event.index)
                return []
            case ReplyFinished():
                return [self._last(event), DONE]
            case ReplyFailed():
                return [Frame(data=json_text(error_body(event.failure)))]

    def keepalive(self) -> Sequence[Frame]:
        """Return a comment, which clients skip."""
        return [KEEPALIVE]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return a completion."""
        reply = collect_reply(events)
        message: JsonObject = {"role": "assistant", "content": reply.text}
        if reply.calls and not reply.text:
            message["content"] = None
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": self._call_id(call.index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        reason = finish_reason(reply.end.reason, cut_call=reply.cut_call)
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage_values(reply.end.usage),
        }

    def _call_id(self, index: int) -> str:
        return f"call_{derived_hex(self._unique, f'call {index}')}"

    def _call(self, index: int, name: str) -> Frame:
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": self._call_id(index), "type": "function", "function": function}
        return self._chunk({"tool_calls": [call]})

    def _last(self, event: ReplyFinished) -> Frame:
        reason = finish_reason(event.reason, cut_call=bool(self._open_calls))
        usage = {"usage": usage_values(event.usage)} if self._include_usage else {}
        return self._chunk({}, reason, **usage)

    @cached_property
    def _texts(self) -> TextFrames:
        return TextFrames(self._chunk_value({"content": TEXT}))

    @cached_property
    def _thoughts(self) -> TextFrames:
        return TextFrames(self._chunk_value({"reasoning_content": TEXT}))

    def _chunk(self, delta: JsonObject, reason: str | None = None, **more: Any) -> Frame:
        return Frame(data=json_text({**self._chunk_value(delta, reason), **more}))

    def _chunk_value(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}


def finish_reason(reason: FinishReason, *, cut_call: bool) -> str:
    """Return the dialect's reason.  A reply whose last call was cut off never invites executing calls."""
    return "length" if cut_call else FINISH_REASONS[reason]


def usage_values(usage: ReplyUsage) -> JsonObject:
    """Return token counts in the dialect's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
    }


def error_body(failure: Failure) -> JsonObject:
    """Return an error in the dialect's shape."""
    error: JsonObject = {"message": error_message(failure), "type": error_type(failure)}
    if failure.dialect_code is not None:
        error["code"] = failure.dialect_code
    elif failure.code != "invalid_request":
        error["code"] = failure.code
    if failure.param is not None:
        error["param"] = failure.param
    if failure.details:
        error["details"] = dict(failure.details)
    return {"error": error}


def error_type(failure: Failure) -> str:
    """Return the dialect's kind of error, by the status it has or would have had."""
    if failure.http_status == 401:
        return "authentication_error"
    if failure.http_status == 403:
        return "permission_error"
    return "invalid_request_error" if failure.http_status < 500 else "server_error"


def error_message(failure: Failure) -> str:
    """Return a message in the words that this dialect's clients look for."""
    if (sizes := failure.prompt_and_window) is not None:
        prompt, window = sizes
        return (
            f"This model's maximum context length is {window} tokens, and the prompt has {prompt}; "
            "one must stay free for the reply. Send less input, or serve a larger window with --max-context."
        )
    return failure.message
