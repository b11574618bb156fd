"""`slotstream doctor` answers without a download, without mlx, and with one clear sentence on bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slotstream_cli.main import main
from slotstream_planner.hitcurves import HitCurve, RecordedProfile, write_profile
from tests.planner.checkpoints import write_checkpoint


@pytest.fixture
def empty_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path / "root"))
    return tmp_path


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--no-probe", *arguments])


@pytest.mark.usefixtures("empty_root")
def test_a_simulated_machine_is_planned_with_nothing_downloaded() -> None:
    result = doctor("--sim-ram", "36")
    assert result.exit_code == 0, result.output
    assert "3578 of 24576" in result.output
    assert "would stream the draft head" in result.output


@pytest.mark.usefixtures("empty_root")
def test_json_has_the_ledger_and_every_candidate() -> None:
    document = json.loads(doctor("--sim-ram", "64", "--json").output)
    assert document["pool_slots"] == 7_125
    assert document["max_context_tokens"] == 131_072
    assert document["memory_ledger"]["version"] == 1
    assert document["machine"]["simulated"] is True
    candidates = document["automatic_context_window"]["candidates"]
    assert [c["window"] for c in candidates] == [32_768, 65_536, 131_072, 262_144]
    assert [c["accepted"] for c in candidates] == [True, True, True, False]


@pytest.mark.usefixtures("empty_root")
def test_a_machine_that_is_too_small_fails_with_the_numbers() -> None:
    result = doctor("--sim-ram", "8")
    assert result.exit_code == 1
    assert "7.92 GB" in result.output
    assert "8.10 GB" in result.output
    refused = doctor("--sim-ram", "8", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.output)["error"]["code"] == "insufficient_memory"


@pytest.mark.usefixtures("empty_root")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--sim-ram", "nan"],
        ["--sim-ram", "-3"],
        ["--sim-available", "3"],
        ["--sim-ram", "16", "--sim-working-set", "20"],
        ["--sim-ram", "36", "--max-context", "many"],
        ["--sim-ram", "36", "--max-context", "999999"],
        ["--sim-ram", "36", "--memory-gb", "20", "--memory-limit-gb", "20"],
        ["--sim-ram", "36", "--experts-per-layer", "600"],
    ],
)
def test_bad_input_is_a_usage_error_in_one_sentence(arguments: list[str]) -> None:
    result = doctor(*arguments)
    assert result.exit_code == 2
    assert "Error:" in result.output
    assert "Traceback" not in result.output


def test_a_checkpoint_directory_is_planned(empty_root: Path) -> None:
    directory = write_checkpoint(empty_root / "small")
    document = json.loads(doctor("--model", str(directory), "--sim-ram", "8", "--json").output)
    assert document["model"] == "small"
    assert document["fully_resident"] is True


@pytest.mark.usefixtures("empty_root")
def test_an_explicit_window_reports_the_largest_that_fits() -> None:
    refused = doctor("--sim-ram", "16", "--max-context", "131072", "--json")
    assert refused.exit_code == 1
    found = json.loads(refused.output)["context_feasibility"]
    assert found["requested_window"] == 131_072
    assert 0 < found["maximum_feasible_window"] < 131_072
    fits = json.loads(doctor("--sim-ram", "64", "--max-context", "65536", "--json").output)
    assert fits["context_window_source"] == "--max-context"
    assert fits["context_feasibility"]["maximum_feasible_window"] > 65_536


@pytest.mark.usefixtures("empty_root")
def test_a_recorded_profile_gives_a_forecast_without_a_probe(empty_root: Path) -> None:
    directory = write_checkpoint(empty_root / "small")
    curve = HitCurve(points=((0.1, 0.5), (1.0, 0.9)), source="here")
    profile = RecordedProfile(model="small", curve=curve, host_s_per_token=0.02, disk_bytes_per_s=1e9)
    write_profile(profile, empty_root / "root" / "profiles" / "small.json")
    result = doctor("--model", str(directory), "--json")
    assert result.exit_code == 0, result.output
    forecast = json.loads(result.output)["speed_forecast"]["decode"]
    assert forecast["hit_rate"] == 1.0
    assert forecast["tok_s"] > 0
    assert any("recorded" in basis for basis in forecast["basis"])
    write_profile(replace(profile, decode_tok_s=((1.0, 12.0),)), empty_root / "root" / "profiles" / "small.json")
    told = doctor("--model", str(directory))
    assert "measured: 12 tok/s with 100% of the experts in slots, where the forecast says" in told.output


@pytest.mark.usefixtures("empty_root")
def test_a_small_checkpoint_is_not_told_to_take_the_whole_machine(empty_root: Path) -> None:
    directory = write_checkpoint(empty_root / "small")
    (directory / "slotstream.json").write_text(json.dumps({"default_pool_fraction": 0.25}))
    told = doctor("--model", str(directory), "--sim-ram", "36")
    assert "--memory-limit-gb 1 would hold" in told.output
    assert "(100% of the experts)" in told.output


@pytest.mark.usefixtures("empty_root")
def test_a_damaged_profile_is_named(empty_root: Path) -> None:
    directory = write_checkpoint(empty_root / "small")
    path = empty_root / "root" / "profiles" / "small.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    result = doctor("--model", str(directory))
    assert result.exit_code == 1
    assert "delete the file to record it again" in result.output


def test_reported_speeds_are_printed_beside_predicted_ones() -> None:
    result = doctor("--reports")
    assert result.exit_code == 0
    assert "Mac mini M2 16 GB, 0.2.2" in result.output
    assert result.output.count("MISSED") == 1


@pytest.mark.usefixtures("empty_root")
def test_a_model_that_is_nowhere_is_named() -> None:
    result = doctor("--model", "/nowhere/at/all")
    assert result.exit_code == 1
    assert "/nowhere/at/all" in result.output
    assert "neither a directory nor a model name" in result.output


def test_doctor_imports_neither_mlx_nor_a_server() -> None:
    code = (
        "import sys, slotstream_cli.commands.doctor\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'mlx', 'numpy', 'fastapi', 'slotstream_core'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("empty_root")
def test_what_is_loaded_today_is_told_beside_the_complete_plan() -> None:
    assert "loaded now" in doctor("--sim-ram", "48", "--vision", "on").output
    document = json.loads(doctor("--sim-ram", "48", "--vision", "on", "--json").output)
    assert document["loaded_now"]["pool_slots"] > document["pool_slots"]
    assert document["loaded_now"]["mtp"] is document["mtp"] is True


@pytest.mark.usefixtures("empty_root")
def test_a_plan_whose_every_part_runs_is_told_once() -> None:
    assert "loaded now" not in doctor("--sim-ram", "48").output
    assert json.loads(doctor("--sim-ram", "48", "--json").output)["loaded_now"] is None
