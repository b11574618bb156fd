"""Text of a fast reply, gathered for a moment so that several tokens share what sending costs.

A token on its own costs a system call, the client's waking and whatever else that displaces on a machine whose cores
all compute.  Slow tokens are sent as they come.  Those that come while the last ones are hardly out wait until
`GATHER_S` have passed, which is less than the time between two pictures of a display.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from slotstream_serve.reply import TextDelta, ThinkingDelta

GATHER_S = 0.012
"""Text waits no longer than this for the text that follows it."""

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
        self._due_s = 0.0
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
            if self._open and now >= self._due_s:
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
        """Send what has waited long enough, and look again when more may have; rest when nothing came for a period."""
        with self._lock:
            self._timer = None
            if not self._open:
                self._watched = False
                return
            now = self._clock()
            left_s = self._due_s - now
            if left_s <= 0:
                if not self._waiting:
                    self._watched = False
                    return
                self._open = self._write_all(now)
                left_s = GATHER_S
            stuck = not self._open
            self._watched = not stuck
        if stuck:
            self._stuck()
        else:
            self._timer = self._loop.call_later(left_s, self._look)
