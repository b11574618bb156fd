"""A request of the Messages API, understood."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slotstream_serve.conversation import GenerationRequest, Reasoning, SamplingOverrides, ToolChoice, ToolSpec
from slotstream_serve.dialects.anthropic_messages.fields import (
    COUNT_REQUEST,
    OUTPUT_CONFIG,
    REQUEST,
    THINKING,
    TOOL,
    TOOL_CHOICE,
)
from slotstream_serve.dialects.anthropic_messages.turns import conversation
from slotstream_serve.dialects.base import JsonObject, RequestContext
from slotstream_serve.dialects.fields import FieldReader, missing, required_object
from slotstream_serve.dialects.requests import check_model, profile_for, stop_texts
from slotstream_serve.dialects.tools import checked_choice, distinct_tools, reasoning_of, tool_spec
from slotstream_serve.errors import invalid

HOSTED_PREFIXES = (
    "web_search_",
    "web_fetch_",
    "code_execution_",
    "tool_search_tool_",
    "mcp_toolset",
    "advisor_",
)
"""Types of tools that run on Anthropic's servers: the model cannot run them, so it is not told of them."""

LOW_BUDGET_TOKENS = 4096
MEDIUM_BUDGET_TOKENS = 16_384


@dataclass(frozen=True, kw_only=True)
class MessagesRequest:
    """A request.

    Attributes:
        generation: What to generate.
        stream: Whether events are wanted.
        shows_thinking: Whether thinking blocks are returned with their text.
        ignored: Fields without effect that are not known here.
    """

    generation: GenerationRequest
    stream: bool
    shows_thinking: bool
    ignored: tuple[str, ...]


def parse_request(
    body: JsonObject, context: RequestContext, *, purpose: Literal["generate", "count"]
) -> MessagesRequest:
    """Understand a request.

    Raises:
        Refused: It is wrong, for another model, or asks for what is not supported.
    """
    counting = purpose == "count"
    fields = FieldReader(body, COUNT_REQUEST if counting else REQUEST)
    check_model(fields.required_text("model"), context.model, status=404)
    messages = fields.array("messages")
    if messages is None:
        raise missing("messages")
    budget = fields.integer("max_tokens")
    if budget is None and not counting:
        raise missing("max_tokens")
    reasoning, shows_thinking = _reasoning(fields)
    tools, hosted = _tools(fields.array("tools") or [])
    choice, parallel = _tool_choice(fields, tools, hosted)
    generation = GenerationRequest(
        messages=conversation(fields.value("system"), messages, ends_with="anyone" if counting else "user"),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning=reasoning,
        profile=profile_for(tools, reasoning),
        sampling=_sampling(fields),
        max_output_tokens=budget,
        stop=stop_texts(fields.value("stop_sequences"), path="stop_sequences"),
    )
    return MessagesRequest(
        generation=generation,
        stream=bool(fields.boolean("stream")),
        shows_thinking=shows_thinking,
        ignored=fields.ignored,
    )


def _sampling(fields: FieldReader) -> SamplingOverrides:
    temperature, top_p, top_k = fields.number("temperature"), fields.number("top_p"), fields.integer("top_k")
    return SamplingOverrides(
        temperature=None if temperature is None else max(0.0, temperature),
        top_p=None if top_p is None else min(max(0.0, top_p), 1.0),
        top_k=None if top_k is None else max(0, top_k),
    )


def _reasoning(fields: FieldReader) -> tuple[Reasoning, bool]:
    effort = None
    if (config := fields.object("output_config")) is not None:
        effort = FieldReader(config, OUTPUT_CONFIG, path="output_config").text("effort")
    asked = Reasoning(enabled=True, effort="xhigh")
    if effort is not None:
        asked = reasoning_of(effort, path="output_config.effort")
    if (value := fields.object("thinking")) is None:
        return Reasoning(), True
    thinking = FieldReader(value, THINKING, path="thinking")
    shown = thinking.text("display") != "omitted"
    match thinking.required_text("type"):
        case "adaptive":
            return asked, shown
        case "enabled":
            budget = thinking.integer("budget_tokens")
            if budget is None:
                raise missing("thinking.budget_tokens")
            return (_budgeted(budget) if effort is None else asked), shown
        case "disabled":
            return Reasoning(), shown
        case other:
            raise invalid(f"thinking.type is {other[:50]!r}; use adaptive, enabled or disabled", param="thinking.type")


def _budgeted(budget_tokens: int) -> Reasoning:
    if budget_tokens < LOW_BUDGET_TOKENS:
        return Reasoning(enabled=True, effort="low")
    if budget_tokens < MEDIUM_BUDGET_TOKENS:
        return Reasoning(enabled=True, effort="medium")
    return Reasoning(enabled=True, effort="xhigh")


def _tools(values: Sequence[Any]) -> tuple[tuple[ToolSpec, ...], frozenset[str]]:
    """Return the tools that can be offered, and the names of those that are left out."""
    specs: list[ToolSpec] = []
    hosted: set[str] = set()
    for index, value in enumerate(values):
        path = f"tools.{index}"
        fields = FieldReader(required_object(value, path), TOOL, path=path)
        kind = fields.text("type")
        if kind is not None and kind.startswith(HOSTED_PREFIXES):
            hosted.add(fields.text("name") or kind)
            continue
        if kind not in (None, "custom"):
            raise invalid(
                f"{path} is a tool of type {kind[:100]!r}, which the model does not know; "
                "declare it with a name, a description and an input_schema",
                param=f"{path}.type",
            )
        schema = fields.object("input_schema")
        if schema is None:
            raise missing(f"{path}.input_schema")
        specs.append(
            tool_spec(fields.required_text("name"), fields.text("description"), schema, path=path, field="input_schema")
        )
    return distinct_tools(specs, path="tools"), frozenset(hosted)


def _tool_choice(fields: FieldReader, tools: tuple[ToolSpec, ...], hosted: frozenset[str]) -> tuple[ToolChoice, bool]:
    value = fields.object("tool_choice")
    if value is None:
        return ToolChoice(), True
    inner = FieldReader(value, TOOL_CHOICE, path="tool_choice")
    parallel = not inner.boolean("disable_parallel_tool_use")
    match inner.required_text("type"):
        case "auto":
            choice = ToolChoice()
        case "any":
            choice = ToolChoice(mode="required")
        case "none":
            choice = ToolChoice(mode="none")
        case "tool":
            choice = ToolChoice(mode="named", name=inner.required_text("name"))
        case other:
            raise invalid(f"tool_choice.type is {other[:50]!r}; use auto, any, none or tool", param="tool_choice.type")
    if choice.name in hosted:
        raise invalid(
            f"tool_choice names {choice.name}, which runs on Anthropic's servers and cannot be called here",
            param="tool_choice.name",
        )
    return checked_choice(choice, tools, path="tool_choice"), parallel
