"""Re-plan a running model when its vision tower is loaded with the first image."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from slotstream_planner.arranging import Arrangement, DraftState, arrange
from slotstream_planner.charges import vision_bytes
from slotstream_planner.errors import InsufficientMemory, InvalidRequest
from slotstream_planner.ledger import MemoryLedger
from slotstream_planner.planning import MemoryPlan
from slotstream_planner.request import DraftPlacement, PlanRequest
from slotstream_planner.splitting import Split
from slotstream_planner.units import GB, format_bytes

__all__ = ["VISION_LOADING_BYTES", "kept_components", "plan_with_vision"]

VISION_LOADING_BYTES: Final = 1_000_000_000
"""Free memory that loading the tower needs for a moment, beside the tower itself."""

_PLACEMENTS: Final[dict[DraftState, DraftPlacement]] = {
    "off": "automatic",
    "resident": "resident",
    "streamed": "streamed",
}


def kept_components(plan: MemoryPlan) -> PlanRequest:
    """Return the plan's request with draft head, lookahead, window and pinned files held to what is loaded."""
    return replace(
        plan.request,
        mtp="off" if plan.draft == "off" else "on",
        mtp_experts=_PLACEMENTS[plan.draft],
        lookahead="on" if plan.lookahead else "off",
        vision="on" if plan.vision_reserved else plan.request.vision,
        max_context=plan.window_tokens,
        pinned_gb=plan.ledger.pinned_file_bytes / GB or "off",
    )


def plan_with_vision(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan of the same process after loading the vision tower.

    Target, window, draft head and lookahead stay; slots, pass size and retention stay or shrink. A pool of
    fixed size keeps its slots, so that only the expected peak grows.

    Raises:
        InvalidRequest: The model has no vision tower, or images are off.
        InsufficientMemory: The tower does not fit beside the smallest pool.
    """
    if plan.geometry.vision_bytes == 0 or plan.request.vision == "off":
        raise InvalidRequest(f"{plan.geometry.name} cannot look at images here: its vision tower is absent or off")
    if plan.vision_reserved:
        return plan
    if plan.target_bytes is None:
        ledger = replace(plan.ledger, vision_resident_bytes=vision_bytes(plan.geometry))
        return _adopt(plan, plan.arrangement.split, ledger)
    request = replace(kept_components(plan), vision="on", memory_gb=plan.target_bytes / GB, memory_limit_gb=None)
    retained = plan.retained_tokens
    fallback = _arranged(plan, request, 0)
    if plan.arrangement.retention == "complete":
        whole = _arranged(plan, request, retained)
        best = whole if _fits(whole, plan) else _most_retained(plan, request, fallback, retained)
    else:
        best = fallback
    if not _fits(best, plan):
        raise InsufficientMemory(
            f"the vision tower needs {format_bytes(vision_bytes(plan.geometry))} more than the target of "
            f"{format_bytes(plan.target_bytes)} leaves; start with a larger target or with --vision off",
            required_bytes=best.ledger.expected_peak_bytes,
            available_bytes=plan.target_bytes,
        )
    split = Split(
        slots=min(best.split.slots, plan.pool_slots),
        pass_tokens=min(best.split.pass_tokens, plan.prefill_chunk),
        retained_tokens=min(best.split.retained_tokens, retained),
    )
    return _adopt(plan, split, best.ledger)


def _arranged(plan: MemoryPlan, request: PlanRequest, retained_floor: int) -> Arrangement:
    return arrange(
        plan.geometry,
        plan.machine,
        request,
        window=plan.window_tokens,
        retention="share",
        retained_floor=retained_floor,
    )


def _fits(arrangement: Arrangement, plan: MemoryPlan) -> bool:
    return plan.target_bytes is not None and arrangement.ledger.expected_peak_bytes <= plan.target_bytes


def _most_retained(plan: MemoryPlan, request: PlanRequest, fallback: Arrangement, most: int) -> Arrangement:
    """Bisect for the most retained tokens that leave the fallback's slots and pass size alone."""
    low, high, best = fallback.split.retained_tokens, most, fallback
    while low < high:
        middle = (low + high + 1) // 2
        candidate = _arranged(plan, request, middle)
        same = (candidate.split.slots, candidate.split.pass_tokens) == (
            fallback.split.slots,
            fallback.split.pass_tokens,
        )
        if same and _fits(candidate, plan):
            low, best = middle, candidate
        else:
            high = middle - 1
    return best


def _adopt(plan: MemoryPlan, split: Split, ledger: MemoryLedger) -> MemoryPlan:
    ledger = ledger.with_split(plan.geometry, split)
    note = f"the vision tower is loaded: {format_bytes(ledger.vision_resident_bytes)}, {split.slots} slots remain"
    arrangement = replace(plan.arrangement, split=split, ledger=ledger)
    return replace(plan, arrangement=arrangement, notes=(*plan.notes, note))
