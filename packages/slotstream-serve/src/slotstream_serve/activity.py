"""Who uses the server: requests in progress, registered client processes, and when it has been idle long enough.

For the event loop's thread only; that is what makes deciding to stop atomic.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from slotstream_serve.errors import ServerStopping, invalid

STOPPING_MESSAGE = "the server is stopping; start it again, or use another one"


def process_start(pid: int) -> float | None:
    """Return when a running process of this user started, in seconds since the epoch; None when there is none."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.uids().real != os.getuid():
            return None
        started: float = process.create_time()
    except (psutil.Error, OverflowError, ValueError):
        return None
    return started


class Activity:
    """Counts what keeps a server from being idle.

    Attributes:
        stopping: Whether new requests are refused.
        started_at: Seconds since the epoch.
        active_requests: Requests being handled, other than status checks.
        changes: How often something that the status tells has changed, time aside.
    """

    def __init__(
        self,
        *,
        idle_exit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        started_of: Callable[[int], float | None] = process_start,
    ) -> None:
        """Start counting; `started_of` tells when a process started, or None when it does not run."""
        self._idle_exit_s = idle_exit_s
        self._clock = clock
        self._started_of = started_of
        self._clients: dict[int, float] = {}
        self._last_use_s = clock()
        self.stopping = False
        self.started_at = time.time()
        self.active_requests = 0
        self.changes = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it is handled.

        Raises:
            ServerStopping: The server takes no new requests.
        """
        if self.stopping:
            raise ServerStopping(STOPPING_MESSAGE)
        self.active_requests += 1
        self.changes += 1
        try:
            yield
        finally:
            self.active_requests -= 1
            self.changes += 1
            self._last_use_s = self._clock()

    def register(self, pid: object) -> int:
        """Keep the server running while a process runs; return how many are registered.

        Raises:
            Refused: The id is not that of a running process of this user.
        """
        if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
            raise invalid("pid must be a positive process id", param="pid")
        started = self._started_of(pid)
        if started is None:
            raise invalid(f"pid {pid} is not a running process of this user", param="pid")
        self._clients[pid] = started
        self.changes += 1
        return self.clients()

    def clients(self) -> int:
        """Return how many registered processes still run; a reused id does not count."""
        gone = [pid for pid, started in self._clients.items() if self._started_of(pid) != started]
        for pid in gone:
            del self._clients[pid]
        if gone:
            self.changes += 1
            self._last_use_s = self._clock()
        return len(self._clients)

    def idle_s(self) -> float:
        """Return how long there has been neither a request nor a client, in seconds; 0 while there is one."""
        if self.clients() or self.active_requests:
            return 0.0
        return max(0.0, self._clock() - self._last_use_s)

    def decide_idle_exit(self) -> bool:
        """Return whether the server has been idle for its limit; if so it is stopping from now on."""
        if self._idle_exit_s is None or self.stopping:
            return False
        if self.idle_s() >= self._idle_exit_s:
            self.stopping = True
        return self.stopping
