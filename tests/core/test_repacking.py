"""Experts as records of their own: what is written, when it is used, and what a kill or damage leaves."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.records import (
    INDEX_NAME,
    PAGE_BYTES,
    RECORDS_NAME,
    read_index_file,
    read_records_index,
)
from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.engine import load
from slotstream_core.errors import CheckpointDamaged, CheckpointError, RecordsUnusable, SettingError
from slotstream_core.events import Finished
from slotstream_core.experts import record_files
from slotstream_core.experts import repacking as repacking_module
from slotstream_core.experts.batches import Record
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.packed import best_layout, find_repacked
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.record_files import digest_from_disk
from slotstream_core.experts.repacking import (
    STATE_NAME,
    RepackProgress,
    repack_checkpoint,
    stacked_layouts,
)
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.options import RECORDS_VARIABLE, EngineOptions
from slotstream_planner import PlanRequest
from tests.core.expert_files import ScriptedSource

SMALL = PlanRequest(experts_per_layer=2)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a draft head, as it comes."""
    return testing.write_tiny_model(tmp_path_factory.mktemp("repack") / "model", draft=True)


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    """The same in a directory that a test may change."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def record(layout: ExpertLayout, layer: int, expert: int) -> list[bytes]:
    """Read one expert's pieces without the code under test."""
    pieces = []
    for extent in layout.extents(layer, expert):
        with extent.path.open("rb") as stream:
            stream.seek(extent.offset)
            pieces.append(stream.read(extent.byte_count))
    return pieces


def everything(layout: ExpertLayout) -> list[list[bytes]]:
    return [
        record(layout, layer, expert) for layer in range(layout.layer_count) for expert in range(layout.expert_count)
    ]


def test_every_record_holds_the_stacked_bytes_and_begins_on_a_page(model: Path) -> None:
    report = repack_checkpoint(model)
    assert report.directory == model / RECORDS_NAME
    with Checkpoint.open(model) as checkpoint:
        for part, stacked in stacked_layouts(checkpoint).items():
            repacked = find_repacked(model, stacked, part)
            assert repacked is not None
            assert repacked.repacked
            assert everything(repacked) == everything(stacked)
            for expert in range(stacked.expert_count):
                extents = repacked.extents(0, expert)
                assert extents[0].offset % PAGE_BYTES == 0
                assert all(a.offset + a.byte_count == b.offset for a, b in zip(extents, extents[1:], strict=False))
    assert report.kept_files == ()
    assert names(model / RECORDS_NAME) == {*report.written_files, INDEX_NAME}


@pytest.mark.parametrize("bits", [8, None])
def test_other_precisions_are_repacked_too(bits: int | None, tmp_path: Path) -> None:
    model = testing.write_tiny_model(tmp_path / "model", bits=bits)
    repack_checkpoint(model, block_bytes=1)
    with Checkpoint.open(model) as checkpoint:
        stacked = stacked_layouts(checkpoint)["trunk"]
        repacked = find_repacked(model, stacked, "trunk")
        assert repacked is not None
        assert everything(repacked) == everything(stacked)


def ids(model: Path) -> tuple[list[int], str]:
    """Return what a small pool generates, and the layout it read."""
    with load(model, request=SMALL) as engine:
        *_, last = engine.generate(list(range(40)), sampling=GREEDY, max_tokens=8)
        assert isinstance(last, Finished)
        assert last.experts.misses > 0
        return list(last.token_ids), engine.reading.layout


