"""Plans for programs (documented JSON keys) and for people (a readable text)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from slotstream_planner.calibration import (
    COST_MODEL,
    REFERENCE_PROMPT_TOKENS,
    REFERENCE_REPLY_TOKENS,
    decode_tok_s,
    request_seconds,
)
from slotstream_planner.charges import vision_bytes
from slotstream_planner.machine import UNLIMITED_BYTES, Machine
from slotstream_planner.prefill import estimate_prefill_seconds
from slotstream_planner.splitting import scaled_experts
from slotstream_planner.units import GB, format_bytes, format_wait, gb_figure
from slotstream_planner.windows import REQUEST_TIME_TOLERANCE, WindowCandidate, WindowChoice

if TYPE_CHECKING:
    from slotstream_planner.planning import MemoryPlan

__all__ = ["machine_to_json", "plan_to_json", "plan_to_text"]

_VISION_CONTEXT_LIMIT: Final = 65_536


def machine_to_json(machine: Machine) -> dict[str, Any]:
    """Return a machine's readings; unlimited availability of a simulation is null."""
    available = machine.available_bytes
    return {
        "kind": machine.kind,
        "ram_bytes": machine.ram_bytes,
        "available_bytes": None if available == UNLIMITED_BYTES else available,
        "working_set_bytes": machine.working_set_bytes,
        "cores": machine.cores,
        "simulated": machine.is_simulated,
    }


