"""What to change when a request does not fit: a number that was planned and works, never a guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from slotstream_planner.charges import base_window, minimum_target_bytes
from slotstream_planner.errors import InsufficientMemory, MachineError
from slotstream_planner.feasibility import find_largest_window
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.request import PlanRequest
from slotstream_planner.units import GB, format_bytes
from slotstream_planner.windows import arrange_window

__all__ = ["with_remedy"]

_MOST_STEPS: Final = 400


def with_remedy(
    error: InsufficientMemory, geometry: ModelGeometry, machine: Machine, request: PlanRequest
) -> InsufficientMemory:
    """Return the refusal with the nearest thing that works added to its message.

    Args:
        error: Why the request was refused.
        geometry: The model.
        machine: Where it would run.
        request: What was asked for.
    """
    remedy = _remedy(geometry, machine, request)
    return InsufficientMemory(
        f"{error}; {remedy}", required_bytes=error.required_bytes, available_bytes=error.available_bytes
    )


def _remedy(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> str:
    try:
        usable = machine.usable_bytes
    except MachineError:
        return "available memory cannot be read, so no size can be named"
    least = minimum_target_bytes(geometry)
    window = base_window(geometry) if request.max_context == "auto" else request.max_context
    if request.memory_gb is not None:
        budget = _smallest_budget(geometry, machine, request, window, usable)
        if budget is not None:
            return f"use --memory-gb {budget / GB:g} or more, up to {_floored(usable) / GB:g}"
    elif usable >= least and _works(geometry, machine, request, window, _floored(usable)):
        return f"use --memory-gb {_floored(usable) / GB:g}"
    if request.max_context != "auto":
        largest = find_largest_window(geometry, machine, request).maximum_window
        if largest > 0:
            return f"use --max-context {largest} or less"
    return (
        f"the smallest plan needs {format_bytes(least)} and {format_bytes(usable)} can be given now: "
        "close other programs or use a smaller model"
    )


def _smallest_budget(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, window: int, usable: int
) -> int | None:
    """Return the smallest budget in even steps that fits this window and this machine, or None."""
    least = minimum_target_bytes(geometry)
    step = _step(least)
    budget = -(-least // step) * step
    for _ in range(_MOST_STEPS):
        if budget > usable:
            break
        if _works(geometry, machine, request, window, budget):
            return budget
        budget += step
    return None


def _works(geometry: ModelGeometry, machine: Machine, request: PlanRequest, window: int, budget: int) -> bool:
    fixed = replace(request, experts_per_layer=None, pool_gb=None, memory_limit_gb=None, memory_gb=budget / GB)
    try:
        arrange_window(geometry, machine, fixed, window)
    except (InsufficientMemory, MachineError):
        return False
    return True


def _step(size_bytes: int) -> int:
    """Return the step of named sizes: 0.1 GB for the published model, finer for small ones."""
    return int(10 ** max(0, len(str(size_bytes)) - 2))


def _floored(size_bytes: int) -> int:
    step = _step(size_bytes) if size_bytes < 10 * GB else GB // 10
    return size_bytes // step * step
