"""Text of a fast reply, gathered for a moment so that several tokens share what sending costs.

A token on its own costs a system call, the client's waking and whatever else that displaces on a machine whose cores
all compute.  Tokens that are slow, or come unevenly, are sent as they come.  In a steady and fast reply they wait until
`GATHER_S` have passed since the last were sent, which is less than the time between two pictures of a display; the next
token sends them.  Should a steady reply stand still, the event loop does, which looks every `LOOK_S`: waking it costs
the computation more than a token's whole way.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from slotstream_serve.reply import TextDelta, ThinkingDelta

GATHER_S = 0.012
"""Text waits so long for the text that follows it."""
FAST_S = 0.008
"""Text that comes later than this after the text before it is sent at once."""
STEADY = 4
"""So many tokens in a row, each within `FAST_S` of the one before, make a reply steady."""
LOOK_S = 0.1
"""Text of a steady reply that stands still waits no longer than this, and `GATHER_S`."""

Text = TextDelta | ThinkingDelta


class TextGatherer:
    """Sends text from the thread that makes it, several pieces at once where they come fast.

    The event loop lends it to that thread: `send` is the other thread's between `open` and `take`, everything else the
    event loop's.  What waits is sent by whoever is next: the thread with later text, the event loop when none comes.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Text]], bool],
        *,
        stuck: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to send.

        Args:
            write: Writes events from any thread, one at a time; returns whether the next may be written this way too.
            stuck: Called on the event loop when it has found out that no more may, so that it takes over.
            clock: Seconds.
        """
        self._write = write
        self._stuck = stuck
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: list[Text] = []
        self._due_s = self._last_s = 0.0
        self._fast = 0
        self._open = self._watched = False
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Let the other thread send."""
        self._open = True

    def send(self, event: Text) -> bool:
        """Send an event, now or soon; return whether the next may come this way."""
        with self._lock:
            self._waiting.append(event)
            now = self._clock()
            self._fast = self._fast + 1 if now - self._last_s < FAST_S else 0
            self._last_s = now
            if self._open and (self._fast < STEADY or now >= self._due_s):
                self._open = self._write_all(now)
                return self._open
            if self._watched or not self._open:
                return True
            self._watched = True
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop was closed: nobody reads any more
            return False
        return True

    def take(self) -> list[Text]:
        """Return what still waits, to be sent before anything else; the other thread sends no more until `open`."""
        with self._lock:
            self._open = False
            events, self._waiting = self._waiting, []
        return events

    def stop(self) -> None:
        """Send nothing any more."""
        self.take()
        if self._timer is not None:
            self._timer.cancel()

    def _write_all(self, now: float) -> bool:
        events, self._waiting = self._waiting, []
        self._due_s = now + GATHER_S
        return self._write(events)

    def _look(self) -> None:
        """Send what nothing followed, and look again while anything comes."""
        with self._lock:
            self._timer = None
            now = self._clock()
            self._watched = self._open and now - self._last_s < LOOK_S
            if self._open and self._waiting and now >= self._due_s:
                self._write_or_leave(now)
            if self._watched:
                self._timer = self._loop.call_later(LOOK_S, self._look)

    def _write_or_leave(self, now: float) -> None:
        """Write on the event loop, where nobody waits for a failure; whoever takes over meets it again."""
        events, taken = self._waiting, False
        try:
            taken = self._write_all(now)
            events = []
        finally:
            self._waiting = events
            self._open = self._watched = taken
            if not taken:
                self._stuck()
