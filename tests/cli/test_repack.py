"""`slotstream repack` from the command line."""

import json
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
