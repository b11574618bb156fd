"""The largest window a machine can hold, found by exact search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from slotstream_planner.arranging import Arrangement
from slotstream_planner.errors import InsufficientMemory, MachineError
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.request import IMPLEMENTATION_CONTEXT_LIMIT, PlanRequest, validate_request, window_limit
from slotstream_planner.windows import arrange_window

__all__ = ["Feasibility", "LimitingResource", "find_largest_window"]

LimitingResource = Literal[
    "implementation_limit", "model_limit", "memory_or_required_components", "memory_reading_unavailable"
]

_BLOCK_TOKENS = 1024
"""Sequence capacity is allocated in blocks, so windows of one block differ only in what they retain."""


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """What the search found. It asks for memory only, never for patience.

    Attributes:
        requested_window: The window that was asked for; None for an automatic one.
        maximum_window: The largest window that fits; 0 when none does.
        limiting_resource: What stops a larger one.
        refusal: Why the requested window was refused; None when it fits.
        requested: The requested window's arrangement, when it fits.
        maximum: The largest window's arrangement, when there is one.
    """

    requested_window: int | None
    maximum_window: int
    limiting_resource: LimitingResource
    refusal: str | None
    requested: Arrangement | None
    maximum: Arrangement | None

    def to_json(self) -> dict[str, Any]:
        """Return the result with its documented keys."""
        maximum = self.maximum
        return {
            "requested_window": self.requested_window,
            "maximum_feasible_window": self.maximum_window,
            "limiting_resource": self.limiting_resource,
            "refusal": self.refusal,
            "requested_memory_ledger": None if self.requested is None else self.requested.ledger.to_json(),
            "maximum_memory_ledger": None if maximum is None else maximum.ledger.to_json(),
            "maximum_prefill_chunk": None if maximum is None else maximum.split.pass_tokens,
            "maximum_pool_slots": None if maximum is None else maximum.split.slots,
            "scope": "memory_feasibility_at_one_reading",
        }


def find_largest_window(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> Feasibility:
    """Search every window from the limit down for the largest that fits.

    The machine's readings are taken as they are, so availability counts once however long the search takes.

    Raises:
        InvalidRequest: The options make no sense for this model.
    """
    validate_request(request, geometry)
    limit = window_limit(geometry)
    wanted = None if request.max_context == "auto" else request.max_context
    if machine.available_bytes is None:
        return Feasibility(
            requested_window=wanted,
            maximum_window=0,
            limiting_resource="memory_reading_unavailable",
            refusal="available memory could not be read on this machine",
            requested=None,
            maximum=None,
        )
    requested, refusal = _attempt(geometry, machine, request, wanted) if wanted is not None else (None, None)
    maximum = _search(geometry, machine, request, limit)
    reached = 0 if maximum is None else maximum.window
    limiting: LimitingResource = "memory_or_required_components"
    if reached == limit:
        limiting = "implementation_limit" if limit == IMPLEMENTATION_CONTEXT_LIMIT else "model_limit"
    return Feasibility(
        requested_window=wanted,
        maximum_window=reached,
        limiting_resource=limiting,
        refusal=refusal,
        requested=requested,
        maximum=maximum,
    )


def _attempt(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, window: int
) -> tuple[Arrangement | None, str | None]:
    try:
        return arrange_window(geometry, machine, request, window), None
    except (InsufficientMemory, MachineError) as error:
        return None, str(error)


def _search(geometry: ModelGeometry, machine: Machine, request: PlanRequest, limit: int) -> Arrangement | None:
    """Return the arrangement of the largest window that fits.

    Blocks are tried from the top, each at its largest and its smallest window. Within a block the charges
    are equal and a smaller window only retains less, so a block whose smallest window fails holds none.
    """
    top = limit
    while top > 0:
        bottom = (top - 1) // _BLOCK_TOKENS * _BLOCK_TOKENS + 1
        arrangement, _ = _attempt(geometry, machine, request, top)
        if arrangement is not None:
            return arrangement
        arrangement, _ = _attempt(geometry, machine, request, bottom)
        if arrangement is not None:
            return _within_block(geometry, machine, request, arrangement, top)
        top = bottom - 1
    return None


def _within_block(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, best: Arrangement, top: int
) -> Arrangement:
    """Bisect between a window that fits and a larger one of its block that does not."""
    low, high = best.window, top
    while high - low > 1:
        middle = (low + high) // 2
        arrangement, _ = _attempt(geometry, machine, request, middle)
        if arrangement is None:
            high = middle
        else:
            low, best = middle, arrangement
    return best
