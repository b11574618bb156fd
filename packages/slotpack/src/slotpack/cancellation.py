"""Stopping a download from another thread: a flag that also wakes waits and aborts blocked reads."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from slotpack.errors import PullCancelled


class Cancellation:
    """A one-way switch shared by the threads of a pull.

    `cancel` may be called from any thread, and from a signal handler's thread.  Callbacks run once, in the thread that
    cancels.  A child is cancelled with its parent, but not the other way round.
    """

    def __init__(self, parent: "Cancellation | None" = None) -> None:
        self._event = threading.Event()
        self._lock = threading.RLock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._detach = parent._attach(self.cancel) if parent is not None else lambda: None

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Stop: later checks raise, waits end, and registered callbacks run."""
        with self._lock:
            if self._event.is_set():
                return
            self._event.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    def raise_if_cancelled(self) -> None:
        """Raise `PullCancelled` after `cancel`."""
        if self._event.is_set():
            raise PullCancelled("the download was stopped; run it again to continue from the verified bytes")

    def wait(self, seconds: float) -> None:
        """Wait, or raise `PullCancelled` as soon as somebody cancels."""
        self._event.wait(seconds)
        self.raise_if_cancelled()

    def detach(self) -> None:
        """Stop following the parent."""
        self._detach()

    def _attach(self, callback: Callable[[], None]) -> Callable[[], None]:
        key = id(callback) ^ time.monotonic_ns()
        with self._lock:
            fire_now = self._event.is_set()
            if not fire_now:
                self._callbacks[key] = callback
        if fire_now:
            callback()

        def detach() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return detach

    @contextlib.contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Run `callback` if somebody cancels while the block runs."""
        detach = self._attach(callback)
        try:
            yield
        finally:
            detach()


class Clock(Protocol):
    """Where time comes from; tests give one that never sleeps."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        ...

    def sleep(self, seconds: float, cancel: Cancellation) -> None:
        """Wait, or raise `PullCancelled` on cancellation."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since 1970-01-01 UTC."""
        return time.time()

    def sleep(self, seconds: float, cancel: Cancellation) -> None:
        """Wait, or raise `PullCancelled` on cancellation."""
        cancel.wait(seconds)
