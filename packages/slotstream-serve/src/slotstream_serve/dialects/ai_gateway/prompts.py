"""A prompt of the gateway protocol, turned into the turns of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.dialects.ai_gateway.coding import coded
from slotstream_serve.dialects.ai_gateway.fields import MESSAGE, PART
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.dialects.fields import FieldReader, joined_path, missing, required_object, wrong_kind
from slotstream_serve.dialects.requests import refuse_images, refuse_linked_image
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.dialects.tools import arguments_object, json_text
from slotstream_serve.errors import Refused, invalid


@dataclass(kw_only=True)
class _AssistantParts:
    """What an assistant message is made of."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[MadeCall] = field(default_factory=list)


def prompt_messages(prompt: Sequence[Any]) -> tuple[ChatMessage, ...]:
    """Return the conversation of a prompt, instructions first.

    Raises:
        Refused: It is empty or malformed, calls and results do not match, or the assistant has the last turn.
    """
    if not prompt:
        raise invalid("prompt is empty; send at least one message", param="prompt", dialect_code="empty_prompt")
    with coded("invalid_prompt"):
        return _messages(prompt)


def _messages(prompt: Sequence[Any]) -> tuple[ChatMessage, ...]:
    instructions: list[str] = []
    history = ToolHistory()
    role = ""
    for index, value in enumerate(prompt):
        path = f"prompt.{index}"
        fields = FieldReader(required_object(value, path), MESSAGE, path=path)
        role = fields.required_text("role")
        content = fields.value("content")
        if content is None:
            raise missing(fields.path("content"))
        match role:
            case "system":
                if history.last_role is not None:
                    raise invalid(
                        f"{path} is a system message after the conversation began; put instructions first",
                        param=path,
                        dialect_code="system_after_conversation",
                    )
                instructions.append(_system_text(content, fields.path("content")))
            case "user":
                history.add(ChatMessage(role="user", content=_user_text(content, fields.path("content"))), path=path)
            case "assistant":
                _add_assistant(content, fields.path("content"), history)
            case "tool":
                _add_results(content, fields.path("content"), history)
            case _:
                raise invalid(
                    f"{path}.role is {role[:50]!r}; use system, user, assistant or tool",
                    param=f"{path}.role",
                    dialect_code="unsupported_role",
                )
    turns = history.finish()
    if role == "assistant":
        raise invalid(
            f"prompt.{len(prompt) - 1} is the assistant's, and nothing follows it; a reply cannot be begun for the "
            "model, so end the prompt with a user or tool message",
            param=f"prompt.{len(prompt) - 1}",
            dialect_code="assistant_prefill_unsupported",
        )
    head = (ChatMessage(role="system", content="\n\n".join(instructions)),) if instructions else ()
    return (*head, *turns)


