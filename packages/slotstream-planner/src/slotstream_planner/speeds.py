"""Put a plan, a disk, a host and a hit curve together into one speed report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from slotstream_planner.forecast import (
    DecodeSetting,
    DiskSpeed,
    Forecast,
    forecast_decode,
    forecast_prefill,
)
from slotstream_planner.hitcurves import RecordedProfile, curve_for
from slotstream_planner.hosts import CpuSpeed, host_for
from slotstream_planner.planning import MemoryPlan
from slotstream_planner.probing import DiskProbe

__all__ = ["MeasuredDecode", "SpeedForecast", "forecast_plan"]


@dataclass(frozen=True, kw_only=True)
class MeasuredDecode:
    """A reply that was measured on this machine, beside what is forecast for it.

    Attributes:
        pool_share: Share of the experts that had a slot.
        tok_s: As measured.
        forecast_tok_s: As forecast.
    """

    pool_share: float
    tok_s: float
    forecast_tok_s: float

    @property
    def apart(self) -> float:
        """How far the measured speed lies from the forecast, as a part of the forecast."""
        return self.tok_s / self.forecast_tok_s - 1


@dataclass(frozen=True, kw_only=True)
class SpeedForecast:
    """What a plan's user will see.

    Attributes:
        decode: Warm reply speed.
        prefill: Speed of reading a long prompt.
        first_token_2000_s: Wait for the first token after a 2,000-token prompt.
        full_window_s: Wait for the first token after a prompt that fills the window.
        measured: The measured reply whose pool was most like the plan's; None where none was recorded.
    """

    decode: Forecast
    prefill: Forecast
    first_token_2000_s: float
    full_window_s: float
    measured: MeasuredDecode | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the forecast, ready for ``json.dumps``."""
        return {
            "decode": self.decode.to_json(),
            "prefill": self.prefill.to_json(),
            "first_token_2000_s": self.first_token_2000_s,
            "full_window_s": self.full_window_s,
            "measured": None if self.measured is None else {**asdict(self.measured), "apart": self.measured.apart},
        }


def forecast_plan(
    plan: MemoryPlan,
    disk: DiskSpeed | DiskProbe | None,
    *,
    chip: str | None = None,
    cpu: CpuSpeed | None = None,
    profile: RecordedProfile | None = None,
) -> SpeedForecast | None:
    """Predict the speed of a plan.

    Args:
        plan: The plan.
        disk: A measured or known disk; None for none.
        chip: The Apple chip, when known.
        cpu: How fast products run here, when measured.
        profile: What the engine recorded of this model on this machine.

    Returns:
        The forecast, or None when neither a disk nor a recorded rate is known.
    """
    rate = _disk_speed(disk, profile)
    if rate is None:
        return None
    geometry = plan.geometry
    host = host_for(geometry, plan.machine, chip=chip, profile=profile, cpu=cpu)
    curve = curve_for(geometry, profile)
    share = plan.pool_slots / geometry.total_experts
    setting = DecodeSetting(pool_share=share, drafts=plan.draft != "off", lookahead=plan.lookahead)
    decode = forecast_decode(geometry, setting, disk=rate, host=host, curve=curve)
    prefill = forecast_prefill(
        geometry, pool_share=share, pass_tokens=plan.prefill_chunk, disk=rate, host=host, curve=curve
    )
    measured: MeasuredDecode | None = None
    if profile is not None and profile.decode_tok_s:
        near, tok_s = min(profile.decode_tok_s, key=lambda pair: abs(pair[0] - share))
        like = forecast_decode(geometry, replace(setting, pool_share=near), disk=rate, host=host, curve=curve)
        measured = MeasuredDecode(pool_share=near, tok_s=tok_s, forecast_tok_s=like.tok_s)
    return SpeedForecast(
        decode=decode,
        prefill=prefill,
        first_token_2000_s=2_000 / prefill.tok_s,
        full_window_s=plan.window_tokens / prefill.tok_s,
        measured=measured,
    )


def _disk_speed(disk: DiskSpeed | DiskProbe | None, profile: RecordedProfile | None) -> DiskSpeed | None:
    if profile is not None and profile.disk_bytes_per_s is not None:
        return DiskSpeed(bytes_per_s=profile.disk_bytes_per_s, label="recorded by the engine on this machine")
    if isinstance(disk, DiskProbe):
        certainty = "cold" if disk.cold else "page cache asked to forget"
        label = f"{disk.bytes_per_s / 1e9:.2f} GB/s measured on {disk.source}, {certainty}"
        return DiskSpeed(bytes_per_s=disk.bytes_per_s, label=label)
    return disk
