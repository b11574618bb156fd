"""Ratios of measurements that were taken in turn, with an interval that says how far to trust their median."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DRAWS = 2000
COVERED = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A median, or another middle, and the interval that holds it in 95 of 100 resamplings of what was measured."""

    median: float
    low: float
    high: float

    def values(self, name: str) -> dict[str, float]:
        """Return the three numbers under names for a result; the interval's stand before the unit."""
        stem, _, unit = name.rpartition("_")
        return {name: self.median, f"{stem}_low_{unit}": self.low, f"{stem}_high_{unit}": self.high}

    def shown(self, digits: int) -> str:
        """Return the median and its interval for a table, with so many digits after the point."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def estimate(samples: Sequence[float], middle: Callable[[Sequence[float]], float] = statistics.median) -> Estimate:
    """Return the middle of samples with its bootstrap interval.  The same samples give the same interval.

    Raises:
        ValueError: There are no samples.
    """
    if not samples:
        raise ValueError("an estimate needs at least one sample")
    chance = random.Random(0)
    middles = sorted(middle(chance.choices(samples, k=len(samples))) for _ in range(DRAWS))
    cut = round(DRAWS * (1 - COVERED) / 2)
    return Estimate(median=middle(samples), low=middles[cut], high=middles[-1 - cut])


def total_ratio(base: Sequence[float], more: Sequence[float]) -> Estimate:
    """Return the ratio of two sums, ``base`` over ``more``, which were measured in pairs; pairs are drawn anew.

    Raises:
        ValueError: There are no samples.
    """
    if not base:
        raise ValueError("a ratio needs at least one pair")
    chance, pairs = random.Random(0), list(zip(base, more, strict=True))

    def of(chosen: Sequence[tuple[float, float]]) -> float:
        return sum(one for one, _ in chosen) / sum(other for _, other in chosen)

    ratios = sorted(of(chance.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    cut = round(DRAWS * (1 - COVERED) / 2)
    return Estimate(median=of(pairs), low=ratios[cut], high=ratios[-1 - cut])


def excess(more: Sequence[float], base: Sequence[float]) -> Estimate:
    """Return by how much of the base each pair is larger: ratio less one."""
    return estimate([one / other - 1 for one, other in zip(more, base, strict=True)])


def difference(more: Sequence[float], base: Sequence[float]) -> Estimate:
    """Return by how much each pair is larger, in the unit of both."""
    return estimate([one - other for one, other in zip(more, base, strict=True)])
