"""A request of the Responses API, understood."""

from dataclasses import dataclass

from slotstream_core.text.messages import ChatMessage
from slotstream_serve.conversation import GenerationRequest, Reasoning, SamplingOverrides
from slotstream_serve.dialects.base import JsonObject, RequestContext
from slotstream_serve.dialects.fields import FieldReader, missing
from slotstream_serve.dialects.openai_responses.declaring import DeclaredTools, declared_tools, tool_choice
from slotstream_serve.dialects.openai_responses.fields import REASONING, REQUEST, TEXT
from slotstream_serve.dialects.openai_responses.items import InputReader
from slotstream_serve.dialects.requests import IN_MEMORY, check_model, profile_for
from slotstream_serve.dialects.tools import reasoning_of
from slotstream_serve.errors import invalid


@dataclass(frozen=True, kw_only=True)
class ResponsesRequest:
    """A request.

    Attributes:
        generation: What to generate.
        stream: Whether events are wanted.
        tools: What was declared, for naming calls.
        repeated: Fields of the request that the response object repeats.
        ignored: Fields without effect that are not known here.
    """

    generation: GenerationRequest
    stream: bool
    tools: DeclaredTools
    repeated: JsonObject
    ignored: tuple[str, ...]


def parse_request(body: JsonObject, context: RequestContext) -> ResponsesRequest:
    """Understand a request.

    Raises:
        Refused: It is wrong, for another model, or asks for what is not supported.
    """
    fields = FieldReader(body, REQUEST)
    check_model(fields.required_text("model"), context.model)
    reasoning, ignored = _reasoning(fields)
    _check_text(fields)
    tools = declared_tools(fields.array("tools") or [])
    temperature, top_p = fields.number("temperature"), fields.number("top_p")
    parallel = fields.boolean("parallel_tool_calls")
    generation = GenerationRequest(
        messages=_messages(fields),
        tools=tools.specs,
        tool_choice=tool_choice(fields.value("tool_choice"), tools),
        parallel_tool_calls=parallel is not False,
        reasoning=reasoning,
        profile=profile_for(tools.specs, reasoning),
        sampling=SamplingOverrides(
            temperature=None if temperature is None else max(0.0, temperature),
            top_p=None if top_p is None else min(max(0.0, top_p), 1.0),
        ),
        max_output_tokens=fields.integer("max_output_tokens"),
        persist=fields.text("prompt_cache_retention") != IN_MEMORY,
    )
    return ResponsesRequest(
        generation=generation,
        stream=bool(fields.boolean("stream")),
        tools=tools,
        repeated=_repeated(fields),
        ignored=ignored,
    )


def _messages(fields: FieldReader) -> tuple[ChatMessage, ...]:
    given = fields.value("input")
    reader = InputReader(fields.text("instructions"))
    if isinstance(given, str):
        reader.say(given)
    elif not given:
        raise missing("input")
    else:
        for index, item in enumerate(given):
            reader.read(item, index)
    return reader.finish()


def _reasoning(fields: FieldReader) -> tuple[Reasoning, tuple[str, ...]]:
    value = fields.object("reasoning")
    if value is None:
        return Reasoning(), ()
    inner = FieldReader(value, REASONING, path="reasoning")
    ignored = tuple(inner.path(name) for name in inner.ignored)
    effort = inner.text("effort")
    return (Reasoning() if effort is None else reasoning_of(effort, path="reasoning.effort")), ignored


def _check_text(fields: FieldReader) -> None:
    value = fields.object("text")
    if value is None:
        return
    wanted = FieldReader(value, TEXT, path="text").object("format")
    if wanted is not None and wanted.get("type") != "text":
        raise invalid(
            f"text.format asks for {str(wanted.get('type'))[:50]!r} output, and replies cannot be forced into a "
            "schema; describe the form in the instructions and check the reply",
            param="text.format",
            dialect_code="unsupported_field",
        )


def _repeated(fields: FieldReader) -> JsonObject:
    text = fields.object("text") or {}
    choice = fields.value("tool_choice")
    parallel = fields.boolean("parallel_tool_calls")
    return {
        "tools": fields.array("tools") or [],
        "tool_choice": "auto" if choice is None else choice,
        "parallel_tool_calls": parallel is not False,
        "instructions": fields.text("instructions"),
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "max_output_tokens": fields.integer("max_output_tokens"),
        "reasoning": fields.object("reasoning"),
        "text": {**text, "format": {"type": "text"}},
        "metadata": fields.object("metadata") or {},
        "user": fields.text("user"),
    }
