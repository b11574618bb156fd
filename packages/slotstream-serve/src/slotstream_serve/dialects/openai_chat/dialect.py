"""The dialect's entry points."""

from collections.abc import Sequence
from typing import Literal

from slotstream_serve.dialects.base import Answer, InfoRoute, JsonObject, ParsedRequest, RequestContext
from slotstream_serve.dialects.openai_chat.encoding import ChatCompletionEncoder, error_body
from slotstream_serve.dialects.openai_chat.parsing import parse_request, wants_usage
from slotstream_serve.errors import Failure, Refused


class OpenAIChat:
    """Chat Completions and the model list."""

    name = "openai_chat"
    framing: Literal["sse", "ndjson"] = "sse"
    paths: Sequence[str] = ("/v1/chat/completions",)

    @property
    def info_routes(self) -> Sequence[InfoRoute]:
        """The model list, and its one model."""
        return [
            InfoRoute(method="GET", path="/v1/models", answer=list_models),
            InfoRoute(method="GET", path="/v1/models/{name}", answer=show_model),
        ]

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request."""
        generation, fields = parse_request(body, context.model)
        return ParsedRequest(
            generation=generation,
            stream=fields.boolean("stream") is True,
            encoder=ChatCompletionEncoder(context, include_usage=wants_usage(fields)),
        )

    def error_body(self, failure: Failure) -> JsonObject:
        """Return an error in the dialect's shape."""
        return error_body(failure)


def list_models(_body: JsonObject, context: RequestContext) -> Answer:
    """Answer the model list."""
    return Answer(body={"object": "list", "data": [_card(context)]})


def show_model(_body: JsonObject, context: RequestContext) -> Answer:
    """Answer for one model.

    Raises:
        Refused: It is not the served one.
    """
    name = context.path.removeprefix("/v1/models/")
    if name not in context.model.names:
        message = f"model {name[:200]!r} is not served here; the model is {context.model.name!r}"
        raise Refused(Failure(code="model_not_found", message=message, param="model"))
    return Answer(body=_card(context))


def _card(context: RequestContext) -> JsonObject:
    model = context.model
    return {
        "id": model.name,
        "object": "model",
        "created": int(model.modified_at),
        "owned_by": "slotstream",
        "context_window": model.window_tokens,
        "context_length": model.window_tokens,
        "max_output_tokens": model.max_output_tokens,
        "capabilities": ["completion", "tools", "thinking", *(["vision"] if model.vision else [])],
        "context_policy": dict(model.context_policy),
    }
