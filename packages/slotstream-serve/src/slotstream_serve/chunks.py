"""The pieces of a streamed body on one connection, from the event loop or, lent, from another thread."""

import asyncio
import os
import threading
from typing import Protocol

BODY_SINK = "slotstream.body_sink"
"""Key of a connection's `BodySink` in the ASGI scope, where it has one."""


class BodySink(Protocol):
    """Takes pieces of a response's body past the ASGI messages: after the head, before the body's end, never empty.

    One thread at a time; `write` and `drain` are for the event loop's.
    """

    def write(self, piece: bytes) -> bool:
        """Send a piece; return whether to `drain` before the next."""

    async def drain(self) -> None:
        """Wait until the client has read enough, or has left."""

    def write_now(self, piece: bytes) -> bool:
        """Send a piece from any thread; return whether all of it went out.

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

    def write_now(self, piece: bytes) -> bool:
        """Send a piece from any thread; return whether all of it went out, or nobody is there to read it."""
        chunk = _chunk(piece)
        with self._lock:
            if self._lost:
                return True
            sent = 0
            if not self._transport.get_write_buffer_size():
                try:
                    sent = os.write(self._descriptor, chunk)
                except OSError:  # full, or broken: the transport waits until it is not, or ends the connection
                    sent = 0
        if sent == len(chunk):
            return True
        try:
            self._loop.call_soon_threadsafe(self._hand_over, chunk[sent:])
        except RuntimeError:  # the loop was closed: nobody reads any more
            return True
        return False

    def _hand_over(self, chunk: bytes) -> None:
        if not self._lost:
            self._transport.write(chunk)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
