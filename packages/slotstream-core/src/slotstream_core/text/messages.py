"""A conversation as the chat template sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
JsonObject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A call the assistant made: the tool's name and its arguments as a JSON object."""

    name: str
    arguments: JsonObject


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One turn.

    Attributes:
        role: Who speaks.
        content: The text of the turn.
        reasoning: The assistant's thinking before its answer, when it is kept.
        tool_calls: Calls the assistant made in this turn, in order.
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()

    def as_template_value(self) -> dict[str, Any]:
        """Return the dictionary the family's templates read."""
        value: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            value["reasoning_content"] = self.reasoning
        if self.tool_calls:
            value["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                for call in self.tool_calls
            ]
        return value
