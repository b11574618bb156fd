"""Plans of many machines at once, for tables and dashboards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from slotstream_planner.errors import InsufficientMemory, InvalidRequest
from slotstream_planner.forecast import DiskSpeed
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.planning import resolve_plan
from slotstream_planner.request import PlanRequest
from slotstream_planner.speeds import forecast_plan
from slotstream_planner.units import GB

__all__ = ["SweepPoint", "given_disk", "sweep_machines"]


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One machine's plan in a line. Sizes are None when nothing fits.

    Attributes:
        ram_gb: The simulated RAM.
        target_gb: Process budget.
        pool_slots: Expert slots.
        window_tokens: Context window.
        draft: The draft head's state.
        prefill_chunk: Prompt pass size.
        tok_s: Forecast decode speed; None without a disk rate.
        low_tok_s: Lower end of its range.
        high_tok_s: Upper end of its range.
        refusal: Why nothing fits.
    """

    ram_gb: float
    target_gb: float | None = None
    pool_slots: int | None = None
    window_tokens: int | None = None
    draft: str | None = None
    prefill_chunk: int | None = None
    tok_s: float | None = None
    low_tok_s: float | None = None
    high_tok_s: float | None = None
    refusal: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return every field."""
        return asdict(self)


def sweep_machines(
    geometry: ModelGeometry,
    rams_gb: Iterable[float],
    request: PlanRequest | None = None,
    *,
    disk_gb_s: float | None = None,
    chip: str | None = None,
) -> list[SweepPoint]:
    """Plan one model on simulated machines of these sizes.

    Args:
        geometry: The model.
        rams_gb: RAM sizes in decimal GB; the working set is 75% of each.
        request: Options for all of them.
        disk_gb_s: Disk rate in GB/s for a speed forecast.
        chip: Apple chip for the forecast.

    Raises:
        InvalidRequest: A size or an option is out of range.
    """
    request = request or PlanRequest()
    disk = given_disk(disk_gb_s)
    return [_point(geometry, ram_gb, request, disk, chip) for ram_gb in rams_gb]


def given_disk(disk_gb_s: float | None) -> DiskSpeed | None:
    """Return a disk of a rate in GB/s, or None for none.

    Raises:
        InvalidRequest: The rate is not a positive number.
    """
    if disk_gb_s is None:
        return None
    if not 0 < disk_gb_s < 1e6:
        raise InvalidRequest(f"a disk of {disk_gb_s:g} GB/s cannot be meant; give a rate above 0")
    return DiskSpeed(bytes_per_s=disk_gb_s * GB, label=f"{disk_gb_s:g} GB/s given")


def _point(
    geometry: ModelGeometry, ram_gb: float, request: PlanRequest, disk: DiskSpeed | None, chip: str | None
) -> SweepPoint:
    try:
        result = resolve_plan(geometry, Machine.simulated(ram_gb=ram_gb), request)
    except InsufficientMemory as error:
        return SweepPoint(ram_gb=ram_gb, refusal=str(error))
    speed = forecast_plan(result, disk, chip=chip)
    decode = None if speed is None else speed.decode
    return SweepPoint(
        ram_gb=ram_gb,
        target_gb=None if result.target_bytes is None else result.target_bytes / GB,
        pool_slots=result.pool_slots,
        window_tokens=result.window_tokens,
        draft=result.draft,
        prefill_chunk=result.prefill_chunk,
        tok_s=None if decode is None else decode.tok_s,
        low_tok_s=None if decode is None else decode.low_tok_s,
        high_tok_s=None if decode is None else decode.high_tok_s,
    )
