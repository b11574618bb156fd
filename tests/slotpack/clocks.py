"""A clock that never sleeps: waiting moves it forward and is recorded."""

import threading

from slotpack.cancellation import Cancellation


class FakeClock:
    """Time that passes only by waiting."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.now = 0.0
        self.start = wall
        self.sleeps: list[float] = []
        self.cancel_on_sleep = False
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.start + self.now

    def sleep(self, seconds: float, cancel: Cancellation) -> None:
        with self._lock:
            self.sleeps.append(seconds)
            self.now += seconds
        if self.cancel_on_sleep:
            cancel.cancel()
        cancel.raise_if_cancelled()