def test_the_reply_is_the_same_from_records(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, layout = ids(model)
    assert layout == "stacked"
    repack_checkpoint(model)
    assert ids(model) == (before, "repacked")
    monkeypatch.setenv(RECORDS_VARIABLE, "0")
    assert ids(model) == (before, "stacked")
    with pytest.raises(SettingError, match=f"{RECORDS_VARIABLE} is 'no'"):
        EngineOptions.from_environment({RECORDS_VARIABLE: "no"})


class CountingSource(StoredExperts):
    """Counts its reads, which Python's lanes make."""

    read_count = 0

    @property
    def native_read(self) -> None:
        return None

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.read_count += 1
        return super().read(fd, buffers, offset)


def counting(layout: ExpertLayout, how: str) -> CountingSource | ScriptedSource:
    return ScriptedSource(layout) if how == "compiled" else CountingSource(layout, direct=how == "direct")


@pytest.mark.parametrize("how", ["cached", "direct", "compiled"])
def test_a_record_takes_one_read_instead_of_nine(model: Path, how: str) -> None:
    repack_checkpoint(model)
    with Checkpoint.open(model) as checkpoint:
        stacked = stacked_layouts(checkpoint)["trunk"]
        repacked = find_repacked(model, stacked, "trunk")
        assert repacked is not None
        contents: list[list[bytes]] = []
        for layout, expected in ((stacked, 9), (repacked, 1)):
            source = counting(layout, how)
            arrays = SlotArrays(layout, 2)
            with source, ExpertReader(source, lane_count=2) as reader:
                batch = reader.prepare([Record(1, 3, 1, True)], arrays)
                reader.submit(batch)
                batch.done.wait()
                assert not batch.errors
                assert batch.bytes_read == layout.record_bytes
            assert source.read_count == expected
            contents.append([view[1].tobytes() for view in arrays.views])
        assert contents[0] == contents[1]


def test_a_long_record_is_still_one_read(tmp_path: Path) -> None:
    wide = {"hidden_size": 1024, "moe_intermediate_size": 1024, "num_hidden_layers": 4}
    model = testing.write_tiny_model(tmp_path / "model", wide)
    repack_checkpoint(model)
    with Checkpoint.open(model) as checkpoint:
        layout = find_repacked(model, stacked_layouts(checkpoint)["trunk"], "trunk")
        assert layout is not None
        assert layout.record_bytes > 1 << 20
        source = CountingSource(layout, direct=True)
        with source, ExpertReader(source, lane_count=1) as reader:
            batch = reader.prepare([Record(0, 1, 0, True)], SlotArrays(layout, 1))
            reader.submit(batch)
            batch.done.wait()
            assert not batch.errors
        assert source.read_count == 1


def test_a_second_run_checks_and_writes_nothing(model: Path) -> None:
    first = repack_checkpoint(model)
    state = {path.name: path.stat().st_mtime_ns for path in first.directory.iterdir()}
    second = repack_checkpoint(model)
    assert second.written_files == ()
    assert second.kept_files == first.written_files
    assert state == {path.name: path.stat().st_mtime_ns for path in first.directory.iterdir()}


def test_a_second_run_mends_a_damaged_file_only(model: Path) -> None:
    first = repack_checkpoint(model)
    damaged = first.directory / first.written_files[1]
    content = bytearray(damaged.read_bytes())
    content[-PAGE_BYTES - 1] ^= 1
    damaged.write_bytes(content)
    second = repack_checkpoint(model)
    assert second.written_files == (damaged.name,)
    content[-PAGE_BYTES - 1] ^= 1
    assert damaged.read_bytes() == content


def test_records_elsewhere_are_linked_to(model: Path, tmp_path: Path) -> None:
    report = repack_checkpoint(model, tmp_path / "disk")
    link = model / RECORDS_NAME
    assert report.link == link
    assert link.is_symlink()
    assert link.resolve() == tmp_path / "disk"
    assert ids(model)[1] == "repacked"
    again = repack_checkpoint(model, tmp_path / "other")
    assert again.written_files == report.written_files
    assert link.resolve() == tmp_path / "other"


def test_a_link_that_leads_nowhere_is_said_and_ignored(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repack_checkpoint(model, tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "away")
    assert ids(model)[1] == "stacked"
    assert any("which is not there; the stacked tensors are read instead" in line for line in caplog.messages)


def test_records_in_the_checkpoint_are_not_replaced_by_a_link(model: Path, tmp_path: Path) -> None:
    repack_checkpoint(model)
    with pytest.raises(CheckpointError, match="holds records already"):
        repack_checkpoint(model, tmp_path / "disk")


def test_a_directory_with_something_else_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "diary.txt").write_text("dear diary")
    with pytest.raises(CheckpointError, match=r"holds diary\.txt, which is no record"):
        repack_checkpoint(model, tmp_path / "letters")
    assert names(tmp_path / "letters") == {"diary.txt"}


def test_a_full_disk_is_refused_with_both_numbers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=10**12, used=10**12, free=50 * 10**6)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    with pytest.raises(CheckpointError, match=r"needs 0\.\d\d GB and its disk has 0\.05 GB free"):
        repack_checkpoint(model)
    assert read_records_index(model) is None
    assert not (model / RECORDS_NAME).exists()  # else moving the experts, which needs less room, would be refused


