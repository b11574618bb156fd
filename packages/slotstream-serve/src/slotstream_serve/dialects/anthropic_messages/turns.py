"""Messages of the Messages API, turned into the turns of a conversation.

Consecutive messages of one role are one turn, as they are for the API: results may be spread over several user
messages, and an assistant's calls may go on in its next message.  A system message before the conversation joins the
instructions; a later one is read as the user's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.dialects.anthropic_messages.blocks import (
    USER_TEXT_BLOCKS,
    block_text,
    content_blocks,
    result_text,
    system_text,
    unknown_block,
)
from slotstream_serve.dialects.anthropic_messages.fields import BLOCK, MESSAGE
from slotstream_serve.dialects.anthropic_messages.signing import restored_thinking
from slotstream_serve.dialects.fields import FieldReader, missing, required_object, wrong_kind
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.errors import invalid


@dataclass(kw_only=True)
class _Turn:
    """Consecutive messages of one role."""

    role: Literal["user", "assistant"]
    path: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[MadeCall] = field(default_factory=list)
    results: list[GivenResult] = field(default_factory=list)


def conversation(
    system: Any, messages: Sequence[Any], *, ends_with: Literal["user", "anyone"]
) -> tuple[ChatMessage, ...]:
    """Return the conversation of a request, instructions first.

    Args:
        system: The request's `system`: None, text or blocks.
        messages: Its `messages`.
        ends_with: Whether the last turn may be the assistant's, as in a token count.

    Raises:
        Refused: A message is malformed, calls and results do not match, or the assistant has the last turn.
    """
    instructions = [] if system is None else [system_text(system, "system")]
    turns = _joined_turns(messages, instructions)
    if not turns:
        raise invalid("messages has no user message; send at least one", param="messages")
    tail: tuple[ChatMessage, ...] = ()
    if turns[-1].role == "assistant":
        last = turns.pop()
        if ends_with == "user":
            raise invalid(
                f"{last.path} is the assistant's, and nothing follows it; a reply cannot be begun for the model, "
                "so end the conversation with a user message",
                param=last.path,
            )
        tail = (_assistant_message(last),)
    history = ToolHistory()
    for turn in turns:
        _add(turn, history)
    text = "\n\n".join(filter(None, instructions))
    head = (ChatMessage(role="system", content=text),) if text else ()
    return (*head, *history.finish(), *tail)


def _joined_turns(messages: Sequence[Any], instructions: list[str]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, value in enumerate(messages):
        path = f"messages.{index}"
        fields = FieldReader(required_object(value, path), MESSAGE, path=path)
        role = fields.required_text("role")
        content = fields.value("content")
        if content is None:
            raise missing(fields.path("content"))
        if role == "system":
            text = system_text(content, fields.path("content"))
            if not turns:
                instructions.append(text)
            elif text:
                _turn_of("user", path, turns).texts.append(text)
        elif role == "user":
            _read_user(content, fields.path("content"), _turn_of("user", path, turns))
        elif role == "assistant":
            _read_assistant(content, fields.path("content"), _turn_of("assistant", path, turns))
        else:
            raise invalid(f"{path}.role is {role[:50]!r}; use user, assistant or system", param=f"{path}.role")
    return turns


def _turn_of(role: Literal["user", "assistant"], path: str, turns: list[_Turn]) -> _Turn:
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role=role, path=path))
    return turns[-1]


def _read_user(content: Any, path: str, turn: _Turn) -> None:
    for block, at in content_blocks(content, path):
        if block.get("type") != "tool_result":
            turn.texts.append(block_text(block, at, USER_TEXT_BLOCKS))
            continue
        fields = FieldReader(block, BLOCK, path=at)
        turn.results.append(
            GivenResult(text=result_text(fields), id=fields.required_text("tool_use_id"), name=None, path=at)
        )


def _read_assistant(content: Any, path: str, turn: _Turn) -> None:
    for block, at in content_blocks(content, path):
        fields = FieldReader(block, BLOCK, path=at)
        kind = fields.required_text("type")
        match kind:
            case "text":
                turn.texts.append(fields.required_text("text"))
            case "thinking":
                thinking = restored_thinking(fields.text("thinking") or "", fields.text("signature"), path=at)
                turn.thoughts.append(thinking)
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = fields.object("input")
                if arguments is None:
                    raise wrong_kind(f"{at}.input", arguments, "object")
                call = ToolCall(name=fields.required_text("name"), arguments=arguments)
                turn.calls.append(MadeCall(call=call, id=fields.required_text("id"), path=at))
            case _:
                raise unknown_block(kind, at)


def _add(turn: _Turn, history: ToolHistory) -> None:
    if turn.role == "assistant":
        message = _assistant_message(turn)
        history.add_assistant(message.content, path=turn.path, reasoning=message.reasoning, calls=turn.calls)
        return
    for result in turn.results:
        history.add_result(result)
    if turn.texts or not turn.results:
        history.add(ChatMessage(role="user", content="\n\n".join(turn.texts)), path=turn.path)


def _assistant_message(turn: _Turn) -> ChatMessage:
    text = "".join(turn.texts)
    thoughts = [thought for thought in turn.thoughts if thought.strip()]
    return ChatMessage(
        role="assistant",
        content=text if text.strip() else "",
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(call.call for call in turn.calls),
    )
