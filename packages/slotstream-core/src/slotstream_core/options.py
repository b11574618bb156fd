"""Switches for comparisons: which mechanism runs, apart from what the plan decides. Output never depends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from slotstream_core.blas import BLAS_VARIABLE
from slotstream_core.errors import SettingError
from slotstream_core.experts.probing import AccessSwitch
from slotstream_core.experts.reading import LanesSwitch, ReadingOptions, RecordsSwitch
from slotstream_core.experts.sweeping import GROUP_LIMIT, GROUP_RECORDS, SWEEPING, SweepOptions
from slotstream_core.generation.draft_depth import DEPTH_LIMIT
from slotstream_core.native.library import native_choice

AheadSwitch = Literal["plan", "off"]
Tap = Literal["boundary", "attention"]
WarmSwitch = Literal["auto", "on", "off"]

LOOKAHEAD_VARIABLE = "SLOTSTREAM_OPT_EXPERT_PREFETCH"
DEPTH_VARIABLE = "SLOTSTREAM_DRAFT_DEPTH"
EXACT_VARIABLE = "SLOTSTREAM_OPT_ROW_INVARIANT"
TAP_VARIABLE = "SLOTSTREAM_EXPERT_PREFETCH_TAP"
SWEEP_VARIABLE = "SLOTSTREAM_SWEEP"
ADMIT_VARIABLE = "SLOTSTREAM_SWEEP_ADMIT"
GROUP_VARIABLE = "SLOTSTREAM_EXPERT_LOAD_BATCH"
WARM_VARIABLE = "SLOTSTREAM_WARM_START"
RECORDS_VARIABLE = "SLOTSTREAM_REPACKED"
ACCESS_VARIABLE = "SLOTSTREAM_DIRECT_READS"

WARM_BUDGET_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What an engine may use.

    Attributes:
        lookahead: Whether experts are read ahead where the plan says so, or never.
        tap: Where forecasts take the streams; None for the corrected forecast where a correction file is, else the
            boundary.
        draft_depth: Most tokens to draft for one pass, 1 to 16; None for the default.
        row_invariant: Whether speculative tokens must equal plain ones to the last bit of every logit.
        sweep: Whether and how prompt passes of many rows go expert by expert.
        warm_start: Whether uses are kept, and a pool filled by them, where a directory for that is given; auto fills
            pools of at least half the experts only.
        warm_budget_s: How long filling the pool may take when nothing is asked meanwhile.
        records: Whether repacked experts are read where a checkpoint has them, or its stacked tensors always.
        access: Whether experts are read through the page cache, past it, or as a short measurement says.
        lanes: Whether compiled lanes read experts where they can, or Python's always.
    """

    lookahead: AheadSwitch = "plan"
    tap: Tap | None = None
    draft_depth: int | None = None
    row_invariant: bool = False
    sweep: SweepOptions = SWEEPING
    warm_start: WarmSwitch = "auto"
    warm_budget_s: float = WARM_BUDGET_S
    records: RecordsSwitch = "auto"
    access: AccessSwitch = "auto"
    lanes: LanesSwitch = "auto"

    def reading(self, mirrors: Sequence[Path]) -> ReadingOptions:
        """Return what may be used to read experts, from these mirrors too."""
        return ReadingOptions(records=self.records, access=self.access, mirrors=tuple(mirrors), lanes=self.lanes)

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> EngineOptions:
        """Read the documented variables; an unset one leaves the default.

        Those that were read when MLX was imported, or are read when a library is loaded, are checked here too.

        Raises:
            SettingError: A variable has a value that cannot be used.
        """
        native_choice(environment)
        _choice(environment, BLAS_VARIABLE, {"0": "off", "1": "on"})
        lookahead = _choice(environment, LOOKAHEAD_VARIABLE, {"0": "off", "1": "plan"}) or "plan"
        tap = _choice(environment, TAP_VARIABLE, {"boundary": "boundary", "attention": "attention"})
        exact = _choice(environment, EXACT_VARIABLE, {"0": "0", "1": "1"})
        sweep = SweepOptions(
            enabled=_choice(environment, SWEEP_VARIABLE, {"0": "off", "1": "on"}) != "off",
            admits=_choice(environment, ADMIT_VARIABLE, {"0": "off", "1": "on"}) != "off",
            group_records=_count(environment, GROUP_VARIABLE, GROUP_LIMIT) or GROUP_RECORDS,
        )
        return EngineOptions(
            lookahead=cast(AheadSwitch, lookahead),
            tap=cast(Tap | None, tap),
            draft_depth=_depth(environment.get(DEPTH_VARIABLE, "")),
            row_invariant=exact == "1",
            sweep=sweep,
            warm_start=cast(WarmSwitch, _choice(environment, WARM_VARIABLE, {"0": "off", "1": "on"}) or "auto"),
            records=cast(RecordsSwitch, _choice(environment, RECORDS_VARIABLE, {"0": "off", "1": "auto"}) or "auto"),
            access=cast(AccessSwitch, _choice(environment, ACCESS_VARIABLE, {"0": "cached", "1": "direct"}) or "auto"),
        )


def _choice(environment: Mapping[str, str], name: str, values: Mapping[str, str]) -> str | None:
    text = environment.get(name)
    if text is None:
        return None
    if text not in values:
        raise SettingError(f"{name} is {text!r}; use {' or '.join(values)}, or unset it")
    return values[text]


def _depth(text: str) -> int | None:
    """The number of drafts asked for; None, the default, for anything but 1 to 16, as documented."""
    usable = text.isascii() and text.isdigit() and len(text) <= 2 and 1 <= int(text) <= DEPTH_LIMIT
    return int(text) if usable else None


def _count(environment: Mapping[str, str], name: str, most: int) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise SettingError(f"{name} is {text!r}; use a whole number from 1 to {most}, or unset it")
    return int(text)