def test_a_disk_that_returns_other_bytes_leaves_no_index(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_files, "digest_from_disk", lambda _path: "0" * 64)
    with pytest.raises(CheckpointDamaged, match="the disk gave back other bytes than were written"):
        repack_checkpoint(model)
    assert names(model / RECORDS_NAME) == {STATE_NAME}


KILLED = """
import os, signal, sys
from pathlib import Path
from slotstream_core.experts import record_files, repacking
left = int(sys.argv[2])
def step(module, name):
    original = getattr(module, name)
    def counted(*arguments, **named):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)
    setattr(module, name, counted)
for name in ("write_all", "digest_from_disk"):
    step(record_files, name)
for name in ("write_json", "_publish", "sync_directory", "_make_link"):
    step(repacking, name)
repacking.repack_checkpoint(Path(sys.argv[1]), Path(sys.argv[3]), block_bytes=1)
"""


def test_a_run_killed_at_any_point_is_continued_and_never_used_half(written: Path, tmp_path: Path) -> None:
    expected = repack_checkpoint(Path(shutil.copytree(written, tmp_path / "whole")))
    model, output = Path(shutil.copytree(written, tmp_path / "model")), tmp_path / "records"
    survived = False
    for allowed in (0, 3, 9, 12, 25, 200):
        child = subprocess.run([sys.executable, "-c", KILLED, str(model), str(allowed), str(output)], check=False)
        survived = child.returncode == 0
        assert survived or child.returncode == -signal.SIGKILL
        with Checkpoint.open(model) as checkpoint:
            stacked = stacked_layouts(checkpoint)["trunk"]
            found = find_repacked(model, stacked, "trunk")
            assert found is None or everything(found) == everything(stacked)
    assert survived
    report = repack_checkpoint(model, output)
    assert report.written_files == ()
    assert set(report.kept_files) == set(expected.written_files)
    for name in report.kept_files:
        assert (output / name).read_bytes() == (expected.directory / name).read_bytes()
    assert names(output) == {*report.kept_files, INDEX_NAME}


def test_finished_files_of_an_interrupted_run_are_kept(model: Path) -> None:
    seen: list[RepackProgress] = []

    def stop_at_the_third(step: RepackProgress) -> None:
        seen.append(step)
        if step.file_name == "layer-00002.records":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack_checkpoint(model, progress=stop_at_the_third)
    assert read_records_index(model) is None
    assert not [name for name in names(model / RECORDS_NAME) if name.endswith(PARTIAL_SUFFIX)]
    report = repack_checkpoint(model, progress=seen.append)
    assert report.kept_files == ("layer-00000.records", "layer-00001.records")
    assert seen[-1].done_bytes == seen[-1].total_bytes == report.total_bytes


def replace_weights(model: Path, tmp_path: Path) -> None:
    """Train the model further: the same headers, other bytes."""
    other = testing.write_tiny_model(tmp_path / "trained", draft=True, seed=9)
    for path in other.glob("*.safetensors"):
        shutil.copy(path, model / path.name)


