"""Speeds are predicted from disk, host and hit curve, with a range that holds what people reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotstream_planner import ForecastError, Machine, PlanRequest, plan, published_geometry
from slotstream_planner.evidence import check_reports, reports_to_text
from slotstream_planner.forecast import DecodeSetting, DiskSpeed, forecast_decode, rate_of_waits
from slotstream_planner.hitcurves import HitCurve, RecordedProfile, published_curve, read_profile, write_profile
from slotstream_planner.hosts import CpuSpeed, apple_host, host_for, stall_s_per_layer
from slotstream_planner.probing import probe_disk
from slotstream_planner.speeds import forecast_plan
from tests.planner.checkpoints import write_checkpoint

GEOMETRY = published_geometry()
MEASURED_SIZES: dict[str, dict[str, Any]] = {
    "demo": {
        "layers": 8, "experts": 64, "experts_per_token": 6, "record_bytes": 27_648, "shared_bytes": 9_748_632,
        "vocabulary": 8_192, "hidden": 256,
    },
    "wide": {"layers": 2, "shared_bytes": 204_855_192, "vocabulary": 32_000},
}  # fmt: skip
PLAIN = DecodeSetting(pool_share=0.2, drafts=False, lookahead=False)


def rate(disk_gb_s: float, *, share: float = 0.2, chip: str = "M5 Pro", drafts: bool = False) -> float:
    setting = DecodeSetting(pool_share=share, drafts=drafts, lookahead=drafts)
    disk = DiskSpeed(bytes_per_s=disk_gb_s * 1e9, label="given")
    host = apple_host(GEOMETRY, chip)
    return forecast_decode(GEOMETRY, setting, disk=disk, host=host, curve=published_curve()).tok_s


def test_every_report_with_a_known_disk_is_predicted_within_range_but_one() -> None:
    checked = [report for report in check_reports() if report.forecast is not None]
    missed = [report.report.machine for report in checked if not report.within_range]
    assert len(checked) == 19
    assert missed == ["Mac mini M2 16 GB, prompt"]


def test_what_was_not_reported_is_not_predicted() -> None:
    assert all(report.forecast is None for report in check_reports() if report.report.disk_gb_s is None)


@pytest.mark.parametrize(("share", "hit"), [(0.05, 0.559), (0.30, 0.899), (1.0, 0.947)])
def test_the_published_curve_passes_through_its_points(share: float, hit: float) -> None:
    assert published_curve().hit_rate(share) == pytest.approx(hit)


def test_the_curve_rises_between_points_and_falls_below_the_first() -> None:
    curve = published_curve()
    rates = [curve.hit_rate(n / 1000) for n in range(1, 1001)]
    assert rates == sorted(rates)
    assert 0.5 < curve.hit_rate(0.041) < 0.559


def test_a_faster_disk_a_larger_pool_and_a_faster_chip_each_help() -> None:
    assert rate(1) < rate(3) < rate(12)
    assert rate(3, share=0.05) < rate(3, share=0.2) < rate(3, share=1.0)
    assert rate(12, chip="M2") < rate(12, chip="M4 Pro") < rate(12, chip="M5 Max")


def test_a_slow_disk_limits_and_an_absent_one_does_not() -> None:
    host = apple_host(GEOMETRY, "M5 Pro")
    slow = forecast_decode(
        GEOMETRY, PLAIN, disk=DiskSpeed(bytes_per_s=0.5e9, label=""), host=host, curve=published_curve()
    )
    assert slow.limiting == "disk"
    resident = DecodeSetting(pool_share=1.0, drafts=False, lookahead=False)
    whole = forecast_decode(
        GEOMETRY, resident, disk=DiskSpeed(bytes_per_s=0.5e9, label=""), host=host, curve=published_curve()
    )
    assert whole.read_bytes == whole.disk_s == 0
    assert whole.tok_s == pytest.approx(1 / host.total_s)
    assert whole.limiting in ("host", "compute")


def test_drafts_help_where_the_host_limits_and_hardly_where_the_disk_does() -> None:
    assert rate(12.6, drafts=True) > 1.3 * rate(12.6)
    assert rate(0.5, drafts=True) < 1.1 * rate(0.5)


def test_an_assumed_host_widens_the_range() -> None:
    known = apple_host(GEOMETRY, "M4 Pro")
    unknown = apple_host(GEOMETRY, "M99")
    disk = DiskSpeed(bytes_per_s=3e9, label="")
    narrow = forecast_decode(GEOMETRY, PLAIN, disk=disk, host=known, curve=published_curve())
    wide = forecast_decode(GEOMETRY, PLAIN, disk=disk, host=unknown, curve=published_curve())
    assert wide.high_tok_s / wide.low_tok_s > narrow.high_tok_s / narrow.low_tok_s


def test_a_linux_host_is_priced_by_its_cores_and_a_recording_replaces_the_guess() -> None:
    def machine(cores: int) -> Machine:
        return Machine(
            kind="linux", ram_bytes=64 * 10**9, available_bytes=60 * 10**9, working_set_bytes=None, cores=cores
        )

    two = host_for(GEOMETRY, machine(2), chip=None, profile=None)
    sixteen = host_for(GEOMETRY, machine(16), chip=None, profile=None)
    assert two.compute_s == pytest.approx(8 * sixteen.compute_s)
    assert two.evidence == "assumed"
    profile = RecordedProfile(model="m", curve=published_curve(), host_s_per_token=0.5, prompt_s_per_token=0.01)
    recorded = host_for(GEOMETRY, machine(2), chip=None, profile=profile)
    assert recorded.prompt_s == 0.01
    assert recorded.total_s == pytest.approx(0.5)
    assert recorded.evidence == "measured"


def test_products_measured_on_a_processor_replace_the_guess_and_say_so() -> None:
    machine = Machine(kind="linux", ram_bytes=64 * 2**30, available_bytes=None, working_set_bytes=None, cores=2)
    guessed = host_for(GEOMETRY, machine, chip=None, profile=None)
    slow, fast = (
        host_for(
            GEOMETRY,
            machine,
            chip=None,
            profile=None,
            cpu=CpuSpeed(flop_per_s=flops, prompt_flop_per_s=90e9, label="the compiled products"),
        )
        for flops in (3e9, 30e9)
    )
    assert slow.compute_s == pytest.approx(guessed.compute_s)
    assert fast.compute_s == pytest.approx(slow.compute_s / 10)
    assert slow.prompt_s == fast.prompt_s
    assert (fast.evidence, guessed.evidence) == ("measured", "assumed")
    assert "30.0 GFLOP/s in products of one row, 90.0 of many" in fast.label


def test_prompts_run_at_the_speed_of_many_rows_and_leave_the_output_matrix_out() -> None:
    machine = Machine(kind="linux", ram_bytes=64 * 2**30, available_bytes=None, working_set_bytes=None, cores=2)
    cpu = CpuSpeed(flop_per_s=30e9, prompt_flop_per_s=90e9, label="the compiled products")
    host = host_for(GEOMETRY, machine, chip=None, profile=None, cpu=cpu)
    output_flops = 2 * GEOMETRY.vocabulary * GEOMETRY.hidden
    assert host.prompt_s == pytest.approx((host.compute_s * 30e9 - output_flops) / 90e9)


def test_a_processor_synchronises_and_stalls_for_less_than_a_device() -> None:
    machine = Machine(kind="linux", ram_bytes=64 * 2**30, available_bytes=None, working_set_bytes=None, cores=2)
    cpu = CpuSpeed(flop_per_s=30e9, prompt_flop_per_s=90e9, label="the compiled products")
    compiled = host_for(GEOMETRY, machine, chip=None, profile=None, cpu=cpu)
    device, interpreted = apple_host(GEOMETRY, "M4"), host_for(GEOMETRY, machine, chip=None, profile=None)
    assert compiled.sync_s < device.sync_s < interpreted.sync_s
    assert compiled.stall_s == stall_s_per_layer("linux") < device.stall_s == stall_s_per_layer("macos")
    assert stall_s_per_layer("cuda") == device.stall_s


def test_the_rate_of_waits_makes_the_forecast_wait_as_long_as_was_measured() -> None:
    wait_s, read_bytes = 0.2, 50.0 * GEOMETRY.record_bytes
    stall_s = stall_s_per_layer("linux")
    found = rate_of_waits(GEOMETRY, read_bytes=read_bytes, wait_s=wait_s, stall_s=stall_s)
    assert found is not None
    assert read_bytes / (0.9 * found) + 48 * stall_s == pytest.approx(wait_s)


# Measured on two virtual cores of an AMD EPYC beside other work (docs/log.md).
@pytest.mark.parametrize(
    ("drawn", "pool_share", "hit", "flops", "disk", "tok_s"),
    [
        ("demo", 0.25, 0.316, (30.2e9, 62.8e9), 1.7e9, 207.5),
        ("demo", 1.0, 1.0, (28.4e9, 70.2e9), 1.7e9, 238.8),
        ("wide", 0.25, 0.207, (27.7e9, 66.5e9), 1.7e9, 15.1),
    ],
)
def test_replies_measured_on_a_processor_are_forecast_within_a_quarter(
    drawn: str, pool_share: float, hit: float, flops: tuple[float, float], disk: float, tok_s: float
) -> None:
    geometry = replace(published_geometry(compute="float32"), **MEASURED_SIZES[drawn])
    machine = Machine(kind="linux", ram_bytes=24 * 10**9, available_bytes=None, working_set_bytes=None, cores=2)
    cpu = CpuSpeed(flop_per_s=flops[0], prompt_flop_per_s=flops[1], label="")
    curve = HitCurve(points=((pool_share / 2, hit * 0.99), (pool_share, hit)), source="")
    found = forecast_decode(
        geometry,
        DecodeSetting(pool_share=pool_share, drafts=False, lookahead=False),
        disk=DiskSpeed(bytes_per_s=disk, label=""),
        host=host_for(geometry, machine, chip=None, profile=None, cpu=cpu),
        curve=curve,
    )
    assert abs(tok_s / found.tok_s - 1) <= 0.25


def test_a_measured_reply_is_told_beside_its_forecast() -> None:
    result = plan(GEOMETRY, Machine.simulated(ram_gb=48), PlanRequest())
    disk = DiskSpeed(bytes_per_s=6e9, label="given")
    curve = published_curve()
    plain = forecast_plan(result, disk, profile=RecordedProfile(model="m", curve=curve))
    assert plain is not None
    assert plain.measured is None
    share = result.pool_slots / GEOMETRY.total_experts
    profile = RecordedProfile(model="m", curve=curve, decode_tok_s=((share, 10.0), (1.0, 99.0)))
    told = forecast_plan(result, disk, profile=profile)
    assert told is not None
    assert told.measured is not None
    assert told.measured.forecast_tok_s == pytest.approx(told.decode.tok_s)
    assert told.measured.apart == pytest.approx(10 / told.decode.tok_s - 1)
    assert told.to_json()["measured"]["apart"] == told.measured.apart


def test_without_any_disk_figure_nothing_is_predicted() -> None:
    result = plan(GEOMETRY, Machine.simulated(ram_gb=48))
    assert forecast_plan(result, None) is None


def test_a_plan_is_forecast_with_its_waits() -> None:
    result = plan(GEOMETRY, Machine.simulated(ram_gb=48), PlanRequest())
    speed = forecast_plan(result, DiskSpeed(bytes_per_s=6e9, label="given"), chip="M4 Pro")
    assert speed is not None
    assert speed.decode.low_tok_s < speed.decode.tok_s < speed.decode.high_tok_s
    assert speed.first_token_2000_s == pytest.approx(2000 / speed.prefill.tok_s)
    assert speed.to_json()["decode"]["limiting"] in ("disk", "host", "compute")


def test_a_profile_is_written_and_read_back(tmp_path: Path) -> None:
    curve = HitCurve(points=((0.1, 0.4), (0.9, 0.9)), source="x")
    profile = RecordedProfile(model="m", curve=curve, host_s_per_token=0.1, disk_bytes_per_s=2e9)
    profile = replace(profile, decode_tok_s=((0.1, 3.0), (0.9, 7.5)))
    path = tmp_path / "profiles" / "m.json"
    write_profile(profile, path)
    again = read_profile(path)
    assert again is not None
    assert (again.model, again.curve.points, again.host_s_per_token) == ("m", curve.points, 0.1)
    assert again.decode_tok_s == profile.decode_tok_s
    assert [entry.name for entry in path.parent.iterdir()] == ["m.json"]
    assert read_profile(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        '{"version": 2}',
        '{"version": 1, "model": "m", "hit_curve": [[0.1, 0.4]]}',
        '{"version": 1, "model": "m", "hit_curve": [[0.5, 0.4], [0.1, 0.9]]}',
        '{"version": 1, "model": "m", "hit_curve": [[0.1, 0.4], [1, 2]]}',
        '{"version": 1, "model": "m", "hit_curve": [[0.1, 0.4], [1, 0.9]], "disk_bytes_per_s": -1}',
        '{"version": 1, "model": "m", "hit_curve": [[0.1, 0.4], [1, NaN]]}',
        '{"version": 1, "model": "m", "hit_curve": [[0.1, 0.4], [1, 0.9]], "decode_tok_s": [[0.1]]}',
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(ForecastError):
        read_profile(path)


def test_a_disk_is_measured_with_a_temporary_file_that_is_removed(tmp_path: Path) -> None:
    probe = probe_disk(
        tmp_path / "models" / "absent",
        record_bytes=100_000,
        seconds=3600,
        limit_bytes=8_000_000,
        temporary_bytes=4_000_000,
    )
    assert list(tmp_path.iterdir()) == []
    assert probe.source == "a temporary file"
    assert probe.record_bytes == 102_400
    assert 0 < probe.read_bytes <= 8_000_000
    assert math.isfinite(probe.bytes_per_s)


def test_a_model_that_is_there_is_read_itself(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "small")
    before = sorted(path.name for path in directory.iterdir())
    probe = probe_disk(directory, record_bytes=65_536, seconds=3600, limit_bytes=2_000_000, temporary_bytes=4_000_000)
    assert probe.source == "the model's files"
    assert probe.read_bytes == 30 * 65_536
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_probe_never_reads_more_than_two_gigabytes(tmp_path: Path) -> None:
    probe = probe_disk(tmp_path, record_bytes=65_536, seconds=0.0, limit_bytes=10**15, temporary_bytes=1_000_000)
    assert 0 < probe.read_bytes <= 2 * 10**9


def test_the_documentation_shows_the_reports_as_they_are_predicted_now() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "forecast.md").read_text()
    shown = page.split("<!-- reports -->\n```text\n", 1)[1].split("\n```", 1)[0]
    assert shown == "\n".join(line.rstrip() for line in reports_to_text().splitlines())
