"""From a Chat Completions body to a generation."""

from collections.abc import Mapping
from typing import Any

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice, ToolSpec
from slotstream_serve.dialects.base import JsonObject, ModelFacts
from slotstream_serve.dialects.fields import (
    FieldReader,
    FieldTable,
    is_kind,
    joined_path,
    missing,
    required_object,
    wrong_kind,
)
from slotstream_serve.dialects.openai_chat import fields as tables
from slotstream_serve.dialects.requests import (
    IN_MEMORY,
    check_model,
    profile_for,
    refuse_images,
    sampling_overrides,
    stop_texts,
    window_limit,
)
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.dialects.tools import (
    arguments_object,
    checked_choice,
    distinct_tools,
    reasoning_of,
    tool_spec,
)
from slotstream_serve.errors import invalid

ROLES: Mapping[str, FieldTable] = {
    "system": tables.INSTRUCTIONS,
    "developer": tables.INSTRUCTIONS,
    "user": tables.USER,
    "assistant": tables.ASSISTANT,
    "tool": tables.TOOL_RESULT,
}
TEXT_PARTS = frozenset({"text", "input_text"})
ASSISTANT_PARTS = TEXT_PARTS | {"output_text"}
IMAGE_PARTS = frozenset({"image_url", "image", "input_image"})


def parse_request(body: JsonObject, model: ModelFacts) -> tuple[GenerationRequest, FieldReader]:
    """Return the generation a body asks for, and the body's reader.

    Raises:
        Refused: A field is wrong or not supported.
    """
    fields = FieldReader(body, tables.REQUEST)
    check_model(fields.required_text("model"), model)
    for key, value in (fields.object("metadata") or {}).items():
        if not is_kind(value, "text"):
            raise wrong_kind(f"metadata.{key}", value, "text")
    tools = _tools(fields)
    reasoning = _reasoning(fields)
    options = FieldReader(fields.object("options") or {}, tables.OPTIONS, path="options")
    request = GenerationRequest(
        messages=_messages(fields),
        tools=tools,
        tool_choice=checked_choice(_tool_choice(fields), tools, path="tool_choice"),
        parallel_tool_calls=fields.boolean("parallel_tool_calls") is not False,
        reasoning=reasoning,
        profile=profile_for(tools, reasoning),
        sampling=sampling_overrides(fields),
        max_output_tokens=_budget(fields),
        stop=stop_texts(fields.value("stop"), path="stop"),
        window_limit=window_limit(options.integer("num_ctx"), model, path="options.num_ctx"),
        persist=fields.text("prompt_cache_retention") != IN_MEMORY,
    )
    return request, fields


def wants_usage(fields: FieldReader) -> bool:
    """Return whether a streamed reply ends with token counts.

    Raises:
        Refused: The stream options are wrong.
    """
    options = FieldReader(fields.object("stream_options") or {}, tables.STREAM_OPTIONS, path="stream_options")
    return options.boolean("include_usage") is True


def _budget(fields: FieldReader) -> int | None:
    old, new = fields.integer("max_tokens"), fields.integer("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise invalid(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them", param="max_completion_tokens"
        )
    return old if new is None else new


def _reasoning(fields: FieldReader) -> Reasoning:
    think, effort = fields.boolean("think"), fields.text("reasoning_effort")
    if effort is None:
        return Reasoning(enabled=think is True)
    reasoning = reasoning_of(effort, path="reasoning_effort")
    if think is not None and think != reasoning.enabled:
        raise invalid(
            f"think is {str(think).lower()}, but reasoning_effort is {effort}; they contradict each other",
            param="think",
        )
    return reasoning


def _tools(fields: FieldReader) -> tuple[ToolSpec, ...]:
    specs = []
    for index, value in enumerate(fields.array("tools") or []):
        path = f"tools.{index}"
        tool = FieldReader(required_object(value, path), tables.TOOL, path=path)
        tool.required_text("type")
        if not tool.has("function"):
            raise missing(tool.path("function"))
        path = tool.path("function")
        function = FieldReader(tool.object("function") or {}, tables.FUNCTION, path=path)
        specs.append(
            tool_spec(
                function.required_text("name"), function.text("description"), function.object("parameters"), path=path
            )
        )
    return distinct_tools(specs, path="tools")


