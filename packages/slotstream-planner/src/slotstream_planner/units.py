"""Units and rounding: bytes are ints, GB is 10^9 bytes, GiB is 2^30 bytes."""

from __future__ import annotations

from typing import Final

from slotstream_planner.errors import InvalidRequest

__all__ = [
    "GB",
    "GIB",
    "MB",
    "MIB",
    "format_bytes",
    "format_rate",
    "format_wait",
    "gb_figure",
    "gb_to_bytes",
    "two_digit_ceiling",
]

MB: Final = 10**6
GB: Final = 10**9
MIB: Final = 2**20
GIB: Final = 2**30

_MAX_GB: Final = 1e9
"""No size of 10^18 bytes or more is meant; such are refused before arithmetic."""


def gb_to_bytes(value_gb: float, *, what: str) -> int:
    """Return a size given in decimal GB as whole bytes.

    Args:
        value_gb: The size; must be finite, above zero and below 10^9 GB.
        what: The option's name, for the message.

    Raises:
        InvalidRequest: The number is not a size.
    """
    if not 0 < value_gb < _MAX_GB:
        raise InvalidRequest(
            f"{what} is {value_gb:g}; give a size in GB above 0 and below {_MAX_GB:,.0f}, for example 16"
        )
    return round(value_gb * GB)


def two_digit_ceiling(size_bytes: int) -> int:
    """Round a size up to two significant decimal digits (5,259,000,000 becomes 5,300,000,000)."""
    if size_bytes <= 0:
        return 0
    step: int = 10 ** max(0, len(str(size_bytes)) - 2)
    return -(-size_bytes // step) * step


def gb_figure(size_bytes: float) -> float:
    """Return a size in GB for JSON: one decimal from 1 GB upwards, three below it."""
    value = size_bytes / GB
    return round(value, 1 if abs(value) >= 1 else 3)


def format_bytes(size_bytes: float) -> str:
    """Return a size for people, such as ``12.3 GB``, ``640 MB`` or ``27.6 kB``."""
    for unit, name in ((GB, "GB"), (MB, "MB"), (1000, "kB")):
        if abs(size_bytes) >= unit:
            value = size_bytes / unit
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {name}"
    return f"{size_bytes:.0f} B"


def format_rate(rate: float) -> str:
    """Return a rate with two significant digits, such as ``0.28``, ``7.2`` or ``6,200``."""
    return f"{rate:.2g}" if rate < 10 else f"{float(f'{rate:.2g}'):,.0f}"


def format_wait(seconds: float | None) -> str:
    """Describe a wait: whole seconds below a minute, then minutes, then hours with one decimal."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
