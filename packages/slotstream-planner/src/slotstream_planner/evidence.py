"""Speeds that people reported, and what the forecast says for the same machine.

Rows are the community and author results published with the original engine (its hardware page and issue
threads) and one other engine's, all on the published model. A row can be predicted when its disk's rate
inside an engine is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotstream_planner.forecast import DecodeSetting, DiskSpeed, Forecast, forecast_decode, forecast_prefill
from slotstream_planner.hitcurves import published_curve
from slotstream_planner.hosts import apple_host
from slotstream_planner.published import published_geometry

__all__ = ["REPORTS", "CheckedReport", "SpeedReport", "check_reports", "reports_to_text"]


@dataclass(frozen=True, kw_only=True)
class SpeedReport:
    """One published result.

    Attributes:
        machine: What it ran on, in words.
        chip: The Apple chip.
        experts_per_layer: Pool size of 512.
        drafts: Whether two drafts were used.
        lookahead: Whether likely experts were read ahead.
        tok_s: Reported warm speed; the midpoint of a range.
        disk_gb_s: Disk rate inside an engine; None when nobody reported it.
        source: Where the numbers were published.
        pass_tokens: Prompt pass size, when the row is about prompt speed.
    """

    machine: str
    chip: str
    experts_per_layer: float
    drafts: bool
    lookahead: bool
    tok_s: float
    disk_gb_s: float | None
    source: str
    pass_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedReport:
    """A report beside its forecast.

    Attributes:
        report: The reported result.
        forecast: The prediction; None when the disk's rate is unknown.
    """

    report: SpeedReport
    forecast: Forecast | None

    @property
    def within_range(self) -> bool | None:
        """Whether the reported speed lies in the predicted range; None when nothing was predicted."""
        if self.forecast is None:
            return None
        return self.forecast.low_tok_s <= self.report.tok_s <= self.forecast.high_tok_s


def _decode(
    machine: str, chip: str, experts: float, parts: str, tok_s: float, disk_gb_s: float | None, source: str
) -> SpeedReport:
    """Return a decode row; `parts` names what was on: ``drafts``, ``lookahead``, both or ``plain``."""
    return SpeedReport(
        machine=machine,
        chip=chip,
        experts_per_layer=experts,
        drafts="drafts" in parts,
        lookahead="lookahead" in parts,
        tok_s=tok_s,
        disk_gb_s=disk_gb_s,
        source=source,
    )


def _prompt(
    machine: str, chip: str, experts: float, pass_tokens: int, tok_s: float, disk_gb_s: float | None, source: str
) -> SpeedReport:
    return SpeedReport(
        machine=machine,
        chip=chip,
        experts_per_layer=experts,
        drafts=False,
        lookahead=False,
        tok_s=tok_s,
        disk_gb_s=disk_gb_s,
        source=source,
        pass_tokens=pass_tokens,
    )


_HARDWARE: Final = "original, hardware page"

REPORTS: Final[tuple[SpeedReport, ...]] = (
    _decode("Mac mini M2 16 GB, 0.2.2", "M2", 21, "plain", 1.41, 1.5, "original, issue 5"),
    _decode("Mac mini M2 16 GB, 0.2.3", "M2", 25, "plain", 1.48, 1.5, "original, issue 5"),
    _decode("MacBook Pro M4 Pro 24 GB, 0.2.24", "M4 Pro", 53, "plain", 3.57, 3.7, "original, issue 41"),
    _decode("same, a later round", "M4 Pro", 53, "plain", 3.91, 3.7, "original, issue 41"),
    _decode("same, 0.2.25", "M4 Pro", 58, "drafts lookahead", 5.41, 3.7, "original, issue 41"),
    _decode("MacBook Pro M4 Max 64 GB, USB disk", "M4 Max", 119, "drafts lookahead", 2.98, 0.9, "original, issue 23"),
    _decode("MacBook Pro M5 Pro, 0.2.19", "M5 Pro", 100, "drafts lookahead", 15.86, 12.6, _HARDWARE),
    _decode("same, 0.2.16", "M5 Pro", 88, "drafts lookahead", 13.47, 12.6, _HARDWARE),
    _decode("same, without lookahead", "M5 Pro", 88, "drafts", 11.79, 12.6, _HARDWARE),
    _decode("same, 0.2.3", "M5 Pro", 152, "plain", 12.0, 12.6, _HARDWARE),
    _decode("same, planner anchor", "M5 Pro", 30, "plain", 6.0, 12.6, "original, planner curve"),
    _decode("same, planner anchor", "M5 Pro", 60, "plain", 8.2, 12.6, "original, planner curve"),
    _decode("same, planner anchor", "M5 Pro", 120, "plain", 11.2, 12.6, "original, planner curve"),
    _decode("MacBook Air M4 32 GB, 12.5 GB pool", "M4", 94, "plain", 4.71, 2.4, "streamlx, oMLX issue 3686"),
    _decode("same, 8.5 GB pool", "M4", 64, "plain", 3.96, 2.4, "streamlx, oMLX issue 3686"),
    _decode("MacBook Air M5 32 GB", "M5", 75, "plain", 6.22, None, "original, issue 12"),
    _decode("MacBook Pro M4 Max 36 GB", "M4 Max", 90, "drafts lookahead", 8.41, None, "original, issue 26"),
    _decode("MacBook Pro M3 Max 64 GB", "M3 Max", 119, "drafts lookahead", 12.38, None, "original, issue 20"),
    _decode("MacBook Pro M4 Max 64 GB", "M4 Max", 119, "drafts lookahead", 15.93, None, "original, issue 22"),
    _decode("MacBook Pro M5 Max 128 GB, auto", "M5 Max", 152, "drafts", 21.5, None, "original, issue 6"),
    _decode("same, 48 GB target", "M5 Max", 253, "drafts", 26.9, None, "original, issue 6"),
    _decode("same, 73 GB target", "M5 Max", 420, "drafts", 31.5, None, "original, issue 6"),
    _prompt("Mac mini M2 16 GB, prompt", "M2", 25, 256, 11.0, 1.5, "original, issue 5"),
    _prompt("MacBook Pro M4 Pro 24 GB, prompt", "M4 Pro", 62, 1024, 93.0, 3.7, "original, issue 41"),
    _prompt("MacBook Pro M4 Max, USB disk, prompt", "M4 Max", 148, 4096, 51.0, 0.9, "original, issue 23"),
    _prompt("MacBook Pro M5 Pro, prompt", "M5 Pro", 152, 4096, 220.0, 12.6, _HARDWARE),
    _prompt("MacBook Air M5 32 GB, prompt", "M5", 75, 2048, 126.28, None, "original, issue 12"),
)


def check_reports() -> list[CheckedReport]:
    """Return every report beside its forecast."""
    return [CheckedReport(report=report, forecast=_predict(report)) for report in REPORTS]


def _predict(report: SpeedReport) -> Forecast | None:
    if report.disk_gb_s is None:
        return None
    geometry, curve = published_geometry(), published_curve()
    disk = DiskSpeed(bytes_per_s=report.disk_gb_s * 1e9, label="reported")
    host = apple_host(geometry, report.chip)
    share = report.experts_per_layer / geometry.experts
    if report.pass_tokens is not None:
        return forecast_prefill(
            geometry, pool_share=share, pass_tokens=report.pass_tokens, disk=disk, host=host, curve=curve
        )
    setting = DecodeSetting(pool_share=share, drafts=report.drafts, lookahead=report.lookahead)
    return forecast_decode(geometry, setting, disk=disk, host=host, curve=curve)


def reports_to_text() -> str:
    """Return predicted against reported for every row whose disk speed is known, and the rest by name."""
    lines = [f"{'machine':<38} {'disk':>5} {'experts':>7} {'reported':>8} {'predicted':>9}  {'range':<13} limit"]
    unknown: list[str] = []
    for checked in check_reports():
        report, forecast = checked.report, checked.forecast
        if forecast is None:
            unknown.append(f"  {report.machine}: {report.tok_s:g} tok/s ({report.source})")
            continue
        verdict = "" if checked.within_range else "  MISSED"
        lines.append(
            f"{report.machine:<38} {report.disk_gb_s:>5} {report.experts_per_layer:>7g} {report.tok_s:>8.2f} "
            f"{forecast.tok_s:>9.2f}  {f'{forecast.low_tok_s:.1f} to {forecast.high_tok_s:.1f}':<13} "
            f"{forecast.limiting}{verdict}"
        )
    return "\n".join([*lines, "", "disk speed not reported, so not predicted:", *unknown])
