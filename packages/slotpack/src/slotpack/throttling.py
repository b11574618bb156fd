"""How long a server asks to wait: the Retry-After and RateLimit headers of a 429 answer, and the plain backoff."""

import email.utils
import re
from collections.abc import Mapping

MAX_WAIT_S = 600.0
UNKNOWN_WAIT_S = 300.0
ATTEMPTS = 4
_RESET = re.compile(r"(?:^|[;,\s])t\s*=\s*(\d{1,9})(?=$|[;,\s])")


def parse_retry_after(value: str | None, wall_s: float) -> float | None:
    """Return the seconds of a Retry-After header (a number or an HTTP date), or None when it is absent or invalid."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        return max(0.0, moment.timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError):
        return None


def parse_rate_limit_reset(value: str | None) -> float | None:
    """Return the seconds of the `t=` parameter of a RateLimit header plus one (the latest of several), or None."""
    resets = [float(found) for found in _RESET.findall(value or "")]
    return max(resets) + 1.0 if resets else None


def throttle_wait_s(headers: Mapping[str, str], wall_s: float) -> float:
    """Return how long to wait after a 429: the later of both headers, 300 s when neither helps, at most 600 s."""
    asked = [
        seconds
        for seconds in (
            parse_retry_after(headers.get("retry-after"), wall_s),
            parse_rate_limit_reset(headers.get("ratelimit")),
        )
        if seconds is not None
    ]
    return min(MAX_WAIT_S, max(asked)) if asked else UNKNOWN_WAIT_S


def backoff_s(attempt: int) -> float:
    """Return the wait after the attempt of that number, counted from 0: 1, 2, 4, then 8 seconds."""
    return float(min(8, 2**attempt))
