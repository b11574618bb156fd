"""The gateway dialect: routes, requests, errors."""

from collections.abc import Callable, Sequence
from typing import Literal

from slotstream_serve.dialects.ai_gateway.catalogue import available_models, installed_models, language_models
from slotstream_serve.dialects.ai_gateway.coding import error_value
from slotstream_serve.dialects.ai_gateway.encoding import GatewayEncoder
from slotstream_serve.dialects.ai_gateway.parsing import MODEL_HEADER, parse_request, wants_stream
from slotstream_serve.dialects.base import (
    Answer,
    InfoRoute,
    JsonObject,
    ModelFacts,
    ParsedRequest,
    RequestContext,
)
from slotstream_serve.errors import Failure

NO_CREDITS = {"balance": "0", "total_used": "0"}


class AIGateway:
    """Language model calls of the AI SDK's gateway, and the lists its clients ask for."""

    name = "ai_gateway"
    framing: Literal["sse", "ndjson"] = "sse"
    paths: Sequence[str] = ("/v3/ai/language-model", "/v1/ai/language-model", "/v4/ai/language-model")

    def __init__(self) -> None:
        """Describe the routes."""
        self.info_routes: Sequence[InfoRoute] = (
            _listing("/v1/ai/config", lambda model: available_models(model, "v3")),
            _listing("/v3/ai/config", lambda model: available_models(model, "v3")),
            _listing("/v4/ai/config", lambda model: available_models(model, "v4")),
            _listing("/coding-agent/v1/models", language_models),
            _listing("/coding-agent/v1/credits", lambda _model: NO_CREDITS),
            _listing("/v1/credits", lambda _model: NO_CREDITS),
            _listing("/api/v1/models", installed_models),
        )

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request.

        Raises:
            Refused: It is wrong, for another model, or asks for what is not supported.
        """
        generation = parse_request(body, context)
        model_id = context.headers.get(MODEL_HEADER, context.model.name)
        encoder = GatewayEncoder(unique=context.unique, model_id=model_id, now_s=context.now_s)
        return ParsedRequest(generation=generation, stream=wants_stream(context.headers), encoder=encoder)

    def error_body(self, failure: Failure) -> JsonObject:
        """Return the gateway's error object."""
        return {"error": error_value(failure)}


def _listing(path: str, body: Callable[[ModelFacts], JsonObject]) -> InfoRoute:
    def answer(_body: JsonObject, context: RequestContext) -> Answer:
        return Answer(body=body(context.model))

    return InfoRoute(method="GET", path=path, answer=answer)