def _parts(content: Any, path: str) -> Sequence[tuple[FieldReader, str, str]]:
    """Return each part's reader, type and path; text is one part."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise wrong_kind(path, content, "array")
    parts: list[tuple[FieldReader, str, str]] = []
    for index, value in enumerate(content):
        part_path = joined_path(path, index)
        fields = FieldReader(required_object(value, part_path), PART, path=part_path)
        parts.append((fields, fields.required_text("type"), part_path))
    return parts


def _system_text(content: Any, path: str) -> str:
    if not isinstance(content, str):
        raise wrong_kind(path, content, "text")
    return content


def _user_text(content: Any, path: str) -> str:
    texts: list[str] = []
    for fields, kind, part_path in _parts(content, path):
        if kind == "file":
            raise _file_refused(fields.value("data"), fields.text("mediaType"), part_path)
        if kind != "text":
            raise _unsupported_part(kind, part_path)
        texts.append(fields.required_text("text"))
    return "\n".join(texts)


def _add_assistant(content: Any, path: str, history: ToolHistory) -> None:
    parts = _AssistantParts()
    for fields, kind, part_path in _parts(content, path):
        match kind:
            case "text":
                parts.texts.append(fields.required_text("text"))
            case "reasoning":
                parts.thoughts.append(fields.required_text("text"))
            case "tool-call":
                parts.calls.append(_call(fields, part_path))
            case _:
                raise _unsupported_part(kind, part_path)
    text, thought = "".join(parts.texts), "\n\n".join(parts.thoughts)
    history.add_assistant(
        text if text.strip() else "",
        path=path.rpartition(".")[0],
        reasoning=thought if thought.strip() else None,
        calls=parts.calls,
    )


def _call(fields: FieldReader, path: str) -> MadeCall:
    given = fields.value("input")
    if given is None:
        raise missing(f"{path}.input")
    arguments = arguments_object(given, path=f"{path}.input") if isinstance(given, str) else given
    call = ToolCall(name=fields.required_text("toolName"), arguments=arguments)
    return MadeCall(call=call, id=fields.required_text("toolCallId"), path=path)


def _add_results(content: Any, path: str, history: ToolHistory) -> None:
    for fields, kind, part_path in _parts(content, path):
        if kind != "tool-result":
            raise _unsupported_part(kind, part_path)
        output = fields.object("output")
        if output is None:
            raise missing(f"{part_path}.output")
        history.add_result(
            GivenResult(
                text=_output_text(output, f"{part_path}.output"),
                id=fields.required_text("toolCallId"),
                name=fields.required_text("toolName"),
                path=part_path,
            )
        )


def _output_text(output: JsonObject, path: str) -> str:
    kind, value = output.get("type"), output.get("value")
    match kind:
        case "text" | "error-text":
            if not isinstance(value, str):
                raise wrong_kind(f"{path}.value", value, "text")
            return value
        case "json" | "error-json":
            return json_text(value, sort_keys=True)
        case "execution-denied":
            reason = output.get("reason")
            return f"Denied: {reason}" if isinstance(reason, str) and reason else "Denied"
        case "content":
            return "\n".join(_output_parts(value, f"{path}.value"))
    raise _unsupported_output(f"{path} is of type {str(kind)[:50]!r}", path)


def _output_parts(value: Any, path: str) -> Sequence[str]:
    if not isinstance(value, list):
        raise wrong_kind(path, value, "array")
    texts: list[str] = []
    for index, part in enumerate(value):
        part_path = joined_path(path, index)
        kind = required_object(part, part_path).get("type")
        if kind in ("file", "media", "file-data", "image-data"):
            raise _file_refused(part.get("data"), part.get("mediaType"), part_path, code="unsupported_tool_output")
        if kind != "text":
            raise _unsupported_output(f"{part_path} is of type {str(kind)[:50]!r}", part_path)
        if not isinstance(part.get("text"), str):
            raise wrong_kind(f"{part_path}.text", part.get("text"), "text")
        texts.append(part["text"])
    return texts


def _file_refused(data: Any, media_type: Any, path: str, *, code: str = "unsupported_file_part") -> Refused:
    if not isinstance(media_type, str) or not (media_type.startswith("image/") or media_type == "image"):
        return invalid(
            f"{path} is a file of type {str(media_type)[:100]!r}; only text and images can be read, so send its text",
            param=path,
            dialect_code=code,
        )
    inline = data.get("data") if isinstance(data, dict) and data.get("type") == "data" else data
    if not isinstance(inline, str) or inline.startswith(("http:", "https:", "file:")):
        return refuse_linked_image(path, code="invalid_image")
    return refuse_images(path, code=code)


def _unsupported_part(kind: str, path: str) -> Refused:
    return invalid(
        f"{path} is a part of type {kind[:50]!r}, which cannot be read there",
        param=path,
        dialect_code="unsupported_part",
    )


def _unsupported_output(what: str, path: str) -> Refused:
    return invalid(
        f"{what}; use text, error-text, json, error-json, execution-denied, or content with text",
        param=path,
        dialect_code="unsupported_tool_output",
    )
