"""Stopping a generation from outside."""

import threading

from slotstream_core.errors import GenerationCancelled


class CancelToken:
    """Asks a running generation to stop at its next safe boundary: between prompt passes and between tokens.

    Any thread, or a signal handler, may call `cancel`; the generation then raises `GenerationCancelled`.  `finish` ends
    a reply early that has said enough.
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