def plan_to_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return a plan with its documented keys. GB figures are rounded, estimates and the target are not."""
    geometry, machine, request, ledger = plan.geometry, plan.machine, plan.request, plan.ledger
    limit = geometry.context_limit
    vision = vision_bytes(geometry)
    available = machine.available_bytes
    document: dict[str, Any] = {
        "model": geometry.name,
        "simulated": plan.simulated,
        "source": plan.source,
        "experts_per_layer_cached": plan.experts_per_layer,
        "pool_slots": plan.pool_slots,
        "pool_gb": gb_figure(plan.pool_bytes),
        "expected_peak_gb": gb_figure(plan.expected_peak_bytes),
        "memory_target_semantics": "process_budget_not_allocation_goal",
        "expected_peak_semantics": "planned_full_workload_envelope_not_measured_usage",
        "non_cache_allowance_bytes": ledger.expected_peak_bytes - ledger.pool_bytes,
        "decode_estimate_cache_in_measured_range": plan.decode_in_measured_range,
        "resource_profile": ledger.resource_identity,
        "speed_evidence": COST_MODEL,
        "device_ram_gb": gb_figure(machine.ram_bytes),
        "device_working_set_gb": gb_figure(machine.working_set_limit_bytes),
        "device_available_gb": None if available in (None, UNLIMITED_BYTES) else gb_figure(available or 0),
        "max_ram_percent": request.max_ram_percent or (70.0 if request.memory_limit_gb is None else 100.0),
        "availability_clamped": plan.arrangement.availability_clamped,
        "fully_resident": plan.fully_resident,
        "prefill_chunk": plan.prefill_chunk,
        "prefix_cache_max_tokens": plan.retained_tokens,
        "mtp": plan.draft != "off",
        "mtp_streamed_experts": plan.draft == "streamed",
        "vision": request.vision != "off" and vision > 0,
        "vision_resident_reserved": plan.vision_reserved,
        "vision_charged_gb": gb_figure(ledger.vision_resident_bytes),
        "vision_resident_gb": gb_figure(vision),
        "max_context_tokens": plan.window_tokens,
        "est_prefill_s_at_max_context": plan.prefill_seconds(plan.window_tokens),
        "model_context_limit": limit,
        "implementation_context_limit": limit,
        "mtp_context_limit": limit,
        "vision_context_limit": min(_VISION_CONTEXT_LIMIT, limit),
        "max_prefill_wait_minutes": request.max_prefill_wait_minutes,
        "prefill_wait_scope": "request_to_first_token",
        "context_qualification": "planned",
        "memory_ledger": ledger.to_json(),
        "lookahead_reserve_bytes": ledger.lookahead_reserve_bytes,
        "decode_lookahead": plan.lookahead,
        "est_warm_tok_s": plan.reference_decode_tok_s,
        "est_prefill_tok_s": plan.reference_prefill_tok_s,
        "target_gb": None if plan.target_bytes is None else plan.target_bytes / GB,
        "memory_limit_gb": request.memory_limit_gb,
        "planned_headroom_gb": gb_figure(plan.planned_headroom_bytes),
        "runtime_prefix_cache_enabled": plan.retained_tokens > 0,
        "runtime_prefill_override": request.prefill_chunk,
        "context_window_source": "auto" if plan.window_choice is not None else "--max-context",
        "notes": list(plan.notes),
    }
    if plan.window_choice is not None:
        document["automatic_context_window"] = _choice_to_json(plan, plan.window_choice)
    return document


def _choice_to_json(plan: MemoryPlan, choice: WindowChoice) -> dict[str, Any]:
    return {
        "window": plan.window_tokens,
        "tier_window": choice.tier_window,
        "candidate_windows": [candidate.window for candidate in choice.candidates],
        "request_time_tolerance": REQUEST_TIME_TOLERANCE,
        "representative_request": {
            "prompt_tokens": REFERENCE_PROMPT_TOKENS,
            "reply_tokens": REFERENCE_REPLY_TOKENS,
        },
        "tier_inputs": {
            "ram_gb": gb_figure(plan.machine.ram_bytes),
            "working_set_gb": gb_figure(plan.machine.working_set_limit_bytes),
        },
        "candidates": [_candidate_to_json(plan, candidate) for candidate in choice.candidates],
    }


def _candidate_to_json(plan: MemoryPlan, candidate: WindowCandidate) -> dict[str, Any]:
    document: dict[str, Any] = {
        "window": candidate.window,
        "accepted": candidate.accepted,
        "reason": candidate.reason,
    }
    arrangement = candidate.arrangement
    if arrangement is None:
        return {**document, "refusal": "insufficient_memory"}
    split = arrangement.split
    document |= {
        "experts_per_layer_cached": split.slots / plan.geometry.layers,
        "mtp": arrangement.draft != "off",
        "decode_lookahead": arrangement.lookahead,
        "prefill_chunk": split.pass_tokens,
        "prefix_cache_max_tokens": split.retained_tokens,
        "expected_peak_gb": gb_figure(arrangement.ledger.expected_peak_bytes),
        "target_gb": None if arrangement.target_bytes is None else arrangement.target_bytes / GB,
        "est_prefill_s_at_window": estimate_prefill_seconds(candidate.window, split.pass_tokens),
        "request_seconds": request_seconds(split.pass_tokens, scaled_experts(plan.geometry, split.slots)),
        "request_cost_calibrated": candidate.relative_request_cost is not None,
        "refusal": None,
    }
    if candidate.relative_request_cost is not None:
        document["relative_request_cost"] = candidate.relative_request_cost
    return document


def plan_to_text(plan: MemoryPlan) -> str:
    """Return a plan as lines a person reads: machine, sizes, ledger, window and notes."""
    machine, geometry = plan.machine, plan.geometry
    kind = "simulated machine" if plan.simulated else "this machine"
    available = machine.available_bytes
    free = "nothing else running" if available == UNLIMITED_BYTES else f"{format_bytes(available or 0)} available"
    target = "set by the pool" if plan.target_bytes is None else format_bytes(plan.target_bytes)
    lines = [
        f"{geometry.name} on {kind} ({machine.kind}, {machine.cores} cores): "
        f"{format_bytes(machine.ram_bytes)} of memory, {free}; computes in {geometry.compute}",
        "",
        f"  target        {target} ({plan.source})",
        f"  expected peak {format_bytes(plan.expected_peak_bytes)}",
        f"  expert slots  {plan.pool_slots} of {geometry.total_experts}"
        f" ({100 * plan.pool_slots / geometry.total_experts:.0f}%, {plan.experts_per_layer:.1f} a layer)",
        f"  window        {plan.window_tokens} tokens, prompt passes of {plan.prefill_chunk},"
        f" {plan.retained_tokens} tokens retained",
        f"  draft head    {plan.draft}; lookahead {'on' if plan.lookahead else 'off'}",
        "",
        "  where the memory goes",
    ]
    lines += [f"    {name:<48} {format_bytes(size):>10}" for name, size in plan.ledger.lines if size]
    lines += [f"    {'expected peak':<48} {format_bytes(plan.expected_peak_bytes):>10}"]
    if plan.ledger.host_bytes:
        where = "pinned in the host's memory beside it"
        lines += [f"    {where:<48} {format_bytes(plan.ledger.host_bytes):>10}"]
    if plan.ledger.host_process_bytes:
        where = "the process and its libraries, there too"
        lines += [f"    {where:<48} {format_bytes(plan.ledger.host_process_bytes):>10}"]
    if plan.ledger.pinned_file_bytes:
        where = "files of experts, pinned there"
        lines += [f"    {where:<48} {format_bytes(plan.ledger.pinned_file_bytes):>10}"]
    if plan.ledger.retained_on_host and plan.ledger.retained_bytes:
        where = "retained conversations, in the host's memory"
        lines += [f"    {where:<48} {format_bytes(plan.ledger.retained_bytes):>10}"]
    lines += _window_lines(plan)
    if plan.notes:
        lines += ["", *(f"  note: {note}" for note in plan.notes)]
    return "\n".join(lines)


def _window_lines(plan: MemoryPlan) -> list[str]:
    choice = plan.window_choice
    if choice is None or len(choice.candidates) < 2:
        return []
    lines = ["", "  windows considered"]
    for candidate in choice.candidates:
        mark = "taken" if candidate.window == plan.window_tokens else "fits" if candidate.accepted else "left"
        lines.append(f"    {candidate.window:>7}  {mark:<6} {candidate.reason}")
    full = plan.prefill_seconds(plan.window_tokens)
    lines += [
        "",
        f"  reference envelope ({COST_MODEL}, ranks plans only): "
        f"{decode_tok_s(plan.scaled_experts_per_layer):.1f} tok/s warm, full window in {format_wait(full)}",
    ]
    return lines
