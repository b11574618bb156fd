"""The Messages dialect: routes, requests, errors."""

from collections.abc import Sequence
from typing import Literal

from slotstream_serve.dialects.anthropic_messages.encoding import MessageEncoder, error_object
from slotstream_serve.dialects.anthropic_messages.parsing import parse_request
from slotstream_serve.dialects.base import JsonObject, ParsedRequest, RequestContext
from slotstream_serve.errors import Failure


class AnthropicMessages:
    """`/v1/messages` and `/v1/messages/count_tokens`."""

    name = "anthropic_messages"
    framing: Literal["sse", "ndjson"] = "sse"
    paths: Sequence[str] = ("/v1/messages",)
    count_paths: Sequence[str] = ("/v1/messages/count_tokens",)

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request.

        Raises:
            Refused: It is wrong, for another model, or asks for what is not supported.
        """
        return self._parse(body, context, purpose="generate")

    def parse_count(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request whose prompt is to be counted: `max_tokens` may be missing, the assistant may be last.

        Raises:
            Refused: It is wrong, for another model, or asks for what is not supported.
        """
        return self._parse(body, context, purpose="count")

    def count_body(self, prompt_tokens: int) -> JsonObject:
        """Return the answer to a count."""
        return {"input_tokens": prompt_tokens}

    def error_body(self, failure: Failure) -> JsonObject:
        """Return Anthropic's error object."""
        return error_object(failure)

    def _parse(
        self, body: JsonObject, context: RequestContext, *, purpose: Literal["generate", "count"]
    ) -> ParsedRequest:
        request = parse_request(body, context, purpose=purpose)
        encoder = MessageEncoder(
            unique=context.unique,
            model=context.model.name,
            thinking="shown" if request.shows_thinking else "omitted",
        )
        return ParsedRequest(
            generation=request.generation, stream=request.stream, encoder=encoder, ignored_fields=request.ignored
        )
