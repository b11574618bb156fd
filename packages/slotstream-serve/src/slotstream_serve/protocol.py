"""The HTTP connection: uvicorn's h11 protocol with limits against clients that are slow, many or malformed.

What uvicorn (0.54) leaves open and this adds: a time limit for request heads, 431 for heads that are too large, an
answer with `Retry-After` to connections beyond the limit, an end to clients that do not read, and short ways for
status requests that repeat and for the pieces of a streamed body.
"""

import asyncio
import contextlib
import json
import logging
import sys
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from slotstream_serve.chunks import BODY_SINK, ChunkWriter
from slotstream_serve.errors import Failure
from slotstream_serve.gate import REPEATABLE
from slotstream_serve.limits import headers_too_large
from slotstream_serve.quick_status import QuickStatus, repeatable_head
from slotstream_serve.settings import Limits
from slotstream_serve.shapes import ErrorShapes, canonical_path, failure_headers

logger = logging.getLogger("slotstream.serve")

BUSY = Failure(code="server_busy", message="server busy: too many open connections")
BUSY_HEAD_S = 5.0
BUSY_FACTOR = 4
"""So many times the limit may be open to be told that the server is busy; more are closed without a word."""
HEAD_START_BYTES = 512
LINGER_S = 1.0


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration with our limits.

    Attributes:
        limits: What one client may take.
        shapes: Error bodies by path.
        quick: Answers to status requests that repeat.
    """

    def __init__(self, app: Any, *, limits: Limits, shapes: ErrorShapes, quick: QuickStatus, **options: Any) -> None:
        self.limits = limits
        self.shapes = shapes
        self.quick = quick
        super().__init__(
            app,
            http=GuardedProtocol,
            ws="none",
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_keep_alive=max(1, round(limits.idle_connection_s)),
            log_config=None,
            access_log=False,
            server_header=False,
            **options,
        )


class GuardedProtocol(H11Protocol):
    """One connection."""

    config: GuardedConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or prepare to answer that there are too many."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._head_start = b""
        self._repeatable = b""
        self._quick_answer_s = 0.0
        self._chunks = ChunkWriter(transport, self.flow, self.loop)
        self._application, self.app = self.app, self._serve
        limits = self.config.limits
        head_s = limits.head_s
        others = [peer for peer in self.connections if peer is not self and not peer.transport.is_closing()]
        if len(others) >= limits.connections * BUSY_FACTOR:
            transport.abort()
            return
        if len(others) >= limits.connections and not self._close_an_idle(others):
            self.app = self._answer_busy
            head_s = min(head_s, BUSY_HEAD_S)
        self._head_timer = self.loop.call_later(head_s, self._head_too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Write no more, and forget the timers."""
        self._chunks.close()
        self._cancel_head_timer()
        self._cancel_send_timer()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and watch that a head which has begun also ends."""
        if self._linger_timer is not None:
            return
        if self.waits_for_a_request and (answer := self._quick_answer(data)) is not None:
            self.transport.write(answer)
            return
        self._repeatable = b""
        if self.conn.their_state is h11.IDLE:
            if not self._head_start:
                self._repeatable = repeatable_head(data)
            self._head_start = (self._head_start + data)[:HEAD_START_BYTES]
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._cancel_head_timer()
            self._head_start = b""
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.config.limits.head_s, self._head_too_slow)

    def on_response_complete(self) -> None:
        """Remember a status request that may come again."""
        head, self._repeatable = self._repeatable, b""
        if head and self.scope.get(REPEATABLE) and self.cycle.keep_alive:
            self.config.quick.admit(head)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has waited long enough; one that got a quick answer meanwhile may stay."""
        waits_on_s = self._quick_answer_s + self.timeout_keep_alive - self.loop.time()
        if waits_on_s > 0:
            self.timeout_keep_alive_task = self.loop.call_later(waits_on_s, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """Give a client that does not read a limited time to go on."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.config.limits.send_s, self._unread)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._cancel_send_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP, or whose head is too large, in JSON and close."""
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == 431:
            self._refuse(headers_too_large(self.config.limits))
        else:
            reason = str(error or msg).partition(": bytearray(")[0]  # what h11 read would stand there as Python sees it
            self._refuse(Failure(code="invalid_request", message=f"invalid HTTP request: {reason}"))

    @property
    def waits_for_a_request(self) -> bool:
        """Whether the connection is open between two requests."""
        return self.timeout_keep_alive_task is not None

    def close_between_requests(self) -> None:
        """Close a connection that waits for its next request."""
        self._unset_keepalive_if_required()
        super().timeout_keep_alive_handler()

    def _quick_answer(self, data: bytes) -> bytes | None:
        """Return the answer to a status request that the application has admitted before."""
        if self._head_start or self.server is None or self._send_timer is not None:
            return None
        port = self.server[1] or 0
        answer = self.config.quick.answer(data, port=port, headers=self.server_state.default_headers)
        if answer is not None:
            self._quick_answer_s = self.loop.time()
        return answer

    def _close_an_idle(self, others: list[Any]) -> bool:
        """Make room by closing a connection that only waits; return whether there was one."""
        for peer in others:
            if isinstance(peer, GuardedProtocol) and peer.waits_for_a_request:
                peer.close_between_requests()
                return True
        return False

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application; where bodies of unknown length are chunked, their pieces may come directly."""
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope[BODY_SINK] = self._chunks
        await self._application(scope, receive, send)

    async def _answer_busy(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BUSY_HEAD_S):
                while (await receive()).get("more_body"):
                    pass  # closing while the body arrives would cost the client the answer
        body = json.dumps(self.config.shapes.body(canonical_path(scope["path"]), BUSY)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in failure_headers(BUSY).items()]
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": BUSY.http_status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _unread(self) -> None:
        logger.warning("a client left its answer unread for %g s; its connection is closed", self.config.limits.send_s)
        self.transport.abort()

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if not self._head_start:
            self.transport.close()  # connected and said nothing
            return
        self._refuse(Failure(code="invalid_request", message="the request head came too slowly", status=408))

    def _refuse(self, failure: Failure) -> None:
        """Write a whole response and close; if one has begun, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._answering():
            words = self._head_start.decode("latin-1").split(" ")
            path = canonical_path(words[1]) if len(words) > 1 else "/"
            body = json.dumps(self.config.shapes.body(path, failure)).encode()
            status = failure.http_status
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self._linger()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._linger_timer is None:
            self.transport.close()

    def _linger(self) -> None:
        """End our side and throw away what still comes for a moment, so that the client gets to read the answer."""
        self._cancel_head_timer()
        self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _answering(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
