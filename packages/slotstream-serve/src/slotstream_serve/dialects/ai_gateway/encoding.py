"""A reply in the gateway protocol: the parts of a stream, or one result.

    stream-start  response-metadata  (reasoning-* | text-* | tool-input-* tool-call)*  finish  [DONE]

Calls are delivered whole, once they are complete.  A reply that fails ends with an `error` part, without `[DONE]`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from slotstream_serve.dialects.ai_gateway.coding import error_value
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
    ReplyUsage,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
)

UNIFIED: Mapping[FinishReason, str] = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "window": "length",
    "tool_calls": "tool-calls",
}
DONE = Frame(data="[DONE]")
ID_DIGITS = 8


class GatewayEncoder:
    """Encodes one reply."""

    def __init__(self, *, unique: str, model_id: str, now_s: float) -> None:
        """Prepare a reply of a model, begun at a time."""
        self._unique = unique
        self._metadata: JsonObject = {
            "id": f"gen_{derived_hex(unique, 'generation', ID_DIGITS)}",
            "modelId": model_id,
            "timestamp": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        self._open: Literal["reasoning", "text"] | None = None
        self._text: list[str] = []
        self._deltas: TextFrames | None = None
        self._counts = {"reasoning": 0, "text": 0}
        self._content: list[JsonObject] = []
        self._admitted: Admitted | None = None
        self._end: JsonObject = {}

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the frames that an event completes."""
        if self._open == "text" and isinstance(event, TextDelta):
            return self._go_on(self._open, event.text)
        if self._open == "reasoning" and isinstance(event, ThinkingDelta):
            return self._go_on(self._open, event.text)
        frames = [Frame(data=json_text(part, sort_keys=True)) for part in self._advance(event)]
        return [*frames, DONE] if isinstance(event, ReplyFinished) else frames

    def keepalive(self) -> Sequence[Frame]:
        """Return a comment, which every client skips."""
        return [Frame(comment="keepalive")]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return the result of a reply."""
        for event in events:
            self._advance(event)
        return {"content": self._content, **self._end, "warnings": [], "response": self._metadata}

    def _advance(self, event: ReplyEvent) -> list[JsonObject]:
        match event:
            case Admitted():
                self._admitted = event
                return [{"type": "stream-start", "warnings": []}, {"type": "response-metadata", **self._metadata}]
            case ThinkingDelta():
                return self._grow("reasoning", event.text)
            case TextDelta():
                return self._grow("text", event.text)
            case ToolCallFinished():
                return [*self._close(), *self._call(event)]
            case ReplyFinished():
                self._end = {
                    "finishReason": {"unified": UNIFIED[event.reason], "raw": event.reason},
                    "usage": _usage(event.usage),
                }
                return [*self._close(), {"type": "finish", **self._end}]
            case ReplyFailed():
                return self._fail(event.failure)
        return []

    def _grow(self, kind: Literal["reasoning", "text"], text: str) -> list[JsonObject]:
        parts: list[JsonObject] = []
        if self._open != kind:
            parts += self._close()
            self._open = kind
            parts.append({"type": f"{kind}-start", "id": self._block_id(kind)})
        self._text.append(text)
        return [*parts, self._delta(kind, text)]

    def _go_on(self, kind: Literal["reasoning", "text"], text: str) -> Sequence[Frame]:
        """Return the frame of more text in the open block."""
        self._text.append(text)
        if self._deltas is None:
            self._deltas = TextFrames(self._delta(kind, TEXT), sort_keys=True)
        return [self._deltas.frame(text)]

    def _delta(self, kind: Literal["reasoning", "text"], text: str) -> JsonObject:
        return {"type": f"{kind}-delta", "id": self._block_id(kind), "delta": text}

    def _close(self) -> list[JsonObject]:
        kind, self._open, self._deltas = self._open, None, None
        if kind is None:
            return []
        self._content.append({"type": kind, "text": "".join(self._text)})
        self._text = []
        end = {"type": f"{kind}-end", "id": self._block_id(kind)}
        self._counts[kind] += 1
        return [end]

    def _call(self, event: ToolCallFinished) -> list[JsonObject]:
        call_id = f"call_{derived_hex(self._unique, f'call {event.index}', ID_DIGITS)}"
        call = {"type": "tool-call", "toolCallId": call_id, "toolName": event.name, "input": event.arguments}
        self._content.append(call)
        return [
            {"type": "tool-input-start", "id": call_id, "toolName": event.name},
            {"type": "tool-input-delta", "id": call_id, "delta": event.arguments},
            {"type": "tool-input-end", "id": call_id},
            call,
        ]

    def _fail(self, failure: Failure) -> list[JsonObject]:
        parts: list[JsonObject] = [{"type": "error", "error": error_value(failure)}]
        if failure.code == "tool_choice_unsatisfied" and self._admitted is not None:
            reason = {"unified": "error", "raw": failure.code}
            parts += [*self._close(), {"type": "finish", "finishReason": reason, "usage": _no_usage(self._admitted)}]
        return parts

    def _block_id(self, kind: Literal["reasoning", "text"]) -> str:
        return f"{kind[0]}{self._counts[kind]}"


def _usage(usage: ReplyUsage) -> JsonObject:
    return {
        "inputTokens": _input_tokens(usage.prompt_tokens, usage.cached_tokens),
        "outputTokens": {
            "total": usage.completion_tokens,
            "text": usage.completion_tokens - usage.thinking_tokens,
            "reasoning": usage.thinking_tokens,
        },
    }


def _no_usage(admitted: Admitted) -> JsonObject:
    """Return what is known of a reply that failed: its prompt."""
    return {"inputTokens": _input_tokens(admitted.prompt_tokens, admitted.cached_tokens), "outputTokens": {}}


def _input_tokens(total: int, cached: int) -> dict[str, Any]:
    return {"total": total, "noCache": total - cached, "cacheRead": cached, "cacheWrite": 0}
