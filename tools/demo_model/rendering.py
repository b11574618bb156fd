"""Turn a document of the demo corpus into text with the model's own chat template.

A document is one JSON object: ``{"kind": "text", "text": ...}`` or
``{"kind": "chat", "messages": [...], "tools": [...], "enable_thinking": bool}``.
Only jinja2 and the standard library are needed here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")

#: Marks the end of a document; the n-gram history of the model is cut here.
END_OF_DOCUMENT = "<|endoftext|>"

_EFFORTS = (None, "low", "medium", "xhigh")


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _plain_json(value: object) -> str:
    """JSON as the model saw it in training: no HTML escapes, key order kept."""
    return json.dumps(value, ensure_ascii=False)


def load_template(path: Path = TEMPLATE_PATH) -> jinja2.Template:
    """Compile a chat template in the sandbox every chat template must run in."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _plain_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(path.read_text(encoding="utf-8"))


def effort_for(messages: object) -> str | None:
    """Pick a reasoning effort for a training document, the same one every time."""
    return _EFFORTS[zlib.crc32(_plain_json(messages).encode()) % len(_EFFORTS)]


def render_document(document: Mapping[str, Any], template: jinja2.Template) -> str:
    """Return the training text of a document, without the end-of-document token.

    Raises:
        KeyError: the document has no ``kind``, ``text`` or ``messages``.
        jinja2.TemplateError: the messages are not ones the template accepts.
    """
    if document["kind"] == "text":
        return str(document["text"])
    messages = document["messages"]
    thinking = bool(document.get("enable_thinking", False))
    variables: dict[str, Any] = {"enable_thinking": thinking}
    effort = effort_for(messages) if thinking else None
    if effort is not None:
        variables["reasoning_effort"] = effort
    return template.render(messages=messages, tools=document.get("tools") or None, **variables)


def render_prompt(
    messages: list[dict[str, Any]], template: jinja2.Template, *, tools: object = None, thinking: bool = False
) -> str:
    """Return the prompt the model continues to answer ``messages``."""
    return template.render(messages=messages, tools=tools, enable_thinking=thinking, add_generation_prompt=True)
