"""The pieces of a streamed body on one connection, from the event loop or, lent, from another thread."""

import asyncio
import contextlib
import os
import threading
from typing import Protocol

BODY_SINK = "slotstream.body_sink"
"""Key of a connection's `BodySink` in the ASGI scope, where it has one."""


class BodySink(Protocol):
    """Takes pieces of a response's body past the ASGI messages: after the head, before the body's end, never empty.

    One thread at a time; all but `write_now` is for the event loop's.
    """

    def write(self, piece: bytes) -> bool:
        """Send a piece; return whether to `drain` before the next."""

    async def drain(self) -> None:
        """Wait until the client has read enough, or has left."""

    def clear(self) -> bool:
        """Send what another thread could not; return whether nothing waits, so that a thread may use `write_now`."""

    def write_now(self, piece: bytes) -> bool:
        """Send a piece from any thread after `clear`; return whether all of it went out.

        What is left the event loop sends, and the next piece has to come from there.
        """


class WriteFlow(Protocol):
    """What uvicorn knows about a connection whose client does not read."""

    write_paused: bool

    async def drain(self) -> None:
        """Wait until it is not paused."""


class ChunkWriter:
    """The `BodySink` of a connection that sends its bodies in chunks (HTTP/1.1 without a content length)."""

    def __init__(self, transport: asyncio.Transport, flow: WriteFlow, loop: asyncio.AbstractEventLoop) -> None:
        """Prepare to write; `close` when the connection is lost, before its socket is closed."""
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._lock = threading.Lock()
        self._rest = b""
        self._lost = False

    def close(self) -> None:
        """Write nothing from now on: the descriptor may soon be another connection's."""
        with self._lock:
            self._lost = True

    def write(self, piece: bytes) -> bool:
        """Send a piece; return whether to `drain` before the next."""
        self._hand_over(_chunk(piece))
        return self._flow.write_paused

    async def drain(self) -> None:
        """Wait until the client has read enough, or has left."""
        await self._flow.drain()

    def clear(self) -> bool:
        """Send what another thread could not; return whether nothing waits."""
        self._hand_over()
        return not self._transport.get_write_buffer_size()

    def write_now(self, piece: bytes) -> bool:
        """Send a piece from any thread after `clear`; return whether all of it went out, or nobody reads any more."""
        chunk = _chunk(piece)
        with self._lock:
            if self._lost:
                return True
            if not self._rest:
                with contextlib.suppress(OSError):  # full, or broken: the transport waits, or ends the connection
                    chunk = chunk[os.write(self._descriptor, chunk) :]
            if not chunk:
                return True
            self._rest += chunk
        try:
            self._loop.call_soon_threadsafe(self._hand_over)
        except RuntimeError:  # the loop was closed: nobody reads any more
            return True
        return False

    def _hand_over(self, chunk: bytes = b"") -> None:
        """Give the transport what another thread could not send, and then a chunk."""
        with self._lock:
            chunk, self._rest = self._rest + chunk, b""
        if chunk and not self._lost:
            self._transport.write(chunk)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
