"""How a prompt is cut into passes, and how long the passes take on the reference curve.

A pass of c tokens that starts at position p multiplies c queries with p + c keys; the product is bounded,
so passes get smaller as the prompt grows. They may end earlier, where a turn of a conversation starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slotstream_planner.calibration import prefill_tok_s
from slotstream_planner.errors import InvalidRequest

__all__ = [
    "LARGEST_PASS",
    "QUERY_KEY_LIMIT",
    "PrefillPass",
    "estimate_passes",
    "estimate_prefill_seconds",
    "pass_size",
    "resume_boundaries",
    "schedule_passes",
]

QUERY_KEY_LIMIT: Final = 4096 * 8016
"""Largest product of query and key rows of one pass."""

LARGEST_PASS: Final = 4096
_ORDINARY_FLOOR: Final = 256
_SMALLEST_PASS: Final = 64


@dataclass(frozen=True, kw_only=True)
class PrefillPass:
    """One pass over a prompt.

    Attributes:
        start: Position of its first token.
        tokens: How many tokens it reads.
        full_tokens: The size the rule gives at this position; larger than `tokens` on a short last pass and on one
            that ends before a turn.
    """

    start: int
    tokens: int
    full_tokens: int


def pass_size(position: int, largest: int) -> int:
    """Return the pass size at a position: the largest power-of-two share of `largest` that fits the limit."""

    def fits(tokens: int) -> bool:
        return tokens * (position + tokens) <= QUERY_KEY_LIMIT

    floor = _ORDINARY_FLOOR if fits(_ORDINARY_FLOOR) else _SMALLEST_PASS
    size = min(LARGEST_PASS, max(floor, largest))
    while size > _SMALLEST_PASS and not fits(size):
        size //= 2
    return size


def schedule_passes(tokens: int, largest: int, *, start: int = 0, turns: Sequence[int] = ()) -> Iterator[PrefillPass]:
    """Yield the passes that read positions `start` to `start + tokens`.

    Where a pass ends depends on nothing behind its end, so that prompts with a common beginning have its passes in
    common.

    Args:
        tokens: How many positions.
        largest: Most tokens of a pass.
        start: The first of them; for the passes of the whole prompt, one at which they end.
        turns: Positions at which turns of a conversation start, ascending. A pass ends before the first one that leaves
            it at least 64 tokens.

    Raises:
        InvalidRequest: A size is negative, or the pass size is outside 64 to 4096.
    """
    if tokens < 0 or start < 0:
        raise InvalidRequest(f"cannot schedule {tokens} tokens from position {start}; both must be at least 0")
    if not _SMALLEST_PASS <= largest <= LARGEST_PASS:
        raise InvalidRequest(
            f"a pass of {largest} tokens is outside {_SMALLEST_PASS} to {LARGEST_PASS}; give one in it"
        )
    return _passes(start, start + tokens, largest, turns)


def _passes(position: int, end: int, largest: int, turns: Sequence[int]) -> Iterator[PrefillPass]:
    while position < end:
        full = pass_size(position, largest)
        following = bisect_left(turns, position + _SMALLEST_PASS)
        turn = turns[following] if following < len(turns) else end
        tokens = min(full, turn - position, end - position)
        yield PrefillPass(start=position, tokens=tokens, full_tokens=full)
        position += tokens


def estimate_passes(passes: Iterable[PrefillPass]) -> float | None:
    """Return the reference time of these passes; None when one below 256 tokens has no measured speed.

    A short last pass is timed at the rate of the size it would have had.
    """
    total_s = 0.0
    for each in passes:
        if each.full_tokens < _ORDINARY_FLOOR:
            return None
        total_s += each.tokens / prefill_tok_s(each.full_tokens)
    return total_s


def estimate_prefill_seconds(tokens: int, largest: int) -> float | None:
    """Return the reference time to read a whole prompt; None when it is unmeasured."""
    return estimate_passes(schedule_passes(tokens, largest))


def resume_boundaries(tokens: int, largest: int, *, start: int = 0, turns: Sequence[int] = ()) -> list[int]:
    """Return the positions at which a prompt's state may be saved and resumed.

    They are the ends of passes whose size rule gives at least 256 tokens there; the prompt's own end is not one.
    Arguments are those of `schedule_passes`.
    """
    passes = schedule_passes(tokens, largest, start=start, turns=turns)
    ends = (each.start + each.tokens for each in passes if each.full_tokens >= _ORDINARY_FLOOR)
    return [end for end in ends if end < start + tokens]
