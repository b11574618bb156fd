"""What a client asked for, without its dialect: the only request type behind the dialects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.template import ReasoningEffort

Profile = Literal["ordinary", "thinking", "agent"]
"""Default sampling: plain chat; thinking without tools; tools declared, or the gateway."""


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A function the model may call.

    Attributes:
        name: As the client knows it.
        description: What it does; may be empty.
        parameters: JSON schema of its arguments object.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_template_value(self) -> dict[str, Any]:
        """Return the dictionary that the chat template and the scanner read."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """Whether calls are allowed or demanded; `name` only with mode "named"."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reasoning:
    """Whether the model thinks first, and how much (None: its own default)."""

    enabled: bool = False
    effort: ReasoningEffort | None = None


@dataclass(frozen=True, kw_only=True)
class SamplingOverrides:
    """What the client set itself; None leaves the profile's value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One generation.

    Attributes:
        messages: The conversation, oldest first, at most one system turn and that first; results already matched to
            their calls and in call order.  Empty with `raw_prompt`.
        raw_prompt: Text sent without the chat template (Ollama's `raw`).
        tools: Declared functions.
        tool_choice: Whether they may or must be called.
        parallel_tool_calls: Whether one reply may hold several calls; False ends it after the first.
        reasoning: Thinking before the answer.
        profile: Which default sampling applies.
        sampling: The client's own values.
        max_output_tokens: The client's budget; 0 or less: as many as the window leaves; None: the default below.
        default_output_tokens: The dialect's default budget, or None for the server's own (a quarter of the window,
            between 256 and 8,192).
        stop: Texts that end the answer.
        window_limit: A smaller window the client asked for (`num_ctx`), in tokens.
        malformed_calls: What a call that breaks the grammar or names no declared function does: fail the reply, or
            appear in it as text.  At the end of the output budget an unfinished call is dropped either way.
        persist: Whether the conversation may be kept on disk, where the server keeps any; memory is not concerned.
    """

    messages: tuple[ChatMessage, ...]
    raw_prompt: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    reasoning: Reasoning = field(default_factory=Reasoning)
    profile: Profile = "ordinary"
    sampling: SamplingOverrides = field(default_factory=SamplingOverrides)
    max_output_tokens: int | None = None
    default_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    window_limit: int | None = None
    malformed_calls: Literal["fail", "text"] = "fail"
    persist: bool = True
