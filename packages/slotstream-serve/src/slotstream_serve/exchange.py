"""One request to a dialect: body, meaning, generation, and the reply in the dialect's frames."""

import logging
import re
import time
from collections.abc import Awaitable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from slotstream_serve.dialects.base import (
    CountsTokens,
    Dialect,
    InfoRoute,
    JsonObject,
    ModelFacts,
    ParsedRequest,
    RequestContext,
)
from slotstream_serve.errors import Failure, Refused, ServerStopping
from slotstream_serve.gate import NOTES, RequestNotes
from slotstream_serve.limits import ClientGone, parse_json_object, read_body
from slotstream_serve.reply import Admitted, ReplyEvent, ReplyFailed, ReplyFinished
from slotstream_serve.runner import Ticket
from slotstream_serve.service import Service
from slotstream_serve.shapes import ErrorBody, failure_headers, lowercase_headers
from slotstream_serve.streaming import NDJSON, ReplyStream, unless_gone

logger = logging.getLogger("slotstream.serve")

IGNORED_FIELDS_HEADER = "x-slotstream-ignored-fields"
LONGEST_IGNORED_HEADER = 1000
UNPRINTABLE = re.compile(r"[^ -~]")


class Exchange:
    """Answers requests of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def generate(self, dialect: Dialect, request: Request) -> Response:
        """Answer a request that generates."""
        return await self._guarded(request, dialect.error_body, self._generate(dialect, request))

    async def count(self, dialect: Dialect, counter: CountsTokens, request: Request) -> Response:
        """Answer a request to count a prompt's tokens."""
        return await self._guarded(request, dialect.error_body, self._count(dialect, counter, request))

    async def info(self, dialect: Dialect, route: InfoRoute, request: Request) -> Response:
        """Answer a request that needs no engine."""
        return await self._guarded(request, dialect.error_body, self._info(dialect, route, request))

    async def body(self, request: Request) -> JsonObject:
        """Return a request's JSON object.

        Raises:
            Refused: It is too large, has too many values, or is no JSON object.
            ClientGone: The client left.
        """
        return await self._parsed(await self._raw(request))

    async def _parsed(self, raw: bytes) -> JsonObject:
        return await self._service.work(len(raw), parse_json_object, raw, self._service.config.limits)

    async def _raw(self, request: Request) -> bytes:
        return await read_body(request.receive, request.headers.get("content-length"), self._service.config.limits)

    async def _guarded(self, request: Request, shape: ErrorBody, answer: Awaitable[Response]) -> Response:
        """Turn everything that goes wrong before the first byte into the dialect's error."""
        notes: RequestNotes = request.scope[NOTES]
        try:
            return await answer
        except Refused as refusal:
            failure = refusal.failure
        except ServerStopping as stopping:
            failure = Failure(code="server_stopping", message=str(stopping))
        except ClientGone:
            failure = Failure(code="client_cancelled", message="the client closed the request")
        except RecursionError:
            failure = Failure(code="invalid_request", message="the body is nested too deeply")
        except Exception as error:
            logger.exception("a request failed")
            failure = Failure(
                code="inference_error", message=f"internal error ({type(error).__name__}); the server's log has more"
            )
        notes.values["outcome"] = failure.code
        return JSONResponse(shape(failure), failure.http_status, failure_headers(failure))

    async def _generate(self, dialect: Dialect, request: Request) -> Response:
        notes: RequestNotes = request.scope[NOTES]
        raw = await self._raw(request)
        accepted_s = time.monotonic()
        body = await self._parsed(raw)
        context = self._context(request, self._service.config.model)
        parsed = await self._service.work(len(raw), dialect.parse, body, context)
        headers = self._ignored(dialect, parsed)
        notes.values.update(dialect=dialect.name, stream=parsed.stream)
        if parsed.generation is None:
            return _immediate(dialect, parsed, headers)
        prepared = await self._service.prepare(parsed.generation, size_bytes=len(raw))
        ticket = self._service.submit(prepared, accepted_s=accepted_s, label=notes.label)
        reply = _Reply(self._service, dialect, parsed, ticket, notes, headers)
        return await (reply.streamed(request.receive) if parsed.stream else reply.whole(request.receive))

    async def _count(self, dialect: Dialect, counter: CountsTokens, request: Request) -> Response:
        raw = await self._raw(request)
        body = await self._parsed(raw)
        context = self._context(request, self._service.config.model)
        parsed = await self._service.work(len(raw), counter.parse_count, body, context)
        headers = self._ignored(dialect, parsed)
        tokens = 0 if parsed.generation is None else await self._service.count(parsed.generation)
        request.scope[NOTES].values.update(dialect=dialect.name, prompt_tokens=tokens)
        return JSONResponse(counter.count_body(tokens), headers=headers)

    async def _info(self, dialect: Dialect, route: InfoRoute, request: Request) -> Response:
        body = await self.body(request) if route.method == "POST" else {}
        answer = route.answer(body, self._context(request, self._service.facts()))
        request.scope[NOTES].values["dialect"] = dialect.name
        return JSONResponse(answer.body, answer.status, dict(answer.headers))

    def _context(self, request: Request, model: ModelFacts) -> RequestContext:
        notes: RequestNotes = request.scope[NOTES]
        headers = lowercase_headers(request.scope["headers"])
        return self._service.context(model, unique=notes.unique, path=request.scope["path"], headers=headers)

    def _ignored(self, dialect: Dialect, parsed: ParsedRequest) -> dict[str, str]:
        if not parsed.ignored_fields:
            return {}
        self._service.note_ignored(dialect.name, parsed.ignored_fields)
        return {IGNORED_FIELDS_HEADER: header_text(", ".join(parsed.ignored_fields)[:LONGEST_IGNORED_HEADER])}


