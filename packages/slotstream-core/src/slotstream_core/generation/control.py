"""Stopping a generation: from outside, and when its first token is late."""

import math
import threading
import time
from typing import Protocol

from slotstream_core.errors import DeadlineExceeded, GenerationCancelled, RequestError


class StopCheck(Protocol):
    """Asked at the safe boundaries of a generation."""

    def check(self) -> None:
        """Raise a `SlotstreamError` when the generation must stop here."""


class CancelToken:
    """Asks a running generation to stop at its next safe boundary.

    These lie between two layers or passes of a prompt, between two parts of a kept state on disk, and between two
    tokens. Any thread, or a signal handler, may call `cancel`; the generation then raises `GenerationCancelled`.
    `finish` ends a reply early that has said enough.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._enough = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Ask to stop.  Never blocks; calling it again changes nothing."""
        self._event.set()

    @property
    def enough(self) -> bool:
        """Whether `finish` was called."""
        return self._enough.is_set()

    def finish(self) -> None:
        """Ask the generation to end before its next token as if the model had stopped, with its usage and timings."""
        self._enough.set()

    def check(self) -> None:
        """Raise `GenerationCancelled` when `cancel` was called."""
        if self._event.is_set():
            raise GenerationCancelled("the generation was cancelled by its caller")


class FirstTokenDeadline:
    """Also stops a prompt that is not read in time.  The time runs from its making, which is the request's.

    Args:
        cancel: The caller's own wish to stop, looked at first.
        limit_s: Seconds to the first token; None for as long as it takes.

    Raises:
        RequestError: The limit is no positive number.
    """

    def __init__(self, cancel: CancelToken, limit_s: float | None) -> None:
        if limit_s is not None and not 0 < limit_s < math.inf:
            raise RequestError(f"no first token can come within {limit_s} s; allow a positive number of seconds")
        self._cancel = cancel
        self._limit_s = limit_s
        self._began_s = time.monotonic()

    def check(self) -> None:
        """Raise what is due.

        Raises:
            GenerationCancelled: The caller asked to stop.
            DeadlineExceeded: The time is over.
        """
        self._cancel.check()
        elapsed_s = time.monotonic() - self._began_s
        if self._limit_s is not None and elapsed_s > self._limit_s:
            raise DeadlineExceeded(limit_s=self._limit_s, elapsed_s=elapsed_s)
