"""The contract between the server and a dialect.

A dialect is pure: it turns a JSON body into a `GenerationRequest` and reply events into JSON values or frames.  It does
no I/O, keeps no state between requests, and never sees the engine.  Time and ids come from outside, so that every byte
can be tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from slotstream_serve.conversation import GenerationRequest
from slotstream_serve.errors import Failure
from slotstream_serve.reply import ReplyEvent

JsonObject = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What dialects may say about the served model.

    Attributes:
        name: The canonical name, such as `qwen3.8-flash-next:4bit` or `demo`.
        names: Every name that is accepted for it.
        window_tokens: Context window.
        max_output_tokens: Default and largest advertised reply: `max(1, min(8192, max(256, window/4), window - 1))`.
        parameters: Parameter count, and its short form such as `176B-A6B`.
        size_bytes: Bytes of the weights.
        resident_bytes: Bytes of the process now.
        modified_at: When the weights were installed, seconds since the epoch.
        vision: Whether images are accepted.
        memory_plan: The plan as JSON values.
        context_policy: The policy as JSON values.
        digest: A stable identifier of the weights.
        family: Such as `qwen4_exp`.
        quantization: Such as `4bit`.
    """

    name: str
    names: frozenset[str]
    window_tokens: int
    max_output_tokens: int
    parameters: int
    parameter_size: str
    size_bytes: int
    resident_bytes: int
    modified_at: float
    vision: bool
    memory_plan: Mapping[str, Any]
    context_policy: Mapping[str, Any]
    digest: str
    family: str
    quantization: str


@dataclass(frozen=True, kw_only=True)
class RequestContext:
    """What a dialect needs besides the body.

    Attributes:
        model: The served model.
        now_s: Seconds since the epoch when the request arrived.
        unique: 32 hexadecimal digits that no other request has; the source of every id.
        path: Request path without query and trailing slash.
        headers: Header names in lower case.
    """

    model: ModelFacts
    now_s: float
    unique: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One server-sent event, or one line of newline-delimited JSON.

    Attributes:
        data: The payload, already JSON text (or `[DONE]`); empty for a comment.
        event: The SSE event name, if the dialect names events.
        comment: An SSE comment; nothing else is set then.
    """

    data: str = ""
    event: str | None = None
    comment: str | None = None


class ReplyEncoder(Protocol):
    """Encodes the reply of one request.  Used for exactly one reply, from one task."""

    def stream(self, event: ReplyEvent) -> Sequence[Frame]:
        """Return the frames of a streamed reply that this event completes.

        After `ReplyFailed` the frames must be ones that no client can take for success; after `ReplyFinished` they
        include the terminal frame.
        """

    def keepalive(self) -> Sequence[Frame]:
        """Return what to send when nothing was sent for ten seconds; allowed at any point after `Admitted`."""

    def whole(self, events: Sequence[ReplyEvent]) -> JsonObject:
        """Return the body of an unstreamed reply.

        Args:
            events: All events of a reply that ended with `ReplyFinished`.
        """


@dataclass(frozen=True, kw_only=True)
class ParsedRequest:
    """A request understood.

    Attributes:
        generation: What to generate, or None when `immediate` already is the answer.
        stream: Whether the client wants frames.
        encoder: Encodes the reply.
        immediate: An answer that needs no generation (such as Ollama's load request).
    """

    generation: GenerationRequest | None
    stream: bool
    encoder: ReplyEncoder
    immediate: JsonObject | None = None


class Dialect(Protocol):
    """One wire dialect."""

    name: str
    framing: Literal["sse", "ndjson"]
    paths: Sequence[str]
    """POST paths that generate."""

    def parse(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request.

        Raises:
            Refused: The body is wrong, names another model, or asks for what is not supported; the failure says
                which field.
        """

    def error_body(self, failure: Failure) -> JsonObject:
        """Return the body of a refusal or failure answered before a stream has begun."""
