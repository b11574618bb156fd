"""The weight store that apps use: four states, byte counts, cancellation, download."""

import pathlib

import pytest

from slotpack.cancellation import Cancellation
from slotpack.catalog import DEFAULT_MODEL, find_model
from slotpack.errors import PackError, PullCancelled, PullError
from slotpack.packing import list_model_files
from slotpack.progress import PullProgress
from slotpack.store import WeightStore
from tests.slotpack.models import Packaged, same_files


def store(packaged: Packaged, directory: pathlib.Path) -> WeightStore:
    return WeightStore(packaged.entry, directory, free_space=lambda place: 12345)


def test_nothing_there_is_missing_with_bytes_needed_and_free(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    status = store(packaged, tmp_path / "deep" / "copy").status()
    required = sum(entry.size_bytes for entry in packaged.entry.files if not entry.optional)
    assert (status.state, status.needed_bytes, status.free_bytes) == ("missing", required, 12345)
    assert not (tmp_path / "deep").exists()


def test_a_download_makes_it_ready(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    steps: list[PullProgress] = []
    weights = store(packaged, tmp_path / "copy")
    weights.download(progress=steps.append)
    assert same_files(packaged.model, tmp_path / "copy")
    assert weights.status().state == "ready"
    assert weights.status().needed_bytes == 0
    assert steps


def test_an_absent_optional_file_is_still_ready(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    weights = store(packaged, tmp_path / "copy")
    weights.download()
    (tmp_path / "copy" / "mtp.safetensors").unlink()
    assert weights.status().state == "ready"


def test_some_files_are_incomplete(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    weights = store(packaged, tmp_path / "copy")
    weights.download()
    size = (tmp_path / "copy" / "config.json").stat().st_size
    (tmp_path / "copy" / "config.json").unlink()
    assert (weights.status().state, weights.status().needed_bytes) == ("incomplete", size)


def test_an_unfinished_download_is_incomplete(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json.slotpack.part").touch()
    assert store(packaged, tmp_path / "copy").status().state == "incomplete"


def test_changed_bytes_of_the_right_size_are_corrupt(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    """A complete-looking copy is hashed too: size cannot see it (the original, 0.2.3)."""
    weights = store(packaged, tmp_path / "copy")
    weights.download()
    path = tmp_path / "copy" / "config.json"
    path.write_bytes(b"?" * path.stat().st_size)
    status = weights.status()
    assert (status.state, status.damaged) == ("corrupt", ("config.json",))
    weights.download()
    assert weights.status().state == "ready"


def test_hashing_can_be_cancelled(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    weights = store(packaged, tmp_path / "copy")
    weights.download()
    cancel = Cancellation()
    with pytest.raises(PullCancelled):
        weights.status(cancel=cancel, progress=lambda progress: cancel.cancel())


def test_a_download_can_be_cancelled(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(PullCancelled):
        store(packaged, tmp_path / "copy").download(cancel=cancel)


def test_the_default_place_follows_home(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    weights = WeightStore(find_model(DEFAULT_MODEL))
    assert weights.directory == tmp_path / ".slotstream" / "models" / "qwen38-flash-next-mlx-4bit"


def test_a_directory_whose_experts_were_moved_is_neither_judged_nor_completed_nor_packed(
    packaged: Packaged, tmp_path: pathlib.Path
) -> None:
    weights = store(packaged, tmp_path / "copy")
    weights.download()
    index = tmp_path / "copy" / "experts" / "index.json"
    index.parent.mkdir()
    index.write_text("{}")
    for ask in (weights.status, weights.download):
        with pytest.raises(PullError, match="`slotstream repack --undo` brings them back"):
            ask()
    with pytest.raises(PackError, match="were moved into records"):
        list_model_files(tmp_path / "copy")
