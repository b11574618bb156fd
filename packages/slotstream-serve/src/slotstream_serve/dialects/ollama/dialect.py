"""The dialect's entry points."""

from collections.abc import Sequence
from typing import Literal

from slotstream_serve.dialects.base import Answer, InfoRoute, JsonObject, ParsedRequest, RequestContext
from slotstream_serve.dialects.ollama.describing import (
    list_running,
    list_tags,
    refuse_embeddings,
    refuse_installing,
    show_model,
)
from slotstream_serve.dialects.ollama.encoding import OllamaEncoder, error_body
from slotstream_serve.dialects.ollama.parsing import parse_chat, parse_generate
from slotstream_serve.errors import Failure

CHAT_PATH, GENERATE_PATH = "/api/chat", "/api/generate"


API_VERSION = "0.13.4"
"""The Ollama whose API these routes follow. Clients ask for it to learn what they may send, such as `codex --oss`."""


class Ollama:
    """Chat, generate, and the routes that describe the model."""

    name = "ollama"
    framing: Literal["sse", "ndjson"] = "ndjson"
    paths: Sequence[str] = (CHAT_PATH, GENERATE_PATH)

    def __init__(self, *, version: str) -> None:
        """Prepare the routes.

        Args:
            version: This server's, which `/api/version` names beside the version of the API.
        """
        self._version = version
        self.info_routes: Sequence[InfoRoute] = (
            InfoRoute(method="GET", path="/api/tags", answer=list_tags),
            InfoRoute(method="GET", path="/api/ps", answer=list_running),
            InfoRoute(method="GET", path="/api/version", answer=self._show_version),
            InfoRoute(method="POST", path="/api/show", answer=show_model),
            InfoRoute(method="POST", path="/api/embed", answer=refuse_embeddings),
            InfoRoute(method="POST", path="/api/embeddings", answer=refuse_embeddings),
            InfoRoute(method="POST", path="/api/pull", answer=refuse_installing),
            InfoRoute(method="POST", path="/api/create", answer=refuse_installing),
        )

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request."""
        understand = parse_chat if context.path == CHAT_PATH else parse_generate
        request = understand(body, context.model)
        encoder = OllamaEncoder(context, request.route)
        return ParsedRequest(
            generation=request.generation,
            stream=request.stream,
            encoder=encoder,
            immediate=encoder.loaded() if request.generation is None else None,
        )

    def error_body(self, failure: Failure) -> JsonObject:
        """Return an error in the dialect's shape."""
        return error_body(failure)

    def _show_version(self, _body: JsonObject, _context: RequestContext) -> Answer:
        return Answer(body={"version": API_VERSION, "server": "slotstream", "server_version": self._version})
