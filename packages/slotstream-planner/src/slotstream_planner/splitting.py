"""How a budget is divided between expert slots, the prompt pass and retained conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotstream_planner.calibration import request_seconds
from slotstream_planner.charges import floor_slots, retention_bytes
from slotstream_planner.geometry import ModelGeometry

__all__ = ["PASS_SIZES", "Split", "scaled_experts", "split_budget", "split_pool"]

PASS_SIZES: Final = (256, 512, 1024, 2048, 4096)

_REFERENCE_EXPERTS: Final = 512


@dataclass(frozen=True, kw_only=True)
class Split:
    """One division of a budget.

    Attributes:
        slots: Expert slots.
        pass_tokens: Prompt tokens per pass.
        retained_tokens: Tokens of past conversations kept for their next turn.
    """

    slots: int
    pass_tokens: int
    retained_tokens: int


def scaled_experts(geometry: ModelGeometry, slots: int) -> float:
    """Return a pool as experts per layer out of 512, the unit of the reference curves and thresholds."""
    return slots * _REFERENCE_EXPERTS / geometry.total_experts


def split_budget(
    geometry: ModelGeometry,
    budget_bytes: int,
    *,
    window: int,
    retained_floor: int,
    retains: bool,
    forced_pass: int | None,
    apart_tokens: int | None = None,
) -> Split:
    """Divide what a target leaves after every fixed charge.

    A tenth of the budget, at most a window, retains conversations. The pass is the one with the shortest
    reference request among those that take at most a quarter of the budget; the larger one on a tie.

    Args:
        geometry: The model.
        budget_bytes: What is left to divide; negative when the charges exceed the target.
        window: The context window in tokens.
        retained_floor: Tokens that must be retained whatever the budget; 0 for no demand.
        retains: Whether conversations are retained at all.
        forced_pass: A pass size to use instead of choosing.
        apart_tokens: Most tokens retained in memory that the budget is no part of; None where it pays for them.
    """
    retained = _retained_share(geometry, budget_bytes, window)
    if apart_tokens is not None:
        retained = min(retained, apart_tokens)
    retained = max(retained, min(retained_floor, window)) if retains else 0
    rest = budget_bytes - (retention_bytes(geometry, retained) if apart_tokens is None else 0)
    floor, most = floor_slots(geometry), geometry.total_experts

    def slots_beside(tokens: int) -> int:
        left = rest - tokens * geometry.prefill_bytes_per_token
        return max(floor, min(most, left // geometry.slot_bytes))

    sizes = [forced_pass] if forced_pass is not None else affordable_passes(geometry, budget_bytes)
    best = min(
        sizes, key=lambda tokens: (request_seconds(tokens, scaled_experts(geometry, slots_beside(tokens))), -tokens)
    )
    return Split(slots=slots_beside(best), pass_tokens=best, retained_tokens=retained)


def split_pool(
    geometry: ModelGeometry,
    slots: int,
    *,
    window: int,
    retained_floor: int,
    retains: bool,
    forced_pass: int | None,
    apart_tokens: int | None = None,
) -> Split:
    """Derive pass and retention from a pool of fixed size, treating its bytes as the budget; see `split_budget`."""
    pool_bytes = slots * geometry.slot_bytes
    retained = _retained_share(geometry, pool_bytes, window)
    if apart_tokens is not None:
        retained = min(retained, apart_tokens)
    retained = max(retained, min(retained_floor, window)) if retains else 0
    pass_tokens = forced_pass or affordable_passes(geometry, pool_bytes)[-1]
    return Split(slots=slots, pass_tokens=pass_tokens, retained_tokens=retained)


def _retained_share(geometry: ModelGeometry, budget_bytes: int, window: int) -> int:
    """Return the tokens of past conversations that a tenth of a budget holds; a whole window when they cost nothing."""
    if geometry.kv_bytes_per_token == 0:
        return window
    return min(max(0, budget_bytes) // (10 * geometry.kv_bytes_per_token), window)


def affordable_passes(geometry: ModelGeometry, budget_bytes: int) -> list[int]:
    """Return the pass sizes worth considering: 256, and those whose workspace is a quarter of the budget or less."""
    smallest, *larger = PASS_SIZES
    return [smallest] + [
        size
        for size in larger
        if size <= geometry.context_limit and size * geometry.prefill_bytes_per_token * 4 <= budget_bytes
    ]
