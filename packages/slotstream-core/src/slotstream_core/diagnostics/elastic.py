"""Does changing the pool's size while a model is loaded leave its output alone?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slotstream_core.backend import Backend
from slotstream_core.diagnostics.continuing import continue_greedily, invented_ids, read_prompt
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.errors import PlanError
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.governing import ExpertsPool, Governor, Sensors
from slotstream_core.loading import LoadedModel, load_model, plan_here
from slotstream_core.memory import drop_buffer_cache, machine_here, planned_footprint
from slotstream_planner import Machine, MemoryPlan, PlanRequest
from slotstream_planner.charges import floor_slots
from slotstream_planner.pressure import PressureLevel

__all__ = ["DrillOptions", "check_elastic", "drill_governor"]

PROMPT_TOKENS = 12
STEP_SECONDS = 100.0
"""Pretended time between two steps of a drill: longer than every cooldown."""


def check_elastic(directory: Path, *, max_tokens: int = 24, big_slots: int = 960) -> CheckReport:
    """Generate greedily at the smallest pool, after growing it, and after shrinking it again.

    Args:
        directory: The checkpoint.
        max_tokens: Tokens to generate each time.
        big_slots: Slots to grow to; at most one for every expert.

    Raises:
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    with load_model(directory, request=PlanRequest(experts_per_layer=1)) as loaded:
        floor = loaded.plan.pool_slots
        big = min(max(big_slots, floor + 1), loaded.plan.geometry.total_experts)
        expected = _greedy(loaded, max_tokens)
        loaded.experts.resize(big)
        kept = loaded.experts.pool.resident_count
        grown = _greedy(loaded, max_tokens)
        loaded.experts.resize(floor)
        emptied = loaded.experts.pool.resident_count
        shrunk = _greedy(loaded, max_tokens)
        loaded.experts.pool.check_integrity()
    return CheckReport(
        name="elastic-check",
        items=(
            _same(f"growing from {floor} to {big} slots leaves the ids alone", expected, grown),
            _same(f"shrinking back to {floor} slots leaves the ids alone", expected, shrunk),
            CheckItem(
                name="growing keeps the experts that were there", passed=kept > 0 or big == floor, detail=f"{kept} kept"
            ),
            CheckItem(name="shrinking starts empty", passed=emptied == 0 or big == floor, detail=f"{emptied} left"),
        ),
        facts={"ids": list(expected), "floor_slots": floor, "big_slots": big},
    )


def _same(name: str, expected: Sequence[int], found: Sequence[int]) -> CheckItem:
    different = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    passed = different is None and len(expected) == len(found)
    where = f"{len(found)} of {len(expected)} ids" if different is None else f"first difference at id {different}"
    return CheckItem(name=name, passed=passed, detail=where)


def _greedy(loaded: LoadedModel, count: int) -> list[int]:
    """Return the greedy continuation of a fixed prompt, end-of-text or not."""
    state, row = read_prompt(loaded, invented_ids(loaded, PROMPT_TOKENS))
    return continue_greedily(loaded, state, row, count)