def test_records_of_an_earlier_training_are_ignored_and_then_replaced(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repack_checkpoint(model)
    replace_weights(model, tmp_path)
    with Checkpoint.open(model) as checkpoint:
        stacked = stacked_layouts(checkpoint)["trunk"]
        with pytest.raises(RecordsUnusable, match="holds other experts than the stacked tensors"):
            find_repacked(model, stacked, "trunk")
        with caplog.at_level(logging.WARNING):
            assert best_layout(model, stacked, "trunk") is stacked
        assert any("slotstream repack" in line for line in caplog.messages)
    assert repack_checkpoint(model).kept_files == ()
    assert ids(model)[1] == "repacked"


def test_an_interrupted_run_of_an_earlier_training_is_not_continued(model: Path, tmp_path: Path) -> None:
    report = repack_checkpoint(model)
    finished = json.loads((report.directory / INDEX_NAME).read_text())
    files = {file["name"]: file["sha256"] for part in finished["parts"] for file in part["files"]}
    with Checkpoint.open(model) as checkpoint:
        layouts = stacked_layouts(checkpoint)
        index = read_index_file(report.directory)
        assert index is not None
        identity = repacking_module._identity(index, layouts)
    (report.directory / INDEX_NAME).unlink()
    (report.directory / STATE_NAME).write_text(json.dumps({"identity": identity, "finished": files}))
    replace_weights(model, tmp_path)
    assert repack_checkpoint(model).kept_files == ()


def test_records_of_another_checkpoint_are_ignored(model: Path, tmp_path: Path) -> None:
    other = testing.write_tiny_model(tmp_path / "other", bits=8)
    (model / RECORDS_NAME).symlink_to(repack_checkpoint(other).directory)
    with Checkpoint.open(model) as checkpoint, pytest.raises(RecordsUnusable, match="made from other shards"):
        find_repacked(model, stacked_layouts(checkpoint)["trunk"], "trunk")
    assert ids(model)[1] == "stacked"


def edit(document: Any, *path: str | int, value: object) -> None:
    *parents, last = path
    for step in parents:
        document = document[step]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("format",), "tar", "is 'tar' version 1"),
        (("version",), 2, "version 2; this version reads"),
        (("parts",), None, "is damaged"),
        (("parts", 0, "part"), "tail", "is damaged"),
        (("parts", 0, "pieces", 1, "offset"), 0, "is damaged"),
        (("parts", 0, "stride_bytes"), 12345, "is damaged"),
        (("parts", 0, "expert_count"), -1, "is damaged"),
        (("parts", 0, "expert_count"), 7, "bytes long instead of"),
        (("parts", 0, "files", 0, "name"), "../layer-00000.records", "is damaged"),
        (("parts", 0, "files", 0, "name"), "layer-09999.records", "cannot be opened"),
        (("parts", 0, "files", 0, "module"), "somebody", "not made as this checkpoint's experts"),
        (("parts", 0, "pieces", 0, "dtype"), "F99", "is damaged"),
        (("sources", 0, "file_bytes"), 1, "made from other shards"),
        (("sources", 0, "header_sha256"), "ff", "made from other shards"),
    ],
)
def test_a_damaged_index_is_one_sentence(
    model: Path, path: tuple[str | int, ...], value: object, sentence: str
) -> None:
    index = repack_checkpoint(model).directory / INDEX_NAME
    document = json.loads(index.read_text())
    edit(document, *path, value=value)
    index.write_text(json.dumps(document))
    with Checkpoint.open(model) as checkpoint, pytest.raises(RecordsUnusable, match=sentence):
        find_repacked(model, stacked_layouts(checkpoint)["trunk"], "trunk")
    assert repack_checkpoint(model).directory.is_dir()
    assert ids(model)[1] == "repacked"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_an_index_that_is_no_json_object_is_one_sentence(model: Path, content: bytes) -> None:
    report = repack_checkpoint(model)
    (report.directory / INDEX_NAME).write_bytes(content)
    with pytest.raises(RecordsUnusable):
        read_records_index(model)
    assert ids(model)[1] == "stacked"


@pytest.mark.parametrize("change", ["shorter", "gone"])
def test_a_file_that_is_shorter_or_gone_is_named(model: Path, change: str) -> None:
    report = repack_checkpoint(model)
    path = report.directory / report.written_files[-1]
    if change == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    with Checkpoint.open(model) as checkpoint, pytest.raises(RecordsUnusable, match=path.name):
        find_repacked(model, stacked_layouts(checkpoint)["trunk"], "trunk")


def test_a_damaged_note_of_an_unfinished_run_starts_over(model: Path) -> None:
    (model / RECORDS_NAME).mkdir()
    (model / RECORDS_NAME / STATE_NAME).write_bytes(b"\xff{")
    assert repack_checkpoint(model).kept_files == ()


def test_two_runs_do_not_write_to_one_directory(model: Path) -> None:
    def again(_step: RepackProgress) -> None:
        with pytest.raises(CheckpointError, match="another repacking is writing"):
            repack_checkpoint(model)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repack_checkpoint(model, progress=again)


def test_a_digest_covers_files_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * (PAGE_BYTES + 5))
    assert digest_from_disk(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        digest_from_disk(tmp_path / "nowhere")
