"""The context window: what automatic planning may choose, and why it took or left each candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from slotstream_planner.arranging import Arrangement, Retention, arrange, check_fit
from slotstream_planner.calibration import MEASURED_EXPERTS_LIMIT, request_seconds
from slotstream_planner.charges import base_window
from slotstream_planner.errors import InsufficientMemory
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.request import PlanRequest
from slotstream_planner.splitting import scaled_experts

__all__ = ["REQUEST_TIME_TOLERANCE", "WindowCandidate", "WindowChoice", "arrange_window", "choose_window"]

REQUEST_TIME_TOLERANCE: Final = 0.10
"""How much longer the reference request may take for a larger window."""

_CANDIDATES: Final = (32_768, 65_536, 131_072, 262_144)


@dataclass(frozen=True, kw_only=True)
class WindowCandidate:
    """One window automatic planning looked at.

    Attributes:
        window: Its size in tokens.
        accepted: Whether it may be chosen.
        reason: Why or why not, in words.
        arrangement: Its division of memory; None when it was refused.
        relative_request_cost: Reference request time against the base window's, minus one; None when the
            cost is not covered by measurements.
    """

    window: int
    accepted: bool
    reason: str
    arrangement: Arrangement | None
    relative_request_cost: float | None


@dataclass(frozen=True, kw_only=True)
class WindowChoice:
    """The automatic window and how it was found.

    Attributes:
        tier_window: The window this machine gets when nothing else runs.
        arrangement: The arrangement to use now.
        candidates: The tier's candidates in ascending order; empty when the pool's size is fixed.
        notes: What a person should know.
    """

    tier_window: int
    arrangement: Arrangement
    candidates: tuple[WindowCandidate, ...]
    notes: tuple[str, ...] = ()


def arrange_window(geometry: ModelGeometry, machine: Machine, request: PlanRequest, window: int) -> Arrangement:
    """Arrange and check an explicit window.

    Beyond the base window a whole conversation is retained when that fits, else a tenth of the budget is.

    Raises:
        InsufficientMemory: The window does not fit either way.
        MachineError: Available memory could not be read.
    """
    if window > base_window(geometry):
        try:
            return _checked(geometry, machine, request, window, "complete")
        except InsufficientMemory:
            arrangement = _checked(geometry, machine, request, window, "share")
        note = f"a whole {window}-token conversation cannot be retained, so later turns may read part of it again"
        return _with_notes(arrangement, (note,))
    return _checked(geometry, machine, request, window, "share")


def choose_window(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> WindowChoice:
    """Choose the largest acceptable window for this machine, then for what is available now.

    Raises:
        InsufficientMemory: Not even the base window fits.
        MachineError: Available memory could not be read.
    """
    base = base_window(geometry)
    live_base = _checked(geometry, machine, request, base, "share")
    if request.fixes_pool:
        return WindowChoice(tier_window=base, arrangement=live_base, candidates=())
    idle = machine.idle()
    tier_base = _checked(geometry, idle, request, base, "share")
    candidates = tuple(_judge(geometry, idle, request, tier_base, window) for window in _windows(geometry))
    tier_window = max(candidate.window for candidate in candidates if candidate.accepted)
    for window in reversed(_windows(geometry)):
        if window > tier_window:
            continue
        candidate = _judge(geometry, machine, request, live_base, window)
        if candidate.accepted and candidate.arrangement is not None:
            notes: tuple[str, ...] = ()
            if window < tier_window:
                notes = (
                    f"the window is {window} tokens and not the {tier_window} of an idle machine, because other "
                    "programs hold memory",
                )
            return WindowChoice(
                tier_window=tier_window, arrangement=candidate.arrangement, candidates=candidates, notes=notes
            )
    return WindowChoice(tier_window=tier_window, arrangement=live_base, candidates=candidates)


def _windows(geometry: ModelGeometry) -> list[int]:
    base = base_window(geometry)
    return [base] + [window for window in _CANDIDATES if base < window <= geometry.context_limit]


def _checked(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, window: int, retention: Retention
) -> Arrangement:
    arrangement = arrange(geometry, machine, request, window=window, retention=retention)
    check_fit(arrangement, geometry, machine)
    return arrangement


def _with_notes(arrangement: Arrangement, notes: tuple[str, ...]) -> Arrangement:
    return replace(arrangement, notes=arrangement.notes + notes)


def _judge(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, base: Arrangement, window: int
) -> WindowCandidate:
    """Compare one candidate with the base window's arrangement on the same machine."""
    if window == base.window:
        return WindowCandidate(
            window=window, accepted=True, reason="the base window", arrangement=base, relative_request_cost=0.0
        )
    try:
        arrangement = _checked(geometry, machine, request, window, "complete")
    except InsufficientMemory as error:
        return WindowCandidate(
            window=window, accepted=False, reason=f"does not fit: {error}", arrangement=None, relative_request_cost=None
        )
    cost = _seconds(geometry, arrangement) / _seconds(geometry, base) - 1
    lost = base.split.slots - arrangement.split.slots
    unmeasured = lost > 0 and scaled_experts(geometry, base.split.slots) > MEASURED_EXPERTS_LIMIT
    refusal = _component_refusal(base, arrangement)
    if refusal is None and unmeasured:
        lost_gb = lost * geometry.slot_bytes / 1e9
        refusal = f"takes {lost} slots ({lost_gb:.1f} GB) from a pool whose last slots have no measured value"
    if refusal is None and cost > REQUEST_TIME_TOLERANCE + 1e-9:
        refusal = (
            f"makes a typical request {100 * cost:.1f}% slower; at most {100 * REQUEST_TIME_TOLERANCE:.0f}% is accepted"
        )
    return WindowCandidate(
        window=window,
        accepted=refusal is None,
        reason=refusal or f"makes a typical request {100 * cost:.1f}% slower",
        arrangement=arrangement,
        relative_request_cost=None if unmeasured else cost,
    )


def _component_refusal(base: Arrangement, candidate: Arrangement) -> str | None:
    if base.draft != "off" and candidate.draft == "off":
        return "would turn the draft head off"
    if base.draft == "resident" and candidate.draft == "streamed":
        return "would stream the draft head's experts"
    if base.lookahead and not candidate.lookahead:
        return "would turn the lookahead off"
    return None


def _seconds(geometry: ModelGeometry, arrangement: Arrangement) -> float:
    split = arrangement.split
    return request_seconds(split.pass_tokens, scaled_experts(geometry, split.slots))
