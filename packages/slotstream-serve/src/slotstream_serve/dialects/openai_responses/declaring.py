"""The tools of a request: functions, namespaces of functions, freeform tools, and hosted tools that are left out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotstream_serve.conversation import ToolChoice, ToolSpec
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.dialects.fields import FieldReader, joined_path, required_object, wrong_kind
from slotstream_serve.dialects.openai_responses.fields import CUSTOM_TOOL, FUNCTION_TOOL, NAMESPACE_TOOL
from slotstream_serve.dialects.tools import checked_choice, distinct_tools, tool_spec
from slotstream_serve.errors import invalid

HOSTED_TOOL = re.compile(r"(web_search|web_search_preview|file_search)(_\d{4}_\d{2}_\d{2})?")
"""Tools that run on OpenAI's servers: the model cannot run them, so it is not told of them."""

FREEFORM_ARGUMENT = "input"


@dataclass(frozen=True, kw_only=True)
class ToolOrigin:
    """What a client calls the function that the model sees under one name."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeclaredTools:
    """The tools of a request.

    Attributes:
        specs: As the model sees them.
        origins: The model's name for a tool to the client's.
    """

    specs: tuple[ToolSpec, ...]
    origins: Mapping[str, ToolOrigin]


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name under which the model sees a member of a namespace."""
    return f"{namespace}.{name}" if namespace else name


def declared_tools(values: Sequence[Any]) -> DeclaredTools:
    """Return the tools of a request.

    Raises:
        Refused: A tool is malformed, of a type that cannot be offered, or declared twice.
    """
    specs: list[ToolSpec] = []
    origins: dict[str, ToolOrigin] = {}
    for index, value in enumerate(values):
        path = f"tools.{index}"
        tool = required_object(value, path)
        for spec, origin in _tools_of(tool, path):
            specs.append(spec)
            origins[spec.name] = origin
    return DeclaredTools(specs=distinct_tools(specs, path="tools"), origins=origins)


def _tools_of(tool: JsonObject, path: str) -> Sequence[tuple[ToolSpec, ToolOrigin]]:
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise wrong_kind(f"{path}.type", kind, "text")
    if HOSTED_TOOL.fullmatch(kind):
        return ()
    match kind:
        case "function":
            return (_function(tool, path),)
        case "namespace":
            return _members(FieldReader(tool, NAMESPACE_TOOL, path=path), path)
        case "custom":
            return (_freeform(FieldReader(tool, CUSTOM_TOOL, path=path), path),)
    raise invalid(
        f"{path} is a tool of type {kind[:100]!r}, which cannot be offered here; use function, namespace or custom",
        param=path,
        dialect_code="unsupported_tool",
    )


def _function(
    tool: JsonObject, path: str, *, namespace: str | None = None, preface: str = ""
) -> tuple[ToolSpec, ToolOrigin]:
    fields = FieldReader(tool, FUNCTION_TOOL, path=path)
    name = fields.required_text("name")
    description = "\n\n".join(filter(None, (preface, fields.text("description"))))
    spec = tool_spec(flat_name(name, namespace), description, fields.object("parameters"), path=path)
    return spec, ToolOrigin(kind="function", name=name, namespace=namespace)


def _members(fields: FieldReader, path: str) -> Sequence[tuple[ToolSpec, ToolOrigin]]:
    namespace = fields.required_text("name")
    if "." in namespace or not namespace:
        raise invalid(f"{path}.name is {namespace[:100]!r}; a namespace needs a name without a dot", param=path)
    members: list[tuple[ToolSpec, ToolOrigin]] = []
    for index, value in enumerate(fields.array("tools") or []):
        member_path = joined_path(joined_path(path, "tools"), index)
        member = required_object(value, member_path)
        if member.get("type") != "function":
            raise invalid(
                f"{member_path} must be a function; a namespace holds nothing else",
                param=member_path,
                dialect_code="unsupported_tool",
            )
        members.append(_function(member, member_path, namespace=namespace, preface=fields.text("description") or ""))
    return members


def _freeform(fields: FieldReader, path: str) -> tuple[ToolSpec, ToolOrigin]:
    name = fields.required_text("name")
    format_values = fields.object("format") or {}
    description = fields.text("description") or ""
    grammar = format_values.get("definition")
    if isinstance(grammar, str):
        syntax = format_values.get("syntax")
        described = f" ({syntax})" if isinstance(syntax, str) else ""
        description = f"{description}\n\nThe input must follow this grammar{described}:\n{grammar}".lstrip()
    parameters = {
        "type": "object",
        "properties": {FREEFORM_ARGUMENT: {"type": "string", "description": "The whole input of the tool, as text."}},
        "required": [FREEFORM_ARGUMENT],
    }
    return tool_spec(name, description, parameters, path=path), ToolOrigin(kind="custom", name=name)


def tool_choice(value: Any, tools: DeclaredTools) -> ToolChoice:
    """Return the tool choice of a request.

    Raises:
        Refused: It is malformed, or the declared tools cannot satisfy it.
    """
    path = "tool_choice"
    if value is None:
        return ToolChoice()
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            raise invalid(f"{path} is {value[:50]!r}; use auto, none, required or a tool by name", param=path)
        mode: Literal["auto", "none", "required"] = value  # type: ignore[assignment]
        return checked_choice(ToolChoice(mode=mode), tools.specs, path=path)
    kind, name, namespace = value.get("type"), value.get("name"), value.get("namespace")
    if kind not in ("function", "custom"):
        raise invalid(f"{path}.type is {str(kind)[:50]!r}; only function and custom can be chosen", param=path)
    if not isinstance(name, str):
        raise wrong_kind(f"{path}.name", name, "text")
    if namespace is not None and not isinstance(namespace, str):
        raise wrong_kind(f"{path}.namespace", namespace, "text")
    return checked_choice(ToolChoice(mode="named", name=flat_name(name, namespace)), tools.specs, path=path)
