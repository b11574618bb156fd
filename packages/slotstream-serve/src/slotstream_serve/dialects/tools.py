"""What every dialect's tools have in common: declarations, choices, arguments, reasoning levels, ids and JSON text."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slotstream_core.text.strict_json import UnusableNumber, parse_strict
from slotstream_core.text.surrogates import SURROGATE_ESCAPE, without_surrogates
from slotstream_serve.conversation import Reasoning, ToolChoice, ToolSpec
from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.dialects.fields import kind_of, wrong_kind
from slotstream_serve.errors import invalid

TOOL_NAME = re.compile(r"[^<>\s]{1,128}")
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

EFFORTS: Mapping[str, Reasoning] = {
    **dict.fromkeys(("none", "minimal", "off"), Reasoning(enabled=False)),
    "low": Reasoning(enabled=True, effort="low"),
    "medium": Reasoning(enabled=True, effort="medium"),
    **dict.fromkeys(("high", "xhigh", "max"), Reasoning(enabled=True, effort="xhigh")),
}
"""Reasoning levels of clients, as the model's template knows them."""

LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that some clients take for the end of a line when they split a stream."""


def tool_spec(name: Any, description: Any, parameters: Any, *, path: str, field: str = "parameters") -> ToolSpec:
    """Return a declared function.

    Args:
        name: Its name: 1 to 128 characters, none of them white space, `<` or `>`.
        description: Text, or None.
        parameters: JSON schema of its arguments, or None for a function without any.
        path: Where the function is in the request.
        field: What the dialect calls the schema.

    Raises:
        Refused: One of them is not what it should be.
    """
    if not isinstance(name, str):
        raise wrong_kind(f"{path}.name", name, "text")
    if not TOOL_NAME.fullmatch(name):
        raise invalid(
            f"{path}.name must be 1 to 128 characters without spaces, < and >; it is {name[:150]!r}",
            param=f"{path}.name",
        )
    if description is not None and not isinstance(description, str):
        raise wrong_kind(f"{path}.description", description, "text")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_kind(f"{path}.{field}", parameters, "object")
    return ToolSpec(name=name, description=description or "", parameters=parameters or dict(NO_PARAMETERS))


def distinct_tools(tools: Sequence[ToolSpec], *, path: str) -> tuple[ToolSpec, ...]:
    """Return declared functions.

    Raises:
        Refused: Two have the same name.
    """
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise invalid(f"{path} declares {tool.name} twice", param=path)
        seen.add(tool.name)
    return tuple(tools)


def checked_choice(choice: ToolChoice, tools: Sequence[ToolSpec], *, path: str) -> ToolChoice:
    """Return a tool choice that the declared functions can satisfy.

    Raises:
        Refused: A call is demanded of a function that is not declared, or of none at all.
    """
    if choice.mode == "required" and not tools:
        raise invalid(f"{path} demands a tool call, but no tools are declared", param=path)
    if choice.mode == "named" and choice.name not in {tool.name for tool in tools}:
        raise invalid(f"{path} names {choice.name}, which is not among the declared tools", param=path)
    return choice


def arguments_object(text: str, *, path: str) -> JsonObject:
    """Return the arguments of a call in the history; empty text is a call without arguments.

    Lone surrogates in them become U+FFFD, as in the body around them.

    Raises:
        Refused: The text is not a JSON object, or has a number that no float holds.
    """
    if not text.strip():
        return {}
    try:
        value = parse_strict(text)
        if SURROGATE_ESCAPE.search(text):
            value = without_surrogates(value)
    except UnusableNumber as error:
        raise invalid(f"{path} is not valid JSON: {error}", param=path) from None
    except (ValueError, RecursionError):
        raise invalid(f"{path} is not valid JSON; send the arguments as the server wrote them", param=path) from None
    if not isinstance(value, dict):
        raise invalid(f"{path} must be a JSON object, not {kind_of(value)}", param=path)
    return value


def reasoning_of(effort: str, *, path: str) -> Reasoning:
    """Return the thinking that a level of a client asks for.

    Raises:
        Refused: There is no such level.
    """
    if effort not in EFFORTS:
        raise invalid(f"{path} is {effort[:50]!r}; use one of {', '.join(EFFORTS)}", param=path)
    return EFFORTS[effort]


def derived_hex(unique: str, purpose: str, digits: int = 32) -> str:
    """Return hexadecimal digits that are another request's, or another purpose's, with no real chance only.

    Args:
        unique: The request's own digits.
        purpose: What the id is for, such as `call 2`.
        digits: How many to return, at most 64.
    """
    return hashlib.blake2b(f"{unique} {purpose}".encode(), digest_size=32).hexdigest()[:digits]


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """Return compact JSON in which no character can be taken for a line's end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False)
    return text.translate(LINE_BREAKS)
