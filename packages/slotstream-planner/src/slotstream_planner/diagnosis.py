"""Everything worth knowing before a model is downloaded or loaded, as one result."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotstream_planner.errors import ForecastError, InsufficientMemory
from slotstream_planner.feasibility import Feasibility, find_largest_window
from slotstream_planner.forecast import Forecast
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.hitcurves import RecordedProfile
from slotstream_planner.hosts import CpuSpeed
from slotstream_planner.machine import Machine
from slotstream_planner.planning import MemoryPlan, plan, resolve_plan
from slotstream_planner.probing import DiskProbe, probe_disk
from slotstream_planner.report import machine_to_json, plan_to_text
from slotstream_planner.request import PlanRequest
from slotstream_planner.speeds import SpeedForecast, forecast_plan
from slotstream_planner.units import GB, format_bytes, format_rate, format_wait

__all__ = ["Diagnosis", "DiskSpace", "diagnose", "diagnosis_to_text", "read_disk_space"]


@dataclass(frozen=True, kw_only=True)
class DiskSpace:
    """Room for the model.

    Attributes:
        path: The directory looked at, or its nearest existing parent.
        installed: Whether the model is already there.
        needed_bytes: What the complete model takes.
        free_bytes: What is free on that disk.
    """

    path: Path
    installed: bool
    needed_bytes: int
    free_bytes: int

    @property
    def enough(self) -> bool:
        """Whether the model is there or fits."""
        return self.installed or self.free_bytes >= self.needed_bytes


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The answer to: does it run here, how fast, and what would help?

    Attributes:
        geometry: The model.
        machine: The machine.
        plan: The plan; None when it was refused.
        refusal: Why it was refused.
        feasibility: The largest-window search, for an explicit window or a refusal.
        disk: Room for the model.
        probe: The disk measurement; None when skipped or failed.
        speed: Predicted speed; None without a disk rate or a plan.
        warnings: What may go wrong.
        advice: What to change.
    """

    geometry: ModelGeometry
    machine: Machine
    plan: MemoryPlan | None
    refusal: InsufficientMemory | None
    feasibility: Feasibility | None
    disk: DiskSpace
    probe: DiskProbe | None
    speed: SpeedForecast | None
    warnings: tuple[str, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis; the plan's documented keys are at the top level."""
        document: dict[str, Any] = {} if self.plan is None else self.plan.to_json()
        document |= {
            "model": self.geometry.name,
            "machine": machine_to_json(self.machine),
            "disk": {
                "path": str(self.disk.path),
                "installed": self.disk.installed,
                "needed_bytes": self.disk.needed_bytes,
                "free_bytes": self.disk.free_bytes,
            },
            "disk_probe": None if self.probe is None else _probe_to_json(self.probe),
            "speed_forecast": None if self.speed is None else self.speed.to_json(),
            "context_feasibility": None if self.feasibility is None else self.feasibility.to_json(),
            "warnings": list(self.warnings),
            "advice": list(self.advice),
            "error": None,
        }
        if self.refusal is not None:
            document["error"] = {
                "code": self.refusal.code,
                "message": str(self.refusal),
                "required_bytes": self.refusal.required_bytes,
                "available_bytes": self.refusal.available_bytes,
            }
        return document


def _probe_to_json(probe: DiskProbe) -> dict[str, Any]:
    return {
        "bytes_per_s": probe.bytes_per_s,
        "read_bytes": probe.read_bytes,
        "seconds": probe.seconds,
        "record_bytes": probe.record_bytes,
        "lanes": probe.lanes,
        "source": probe.source,
        "cold": probe.cold,
    }


def read_disk_space(geometry: ModelGeometry, directory: Path) -> DiskSpace:
    """Return the room a model has where it is or will be installed.

    Raises:
        ForecastError: The disk cannot be asked.
    """
    path = directory.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    try:
        free_bytes = shutil.disk_usage(path).free
    except OSError as error:
        raise ForecastError(f"the free space of {path} cannot be read: {error.strerror or error}") from error
    return DiskSpace(
        path=path,
        installed=(directory / "config.json").is_file(),
        needed_bytes=geometry.disk_bytes,
        free_bytes=free_bytes,
    )


def diagnose(
    geometry: ModelGeometry,
    machine: Machine,
    request: PlanRequest,
    *,
    directory: Path,
    probe_seconds: float = 8.0,
    chip: str | None = None,
    cpu: CpuSpeed | None = None,
    profile: RecordedProfile | None = None,
) -> Diagnosis:
    """Plan, measure and forecast one model on one machine. Nothing is loaded.

    Args:
        geometry: The model.
        machine: Real or simulated readings.
        request: Options of the plan.
        directory: Where the model is or will be.
        probe_seconds: How long to measure the disk; 0 skips it.
        chip: The Apple chip, when known.
        cpu: How fast products run here, when measured.
        profile: What the engine recorded of this model on this machine.

    Raises:
        InvalidRequest: The options make no sense for this model.
        MachineError: Available memory could not be read.
    """
    result: MemoryPlan | None = None
    refusal: InsufficientMemory | None = None
    try:
        result = plan(geometry, machine, request)
    except InsufficientMemory as error:
        refusal = error
    feasibility = None
    if refusal is not None or request.max_context != "auto":
        feasibility = find_largest_window(geometry, machine, request)
    warnings: list[str] = []
    disk = read_disk_space(geometry, directory)
    probe: DiskProbe | None = None
    if probe_seconds > 0:
        try:
            probe = probe_disk(directory, record_bytes=geometry.record_bytes, seconds=probe_seconds)
        except ForecastError as error:
            warnings.append(str(error))
    speed = None if result is None else forecast_plan(result, probe, chip=chip, profile=profile, cpu=cpu)
    warnings += _warnings(result, request, disk, probe, speed)
    return Diagnosis(
        geometry=geometry,
        machine=machine,
        plan=result,
        refusal=refusal,
        feasibility=feasibility,
        disk=disk,
        probe=probe,
        speed=speed,
        warnings=tuple(warnings),
        advice=tuple(_advice(geometry, machine, request, result, speed, feasibility)),
    )


def _warnings(
    result: MemoryPlan | None,
    request: PlanRequest,
    disk: DiskSpace,
    probe: DiskProbe | None,
    speed: SpeedForecast | None,
) -> list[str]:
    warnings: list[str] = []
    if not disk.enough:
        warnings.append(
            f"{disk.path} has {format_bytes(disk.free_bytes)} free and the model takes "
            f"{format_bytes(disk.needed_bytes)}; free {format_bytes(disk.needed_bytes - disk.free_bytes)} "
            "or use another disk"
        )
    if probe is not None and probe.suspect:
        warnings.append(
            f"the disk answered at {probe.bytes_per_s / GB:.0f} GB/s, which is memory's speed: "
            "its files were probably cached"
        )
    limit_s = request.max_prefill_wait_minutes * 60
    if result is not None and limit_s > 0:
        wait_s = speed.full_window_s if speed is not None else result.prefill_seconds(result.window_tokens)
        if wait_s is None:
            warnings.append(
                f"reading a full window of {result.window_tokens} tokens has no estimate; requests stop after "
                f"{format_wait(limit_s)} without a first token (--max-prefill-wait)"
            )
        elif wait_s > limit_s:
            warnings.append(
                f"reading a full window takes about {format_wait(wait_s)} and requests stop after "
                f"{format_wait(limit_s)} without a first token; raise --max-prefill-wait or send shorter prompts"
            )
    if result is not None and result.simulated:
        warnings.append("this machine is simulated: its plan can be shown, not loaded")
    return warnings


def _advice(
    geometry: ModelGeometry,
    machine: Machine,
    request: PlanRequest,
    result: MemoryPlan | None,
    speed: SpeedForecast | None,
    feasibility: Feasibility | None,
) -> list[str]:
    if result is None:
        if feasibility is not None and feasibility.maximum_window > 0:
            return [f"the largest window that fits is {feasibility.maximum_window} tokens (--max-context)"]
        return ["no window fits under these inputs: free memory, or use a machine with more"]
    advice: list[str] = []
    if result.arrangement.availability_clamped:
        idle = _planned(geometry, machine.idle(), request)
        if idle is not None and idle.pool_slots > result.pool_slots:
            advice.append(
                f"closing other programs would raise the pool from {result.pool_slots} to {idle.pool_slots} slots"
            )
    larger = _larger_limit(geometry, machine, request, result)
    if larger is not None and larger.target_bytes is not None:
        advice.append(
            f"--memory-limit-gb {larger.target_bytes / GB:.0f} would hold {larger.pool_slots} slots "
            f"({100 * larger.pool_slots / geometry.total_experts:.0f}% of the experts)"
        )
    if geometry.draft_bytes and result.draft == "off" and request.mtp == "auto":
        advice.append("the draft head stays off because too few experts would remain; it needs a larger target")
    if speed is not None and not result.fully_resident and speed.decode.limiting == "disk":
        advice.append(
            f"the disk limits speed: each token reads {format_bytes(speed.decode.read_bytes)}; use the fastest disk"
        )
    return advice


def _planned(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> MemoryPlan | None:
    try:
        return resolve_plan(geometry, machine, request)
    except InsufficientMemory:
        return None


def _larger_limit(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, result: MemoryPlan
) -> MemoryPlan | None:
    """Return the plan of the largest adaptive limit, or of a smaller one with its slots, if it holds a tenth more."""
    if request.source != "auto" or request.memory_limit_gb is not None or machine.largest_limit_bytes <= 0:
        return None
    limit_gb = machine.largest_limit_bytes // GB
    if result.target_bytes is None or limit_gb * GB <= result.target_bytes:
        return None
    larger = _planned(geometry, machine, replace(request, memory_limit_gb=float(limit_gb)))
    if larger is None or larger.pool_slots - result.pool_slots < geometry.total_experts // 10:
        return None
    needed_gb = -(-(larger.expected_peak_bytes + larger.ledger.planning_margin_bytes) // GB)
    enough = _planned(geometry, machine, replace(request, memory_limit_gb=float(min(needed_gb, limit_gb))))
    return larger if enough is None or enough.pool_slots < larger.pool_slots else enough


def diagnosis_to_text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as the text ``slotstream doctor`` prints."""
    disk = diagnosis.disk
    state = "installed" if disk.installed else f"{format_bytes(disk.needed_bytes)} to download"
    lines = []
    if diagnosis.plan is not None:
        lines.append(plan_to_text(diagnosis.plan))
    elif diagnosis.refusal is not None:
        lines.append(f"{diagnosis.geometry.name} does not fit: {diagnosis.refusal}")
    lines += ["", f"  disk          {state}, {format_bytes(disk.free_bytes)} free in {disk.path}"]
    if diagnosis.probe is not None:
        probe = diagnosis.probe
        how = "past the page cache" if probe.cold else "after asking the page cache to forget"
        lines.append(
            f"                {probe.bytes_per_s / GB:.2f} GB/s: {format_bytes(probe.read_bytes)} of {probe.source} in "
            f"{probe.seconds:.1f} s, {probe.lanes} reads of {format_bytes(probe.record_bytes)} at once, {how}"
        )
    lines += _speed_lines(diagnosis.speed)
    feasibility = diagnosis.feasibility
    if feasibility is not None:
        limit = feasibility.limiting_resource.replace("_", " ")
        lines.append(f"  largest window that fits: {feasibility.maximum_window} tokens ({limit})")
    if diagnosis.warnings:
        lines += ["", *(f"  warning: {warning}" for warning in diagnosis.warnings)]
    if diagnosis.advice:
        lines += ["", *(f"  to change: {advice}" for advice in diagnosis.advice)]
    return "\n".join(lines)


def _speed_lines(speed: SpeedForecast | None) -> list[str]:
    if speed is None:
        return ["  speed         not predicted: the disk was not measured"]
    decode, prefill = speed.decode, speed.prefill
    lines = [
        f"  speed         {_rate(decode)}; {format_bytes(decode.read_bytes)} read per token at "
        f"{100 * decode.hit_rate:.0f}% hits",
        f"  prompts       {_rate(prefill)}: {format_wait(speed.first_token_2000_s)} for 2,000 tokens, "
        f"{format_wait(speed.full_window_s)} for a full window",
    ]
    lines += [f"                {basis}" for basis in decode.basis]
    if (measured := speed.measured) is not None:
        lines.append(
            f"                measured: {format_rate(measured.tok_s)} tok/s with {100 * measured.pool_share:.0f}% of "
            f"the experts in slots, where the forecast says {format_rate(measured.forecast_tok_s)} "
            f"({100 * measured.apart:+.0f}%)"
        )
    return lines


def _rate(forecast: Forecast) -> str:
    return (
        f"about {format_rate(forecast.tok_s)} tok/s ({format_rate(forecast.low_tok_s)} to "
        f"{format_rate(forecast.high_tok_s)}), limited by the {forecast.limiting}"
    )
