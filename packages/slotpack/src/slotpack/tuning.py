"""Choosing the number of connections: more only while more is measurably faster."""

import dataclasses

LEVELS = (8, 16, 32)
MAX_CONNECTIONS = 32
WINDOW_S = 30.0
GAIN = 1.10
LAST_PART = 0.20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """What happened in one measuring window.

    Attributes:
        rate_bytes_per_s: Bytes received per second.
        retries: Requests that had to be repeated.
        backlog: Whether the decoders fell behind (twice as many objects queued as there are decoders).
    """

    rate_bytes_per_s: float
    retries: int
    backlog: bool


class ConnectionTuner:
    """Starts at 8 connections, tries 16 and 32, and goes back one level when a step did not pay.

    Args:
        fixed: A number of connections to keep, 1 to 32, or None to measure.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._level = 0
        self._fixed = fixed
        self._baseline: float | None = None
        self.is_finished = fixed is not None

    @property
    def target(self) -> int:
        """Connections to use now."""
        return self._fixed if self._fixed is not None else LEVELS[self._level]

    def observe(self, window: Window, *, remaining_part: float) -> None:
        """Take one window into account.

        Args:
            window: The measurement.
            remaining_part: Share of the objects that are still waiting, 0 to 1; the last fifth is not judged.
        """
        if self.is_finished or remaining_part <= LAST_PART:
            return
        disturbed = window.retries > 0 or window.backlog
        if self._baseline is not None and (disturbed or window.rate_bytes_per_s < GAIN * self._baseline):
            self._level -= 1
            self.is_finished = True
        elif disturbed or self._level == len(LEVELS) - 1:
            self.is_finished = True
        else:
            self._baseline = window.rate_bytes_per_s
            self._level += 1


class WindowMeter:
    """Cuts running totals into windows of 30 seconds."""

    def __init__(self, now_s: float) -> None:
        self._start_s = now_s
        self._bytes = 0
        self._retries = 0
        self._backlog = False

    def update(self, now_s: float, *, total_bytes: int, total_retries: int, backlog: bool) -> Window | None:
        """Take the totals; return a window each time 30 seconds are full."""
        self._backlog = self._backlog or backlog
        elapsed = now_s - self._start_s
        if elapsed < WINDOW_S:
            return None
        rate = (total_bytes - self._bytes) / elapsed
        window = Window(rate_bytes_per_s=rate, retries=total_retries - self._retries, backlog=self._backlog)
        self._start_s, self._bytes, self._retries, self._backlog = now_s, total_bytes, total_retries, False
        return window