@dataclass
class _Bench:
    """A loaded model as the governor sees an engine, with a world that the drill moves by hand."""

    loaded: LoadedModel
    plan: MemoryPlan
    pool: ExpertsPool
    pins: PinnedFiles
    machine: Machine
    now_s: float = 0.0
    level: PressureLevel = "normal"
    prefix_bytes: int = 0
    cancelled: int = 0
    adopted: list[MemoryPlan] = field(default_factory=list)

    def try_gate(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_gate(self) -> AbstractContextManager[None]:
        return nullcontext()

    def cancel_running(self) -> None:
        self.cancelled += 1

    def drop_caches(self, *, retained: bool) -> None:
        drop_buffer_cache()

    def adopt(self, plan: MemoryPlan) -> None:
        self.plan = plan
        self.adopted.append(plan)


@dataclass(frozen=True, kw_only=True)
class DrillOptions:
    """How to drill.

    Attributes:
        max_tokens: Tokens to generate after each step.
        memory_limit_gb: Adaptive ceiling to load under, in GB; None for the machine's own.
        slots: Slots to begin with, from the smallest possible pool to the plan's; None for the plan's.
        max_memory_gb: Refuse to load when the plan may use more than this, in GB; None for no such limit.
        mtp: Whether the draft head is loaded.
        quick: Whether the drill ends after the shrink.
    """

    max_tokens: int = 24
    memory_limit_gb: float | None = None
    slots: int | None = None
    max_memory_gb: float | None = None
    mtp: Literal["auto", "on", "off"] = "auto"
    quick: bool = False


def drill_governor(directory: Path, options: DrillOptions) -> CheckReport:
    """Drive the governor over a really loaded model through pressure, cooldown and recovery.

    Memory readings are pretended, the pool and its resizes are real, and the ids are compared after every step.

    Raises:
        PlanError: The plan may use more memory than the drill is allowed to.
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    started_s = time.perf_counter()
    backend = Backend.detect()
    request = PlanRequest(memory_limit_gb=options.memory_limit_gb, mtp=options.mtp)
    allowed = plan_here(directory, backend, request)
    _check_ceiling(allowed, options.max_memory_gb)
    with load_model(directory, allowed) as loaded:
        bench = _Bench(
            loaded=loaded,
            plan=loaded.plan,
            pool=ExpertsPool(loaded.experts),
            pins=PinnedFiles([]),  # this is about the pool
            machine=machine_here(backend),
        )
        most, floor = loaded.plan.pool_slots, floor_slots(loaded.plan.geometry)
        start = min(max(options.slots or most, floor), most)
        if start < bench.pool.slot_count:
            bench.pool.resize(start)
        sensors = Sensors(
            clock=lambda: bench.now_s,
            machine=lambda: bench.machine,
            pressure=lambda: bench.level,
            footprint=lambda: planned_footprint(backend.kind).current_bytes,
        )
        governor = Governor(bench, sensors)
        expected = _greedy(loaded, options.max_tokens)
        items = _pressed(bench, governor, expected)
        low = bench.pool.slot_count
        if not options.quick:
            items += _recovered(bench, governor, expected, start=start)
        loaded.experts.pool.check_integrity()
    peak, planned = planned_footprint(backend.kind).peak_bytes, allowed.expected_peak_bytes
    detail = f"{peak / 1e6:,.0f} MB of {planned / 1e6:,.0f} MB planned"
    items.append(CheckItem(name="the process stayed inside its plan", passed=peak <= planned, detail=detail))
    return CheckReport(
        name="elastic-drill",
        items=tuple(items),
        facts={
            "full_slots": start,
            "low_slots": low,
            "peak_bytes": peak,
            "planned_bytes": planned,
            "seconds": time.perf_counter() - started_s,
        },
    )


def _check_ceiling(plan: MemoryPlan, most_gb: float | None) -> None:
    if most_gb is not None and plan.expected_peak_bytes > most_gb * 1e9:
        raise PlanError(
            f"the drill may use {plan.expected_peak_bytes / 1e9:.2f} GB and is allowed {most_gb:g} GB; nothing was "
            "loaded. Allow more, or give a lower --memory-limit-gb"
        )


def _pressed(bench: _Bench, governor: Governor, expected: Sequence[int]) -> list[CheckItem]:
    """Pretend critical pressure."""
    full, floor = bench.pool.slot_count, floor_slots(bench.plan.geometry)
    bench.now_s, bench.level = STEP_SECONDS, "critical"
    governor.watch_pressure()
    low = bench.pool.slot_count
    return [
        CheckItem(
            name="critical pressure shrinks the pool",
            passed=low < full or full <= floor,
            detail=f"{full} to {low} slots",
        ),
        CheckItem(name="pressure stops a running request", passed=bench.cancelled == 1),
        _same("the ids are the same after the shrink", expected, _greedy(bench.loaded, len(expected))),
    ]


def _recovered(bench: _Bench, governor: Governor, expected: Sequence[int], *, start: int) -> list[CheckItem]:
    """Pretend that the pressure has gone, then that much memory is free."""
    low = bench.pool.slot_count
    bench.now_s, bench.level = STEP_SECONDS + 1, "normal"
    governor.watch_pressure()
    governor.poll()
    waited = bench.pool.slot_count == low
    bench.now_s += STEP_SECONDS
    bench.machine = replace(bench.machine, available_bytes=bench.machine.ram_bytes)
    governor.poll()
    recovered = bench.pool.slot_count
    return [
        CheckItem(name="growth waits for its cooldown", passed=waited),
        CheckItem(name="the pool recovers", passed=recovered >= start, detail=f"{low} to {recovered} slots"),
        _same("the ids are the same after the recovery", expected, _greedy(bench.loaded, len(expected))),
    ]
