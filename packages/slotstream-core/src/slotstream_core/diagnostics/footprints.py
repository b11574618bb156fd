"""Samples of this process's memory while something runs, from the kernel, beside what swapped meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import psutil

from slotstream_core.memory import footprint

__all__ = ["FootprintSampler", "FootprintSamples", "mlx_memory"]

INTERVAL_S: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class FootprintSamples:
    """What was seen.

    Attributes:
        count: Samples taken.
        first_bytes: The first sample.
        peak_bytes: The largest sample; shorter peaks can be missed.
        lifetime_peak_bytes: The kernel's own peak since the process started.
        swapped_out_bytes: What the whole system swapped out meanwhile; other programs' too.
        every_bytes: Every sample in order.
    """

    count: int
    first_bytes: int
    peak_bytes: int
    lifetime_peak_bytes: int
    swapped_out_bytes: int
    every_bytes: tuple[int, ...]


class FootprintSampler:
    """A context manager that samples from entering to leaving; read `samples` afterwards. Use it once."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slotstream-footprint", daemon=True)
        self._seen: list[int] = []
        self._swapped_before = 0

    def __enter__(self) -> FootprintSampler:
        self._swapped_before = _swapped_out_bytes()
        self._seen.append(footprint().current_bytes)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._seen.append(footprint().current_bytes)

    @property
    def samples(self) -> FootprintSamples:
        """What was seen so far."""
        seen = list(self._seen) or [footprint().current_bytes]
        return FootprintSamples(
            count=len(seen),
            first_bytes=seen[0],
            peak_bytes=max(seen),
            lifetime_peak_bytes=footprint().peak_bytes,
            swapped_out_bytes=max(0, _swapped_out_bytes() - self._swapped_before),
            every_bytes=tuple(seen),
        )

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            self._seen.append(footprint().current_bytes)


def mlx_memory() -> dict[str, int]:
    """Return what MLX holds, held at most, and keeps for reuse, in bytes. Loads MLX."""
    import mlx.core as mx

    return {
        "mlx_active_bytes": int(mx.get_active_memory()),
        "mlx_peak_bytes": int(mx.get_peak_memory()),
        "mlx_cache_bytes": int(mx.get_cache_memory()),
    }


def _swapped_out_bytes() -> int:
    return int(psutil.swap_memory().sout)
