"""A streamed reply on its way to the client: frames as events come, a sign of life in silence, and its end.

What every token costs happens here, so the way of a token is short.  While the event loop waits, text goes out on the
thread that made it, gathered where it comes fast; everything else wakes one task, which writes to the connection.
A connection of `slotstream_serve.protocol` takes the bytes of a chunk directly; any other server gets them as the ASGI
messages that it expects.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeVar

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from slotstream_serve.chunks import BODY_SINK, BodySink
from slotstream_serve.dialects.base import Frame, ReplyEncoder
from slotstream_serve.gathering import TextGatherer
from slotstream_serve.limits import ClientGone
from slotstream_serve.reply import ReplyEvent, ReplyFailed, ReplyFinished, TextDelta, ThinkingDelta

Value = TypeVar("Value")
Framing = Literal["sse", "ndjson"]
NDJSON = "application/x-ndjson"


ShortWay = Callable[[TextDelta | ThinkingDelta], bool]
"""Sends an event from any thread; returns whether the next may come this way as well."""


class EventSource(Protocol):
    """Where the events of a reply come from."""

    async def next_events(self, short_way: ShortWay | None = None) -> list[ReplyEvent]:
        """Return the events that are there, waiting for one; empty when `nudge` ended the waiting.

        Args:
            short_way: May be called, from any thread, with text that comes while this waits, instead of returning it.
        """

    def nudge(self) -> None:
        """End a waiting `next_events` without an event."""


class ReplyStream(Response):
    """Streams one reply, whose first events are there already."""

    def __init__(
        self,
        events: Sequence[ReplyEvent],
        source: EventSource,
        encoder: ReplyEncoder,
        *,
        framing: Framing,
        headers: dict[str, str],
        keepalive_s: float,
        watch: Callable[[Sequence[ReplyEvent]], None],
        settle: Callable[[], None],
    ) -> None:
        """Prepare a stream.

        Args:
            events: The first events.
            source: Where the others come from.
            encoder: Makes frames of them.
            framing: How frames follow each other.
            headers: Headers besides the framing's own.
            keepalive_s: Longest silence.
            watch: Called with the later events before they are sent.
            settle: Called once when the stream is over, however it ended.
        """
        super().__init__()
        self.raw_headers = _head_of(framing, headers)
        self._events = events
        self._source = source
        self._encoder = encoder
        self._framing = framing
        self._keepalive_s = keepalive_s
        self._watch = watch
        self._settle = settle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, until its end or until the client leaves."""
        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(self._send(scope, send), receive)
        finally:
            self._settle()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        direct: BodySink | None = scope.get(BODY_SINK)
        sink = direct or _AsgiSink(send)
        silence = SilenceTimer(self._keepalive_s, self._source.nudge)
        gatherer = None if direct is None else self._gatherer(direct, silence)
        try:
            events = self._events
            while True:
                if piece := self._piece(events) if events else self._sign_of_life(silence):
                    silence.broken()
                    if sink.write(piece):
                        await sink.drain()
                if events and isinstance(events[-1], ReplyFinished | ReplyFailed):
                    break
                events = await self._next(direct, gatherer)
        finally:
            silence.stop()
            if gatherer is not None:
                gatherer.stop()
        if direct is not None:
            direct.clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, sink: BodySink | None, gatherer: TextGatherer | None) -> Sequence[ReplyEvent]:
        """Return the next events, those that could not be sent while waiting first; none when waiting was ended."""
        if sink is None or gatherer is None:
            events = await self._source.next_events()
        else:
            lent: ShortWay | None = None
            if sink.clear():
                gatherer.open()
                lent = gatherer.send
            events = await self._source.next_events(lent)
            if waiting := gatherer.take():
                events = [*waiting, *events]
        self._watch(events)
        return events

    def _gatherer(self, sink: BodySink, silence: "SilenceTimer") -> TextGatherer:
        """Return what sends text on the thread that made it, without waking the event loop for every token."""

        def write(events: Sequence[ReplyEvent]) -> bool:
            piece = self._piece(events)
            self._watch(events)
            if not piece:
                return True
            silence.broken()
            return sink.write_now(piece)

        return TextGatherer(write, stuck=self._source.nudge)

    def _piece(self, events: Sequence[ReplyEvent]) -> bytes:
        """Return the frames of events in one piece."""
        stream, framing = self._encoder.stream, self._framing
        return "".join([frame_text(frame, framing) for event in events for frame in stream(event)]).encode("utf-8")

    def _sign_of_life(self, silence: "SilenceTimer") -> bytes:
        """Return a keep-alive, if it was silence that ended the waiting."""
        if not silence.over():
            return b""
        return "".join([frame_text(frame, self._framing) for frame in self._encoder.keepalive()]).encode("utf-8")


class _AsgiSink:
    """Sends pieces as ASGI messages."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._piece = b""

    def write(self, piece: bytes) -> bool:
        self._piece = piece
        return True

    async def drain(self) -> None:
        await self._send({"type": "http.response.body", "body": self._piece, "more_body": True})


class SilenceTimer:
    """Calls when nothing was sent for a period, with one timer a period however much is sent."""

    def __init__(self, period_s: float, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = period_s
        self._call = call
        self._since_s = self._loop.time()
        self._timer = self._loop.call_later(period_s, self._look)

    def over(self) -> bool:
        """Return whether nothing was sent for a period."""
        return self._loop.time() >= self._since_s + self._period_s

    def broken(self) -> None:
        """Note that something was sent, on any thread."""
        self._since_s = self._loop.time()

    def stop(self) -> None:
        """Call no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left_s = self._since_s + self._period_s - self._loop.time()
        if left_s <= 0:
            self._call()
            left_s = self._period_s
        self._timer = self._loop.call_later(left_s, self._look)


def frame_text(frame: Frame, framing: Framing) -> str:
    """Return a frame as it stands in the stream."""
    if framing == "ndjson":
        return f"{frame.data}\n"
    if frame.comment is not None or "\n" in frame.data or "\r" in frame.data:
        return ServerSentEvent(frame.data or None, comment=frame.comment, event=frame.event, sep="\n").encode().decode()
    return f"data: {frame.data}\n\n" if frame.event is None else f"event: {frame.event}\ndata: {frame.data}\n\n"


async def unless_gone(work: Awaitable[Value], receive: Receive) -> Value:
    """Return the result of `work`, unless the client leaves first.

    Raises:
        ClientGone: The client left.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("the client closed the connection")
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _head_of(framing: Framing, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a stream."""
    if framing == "sse":
        return EventSourceResponse(iter(()), ping=0, headers=headers).raw_headers
    return StreamingResponse(iter(()), media_type=NDJSON, headers=headers).raw_headers
