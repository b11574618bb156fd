"""Choosing between two ways that give the same result, by timing both in turn."""

from __future__ import annotations

import statistics

BLOCK = 4
BLOCKS = 12
KEPT = 1000
GAIN = 0.02
TURN = 4
"""Blocks after which both ways had the same passes at the same times on average."""
CLEAR = 1.2
"""How much slower one way must be for a comparison to end early."""


class Trial:
    """A repeated comparison of on and off.

    Blocks of four passes alternate in the order on, off, off, on, so that drift favours neither. After twelve blocks
    the medians are compared: on is kept when it is at least 2% faster, off otherwise, for a thousand passes; then the
    comparison is made again. It ends after four or eight blocks where one way is a fifth slower by then, so that one
    that does not pay costs little. The first pass of a block is not counted: it pays for what the other left behind.
    """

    def __init__(self) -> None:
        self.verdict: bool | None = None
        self._samples: dict[bool, list[float]] = {True: [], False: []}
        self._position = 0
        self._kept = 0

    def next_arm(self) -> bool:
        """Say whether the next pass runs with it on."""
        if self._kept and self.verdict is not None:
            return self.verdict
        return (self._position // BLOCK) % 4 in (0, 3)

    def record(self, seconds: float, *, on: bool) -> None:
        """Take one pass's time."""
        if self._kept:
            self._kept -= 1
            return
        if self._position % BLOCK:
            self._samples[on].append(seconds)
        self._position += 1
        if self._position % (BLOCK * TURN) == 0:
            with_it, without = (statistics.median(self._samples[arm]) for arm in (True, False))
            clear = max(with_it, without) >= min(with_it, without) * CLEAR
            if clear or self._position == BLOCK * BLOCKS:
                self.verdict = with_it <= without * (1 - GAIN)
                self._samples = {True: [], False: []}
                self._position, self._kept = 0, KEPT
