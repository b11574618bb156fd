"""A dialect for the tests only: request fields are `GenerationRequest`'s, and frames show reply events as they are."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from slotstream_core.text.messages import ChatMessage
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice, ToolSpec
from slotstream_serve.dialects.base import Answer, Frame, InfoRoute, JsonObject, ParsedRequest, RequestContext
from slotstream_serve.errors import Failure, invalid
from slotstream_serve.reply import ReplyEvent


def event_json(event: ReplyEvent) -> JsonObject:
    return {"type": type(event).__name__, **asdict(event)}


class PlainEncoder:
    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        return [Frame(data=json.dumps(event_json(event)), event=type(event).__name__)]

    def keepalive(self) -> Sequence[Frame]:
        return [Frame(comment="keepalive")]

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        return {"events": [event_json(event) for event in events]}


class PlainDialect:
    def __init__(self, framing: Literal["sse", "ndjson"] = "sse", path: str = "/plain") -> None:
        self.name = f"plain-{framing}"
        self.framing: Literal["sse", "ndjson"] = framing
        self.paths: Sequence[str] = (path,)
        self.count_paths: Sequence[str] = (f"{path}/count",)
        self.info_routes: Sequence[InfoRoute] = (
            InfoRoute(method="GET", path=f"{path}/models", answer=self._models),
            InfoRoute(method="POST", path=f"{path}/show", answer=self._show),
            InfoRoute(method="DELETE", path=f"{path}/things/{{name}}", answer=self._missing),
        )

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        if body.get("load"):
            return ParsedRequest(
                generation=None, stream=bool(body.get("stream")), encoder=PlainEncoder(), immediate={"loaded": True}
            )
        text = body.get("text")
        if not isinstance(text, str):
            raise invalid("text must be a string", param="text")
        if body.get("crash"):
            raise ZeroDivisionError("a bug")
        return ParsedRequest(
            generation=plain_request(text, body),
            stream=bool(body.get("stream")),
            encoder=PlainEncoder(),
            ignored_fields=tuple(sorted(name for name in body if name.startswith("x_"))),
        )

    def parse_count(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        return self.parse(body, context)

    def count_body(self, prompt_tokens: int) -> JsonObject:
        return {"count": prompt_tokens}

    def error_body(self, failure: Failure) -> JsonObject:
        return {"plain_error": {"code": failure.code, "message": failure.message, "details": dict(failure.details)}}

    def _models(self, _body: JsonObject, context: RequestContext) -> Answer:
        return Answer(body={"models": [context.model.name], "resident_bytes": context.model.resident_bytes})

    def _show(self, body: JsonObject, context: RequestContext) -> Answer:
        if body.get("model") not in context.model.names:
            raise invalid("no such model", param="model")
        return Answer(body={"window": context.model.window_tokens}, headers={"x-shown": "yes"})

    def _missing(self, _body: JsonObject, context: RequestContext) -> Answer:
        return Answer(body={"missing": context.path}, status=404)


def plain_request(text: str, body: JsonObject | None = None) -> GenerationRequest:
    values: dict[str, Any] = body or {}
    tools = tuple(
        ToolSpec(name=name, description="", parameters=parameters)
        for name, parameters in values.get("tools", {}).items()
    )
    return GenerationRequest(
        messages=(ChatMessage(role="user", content=text),),
        tools=tools,
        tool_choice=ToolChoice(**values.get("tool_choice", {})),
        parallel_tool_calls=values.get("parallel", True),
        reasoning=Reasoning(enabled=values.get("think", False)),
        max_output_tokens=values.get("max_output_tokens"),
        stop=tuple(values.get("stop", ())),
        malformed_calls=values.get("malformed_calls", "fail"),
    )
