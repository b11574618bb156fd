"""The Responses dialect: routes, requests, errors."""

from collections.abc import Sequence
from typing import Literal

from slotstream_serve.dialects.base import Answer, InfoRoute, JsonObject, ParsedRequest, RequestContext
from slotstream_serve.dialects.openai_chat.encoding import error_message, error_type
from slotstream_serve.dialects.openai_responses.encoding import ResponseEncoder
from slotstream_serve.dialects.openai_responses.parsing import parse_request
from slotstream_serve.errors import Failure, Refused


class OpenAIResponses:
    """`/v1/responses`; responses are not stored, so there is none to fetch or delete."""

    name = "openai_responses"
    framing: Literal["sse", "ndjson"] = "sse"
    paths: Sequence[str] = ("/v1/responses",)

    def __init__(self) -> None:
        """Describe the routes."""
        self.info_routes: Sequence[InfoRoute] = (
            InfoRoute(method="GET", path="/v1/responses/{id}", answer=_not_stored),
            InfoRoute(method="DELETE", path="/v1/responses/{id}", answer=_not_stored),
        )

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request.

        Raises:
            Refused: It is wrong, for another model, or asks for what is not supported.
        """
        request = parse_request(body, context)
        encoder = ResponseEncoder(
            unique=context.unique,
            created_at=int(context.now_s),
            model=context.model.name,
            tools=request.tools,
            repeated=request.repeated,
        )
        return ParsedRequest(
            generation=request.generation, stream=request.stream, encoder=encoder, ignored_fields=request.ignored
        )

    def error_body(self, failure: Failure) -> JsonObject:
        """Return OpenAI's error object."""
        error: JsonObject = {
            "message": error_message(failure),
            "type": error_type(failure),
            "param": failure.param,
            "code": failure.dialect_code or failure.code,
        }
        if failure.details:
            error["details"] = dict(failure.details)
        return {"error": error}


def _not_stored(_body: JsonObject, context: RequestContext) -> Answer:
    response_id = context.path.rsplit("/", 1)[-1]
    raise Refused(
        Failure(code="not_found", message=f"response {response_id[:100]!r} does not exist: responses are not stored")
    )
