"""`slotstream repack` from the command line."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli import locking
from slotstream_cli.main import main
from slotstream_core import load, testing
from slotstream_core.checkpoint.claiming import not_in_use


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


def test_move_and_undo_say_what_they_did_and_replies_stay(model: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in model.glob("*.safetensors")}
    run = ["run", "--model", str(model), "--greedy", "--max-tokens", "4", "--experts-per-layer", "4"]
    ids = []
    for command, said in (
        (None, "stacked tensors"),
        (["repack", str(model), "--move", "--json"], "repacked records, one read each"),
        (["repack", str(model), "--undo"], "stacked tensors"),
    ):
        if command is not None:
            done = CliRunner().invoke(main, command)
            assert done.exit_code == 0, done.output
            if "--json" in command:
                document = json.loads(done.stdout)
                assert document["direction"] == "moved"
                assert document["shards"] == sorted(before)
                assert "4 files of records written and read back" in done.stderr
            else:
                assert "shards as they were, 4 files of records removed" in done.stderr
        result = CliRunner().invoke(main, [*run, "--stats-json", str(tmp_path / "stats.json")])
        assert result.exit_code == 0, result.output
        assert said in result.stderr
        ids.append(json.loads((tmp_path / "stats.json").read_text())["token_ids"])
    assert ids[0] == ids[1] == ids[2]
    assert {path.name: path.read_bytes() for path in model.glob("*.safetensors")} == before


def test_undo_removes_records_beside_the_stacked_tensors(model: Path) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    nothing = CliRunner().invoke(main, ["repack", str(model), "--undo"])
    assert (nothing.exit_code, "nothing to undo" in nothing.stderr) == (0, True)
    assert CliRunner().invoke(main, ["repack", str(model)]).exit_code == 0
    undone = CliRunner().invoke(main, ["repack", str(model), "--undo", "--json"])
    assert undone.exit_code == 0, undone.output
    assert "4 files of records beside the stacked tensors removed" in undone.stderr
    document = json.loads(undone.stdout)
    assert (document["direction"], len(document["files"]), document["record_bytes"]) == ("removed", 4, 0)
    assert sorted(path.name for path in model.iterdir()) == sorted(before)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before


def test_undo_leaves_what_a_link_leads_to_and_what_is_no_record(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    assert CliRunner().invoke(main, ["repack", str(model), "--output", str(disk)]).exit_code == 0
    undone = CliRunner().invoke(main, ["repack", str(model), "--undo"])
    assert undone.exit_code == 0, undone.output
    assert "the link to its records removed" in undone.stderr
    assert f"stay in {disk}" in undone.stderr
    assert not (model / "repacked").is_symlink()
    assert len(list(disk.glob("*.records"))) == 4
    assert CliRunner().invoke(main, ["repack", str(model)]).exit_code == 0
    (model / "repacked" / "notes.txt").write_text("mine")
    undone = CliRunner().invoke(main, ["repack", str(model), "--undo"])
    assert "what else is in" in undone.stderr
    assert [path.name for path in (model / "repacked").iterdir()] == ["notes.txt"]


def test_undo_is_refused_while_the_records_are_used(model: Path) -> None:
    assert CliRunner().invoke(main, ["repack", str(model)]).exit_code == 0
    with load(model):
        result = CliRunner().invoke(main, ["repack", str(model), "--undo"])
    assert result.exit_code == 1
    assert "is in use; end what runs it first" in result.stderr
    assert (model / "repacked" / "index.json").exists()


def test_nothing_is_moved_while_the_model_is_loaded_however_small_it_is(model: Path) -> None:
    assert not locking.needs_lock(model)
    with load(model):
        for way in ("--move", "--undo"):
            (model / "experts").mkdir(exist_ok=way == "--undo")
            result = CliRunner().invoke(main, ["repack", str(model), way])
            assert result.exit_code == 1
            assert f"{model} is in use; end what runs it first" in result.stderr
            (model / "experts").rmdir()


def test_no_model_is_loaded_while_its_experts_are_moved(model: Path) -> None:
    with not_in_use(model):
        result = CliRunner().invoke(main, ["run", "--model", str(model), "--max-tokens", "1", "--prompt", "a"])
    assert result.exit_code == 1
    assert f"the experts of {model} are being moved; wait for that to end" in result.stderr


def test_moved_experts_count_for_the_model_lock(model: Path) -> None:
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    CliRunner().invoke(main, ["repack", str(model), "--move"])
    assert locking.needs_lock(model, large_bytes=size)


def test_ways_to_repack_that_contradict_each_other_are_a_usage_error(model: Path) -> None:
    for options in (["--move", "--undo"], ["--move", "--output", "x"], ["--undo", "--output", "x"]):
        result = CliRunner().invoke(main, ["repack", str(model), *options])
        assert result.exit_code == 2
        assert "exclude each other" in result.stderr
