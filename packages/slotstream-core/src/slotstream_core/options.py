"""Switches for comparisons: which mechanism runs, apart from what the plan decides. Output never depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from slotstream_core.errors import SettingError

AheadSwitch = Literal["plan", "off"]
Tap = Literal["boundary", "attention"]

LOOKAHEAD_VARIABLE = "SLOTSTREAM_OPT_EXPERT_PREFETCH"
TAP_VARIABLE = "SLOTSTREAM_EXPERT_PREFETCH_TAP"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What an engine may use.

    Attributes:
        lookahead: Whether experts are read ahead where the plan says so, or never.
        tap: Where forecasts take the streams; None for the corrected forecast where a correction file is, else the
            boundary.
    """

    lookahead: AheadSwitch = "plan"
    tap: Tap | None = None

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> EngineOptions:
        """Read the documented variables; an unset one leaves the default.

        Raises:
            SettingError: A variable has a value that cannot be used.
        """
        lookahead = _choice(environment, LOOKAHEAD_VARIABLE, {"0": "off", "1": "plan"}) or "plan"
        tap = _choice(environment, TAP_VARIABLE, {"boundary": "boundary", "attention": "attention"})
        return EngineOptions(lookahead=cast(AheadSwitch, lookahead), tap=cast(Tap | None, tap))


def _choice(environment: Mapping[str, str], name: str, values: Mapping[str, str]) -> str | None:
    text = environment.get(name)
    if text is None:
        return None
    if text not in values:
        raise SettingError(f"{name} is {text!r}; use {' or '.join(values)}, or unset it")
    return values[text]
