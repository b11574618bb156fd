"""The contract between the server and a dialect.

A dialect is pure: it turns a JSON body into a `GenerationRequest` and reply events into JSON values or frames.  It does
no I/O, keeps no state between requests, and never sees the engine.  Time and ids come from outside, so that every byte
can be tested.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

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
        resident_bytes: Bytes of the process now; 0 where a request is only understood.
        modified_at: When the weights were installed, seconds since the epoch.
        vision: Whether images are accepted.
        memory_plan: The plan as JSON values.
        context_policy: The policy as JSON values.
        digest: A stable identifier of the weights.
        family: Such as `qwen4_exp`.
        quantization: Such as `4bit`.
        experts_per_layer: Routed experts of each layer; 0 when not known.
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
    experts_per_layer: int = 0


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
        ignored_fields: Top-level fields that were not understood and had no effect; the reply names them in the
            `X-Slotstream-Ignored-Fields` header and the server logs each name once.
    """

    generation: GenerationRequest | None
    stream: bool
    encoder: ReplyEncoder
    immediate: JsonObject | None = None
    ignored_fields: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer that needed no generation.

    Attributes:
        body: A JSON value.
        status: HTTP status.
        headers: Response headers besides the content type.
    """

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InfoRoute:
    """A route that is answered from the request and the model's facts alone, while generations run.

    Attributes:
        method: HTTP method; `GET` also answers `HEAD`.
        path: Exact path, or with `{name}` for one segment of any text.
        answer: Pure: the request's body (empty object for GET and DELETE) and context to the answer; raises `Refused`.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    answer: Callable[[JsonObject, RequestContext], Answer]


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


@runtime_checkable
class AnswersInfo(Protocol):
    """A dialect that also has routes without generation: model lists, refusals of what is not supported."""

    info_routes: Sequence[InfoRoute]


@runtime_checkable
class CountsTokens(Protocol):
    """A dialect that can count a request's prompt tokens without generating."""

    count_paths: Sequence[str]
    """POST paths that count."""

    def parse_count(self, body: JsonObject, context: RequestContext) -> ParsedRequest:
        """Understand a request whose prompt is to be counted; `stream` and the encoder are not used.

        Raises:
            Refused: The body is wrong.
        """

    def count_body(self, prompt_tokens: int) -> JsonObject:
        """Return the answer for a prompt of this many tokens."""
