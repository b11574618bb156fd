"""From Ollama's chat and generate bodies to a generation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolSpec
from slotstream_serve.dialects.base import JsonObject, ModelFacts
from slotstream_serve.dialects.fields import (
    FieldReader,
    FieldTable,
    joined_path,
    missing,
    required_object,
    wrong_kind,
)
from slotstream_serve.dialects.ollama import fields as tables
from slotstream_serve.dialects.requests import (
    check_model,
    profile_for,
    refuse_images,
    sampling_overrides,
    stop_texts,
    window_limit,
)
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.dialects.tools import arguments_object, distinct_tools, tool_spec
from slotstream_serve.errors import invalid

DEFAULT_OUTPUT_TOKENS = 512
ROLES: Mapping[str, FieldTable] = {
    "system": tables.MESSAGE,
    "user": tables.MESSAGE,
    "assistant": tables.ASSISTANT,
    "tool": tables.TOOL_RESULT,
}
IMAGE_PARTS = frozenset({"image_url", "image", "input_image"})


@dataclass(frozen=True, kw_only=True)
class OllamaRequest:
    """A body understood.

    Attributes:
        route: Which of the two routes it came by; their replies differ in shape.
        generation: What to generate, or None when the client only asks whether the model is loaded.
        stream: Whether the client wants lines.
    """

    route: Literal["chat", "generate"]
    generation: GenerationRequest | None
    stream: bool


def parse_chat(body: JsonObject, model: ModelFacts) -> OllamaRequest:
    """Understand a body of `/api/chat`.

    Raises:
        Refused: A field is wrong or not supported.
    """
    fields = FieldReader(body, tables.CHAT)
    check_model(fields.required_text("model"), model)
    tools = _tools(fields)
    messages = _messages(fields)
    generation = _generation(fields, model, messages=messages, tools=tools)
    return OllamaRequest(
        route="chat", generation=generation if messages else None, stream=fields.boolean("stream") is not False
    )


def parse_generate(body: JsonObject, model: ModelFacts) -> OllamaRequest:
    """Understand a body of `/api/generate`.

    Raises:
        Refused: A field is wrong or not supported.
    """
    _refuse_any_images(body, "images")
    fields = FieldReader(body, tables.GENERATE)
    check_model(fields.required_text("model"), model)
    prompt, system = fields.text("prompt") or "", fields.text("system") or ""
    raw = fields.boolean("raw") is True
    if raw and system:
        raise invalid("raw sends the prompt alone, so it cannot be combined with system", param="system")
    if raw and fields.boolean("think"):
        raise invalid("raw sends the prompt alone, so it cannot be combined with think", param="think")
    messages = () if raw else (*_system(system), ChatMessage(role="user", content=prompt))
    generation = _generation(fields, model, messages=messages, raw_prompt=prompt if raw else None)
    return OllamaRequest(
        route="generate", generation=generation if prompt else None, stream=fields.boolean("stream") is not False
    )


def _system(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(role="system", content=text),) if text else ()


def _generation(
    fields: FieldReader,
    model: ModelFacts,
    *,
    messages: tuple[ChatMessage, ...],
    tools: tuple[ToolSpec, ...] = (),
    raw_prompt: str | None = None,
) -> GenerationRequest:
    options = FieldReader(fields.object("options") or {}, tables.OPTIONS, path="options")
    reasoning = Reasoning(enabled=fields.boolean("think") is True)
    return GenerationRequest(
        messages=messages,
        raw_prompt=raw_prompt,
        tools=tools,
        reasoning=reasoning,
        profile=profile_for(tools, reasoning),
        sampling=sampling_overrides(options),
        max_output_tokens=options.integer("num_predict"),
        default_output_tokens=DEFAULT_OUTPUT_TOKENS,
        stop=stop_texts(options.value("stop"), path="options.stop"),
        window_limit=window_limit(options.integer("num_ctx"), model, path="options.num_ctx"),
    )


def _tools(fields: FieldReader) -> tuple[ToolSpec, ...]:
    specs = []
    for index, value in enumerate(fields.array("tools") or []):
        path = f"tools.{index}"
        tool = FieldReader(required_object(value, path), tables.TOOL, path=path)
        path = tool.path("function")
        if not tool.has("function"):
            raise missing(path)
        function = FieldReader(tool.object("function") or {}, tables.FUNCTION, path=path)
        specs.append(
            tool_spec(
                function.required_text("name"), function.text("description"), function.object("parameters"), path=path
            )
        )
    return distinct_tools(specs, path="tools")


def _messages(fields: FieldReader) -> tuple[ChatMessage, ...]:
    history = ToolHistory()
    instructions: list[str] = []
    values = fields.array("messages") or []
    for index, value in enumerate(values):
        path = f"messages.{index}"
        message = _message(value, path)
        role = message.required_text("role")
        if role == "system":
            if history.last_role is not None:
                raise invalid(f"{path} is a system message after the conversation began; put it first", param=path)
            instructions.append(_required_content(message))
        else:
            _add(history, role, message, path)
    if history.last_role == "assistant" and not history.unanswered:
        raise invalid(
            "the last message is the assistant's; a reply cannot be begun by the client: end with a user message",
            param=f"messages.{len(values) - 1}",
        )
    return (*_system("\n\n".join(instructions)), *history.finish())


def _message(value: Any, path: str) -> FieldReader:
    message = required_object(value, path)
    role = message.get("role")
    if not isinstance(role, str):
        raise missing(f"{path}.role") if role is None else wrong_kind(f"{path}.role", role, "text")
    if role not in ROLES:
        raise invalid(f"{path}.role is {role[:50]!r}; use one of {', '.join(ROLES)}", param=f"{path}.role")
    _refuse_any_images(message, f"{path}.images")
    return FieldReader(message, ROLES[role], path=path)


def _refuse_any_images(values: JsonObject, path: str) -> None:
    images = values.get("images")
    if isinstance(images, list) and images:
        raise refuse_images(f"{path}.0")


def _add(history: ToolHistory, role: str, message: FieldReader, path: str) -> None:
    if role == "user":
        history.add(ChatMessage(role="user", content=_required_content(message)), path=path)
    elif role == "assistant":
        calls = _calls(message)
        content = _content(message, "")
        if content is None and not calls:
            raise missing(message.path("content"))
        history.add_assistant(content or "", path=path, reasoning=message.text("thinking"), calls=calls)
    else:
        name = message.text("tool_name") or message.text("name") or None
        id = message.text("tool_call_id") or None
        history.add_result(GivenResult(text=_required_content(message), id=id, name=name, path=path))


def _calls(message: FieldReader) -> list[MadeCall]:
    calls = []
    for index, value in enumerate(message.array("tool_calls") or []):
        path = joined_path(message.path("tool_calls"), index)
        call = FieldReader(required_object(value, path), tables.CALL, path=path)
        if not call.has("function"):
            raise missing(call.path("function"))
        function = FieldReader(call.object("function") or {}, tables.CALL_FUNCTION, path=call.path("function"))
        arguments = function.value("arguments")
        if not isinstance(arguments, dict):
            arguments = arguments_object(function.text("arguments") or "", path=function.path("arguments"))
        made = ToolCall(name=function.required_text("name"), arguments=arguments)
        calls.append(MadeCall(call=made, id=call.text("id") or None, path=path))
    return calls


def _required_content(message: FieldReader) -> str:
    content = _content(message, "\n")
    if content is None:
        raise missing(message.path("content"))
    return content


def _content(message: FieldReader, separator: str) -> str | None:
    value = message.value("content")
    if not isinstance(value, list):
        return message.text("content")
    return separator.join(_part(part, joined_path(message.path("content"), index)) for index, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    kind = required_object(value, path).get("type")
    if isinstance(kind, str) and kind in IMAGE_PARTS:
        raise refuse_images(path)
    if not isinstance(kind, str):
        raise missing(f"{path}.type") if kind is None else wrong_kind(f"{path}.type", kind, "text")
    if kind != "text":
        raise invalid(f"{path}.type is {kind[:50]!r}; use text", param=f"{path}.type")
    return FieldReader(value, tables.PART, path=path).required_text("text")
