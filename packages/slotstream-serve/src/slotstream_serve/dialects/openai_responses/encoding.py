"""A reply in the Responses API: the response object, and the events that build it.

    created  in_progress  (output_item.added ... output_item.done)*  completed | incomplete | failed

Every event carries its type and a sequence number counting from 0.  Calls are delivered whole, once they are complete.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from slotstream_serve.dialects.base import Frame, JsonObject
from slotstream_serve.dialects.openai_chat.encoding import error_message
from slotstream_serve.dialects.openai_responses.declaring import FREEFORM_ARGUMENT, DeclaredTools, ToolOrigin
from slotstream_serve.dialects.text_frames import NUMBER, TEXT, NumberedFrames
from slotstream_serve.dialects.tools import derived_hex, json_text
from slotstream_serve.errors import Failure
from slotstream_serve.reply import (
    Admitted,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyUsage,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
)

Event = tuple[str, JsonObject]


@dataclass(kw_only=True)
class _OpenItem:
    """A reasoning or message item that still grows."""

    kind: Literal["reasoning", "message"]
    id: str
    index: int
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All its text so far."""
        return "".join(self.pieces)

    @cached_property
    def deltas(self) -> NumberedFrames:
        """The frames that add to it."""
        name, payload = self.delta(TEXT)
        return NumberedFrames({"type": name, "sequence_number": NUMBER, **payload}, event=name)

    def value(self, status: str) -> JsonObject:
        """Return the item as it is now."""
        if self.kind == "reasoning":
            return {
                "id": self.id,
                "type": "reasoning",
                "summary": [self.part()] if any(self.pieces) else [],
                "encrypted_content": None,
            }
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self.part()] if status != "in_progress" else [],
        }

    def so_far(self) -> JsonObject:
        """Return the item in the middle of being made, with the part that was announced."""
        parts = "summary" if self.kind == "reasoning" else "content"
        return {**self.value("in_progress"), parts: [self.part()]}

    def part(self) -> JsonObject:
        """Return the item's only part."""
        if self.kind == "reasoning":
            return {"type": "summary_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": []}

    def delta(self, text: str) -> Event:
        """Return the event that adds a text."""
        payload = {**self.place(), "delta": text}
        if self.kind == "reasoning":
            return ("response.reasoning_summary_text.delta", payload)
        return ("response.output_text.delta", {**payload, "logprobs": []})

    def place(self) -> JsonObject:
        """Return where events about the part happen."""
        index_name = "summary_index" if self.kind == "reasoning" else "content_index"
        return {"item_id": self.id, "output_index": self.index, index_name: 0}


