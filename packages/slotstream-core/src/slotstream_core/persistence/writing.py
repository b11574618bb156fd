"""Writes that follow the engine instead of holding it up: done in order, one after another, on a thread of their own.

The thread ends when nothing is left to write, so that an engine at rest has none, and a process that ends waits for
what it still has to write.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slotstream_core.generation.control import StopCheck

MOST_WAITING_BYTES: Final = 64 * 2**20
"""What may wait to be written together; something larger is taken when nothing else waits."""
LOOK_S: Final = 0.05
"""Between two questions to somebody who may end a wait."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """How writing keeps up.

    Attributes:
        waiting_bytes: Bytes that wait or are being written now.
        delays: How often something had to wait before it was taken, because too much was waiting already.
        delayed_s: How long that took, in seconds.
    """

    waiting_bytes: int
    delays: int
    delayed_s: float


class WriteQueue:
    """Runs jobs in the order in which they were given.  One thread gives them; any thread may ask for `backlog`.

    Args:
        most_bytes: How much may wait.
    """

    def __init__(self, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._thread: threading.Thread | None = None
        self._delays = 0
        self._delayed_s = 0.0

    @property
    def backlog(self) -> Backlog:
        """How writing keeps up."""
        with self._changed:
            return Backlog(waiting_bytes=self._waiting_bytes, delays=self._delays, delayed_s=self._delayed_s)

    def put(self, job: Callable[[], None], byte_count: int, stop: StopCheck | None = None) -> None:
        """Run a job after those given before, waiting first while too much is to be written.

        Args:
            job: Handles its own errors.  One that raises all the same ends like any thread's target; later jobs run.
            byte_count: What it keeps in memory until it is done.
            stop: As for `drain`; when it raises, the job is not taken.
        """
        with self._changed:
            if self._too_much_with(byte_count):
                started = time.perf_counter()
                self._wait_for(lambda: not self._too_much_with(byte_count), stop)
                self._delays += 1
                self._delayed_s += time.perf_counter() - started
            self._waiting.append((job, byte_count))
            self._waiting_bytes += byte_count
            self._start()

    def drain(self, stop: StopCheck | None = None) -> None:
        """Wait until everything given so far is done.

        Args:
            stop: Asked while it waits; what it raises ends the waiting, not the writing.
        """
        self._wait_for(lambda: not self._waiting and not self._busy, stop)

    def close(self) -> None:
        """Wait until everything is done and the thread has ended.  The queue may be used again."""
        self.drain()
        with self._changed:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _wait_for(self, condition: Callable[[], bool], stop: StopCheck | None) -> None:
        with self._changed:
            while not self._changed.wait_for(condition, None if stop is None else LOOK_S):
                if stop is not None:
                    stop.check()

    def _too_much_with(self, byte_count: int) -> bool:
        return self._waiting_bytes > 0 and self._waiting_bytes + byte_count > self._most_bytes

    def _start(self) -> None:
        """Have a thread that works; the caller holds the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="slotstream-writing", daemon=False)
            self._thread.start()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            job, byte_count = taken
            try:
                job()
            except BaseException:
                self._ended(byte_count)
                raise
            del job, taken  # what it kept in memory is no longer counted
            self._done(byte_count)

    def _next(self) -> tuple[Callable[[], None], int] | None:
        """Take the next job; with none left the thread ends, and the next job starts another."""
        with self._changed:
            if not self._waiting:
                self._thread = None
                return None
            self._busy = True
            return self._waiting.popleft()

    def _done(self, byte_count: int) -> None:
        with self._changed:
            self._busy = False
            self._waiting_bytes -= byte_count
            self._changed.notify_all()

    def _ended(self, byte_count: int) -> None:
        """Let another thread go on behind a job that raised."""
        with self._changed:
            self._busy = False
            self._waiting_bytes -= byte_count
            self._thread = None
            if self._waiting:
                self._start()
            self._changed.notify_all()
