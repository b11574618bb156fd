"""The outermost layer of the application: who may ask, what is counted, and one log line per request."""

import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotstream_serve.activity import Activity
from slotstream_serve.errors import Failure, Refused, ServerStopping
from slotstream_serve.limits import check_head_size, check_host, check_key, check_origin
from slotstream_serve.metrics import ServerMetrics
from slotstream_serve.settings import ServeConfig
from slotstream_serve.shapes import ErrorShapes, canonical_path, failure_headers, lowercase_headers

logger = logging.getLogger("slotstream.serve")

STATUS_PATH = "/slotstream/status"
UNCOUNTED_PATHS = frozenset({STATUS_PATH, "/metrics"})
NOTES = "slotstream.notes"
"""Key of the request's `RequestNotes` in the ASGI scope."""
REPEATABLE = "slotstream.repeatable"
"""Set in the server's ASGI scope of a status request that was answered: the same head may be answered alike."""


@dataclass(kw_only=True)
class RequestNotes:
    """What the layers below tell the log about a request; never text of a prompt or a reply.

    Attributes:
        unique: 32 hexadecimal digits.
        route: The route that answered, for the metrics; empty when there was none.
        values: Entries of the log line.
    """

    unique: str = field(default_factory=lambda: uuid.uuid4().hex)
    route: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name of the request for people."""
        return self.unique[:12]


class Gate:
    """An ASGI application around another one."""

    def __init__(
        self, app: ASGIApp, *, config: ServeConfig, activity: Activity, metrics: ServerMetrics, shapes: ErrorShapes
    ) -> None:
        self._app = app
        self._config = config
        self._activity = activity
        self._metrics = metrics
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        notes = RequestNotes()
        server_scope = scope
        path = canonical_path(scope["path"])
        scope = {**scope, "path": path, "raw_path": path.encode(), NOTES: notes}
        headers = lowercase_headers(scope["headers"])
        sent = _Sent(send, server_scope if path == STATUS_PATH else None)
        try:
            await self._admit(scope, headers, receive, sent)
        finally:
            self._record(scope, notes, sent.status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, headers: Mapping[str, str], receive: Receive, sent: "_Sent") -> None:
        path, host = scope["path"], headers.get("host")
        try:
            check_head_size(_head_bytes(scope), self._config.limits)
            check_host(host, self._config)
            origin = check_origin(headers.get("origin"), host)
            if origin is not None:
                sent.extra = _cross_origin_headers(origin)
            if scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, sent)
                return
            check_key(headers, self._config.api_key)
            if path in UNCOUNTED_PATHS:
                await self._app(scope, receive, sent)
                return
            with self._activity.request():
                await self._app(scope, receive, sent)
        except Refused as refusal:
            await self._answer(refusal.failure, scope, receive, sent)
        except ServerStopping as stopping:
            await self._answer(Failure(code="server_stopping", message=str(stopping)), scope, receive, sent)

    async def _answer(self, failure: Failure, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._shapes.body(scope["path"], failure)
        await JSONResponse(body, failure.http_status, failure_headers(failure))(scope, receive, send)

    def _record(self, scope: Scope, notes: RequestNotes, status: int | None, duration_s: float) -> None:
        shown = 499 if status is None else status
        self._metrics.requests.labels(notes.route or "other", str(shown)).inc()
        level = logging.DEBUG if scope["path"] in UNCOUNTED_PATHS else logging.INFO
        if logger.isEnabledFor(level):
            line = {
                "event": "request",
                "id": notes.label,
                "method": scope["method"],
                "path": scope["path"],
                "status": shown,
                "duration_s": round(duration_s, 4),
                **notes.values,
            }
            logger.log(level, "%s", json.dumps(line, ensure_ascii=True))


class _Sent:
    """The `send` of a request: adds headers and remembers the status, in a scope as well where it may be repeated."""

    def __init__(self, send: Send, repeatable: Scope | None) -> None:
        self._send = send
        self._repeatable = repeatable
        self.status: int | None = None
        self.extra: list[tuple[bytes, bytes]] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._repeatable is not None:
                self._repeatable[REPEATABLE] = self.status == 200 and not self.extra
            message = {**message, "headers": [*message.get("headers", []), *self.extra]}
        await self._send(message)


def _head_bytes(scope: Scope) -> int:
    line = len(scope["method"]) + len(scope["path"]) + len(scope.get("query_string", b"")) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _cross_origin_headers(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"X-Slotstream-Ignored-Fields"),
        (b"vary", b"Origin"),
    ]


def _preflight(headers: Mapping[str, str]) -> Response:
    """Answer a browser's question; the client libraries' own headers are allowed as well as the documented ones."""
    asked = headers.get("access-control-request-headers", "")
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
            "access-control-allow-headers": asked or "Content-Type, Authorization",
            "access-control-allow-private-network": "true",
            "access-control-max-age": "86400",
        },
    )
