"""`slotstream repack` from the command line."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core import testing


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return testing.write_tiny_model(tmp_path / "model")


def test_repack_says_what_it_wrote_and_run_uses_it(model: Path, tmp_path: Path) -> None:
    run = ["run", "--model", str(model), "--greedy", "--max-tokens", "4", "--experts-per-layer", "4"]
    before = CliRunner().invoke(main, [*run, "--stats-json", str(tmp_path / "before.json")])
    assert before.exit_code == 0, before.output
    result = CliRunner().invoke(main, ["repack", str(model)])
    assert result.exit_code == 0, result.output
    assert "files written and read back" in result.stderr
    after = CliRunner().invoke(main, [*run, "--stats-json", str(tmp_path / "after.json")])
    assert after.exit_code == 0, after.output
    assert "repacked records, one read each" in after.stderr
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("before", "after"))
    assert first["token_ids"] == second["token_ids"]
    assert (first["record_layout"], second["record_layout"]) == ("stacked", "repacked")


def test_repack_writes_elsewhere_and_prints_json(model: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["repack", str(model), "--output", str(tmp_path / "disk"), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["directory"] == str(tmp_path / "disk")
    assert document["link"] == str(model / "repacked")
    again = CliRunner().invoke(main, ["repack", str(model), "--output", str(tmp_path / "disk")])
    assert "0 files written and read back, 4 found complete and right" in again.stderr


def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["repack", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")


def test_a_directory_that_cannot_be_made_is_one_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["repack", str(model), "--output", str(tmp_path / "file" / "records")])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert not (model / "repacked").is_symlink()


def test_run_reads_from_a_mirror_too(model: Path, tmp_path: Path) -> None:
    mirror = Path(shutil.copytree(model, tmp_path / "mirror"))
    run = ["run", "--model", str(model), "--greedy", "--max-tokens", "4", "--experts-per-layer", "4"]
    stats = tmp_path / "stats.json"
    result = CliRunner().invoke(main, [*run, "--mirror", str(mirror), "--stats-json", str(stats)])
    assert result.exit_code == 0, result.output
    assert "in 2 directories at once" in result.stderr
    brought = json.loads(stats.read_text())["bytes_by_directory"]
    assert set(brought) == {str(model), str(mirror)}


def test_a_mirror_that_is_none_is_one_sentence(model: Path, tmp_path: Path) -> None:
    for command in ("run", "serve", "chat"):
        arguments = [command, "--model", str(model), "--mirror", str(tmp_path / "nowhere")]
        arguments += ["--port", "0"] if command == "serve" else []
        result = CliRunner().invoke(main, arguments, input="")
        assert result.exit_code == 1, result.output
        assert "nowhere" in result.stderr
        assert "Traceback" not in result.stderr


def test_doctor_says_how_missing_experts_are_read(model: Path) -> None:
    doctor = ["doctor", "--model", str(model), "--experts-per-layer", "4", "--no-probe"]
    assert "stacked tensors, up to nine reads each" in CliRunner().invoke(main, doctor).output
    assert CliRunner().invoke(main, ["repack", str(model)]).exit_code == 0
    assert "repacked records, one read each" in CliRunner().invoke(main, doctor).output
    document = json.loads(CliRunner().invoke(main, [*doctor, "--json"]).output)
    assert document["experts_read"] == {"layout": "repacked", "direct": None, "reason": "not measured"}