class _Reply:
    """The reply to one generation, on its way to the client."""

    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        parsed: ParsedRequest,
        ticket: Ticket,
        notes: RequestNotes,
        headers: dict[str, str],
    ) -> None:
        self._service = service
        self._dialect = dialect
        self._encoder = parsed.encoder
        self._ticket = ticket
        self._notes = notes
        self._headers = headers

    async def whole(self, receive: Receive) -> Response:
        """Wait for the end and answer in one body."""
        try:
            events = await unless_gone(self._collect(), receive)
        finally:
            self._settle()
        last = events[-1]
        if isinstance(last, ReplyFailed):
            return self._refusal(last.failure)
        return JSONResponse(self._encoder.whole(events), headers=self._headers)

    async def streamed(self, receive: Receive) -> Response:
        """Wait for admission, so that a refusal still has its own status; then stream."""
        try:
            first = await unless_gone(self._next(), receive)
            if isinstance(first[0], ReplyFailed):
                self._settle()
                return self._refusal(first[0].failure)
        except BaseException:
            self._settle()
            raise
        return ReplyStream(
            first,
            self._ticket,
            self._encoder,
            framing=self._dialect.framing,
            headers=self._headers,
            keepalive_s=self._service.config.keepalive_s,
            watch=self._note_first,
            settle=self._settle,
        )

    async def _collect(self) -> Sequence[ReplyEvent]:
        events: list[ReplyEvent] = []

        def collect(event: ReplyEvent) -> bool:
            self._note_first((event,))
            events.append(event)
            return True

        while not events or not isinstance(events[-1], ReplyFinished | ReplyFailed):
            events += await self._ticket.next_events(collect)
            self._note_first(events)
        return events

    async def _next(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        while not events:
            events = await self._ticket.next_events()
        self._note_first(events)
        return events

    def _note_first(self, events: Sequence[ReplyEvent]) -> None:
        """Note when the first event after admission came."""
        if "first_s" not in self._notes.values and any(not isinstance(event, Admitted) for event in events):
            self._notes.values["first_s"] = round(time.monotonic() - self._ticket.accepted_s, 4)

    def _refusal(self, failure: Failure) -> Response:
        headers = {**self._headers, **failure_headers(failure)}
        return JSONResponse(self._dialect.error_body(failure), failure.http_status, headers)

    def _settle(self) -> None:
        """Stop what nobody waits for any more, and tell the log how the generation went."""
        self._service.runner.withdraw(self._ticket)
        values, record = self._notes.values, self._ticket.record
        values["prompt_tokens"] = len(self._ticket.prepared.ids)
        values["outcome"] = "client_cancelled" if record is None else record.outcome
        if record is not None and isinstance(record.end, ReplyFailed) and "reason" in record.end.failure.details:
            values["reason"] = record.end.failure.details["reason"]
        if record is not None and isinstance(record.end, ReplyFinished):
            usage = record.end.usage
            values.update(
                finish=record.end.reason,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                queue_s=round(usage.queue_s, 4),
                prefill_s=round(usage.prefill_s, 4),
                decode_s=round(usage.decode_s, 4),
            )
        if record is not None and record.traffic is not None:
            values.update(
                expert_hits=record.traffic.hits,
                expert_misses=record.traffic.misses,
                expert_bytes=record.traffic.bytes_read,
            )
        if record is not None and record.drafts is not None:
            values.update(drafted=record.drafts.drafted, drafts_accepted=record.drafts.accepted)


def header_text(text: str) -> str:
    """Return a text as a header can carry it, whatever a client put into it: what is not printable ASCII is escaped."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text).strip()


def _immediate(dialect: Dialect, parsed: ParsedRequest, headers: dict[str, str]) -> Response:
    response = JSONResponse(parsed.immediate, headers=headers)
    if parsed.stream and dialect.framing == "ndjson":
        return Response(bytes(response.body) + b"\n", media_type=NDJSON, headers=headers)
    return response