class ResponseEncoder:
    """Encodes one response."""

    def __init__(self, *, unique: str, created_at: int, model: str, tools: DeclaredTools, repeated: JsonObject) -> None:
        """Prepare a response; `repeated` are the request's fields that it shows again."""
        self._unique = unique
        self._tools = tools
        self._head: JsonObject = {
            "id": f"resp_{unique}",
            "object": "response",
            "created_at": created_at,
            "model": model,
            **repeated,
            "truncation": "disabled",
            "service_tier": None,
            "previous_response_id": None,
            "background": False,
            "store": False,
        }
        self._sequence = 0
        self._items: list[JsonObject] = []
        self._open: _OpenItem | None = None
        self._last: JsonObject = {}

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the frames that an event completes."""
        item = self._open
        if item is not None and isinstance(event, ThinkingDelta if item.kind == "reasoning" else TextDelta):
            item.pieces.append(event.text)
            self._sequence += 1
            return [item.deltas.frame(event.text, self._sequence - 1)]
        return [self._frame(name, payload) for name, payload in self._advance(event)]

    def keepalive(self) -> Sequence[Frame]:
        """Return an event that says the response is still being made: clients count events, not comments.

        It carries all output so far, because clients replace what they have collected by it.
        """
        output = [*self._items, *([self._open.so_far()] if self._open else [])]
        return [self._frame("response.in_progress", {"response": self._response("in_progress", output=output)})]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return the finished response object."""
        for event in events:
            self._advance(event)
        return self._last

    def _advance(self, event: ReplyEvent) -> list[Event]:
        match event:
            case Admitted():
                return [
                    (name, {"response": self._response("in_progress")})
                    for name in ("response.created", "response.in_progress")
                ]
            case ThinkingDelta():
                return self._grow("reasoning", event.text)
            case TextDelta():
                return self._grow("message", event.text)
            case ToolCallFinished():
                return [*self._close("completed"), *self._call(event)]
            case ReplyFinished():
                return self._finish(event)
            case ReplyFailed():
                self._last = self._response("failed", output=[], error=_error(event.failure))
                return [("response.failed", {"response": self._last})]
        return []

    def _grow(self, kind: Literal["reasoning", "message"], text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            prefix = "rs" if kind == "reasoning" else "msg"
            self._open = _OpenItem(kind=kind, id=self._item_id(prefix), index=len(self._items))
            events.append(_item_event("added", self._open.index, self._open.value("in_progress")))
            added = "response.reasoning_summary_part.added" if kind == "reasoning" else "response.content_part.added"
            events.append((added, {**self._open.place(), "part": self._open.part()}))
        self._open.pieces.append(text)
        return [*events, self._open.delta(text)]

    def _close(self, status: Literal["completed", "incomplete"]) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        done = {**item.place(), "text": item.text}
        if item.kind == "reasoning":
            names = ("response.reasoning_summary_text.done", "response.reasoning_summary_part.done")
        else:
            names = ("response.output_text.done", "response.content_part.done")
            done["logprobs"] = []
        self._items.append(item.value(status))
        return [
            (names[0], done),
            (names[1], {**item.place(), "part": item.part()}),
            _item_event("done", item.index, self._items[-1]),
        ]

    def _call(self, event: ToolCallFinished) -> list[Event]:
        origin = self._tools.origins.get(event.name) or ToolOrigin(kind="function", name=event.name)
        index = len(self._items)
        call_id = f"call_{derived_hex(self._unique, f'call {event.index}')}"
        if origin.kind == "custom":
            item_id, field, text = self._item_id("ctc"), "input", _freeform_input(event.arguments)
            kind, stem = "custom_tool_call", "response.custom_tool_call_input"
        else:
            item_id, field, text = self._item_id("fc"), "arguments", event.arguments
            kind, stem = "function_call", "response.function_call_arguments"
        item: JsonObject = {"id": item_id, "type": kind, "call_id": call_id, "name": origin.name}
        if origin.namespace is not None:
            item["namespace"] = origin.namespace
        self._items.append({**item, field: text, "status": "completed"})
        place = {"item_id": item_id, "output_index": index}
        done = {**place, field: text}
        if origin.kind == "function":
            done["name"] = origin.name
        return [
            _item_event("added", index, {**item, field: "", "status": "in_progress"}),
            (f"{stem}.delta", {**place, "delta": text}),
            (f"{stem}.done", done),
            _item_event("done", index, self._items[-1]),
        ]

    def _finish(self, event: ReplyFinished) -> list[Event]:
        incomplete = event.reason in ("length", "window")
        status: Literal["completed", "incomplete"] = "incomplete" if incomplete else "completed"
        events = self._close(status)
        self._last = self._response(
            status,
            incomplete_details={"reason": "max_output_tokens"} if incomplete else None,
            usage=_usage(event.usage),
        )
        return [*events, (f"response.{status}", {"response": self._last})]

    def _response(self, status: str, **changes: Any) -> JsonObject:
        return {
            **self._head,
            "status": status,
            "output": list(self._items),
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **changes,
        }

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._unique[:12]}_{len(self._items)}"

    def _frame(self, name: str, payload: JsonObject) -> Frame:
        value = {"type": name, "sequence_number": self._sequence, **payload}
        self._sequence += 1
        return Frame(event=name, data=json_text(value, sort_keys=True))


def _item_event(step: Literal["added", "done"], index: int, item: JsonObject) -> Event:
    return f"response.output_item.{step}", {"output_index": index, "item": item}


def _freeform_input(arguments: str) -> str:
    """Return the text of a freeform call: its one argument."""
    value = json.loads(arguments).get(FREEFORM_ARGUMENT, "")
    return value if isinstance(value, str) else json_text(value)


def _usage(usage: ReplyUsage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(failure: Failure) -> JsonObject:
    return {"code": failure.dialect_code or failure.code, "message": error_message(failure)}
