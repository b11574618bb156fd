"""Numbers of a running pull, for displays and logs."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Literal

Phase = Literal["checking", "downloading", "verifying", "sidecar", "done"]
ETA_MIN_BYTES = 64 * 2**20
ETA_MIN_S = 5.0
RATE_SPAN_S = 15.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullProgress:
    """A moment of a pull.

    Attributes:
        phase: What is going on.
        done_bytes: Transfer bytes of everything verified so far, earlier runs included.  It never counts a byte twice.
        total_bytes: Transfer bytes of the whole plan.
        rate_bytes_per_s: Bytes received per second, over the last 15 seconds.
        eta_s: Seconds left at the average rate so far, or None while it is too early to say.
        connections: Sockets carrying a transfer.
        file: The file being checked, where the phase has one.
    """

    phase: Phase
    done_bytes: int = 0
    total_bytes: int = 0
    rate_bytes_per_s: float = 0.0
    eta_s: float | None = None
    connections: int = 0
    file: str = ""


ProgressSink = Callable[[PullProgress], None]


class RateMeter:
    """Rate over a sliding span, and an estimate of the rest."""

    def __init__(self, now_s: float) -> None:
        self._start_s = now_s
        self._samples: collections.deque[tuple[float, int]] = collections.deque([(now_s, 0)])

    def update(self, now_s: float, received_bytes: int) -> float:
        """Take the running total of received bytes; return bytes per second over the last 15 seconds."""
        self._samples.append((now_s, received_bytes))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > RATE_SPAN_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        return (received_bytes - first_bytes) / (now_s - first_s) if now_s > first_s else 0.0

    def eta_s(self, now_s: float, received_bytes: int, remaining_bytes: int, total_bytes: int) -> float | None:
        """Return the seconds left, or None before 64 MiB (or everything) and 5 seconds."""
        elapsed = now_s - self._start_s
        if elapsed < ETA_MIN_S or received_bytes < min(ETA_MIN_BYTES, total_bytes) or received_bytes == 0:
            return None
        return remaining_bytes * elapsed / received_bytes
