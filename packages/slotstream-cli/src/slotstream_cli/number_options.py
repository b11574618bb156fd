"""The types of options that take a real number."""

from __future__ import annotations

import math
from typing import Any

import click

__all__ = ["MINUTES", "MIN_P", "PENALTY", "TEMPERATURE", "TOP_K", "TOP_P", "FiniteRange"]


class FiniteRange(click.FloatRange):
    """A range without nan, which click's own range lets through, and without the infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number.

        Raises:
            click.BadParameter: It is no number, not finite, or outside the range.
        """
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number; the range is {self._describe_range()}.", param, ctx)
        return number


MINUTES = FiniteRange(0, 1e6)
TEMPERATURE = FiniteRange(0, 1e3)
TOP_P = FiniteRange(0, 1, min_open=True)
TOP_K = click.IntRange(0, 2**31 - 1)
MIN_P = FiniteRange(0, 1)
PENALTY = FiniteRange(-1e3, 1e3)
