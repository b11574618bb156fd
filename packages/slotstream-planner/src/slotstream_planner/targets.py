"""How large the whole process may be: the automatic target, the adaptive limit and the fixed budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotstream_planner.charges import (
    base_window,
    fixed_cost,
    minimum_target_bytes,
    planning_margin_bytes,
    retention_bytes,
)
from slotstream_planner.errors import InsufficientMemory, MachineError
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.prefill import LARGEST_PASS
from slotstream_planner.request import PlanRequest
from slotstream_planner.units import GB, format_bytes, gb_to_bytes

__all__ = ["Target", "base_ceiling_bytes", "process_target"]

_BASE_CEILING_BYTES: Final = 33 * GB
_DEFAULT_RAM_PERCENT: Final = 70.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """A process budget and why it is that large.

    Attributes:
        target_bytes: The budget.
        availability_clamped: True when memory in use by others made it smaller.
        notes: What a person should know about it.
    """

    target_bytes: int
    availability_clamped: bool
    notes: tuple[str, ...] = ()


def base_ceiling_bytes(geometry: ModelGeometry) -> int:
    """Return the automatic ceiling: 33 GB, or what holding every expert takes when that is less."""
    everything = (
        fixed_cost(geometry).total_bytes
        + planning_margin_bytes(geometry)
        + geometry.total_experts * geometry.slot_bytes
        + LARGEST_PASS * geometry.prefill_bytes_per_token
        + retention_bytes(geometry, base_window(geometry))
    )
    return min(_BASE_CEILING_BYTES, everything)


def process_target(geometry: ModelGeometry, machine: Machine, request: PlanRequest, *, added_bytes: int) -> Target:
    """Return the process budget of a request that does not fix its pool.

    Args:
        geometry: The model.
        machine: Where it would run.
        request: Its options, already validated.
        added_bytes: What the draft head and the window add to the automatic ceiling.

    Raises:
        InsufficientMemory: A budget or limit is below what the smallest pool needs.
        MachineError: Available memory could not be read.
    """
    least = minimum_target_bytes(geometry)
    if request.memory_gb is not None:
        return _fixed_budget(gb_to_bytes(request.memory_gb, what="--memory-gb"), least, geometry, machine)
    if machine.available_bytes is None:
        raise MachineError("available memory could not be read on this machine; give a size with --memory-gb")
    room = machine.working_set_limit_bytes - machine.working_set_margin_bytes
    limit = request.memory_limit_gb
    percent = request.max_ram_percent or (_DEFAULT_RAM_PERCENT if limit is None else 100.0)
    share = int(machine.ram_bytes * percent / 100)
    notes: list[str] = []
    if limit is None:
        target = min(base_ceiling_bytes(geometry) + added_bytes, share, room)
    else:
        wanted = gb_to_bytes(limit, what="--memory-limit-gb")
        if wanted < least:
            raise _below_floor("--memory-limit-gb", wanted, least, geometry)
        target = min(wanted, share, machine.largest_limit_bytes)
        if target < wanted:
            notes.append(
                f"the limit of {format_bytes(wanted)} is above what this machine supports; "
                f"{format_bytes(target)} applies"
            )
    live = machine.available_bytes - machine.slack_bytes
    clamped = live < target
    if clamped:
        target = live
        notes.append(
            f"other programs hold memory: {format_bytes(machine.available_bytes)} is available, so the target is "
            f"{format_bytes(max(0, live))}"
        )
    if limit is not None and target < least:
        raise InsufficientMemory(
            f"under this limit the process may take {format_bytes(max(0, target))} now and {geometry.name} needs "
            f"{format_bytes(least)}",
            required_bytes=least,
            available_bytes=max(0, target),
        )
    return Target(target_bytes=max(target, least), availability_clamped=clamped, notes=tuple(notes))


def _fixed_budget(target: int, least: int, geometry: ModelGeometry, machine: Machine) -> Target:
    if target < least:
        raise _below_floor("--memory-gb", target, least, geometry)
    notes: list[str] = []
    if target > machine.working_set_limit_bytes:
        notes.append(
            f"warning: {format_bytes(target)} is above the working-set limit of "
            f"{format_bytes(machine.working_set_limit_bytes)}"
        )
    if machine.available_bytes is not None and target > machine.available_bytes:
        notes.append(
            f"warning: {format_bytes(target)} is above the {format_bytes(machine.available_bytes)} available now"
        )
    return Target(target_bytes=target, availability_clamped=False, notes=tuple(notes))


def _below_floor(option: str, wanted: int, least: int, geometry: ModelGeometry) -> InsufficientMemory:
    return InsufficientMemory(
        f"{option} gives {format_bytes(wanted)} and the smallest pool of {geometry.name} needs a process of "
        f"{format_bytes(least)}",
        required_bytes=least,
        available_bytes=wanted,
    )