def _tool_choice(fields: FieldReader) -> ToolChoice:
    value = fields.value("tool_choice")
    match value:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice(mode="none")
        case "required":
            return ToolChoice(mode="required")
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(mode="named", name=name)
    raise invalid(
        'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": ...}}',
        param="tool_choice",
    )


def _messages(fields: FieldReader) -> tuple[ChatMessage, ...]:
    values = fields.array("messages")
    if not values:
        raise missing("messages") if values is None else invalid("messages is empty; send one", param="messages")
    instructions: list[str] = []
    history = ToolHistory()
    for index, value in enumerate(values):
        path = f"messages.{index}"
        message = _message(value, path)
        role = message.required_text("role")
        if role in ("system", "developer"):
            if history.last_role is not None:
                raise invalid(f"{path} is a {role} message after the conversation began; put it first", param=path)
            instructions.append(_required_content(message))
        else:
            _add(history, role, message, path)
    if history.last_role == "assistant" and not history.unanswered:
        raise invalid(
            "the last message is the assistant's; a reply cannot be begun by the client: end with a user message",
            param=f"messages.{len(values) - 1}",
            dialect_code="assistant_prefill_unsupported",
        )
    turns = history.finish()
    if not instructions:
        return turns
    return (ChatMessage(role="system", content="\n\n".join(instructions)), *turns)


def _message(value: Any, path: str) -> FieldReader:
    role = required_object(value, path).get("role")
    if not isinstance(role, str):
        raise missing(f"{path}.role") if role is None else wrong_kind(f"{path}.role", role, "text")
    if role not in ROLES:
        raise invalid(f"{path}.role is {role[:50]!r}; use one of {', '.join(ROLES)}", param=f"{path}.role")
    return FieldReader(value, ROLES[role], path=path)


def _add(history: ToolHistory, role: str, message: FieldReader, path: str) -> None:
    if role == "user":
        history.add(ChatMessage(role="user", content=_required_content(message)), path=path)
    elif role == "assistant":
        calls = _calls(message)
        content = _content(message, ASSISTANT_PARTS, "")
        if content is None and not calls:
            raise missing(message.path("content"))
        history.add_assistant(content or "", path=path, reasoning=message.text("reasoning_content"), calls=calls)
    else:
        history.add_result(
            GivenResult(
                text=_required_content(message),
                id=message.required_text("tool_call_id"),
                name=message.text("name"),
                path=path,
            )
        )


def _calls(message: FieldReader) -> list[MadeCall]:
    calls = []
    for index, value in enumerate(message.array("tool_calls") or []):
        path = joined_path(message.path("tool_calls"), index)
        call = FieldReader(required_object(value, path), tables.CALL, path=path)
        if not call.has("function"):
            raise missing(call.path("function"))
        function = FieldReader(call.object("function") or {}, tables.CALL_FUNCTION, path=call.path("function"))
        arguments = arguments_object(function.text("arguments") or "", path=function.path("arguments"))
        calls.append(
            MadeCall(
                call=ToolCall(name=function.required_text("name"), arguments=arguments),
                id=call.required_text("id"),
                path=path,
            )
        )
    return calls


def _required_content(message: FieldReader) -> str:
    content = _content(message, TEXT_PARTS, "\n")
    if content is None:
        raise missing(message.path("content"))
    return content


def _content(message: FieldReader, types: frozenset[str], separator: str) -> str | None:
    value = message.value("content")
    if not isinstance(value, list):
        return message.text("content")
    return separator.join(
        _part(part, joined_path(message.path("content"), index), types) for index, part in enumerate(value)
    )


def _part(value: Any, path: str, types: frozenset[str]) -> str:
    kind = required_object(value, path).get("type")
    if isinstance(kind, str) and kind in IMAGE_PARTS:
        raise refuse_images(path)
    if not isinstance(kind, str):
        raise missing(f"{path}.type") if kind is None else wrong_kind(f"{path}.type", kind, "text")
    if kind not in types:
        raise invalid(f"{path}.type is {kind[:50]!r}; use {' or '.join(sorted(types))}", param=f"{path}.type")
    return FieldReader(value, tables.PART, path=path).required_text("text")
