"""Status answers that cost almost nothing, for clients that ask many times a second.

A dashboard that asks for the status a thousand times a second would take the interpreter from the thread that
generates if each answer went through the whole application.  So a request head that the application has admitted and
answered is remembered, byte for byte; the same bytes on a connection that waits for a request are answered from a text
that is rendered again when the server's activity has changed, at the latest after `LONGEST_S`.
"""

import json
import time
from collections.abc import Callable, Iterable

from slotstream_serve.gate import STATUS_PATH
from slotstream_serve.service import Service

LONGEST_S = 0.25
MAX_HEADS = 64
"""Heads remembered; a client sends the same one each time, so there are few."""
MAX_HEAD_BYTES = 2048

Headers = Iterable[tuple[bytes, bytes]]


class QuickStatus:
    """The status of a server as a whole HTTP answer.  For the event loop's thread only."""

    def __init__(self, service: Service, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._heads: set[bytes] = set()
        self._answer = b""
        self._rendered_for: tuple[int, int, int] | None = None
        self._rendered_s = 0.0
        self._count = service.metrics.requests.labels(STATUS_PATH, "200")

    def admit(self, head: bytes) -> None:
        """Answer this request head from now on: the application has just answered it, with nothing about its sender."""
        if len(self._heads) < MAX_HEADS:
            self._heads.add(head)

    def answer(self, data: bytes, *, port: int, headers: Headers) -> bytes | None:
        """Return the whole answer to bytes that a connection received, or None when the application must look at them.

        Args:
            data: What came, perhaps a request head that was admitted.
            port: Where it came to.
            headers: Headers that every answer of the HTTP server has.
        """
        if data not in self._heads:
            return None
        service = self._service
        state = (service.activity.changes, service.runner.queued, port)
        now = self._clock()
        if state != self._rendered_for or now - self._rendered_s >= LONGEST_S:
            self._answer = self._render(port, headers)
            # asking who still runs may itself have changed the activity
            self._rendered_for = (service.activity.changes, service.runner.queued, port)
            self._rendered_s = now
        self._count.inc()
        return self._answer

    def _render(self, port: int, headers: Headers) -> bytes:
        body = json.dumps(self._service.status(port), ensure_ascii=False, separators=(",", ":")).encode()
        own = [(b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")]
        lines = [name + b": " + value for name, value in (*headers, *own)]
        return b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", body])


def repeatable_head(data: bytes) -> bytes:
    """Return ``data`` if it is exactly one small GET head for the status, else nothing."""
    whole = (
        len(data) <= MAX_HEAD_BYTES
        and data.startswith(b"GET " + STATUS_PATH.encode() + b" HTTP/1.1\r\n")
        and data.find(b"\r\n\r\n") == len(data) - 4
    )
    return data if whole else b""
