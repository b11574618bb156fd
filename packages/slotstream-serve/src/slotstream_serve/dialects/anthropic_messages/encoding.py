"""A reply in the Messages API: the message, and the events that build it.

    message_start  ping  (content_block_start content_block_delta* content_block_stop)*  message_delta  message_stop

Calls are delivered whole, once they are complete.  After an `error` event nothing follows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from slotstream_serve.dialects.anthropic_messages.signing import sign_thinking
from slotstream_serve.dialects.base import Frame, JsonObject
from slotstream_serve.dialects.text_frames import TEXT, TextFrames
from slotstream_serve.dialects.tools import derived_hex, json_text
from slotstream_serve.errors import Failure
from slotstream_serve.reply import (
    Admitted,
    FinishReason,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
)

STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "window": "model_context_window_exceeded",
}

ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    529: "overloaded_error",
}


class MessageEncoder:
    """Encodes one message."""

    def __init__(self, *, unique: str, model: str, thinking: Literal["shown", "omitted"]) -> None:
        """Prepare a message of a model; its thinking is returned with or without the text."""
        self._unique = unique
        self._model = model
        self._shown = thinking == "shown"
        self._blocks: list[JsonObject] = []
        self._open: Literal["thinking", "text"] | None = None
        self._text: list[str] = []
        self._deltas: TextFrames | None = None
        self._message: JsonObject = {}

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the frames that an event completes."""
        if self._open == "text" and isinstance(event, TextDelta):
            return self._go_on(event.text)
        if self._open == "thinking" and isinstance(event, ThinkingDelta):
            return self._go_on(event.text)
        return [_frame(payload) for payload in self._advance(event)]

    def keepalive(self) -> Sequence[Frame]:
        """Return a ping, or an empty delta while a thinking block grows unseen."""
        if self._open == "thinking" and not self._shown:
            return [_frame(self._delta({"type": "thinking_delta", "thinking": ""}))]
        return [_frame({"type": "ping"})]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return the finished message."""
        for event in events:
            self._advance(event)
        return {**self._message, "content": self._blocks}

    def _advance(self, event: ReplyEvent) -> list[JsonObject]:
        match event:
            case Admitted():
                return self._start(event)
            case ThinkingDelta():
                opened = self._grow("thinking", event.text)
                return (
                    [*opened, self._delta({"type": "thinking_delta", "thinking": event.text})]
                    if self._shown
                    else opened
                )
            case TextDelta():
                opened = self._grow("text", event.text)
                return [*opened, self._delta({"type": "text_delta", "text": event.text})]
            case ToolCallFinished():
                return [*self._close(), *self._call(event)]
            case ReplyFinished():
                return [*self._close(), *self._finish(event)]
            case ReplyFailed():
                return [error_object(event.failure)]
        return []

    def _start(self, event: Admitted) -> list[JsonObject]:
        self._message = {
            "id": f"msg_{self._unique}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(event.prompt_tokens, event.cached_tokens, 0),
        }
        return [{"type": "message_start", "message": self._message}, {"type": "ping"}]

    def _grow(self, kind: Literal["thinking", "text"], text: str) -> list[JsonObject]:
        events: list[JsonObject] = []
        if self._open != kind:
            events += self._close()
            self._open = kind
            empty = {"type": "text", "text": ""}
            if kind == "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
            events.append(self._block_start(empty))
        self._text.append(text)
        return events

    def _go_on(self, text: str) -> Sequence[Frame]:
        """Return the frames of more text in the open block."""
        self._text.append(text)
        if self._open == "thinking" and not self._shown:
            return []
        if self._deltas is None:
            delta = {"type": "text_delta", "text": TEXT}
            if self._open == "thinking":
                delta = {"type": "thinking_delta", "thinking": TEXT}
            self._deltas = TextFrames(self._delta(delta), event="content_block_delta")
        return [self._deltas.frame(text)]

    def _close(self) -> list[JsonObject]:
        kind, self._open, self._deltas = self._open, None, None
        if kind is None:
            return []
        text, self._text = "".join(self._text), []
        stop = {"type": "content_block_stop", "index": len(self._blocks)}
        if kind == "text":
            self._blocks.append({"type": "text", "text": text})
            return [stop]
        signature = sign_thinking(text)
        signed = self._delta({"type": "signature_delta", "signature": signature})
        self._blocks.append({"type": "thinking", "thinking": text if self._shown else "", "signature": signature})
        return [signed, stop]

    def _call(self, event: ToolCallFinished) -> list[JsonObject]:
        head = {
            "type": "tool_use",
            "id": f"toolu_{derived_hex(self._unique, f'call {event.index}', 24)}",
            "name": event.name,
        }
        events = [
            self._block_start({**head, "input": {}}),
            self._delta({"type": "input_json_delta", "partial_json": event.arguments}),
            {"type": "content_block_stop", "index": len(self._blocks)},
        ]
        self._blocks.append({**head, "input": json.loads(event.arguments)})
        return events

    def _finish(self, event: ReplyFinished) -> list[JsonObject]:
        usage = event.usage
        end = {"stop_reason": STOP_REASONS[event.reason], "stop_sequence": event.stop_string}
        counts = _usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        self._message = {**self._message, **end, "usage": counts}
        return [{"type": "message_delta", "delta": end, "usage": counts}, {"type": "message_stop"}]

    def _block_start(self, block: JsonObject) -> JsonObject:
        return {"type": "content_block_start", "index": len(self._blocks), "content_block": block}

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": len(self._blocks), "delta": delta}


def error_object(failure: Failure) -> JsonObject:
    """Return Anthropic's error object."""
    status = failure.http_status
    error: JsonObject = {"type": ERROR_TYPES.get(status, "api_error"), "message": failure.message}
    if failure.details:
        error["details"] = dict(failure.details)
    return {"type": "error", "error": error}


def _usage(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> JsonObject:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


def _frame(payload: JsonObject) -> Frame:
    return Frame(event=payload["type"], data=json_text(payload))
