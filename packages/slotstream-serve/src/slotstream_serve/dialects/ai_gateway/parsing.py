"""A request of the gateway protocol, understood."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from slotstream_serve.conversation import GenerationRequest, Reasoning, SamplingOverrides, ToolChoice, ToolSpec
from slotstream_serve.dialects.ai_gateway.catalogue import ALIASES, PREFIX
from slotstream_serve.dialects.ai_gateway.coding import coded
from slotstream_serve.dialects.ai_gateway.fields import REQUEST, TOOL
from slotstream_serve.dialects.ai_gateway.prompts import prompt_messages
from slotstream_serve.dialects.base import JsonObject, RequestContext
from slotstream_serve.dialects.fields import FieldReader, missing, required_object
from slotstream_serve.dialects.requests import check_model, seed_of, stop_texts
from slotstream_serve.dialects.tools import checked_choice, distinct_tools, reasoning_of, tool_spec
from slotstream_serve.errors import invalid

SPECIFICATION_HEADER = "ai-language-model-specification-version"
PROTOCOL_HEADER = "ai-gateway-protocol-version"
MODEL_HEADER = "ai-language-model-id"
STREAMING_HEADER = "ai-language-model-streaming"
SPECIFICATIONS = ("3", "4")
PROTOCOL = "0.0.1"
PROVIDER_TOOLS = ("provider", "provider-defined")


def parse_request(body: JsonObject, context: RequestContext) -> GenerationRequest:
    """Understand a request.

    Raises:
        Refused: It is wrong, for another model, or asks for what is not supported.
    """
    _check_headers(context)
    fields = FieldReader(body, REQUEST)
    prompt = fields.array("prompt")
    if prompt is None:
        with coded("invalid_prompt"):
            raise missing("prompt")
    _check_response_format(fields)
    with coded("invalid_tool"):
        tools, hosted = _tools(fields.array("tools") or [])
    with coded("invalid_tool_choice"):
        choice = _tool_choice(fields.object("toolChoice"), tools, hosted)
    return GenerationRequest(
        messages=prompt_messages(prompt),
        tools=tools,
        tool_choice=choice,
        reasoning=_reasoning(fields),
        profile="agent",
        sampling=_sampling(fields),
        max_output_tokens=fields.integer("maxOutputTokens"),
        stop=stop_texts(fields.value("stopSequences"), path="stopSequences"),
        malformed_calls="text",
    )


def wants_stream(headers: Mapping[str, str]) -> bool:
    """Return whether a client wants a stream: unless it says that it does not."""
    return headers.get(STREAMING_HEADER, "true").strip().lower() != "false"


def _check_headers(context: RequestContext) -> None:
    headers = context.headers
    specification = headers.get(SPECIFICATION_HEADER)
    if specification not in SPECIFICATIONS:
        raise invalid(
            f"the header {SPECIFICATION_HEADER} is {str(specification)[:50]!r}; "
            f"it must be {' or '.join(SPECIFICATIONS)}",
            param=SPECIFICATION_HEADER,
            dialect_code="unsupported_specification_version",
        )
    protocol = headers.get(PROTOCOL_HEADER, PROTOCOL)
    if protocol != PROTOCOL:
        raise invalid(
            f"the header {PROTOCOL_HEADER} is {protocol[:50]!r}; it must be {PROTOCOL}",
            param=PROTOCOL_HEADER,
            dialect_code="unsupported_protocol_version",
        )
    model_id = headers.get(MODEL_HEADER)
    if model_id is not None and model_id not in ALIASES:
        check_model(model_id.removeprefix(PREFIX), context.model)


def _check_response_format(fields: FieldReader) -> None:
    wanted = fields.object("responseFormat")
    if wanted is not None and wanted.get("type") != "text":
        raise invalid(
            f"responseFormat asks for {str(wanted.get('type'))[:50]!r} output, and replies cannot be forced into a "
            "schema; describe the form in the prompt and check the reply",
            param="responseFormat",
            dialect_code="response_format_unsupported",
        )


def _tools(values: Sequence[Any]) -> tuple[tuple[ToolSpec, ...], frozenset[str]]:
    """Return the tools that can be offered, and the names of those that are left out."""
    specs: list[ToolSpec] = []
    hosted: set[str] = set()
    for index, value in enumerate(values):
        path = f"tools.{index}"
        fields = FieldReader(required_object(value, path), TOOL, path=path)
        kind = fields.required_text("type")
        if kind in PROVIDER_TOOLS:
            hosted.add(fields.text("name") or "")
            continue
        if kind != "function":
            raise invalid(f"{path}.type is {kind[:50]!r}; only function tools can be offered", param=f"{path}.type")
        specs.append(
            tool_spec(
                fields.required_text("name"),
                fields.text("description"),
                fields.object("inputSchema"),
                path=path,
                field="inputSchema",
            )
        )
    return distinct_tools(specs, path="tools"), frozenset(hosted)


def _tool_choice(value: JsonObject | None, tools: Sequence[ToolSpec], hosted: frozenset[str]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    kind = value.get("type")
    if kind in ("auto", "none", "required"):
        mode: Literal["auto", "none", "required"] = kind
        return checked_choice(ToolChoice(mode=mode), tools, path="toolChoice")
    name = value.get("toolName")
    if kind != "tool" or not isinstance(name, str):
        raise invalid("toolChoice must be auto, none, required, or tool with a toolName", param="toolChoice")
    if name in hosted:
        raise invalid(
            f"toolChoice names {name}, which a hosted provider runs; it cannot be called here", param="toolChoice"
        )
    return checked_choice(ToolChoice(mode="named", name=name), tools, path="toolChoice")


def _reasoning(fields: FieldReader) -> Reasoning:
    effort = fields.text("reasoning")
    if effort is None or effort == "provider-default":
        return Reasoning()
    return reasoning_of(effort, path="reasoning")


def _sampling(fields: FieldReader) -> SamplingOverrides:
    temperature, top_p, top_k = fields.number("temperature"), fields.number("topP"), fields.integer("topK")
    return SamplingOverrides(
        temperature=None if temperature is None else max(0.0, temperature),
        top_p=None if top_p is None else min(max(0.0, top_p), 1.0),
        top_k=None if top_k is None else max(0, top_k),
        presence_penalty=fields.number("presencePenalty"),
        seed=seed_of(fields.integer("seed")),
    )
