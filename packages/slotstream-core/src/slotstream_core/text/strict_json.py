"""JSON as its grammar has it, with numbers that a float holds; Python's parser takes `NaN` and makes 1e999 infinite."""

import json
import math
from typing import Any, Final, NoReturn

MOST_SHOWN_CHARACTERS: Final = 40


class UnusableNumber(ValueError):
    """A text has a number that no float holds, or a constant of Python's that is not JSON; says which."""


def parse_strict(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        UnusableNumber: It has a number that no float holds, `NaN` or `Infinity`.
        ValueError: It is not JSON, or has a whole number of more than 4,300 digits.
        RecursionError: It is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> NoReturn:
    raise UnusableNumber(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        shown = text if len(text) <= MOST_SHOWN_CHARACTERS else f"{text[:MOST_SHOWN_CHARACTERS]}..."
        raise UnusableNumber(f"{shown} is too large a number; the largest is 1.8e308")
    return value
