"""The demo's experts as records: written where it is unpacked, finished by the next use or pull, gone when removed."""

import shutil
from pathlib import Path

import pytest

from slotstream_cli import repacking as command
from slotstream_cli.models import choose_model
from slotstream_core.checkpoint.claiming import claimed
from slotstream_core.checkpoint.records import read_records_index
from slotstream_core.experts import record_files
from slotstream_core.experts.moving import move_experts
from slotstream_core.experts.repacking import RepackReport, repack_checkpoint
from tests.cli.conftest import Invoke


class Killed(BaseException):
    """Ends a process where it is, as far as what it left on the disk is concerned."""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    return tmp_path


def use_and_be_killed(monkeypatch: pytest.MonkeyPatch, *, after_files: int | None) -> None:
    """Use the demo for the first time, killed after some files of records, or before any record is thought of."""
    left = [] if after_files is None else [None] * after_files
    writing = record_files.write_records

    def write(*arguments: object, **options: object) -> str:
        if not left:
            raise Killed
        left.pop()
        return writing(*arguments, **options)  # type: ignore[arg-type]

    def never(model: Path) -> RepackReport:
        raise Killed

    with monkeypatch.context() as patched:
        if after_files is None:
            patched.setattr(command, "repack_checkpoint", never)
        else:
            patched.setattr("slotstream_core.experts.repacking.write_records", write)
        with pytest.raises(Killed):
            choose_model("demo")


@pytest.mark.parametrize("after_files", [None, 0, 2])
def test_what_a_first_use_was_killed_in_is_finished_by_the_next_without_a_word(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], after_files: int | None
) -> None:
    use_and_be_killed(monkeypatch, after_files=after_files)
    capsys.readouterr()
    reports: list[RepackReport] = []
    monkeypatch.setattr(command, "repack_checkpoint", lambda model: reports.append(repack_checkpoint(model)))
    directory = choose_model("demo").directory
    assert read_records_index(directory) is not None
    assert [len(report.kept_files) for report in reports] == [after_files or 0]
    assert choose_model("demo").directory == directory
    assert len(reports) == 1  # the third use has nothing to do
    assert capsys.readouterr().err == ""


def test_pull_leaves_what_a_first_use_leaves(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    for place in ((), ("--dir", tmp_path / "copy")):
        result = invoke("pull", "demo", *place)
        assert result.exit_code == 0, result.stderr
        directory = Path(place[1]) if place else choose_model("demo").directory
        assert read_records_index(directory) is not None
    shutil.rmtree(directory / "repacked")
    assert invoke("pull", "demo", "--dir", directory).exit_code == 0
    assert not (directory / "repacked").exists()  # whoever removed them keeps them away


def test_pull_finishes_what_a_first_use_was_killed_in(
    root: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> None:
    use_and_be_killed(monkeypatch, after_files=2)
    (directory,) = root.glob("root/models/*")
    assert read_records_index(directory) is None
    assert invoke("pull", "demo").exit_code == 0
    assert read_records_index(directory) is not None


def test_pull_begins_no_records_beside_experts_that_were_moved(root: Path, invoke: Invoke) -> None:
    directory = choose_model("demo").directory
    shutil.rmtree(directory / "repacked")
    move_experts(directory)
    assert invoke("pull", "demo", "--dir", directory).exit_code == 1
    assert not (directory / "repacked").exists()


def test_of_two_uses_at_once_one_finishes_and_the_other_says_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_and_be_killed(monkeypatch, after_files=2)
    capsys.readouterr()
    directory = next(root.glob("models/*"))
    with claimed(directory, doing="repacking"):
        assert choose_model("demo").directory == directory
        assert read_records_index(directory) is None
    choose_model("demo")
    assert read_records_index(directory) is not None
    assert capsys.readouterr().err == ""


def test_records_that_were_removed_stay_away(root: Path) -> None:
    directory = choose_model("demo").directory
    shutil.rmtree(directory / "repacked")
    assert choose_model("demo").directory == directory
    assert not (directory / "repacked").exists()
