"""The reference speed curves that rank plans against each other.

They are the measurements of one Mac (``m5-pro-reference-envelope-v1``) and are labelled so wherever they
are shown: they choose between pass sizes and windows, they do not predict another machine's speed. For
that see `slotstream_planner.forecast`.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = [
    "COST_MODEL",
    "MEASURED_EXPERTS_LIMIT",
    "REFERENCE_PROMPT_TOKENS",
    "REFERENCE_REPLY_TOKENS",
    "decode_tok_s",
    "prefill_tok_s",
    "request_seconds",
]

COST_MODEL: Final = "m5-pro-reference-envelope-v1"
REFERENCE_PROMPT_TOKENS: Final = 2_000
REFERENCE_REPLY_TOKENS: Final = 400

MEASURED_EXPERTS_LIMIT: Final = 150.0
"""Experts per layer, of 512, beyond which decode speed was not measured and the curve is flat."""

_LOW_EXPERTS: Final = 30.0
_LOW_TOK_S: Final = 6.0
_HIGH_TOK_S: Final = 11.6
_EXPONENT: Final = math.log(_HIGH_TOK_S / _LOW_TOK_S) / math.log(MEASURED_EXPERTS_LIMIT / _LOW_EXPERTS)
_PREFILL_STEPS: Final = ((4096, 220.0), (2048, 205.0), (1024, 165.0), (512, 125.0), (0, 85.0))


def decode_tok_s(experts_per_layer: float) -> float:
    """Return the reference decode speed for a pool of this many experts per layer, of 512.

    Linear to 30 experts, a power law through (30, 6.0) and (150, 11.6), flat beyond.
    """
    if experts_per_layer <= _LOW_EXPERTS:
        return _LOW_TOK_S * max(experts_per_layer, 1.0) / _LOW_EXPERTS
    if experts_per_layer >= MEASURED_EXPERTS_LIMIT:
        return _HIGH_TOK_S
    return float(_LOW_TOK_S * (experts_per_layer / _LOW_EXPERTS) ** _EXPONENT)


def prefill_tok_s(pass_tokens: int) -> float:
    """Return the reference prompt speed for passes of this size; a step function."""
    return next(rate for size, rate in _PREFILL_STEPS if pass_tokens >= size)


def request_seconds(pass_tokens: int, experts_per_layer: float) -> float:
    """Return the reference time of a 2,000-token prompt and a 400-token reply."""
    return REFERENCE_PROMPT_TOKENS / prefill_tok_s(pass_tokens) + REFERENCE_REPLY_TOKENS / decode_tok_s(
        experts_per_layer
    )
