"""The checkpoint's chat template, rendered in a sandbox."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slotstream_core.errors import TemplateError
from slotstream_core.text.files import read_text_file, reason
from slotstream_core.text.messages import ChatMessage, JsonObject

_FAILURES: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template's own mistakes raise while it renders."""

ReasoningEffort = Literal["low", "medium", "high", "xhigh"]


class ChatTemplate:
    """Renders a conversation to the text the model was trained on.

    The template is data that came with a checkpoint, so it runs in Jinja's immutable sandbox: it can neither call
    into Python nor change what it is given.
    """

    def __init__(self, source: str, *, name: str) -> None:
        """Compile a template.

        Args:
            source: Jinja text with the features of the family's templates (macros, namespaces, loop controls).
            name: Where it came from, for messages.

        Raises:
            TemplateError: The text is empty or not valid Jinja.
        """
        if not source.strip():
            raise TemplateError(f"{name} is empty; copy the chat template of the original checkpoint")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        self._name = name
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"{name} is not a valid chat template: {error}") from error

    @classmethod
    def from_directory(cls, directory: Path) -> "ChatTemplate | None":
        """Return the template of a checkpoint (`chat_template.jinja`, or the key in `tokenizer_config.json`), if any.

        Raises:
            TemplateError: A template file exists but cannot be read or compiled.
        """
        path = directory / "chat_template.jinja"
        config = directory / "tokenizer_config.json"
        try:
            text = read_text_file(path)
            if text is not None:
                return cls(text, name=str(path))
            described = read_text_file(config)
            source = None if described is None else json.loads(described).get("chat_template")
            if isinstance(source, str):
                return cls(source, name=str(config))
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise TemplateError(f"the chat template of {directory} cannot be read: {reason(error)}") from error
        return None

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        thinking: bool = False,
        effort: ReasoningEffort | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Return the prompt text.

        Args:
            messages: The conversation, oldest first.
            tools: Declared tools, each `{"type": "function", "function": {...}}`.
            thinking: Whether the reply starts inside a thinking block.
            effort: How much to think; passed on only when thinking.
            generation_prompt: Whether to end with the opening of the assistant's turn.

        Raises:
            TemplateError: The template refused the conversation, or failed on it.
        """
        values: dict[str, Any] = {
            "messages": [message.as_template_value() for message in messages],
            "add_generation_prompt": generation_prompt,
            "enable_thinking": thinking,
        }
        if tools:
            values["tools"] = list(tools)
        if thinking and effort is not None:
            values["reasoning_effort"] = effort
        try:
            return self._template.render(**values)
        except TemplateError:
            raise
        except _FAILURES as error:
            raise TemplateError(f"{self._name} failed on this conversation: {error}") from error


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the chat template refused the conversation: {message}")


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
