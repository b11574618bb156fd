"""Input items of the Responses API, turned into the turns of a conversation.

Items are finer than turns: one turn of the assistant is a run of reasoning, messages and calls.  Outputs of the server
come back as they were sent, so blank messages between calls, which models write, are no turns of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.dialects.fields import FieldReader, joined_path, missing, required_object, wrong_kind
from slotstream_serve.dialects.openai_responses.declaring import FREEFORM_ARGUMENT, flat_name
from slotstream_serve.dialects.openai_responses.fields import (
    CALL_ITEM,
    CUSTOM_CALL_ITEM,
    MESSAGE_ITEM,
    OUTPUT_ITEM,
    REASONING_ITEM,
)
from slotstream_serve.dialects.requests import refuse_images, refuse_linked_image
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.dialects.tools import arguments_object
from slotstream_serve.errors import Refused, invalid

TEXT_PARTS = ("input_text", "output_text", "text")
REASONING_PARTS = ("summary_text", "reasoning_text", "text")


@dataclass(kw_only=True)
class _AssistantTurn:
    """What the assistant said in one turn, while its items come in."""

    path: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[MadeCall] = field(default_factory=list)


class InputReader:
    """Reads input items in order."""

    def __init__(self, instructions: str | None) -> None:
        """Start a conversation with a request's `instructions`."""
        self._instructions = [instructions] if instructions else []
        self._history = ToolHistory()
        self._turn: _AssistantTurn | None = None
        self._begun = False

    def read(self, value: Any, index: int) -> None:
        """Read one item.

        Raises:
            Refused: It is malformed, of an unknown type, or at a place where it cannot be.
        """
        path = f"input.{index}"
        item = required_object(value, path)
        kind = item.get("type", "message")
        match kind:
            case "message" | None:
                self._message(FieldReader(item, MESSAGE_ITEM, path=path), path)
            case "reasoning":
                self._reasoning(FieldReader(_without_empty_cipher(item), REASONING_ITEM, path=path), path)
            case "function_call":
                self._call(FieldReader(item, CALL_ITEM, path=path), path)
            case "custom_tool_call":
                self._custom_call(FieldReader(item, CUSTOM_CALL_ITEM, path=path), path)
            case "function_call_output" | "custom_tool_call_output":
                self._output(FieldReader(item, OUTPUT_ITEM, path=path), path)
            case "item_reference":
                raise invalid(
                    f"{path} refers to a stored item, and nothing is stored; send the item itself",
                    param=path,
                    dialect_code="stored_state_unsupported",
                )
            case _:
                raise _unsupported(path, f"an item of type {str(kind)[:100]!r}, which cannot be read here")

    def say(self, text: str) -> None:
        """Add a user turn: the short form of `input`."""
        self._begun = True
        self._history.add(ChatMessage(role="user", content=text), path="input")

    def finish(self) -> tuple[ChatMessage, ...]:
        """Return the conversation, instructions first.

        Raises:
            Refused: It ends with the assistant, or a call has no output.
        """
        prefilled = self._turn is not None and not self._turn.calls
        path = self._turn.path if self._turn is not None else "input"
        self._close_turn()
        turns = self._history.finish()
        if prefilled:
            raise invalid(
                f"{path} is the assistant's, and nothing follows it; a reply cannot be begun for the model, "
                "so end the input with a user message or a tool's output",
                param=path,
                dialect_code="assistant_prefill_unsupported",
            )
        if not self._instructions:
            return turns
        return (ChatMessage(role="system", content="\n\n".join(self._instructions)), *turns)

    def _message(self, fields: FieldReader, path: str) -> None:
        role = fields.required_text("role")
        if fields.value("content") is None:
            raise missing(fields.path("content"))
        joint = "" if role == "assistant" else "\n"
        text = _content_text(fields.value("content"), fields.path("content"), joint=joint)
        match role:
            case "system" | "developer" if not self._begun:
                self._instructions.append(text)
            case "system" | "developer" | "user":
                self._close_turn()
                self._begun = True
                self._history.add(ChatMessage(role="user", content=text), path=path)
            case "assistant":
                if text.strip() or not self._history.unanswered:
                    self._open_turn(path).texts.append(text)
            case _:
                raise invalid(
                    f"{path}.role is {role[:50]!r}; use system, developer, user or assistant", param=fields.path("role")
                )

    def _reasoning(self, fields: FieldReader, path: str) -> None:
        parts = fields.array("summary") or fields.array("content") or []
        texts = [_part_text(part, joined_path(path, index), REASONING_PARTS) for index, part in enumerate(parts)]
        if self._history.unanswered and self._turn is None and not any(text.strip() for text in texts):
            return
        self._open_turn(path).thoughts.append("\n\n".join(texts))

    def _call(self, fields: FieldReader, path: str) -> None:
        name = flat_name(fields.required_text("name"), fields.text("namespace"))
        arguments = arguments_object(fields.required_text("arguments"), path=fields.path("arguments"))
        self._add_call(fields, name, arguments, path)

    def _custom_call(self, fields: FieldReader, path: str) -> None:
        arguments = {FREEFORM_ARGUMENT: fields.required_text("input")}
        self._add_call(fields, fields.required_text("name"), arguments, path)

    def _add_call(self, fields: FieldReader, name: str, arguments: JsonObject, path: str) -> None:
        call = ToolCall(name=name, arguments=arguments)
        self._open_turn(path).calls.append(MadeCall(call=call, id=fields.required_text("call_id"), path=path))

    def _output(self, fields: FieldReader, path: str) -> None:
        if fields.value("output") is None:
            raise missing(fields.path("output"))
        text = _content_text(fields.value("output"), fields.path("output"), joint="\n")
        self._close_turn()
        self._history.add_result(GivenResult(text=text, id=fields.required_text("call_id"), name=None, path=path))

    def _open_turn(self, path: str) -> _AssistantTurn:
        self._begun = True
        if self._turn is None:
            self._turn = _AssistantTurn(path=path)
        return self._turn

    def _close_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        texts = [text for text in turn.texts if text.strip()]
        thoughts = [thought for thought in turn.thoughts if thought.strip()]
        self._history.add_assistant(
            "\n\n".join(texts),
            path=turn.path,
            reasoning="\n\n".join(thoughts) if thoughts else None,
            calls=turn.calls,
        )


def _without_empty_cipher(item: JsonObject) -> JsonObject:
    """Return a reasoning item without an `encrypted_content` that encrypts nothing."""
    if item.get("encrypted_content") != "":
        return item
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def _content_text(content: Any, path: str, *, joint: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_kind(path, content, "text", "array")
    return joint.join(_part_text(part, joined_path(path, index), TEXT_PARTS) for index, part in enumerate(content))


def _part_text(value: Any, path: str, text_types: Sequence[str]) -> str:
    part = required_object(value, path)
    kind = part.get("type")
    if kind in text_types:
        text = part.get("text")
        if not isinstance(text, str):
            raise wrong_kind(f"{path}.text", text, "text")
        return text
    if kind == "input_image":
        url = part.get("image_url")
        if not isinstance(url, str) or not url.startswith("data:"):
            raise refuse_linked_image(path)
        raise refuse_images(path)
    if kind == "encrypted_content":
        raise _unsupported(path, "encrypted by another provider, which alone can read it")
    raise _unsupported(path, f"a part of type {str(kind)[:100]!r}, which cannot be read here; send text")


def _unsupported(path: str, what: str) -> Refused:
    return invalid(f"{path} is {what}", param=path, dialect_code="unsupported_item")
