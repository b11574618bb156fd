"""A machine measures a model for its own forecasts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core.diagnostics.calibration import record_profile
from slotstream_core.errors import RequestError
from slotstream_core.testing import write_tiny_model
from slotstream_planner.hitcurves import profile_path, read_profile


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("calibrate") / "tiny")


def test_larger_pools_hit_more_and_time_is_measured(model: Path) -> None:
    profile = record_profile(model, name="tiny", tokens=12, shares=(0.4, 1.0))
    (small, low), (whole, high) = profile.curve.points
    assert small < whole == 1.0
    assert low < high
    assert profile.host_s_per_token is not None
    assert profile.host_s_per_token > 0
    assert profile.prompt_s_per_token is not None
    assert [share for share, speed in profile.decode_tok_s if speed > 0] == [small, whole]


def test_one_size_is_no_profile(model: Path) -> None:
    with pytest.raises(RequestError, match="a profile needs two"):
        record_profile(model, name="tiny", tokens=4, shares=(1.0,))


def test_the_command_saves_what_doctor_reads(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    result = CliRunner().invoke(main, ["calibrate", "--model", str(model), "--tokens", "6"])
    assert result.exit_code == 0, result.output
    assert "a token without reads" in result.output
    profile = read_profile(profile_path(tmp_path, "tiny"))
    assert profile is not None
    assert profile.model == "tiny"


def test_a_profile_that_cannot_be_written_is_named_after_its_figures(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    (tmp_path / "profiles").write_text("in the way")
    result = CliRunner().invoke(main, ["calibrate", "--model", str(model), "--tokens", "6"])
    assert result.exit_code == 1
    assert "a token without reads" in result.output
    assert f"{profile_path(tmp_path, 'tiny')} cannot be written" in result.output
