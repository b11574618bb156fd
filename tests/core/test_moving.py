"""Experts moved into records in place of the stacked tensors, and back: what a kill, a full disk or a link leaves."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.claiming import claimed
from slotstream_core.checkpoint.headers import INDEX_NAME, read_directory
from slotstream_core.checkpoint.shards import OutputTensor, Shard, ShardWriter, write_index
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.engine import load
from slotstream_core.errors import CheckpointDamaged, CheckpointError, CheckpointMissing, MirrorMismatch
from slotstream_core.events import Finished
from slotstream_core.experts import record_files
from slotstream_core.experts.moving import move_experts, restore_experts
from slotstream_core.experts.repacking import RepackProgress, repack_checkpoint, stacked_layouts
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.persistence.identity import model_digest
from slotstream_planner import ModelGeometry, PlanRequest
from slotstream_planner.moved import MOVED_INDEX, MOVED_NAME, MOVED_SUFFIX
from tests.core.kept_states import options


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a draft head whose layers lie across three shards."""
    folder = tmp_path_factory.mktemp("moving")
    model = testing.write_tiny_model(folder / "model", draft=True)
    split(model, 3)
    return model


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def split(model: Path, count: int) -> None:
    """Deal the tensors out to shards, so that every layer's experts lie in several."""
    with Checkpoint.open(model) as checkpoint:
        names = [name for name in checkpoint.tensors if not name.startswith("mtp.")]
        data = {name: checkpoint.read_numpy(name) for name in names}
        shards = [
            Shard(
                file_name=f"model-{number:05d}-of-{count:05d}.safetensors",
                tensors=tuple(
                    OutputTensor(name=name, dtype=checkpoint.tensors[name].dtype, shape=checkpoint.tensors[name].shape)
                    for name in names[number - 1 :: count]
                ),
            )
            for number in range(1, count + 1)
        ]
    for path in model.glob("model*.safetensors"):
        path.unlink()
    for shard in shards:
        with ShardWriter(model, shard) as writer:
            for tensor in shard.tensors:
                writer.write(tensor.name, data[tensor.name])
            writer.finish()
    write_index(model, shards)


def files_of(model: Path) -> dict[str, str]:
    """Every file below a directory with its digest."""
    return {
        str(path.relative_to(model)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in model.rglob("*")
        if path.is_file()
    }


def tensors_of(model: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    with Checkpoint.open(model) as checkpoint:
        return {
            name: (tensor.dtype, tensor.shape, checkpoint.read_numpy(name).tobytes())
            for name, tensor in checkpoint.tensors.items()
        }


def reply(model: Path) -> list[int]:
    with load(model, request=PlanRequest(experts_per_layer=2, mtp="on", lookahead="off")) as engine:
        *_, last = engine.generate(list(range(40)), sampling=GREEDY, max_tokens=6)
        assert isinstance(last, Finished)
        assert engine.reading.layout == ("repacked" if (model / MOVED_NAME).exists() else "stacked")
        return list(last.token_ids)


def test_moving_takes_no_more_room_and_undoing_gives_every_file_back_bit_for_bit(model: Path) -> None:
    before, tensors, ids = files_of(model), tensors_of(model), reply(model)
    expert_bytes = sum(len(data) for name, (_, _, data) in tensors.items() if ".switch_mlp." in name)
    report = move_experts(model)
    assert set(report.shards) == {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"} | {
        "model-00003-of-00003.safetensors",
        "mtp.safetensors",
    }
    shard_bytes = sum((model / name).stat().st_size for name in report.shards)
    assert shard_bytes < sum(len(data) for _, _, data in tensors.values()) - expert_bytes + 60_000  # of headers
    assert report.record_bytes == sum(path.stat().st_size for path in (model / MOVED_NAME).glob("*.records"))
    assert tensors_of(model) == tensors
    assert reply(model) == ids
    undone = restore_experts(model)
    assert set(undone.shards) == set(report.shards)
    assert set(undone.files) == set(report.files)
    assert files_of(model) == before
    assert not (model / MOVED_NAME).exists()


def test_owner_and_permissions_of_shards_are_kept_and_are_their_records_too(model: Path) -> None:
    owner = (os.getuid(), os.getgid()) if os.getuid() else (1234, 2345)  # root can give files away
    for path in (model, *model.iterdir()):
        os.chown(path, *owner)
        path.chmod(0o770 if path.is_dir() else 0o660)

    def owners(of: Path) -> set[tuple[int, int, int]]:
        stats = [path.stat() for path in of.rglob("*") if path.is_file()]
        return {(each.st_uid, each.st_gid, each.st_mode & 0o777) for each in stats}

    move_experts(model)
    assert owners(model) == {(*owner, 0o660)}
    stat = (model / MOVED_NAME).stat()
    assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o777) == (*owner, 0o770)
    restore_experts(model)
    assert owners(model) == {(*owner, 0o660)}


def test_moving_and_undoing_twice_do_nothing_the_second_time(model: Path) -> None:
    before = files_of(model)
    assert restore_experts(model).shards == ()
    move_experts(model)
    moved = files_of(model)
    again = move_experts(model)
    assert (again.shards, again.files) == ((), ())
    assert files_of(model) == moved
    restore_experts(model)
    assert restore_experts(model).shards == ()
    assert files_of(model) == before


def test_everything_that_reads_headers_sees_the_same_checkpoint(model: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(model, compute="float32")
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in read_directory(model).items()}
    identity = model_digest(model)
    move_experts(model)
    assert ModelGeometry.from_checkpoint(model, compute="float32") == geometry
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in read_directory(model).items()} == shapes
    assert model_digest(model) == identity
    with Checkpoint.open(model) as checkpoint:
        assert all(layout.repacked for layout in stacked_layouts(checkpoint).values())
        name = next(name for name in checkpoint.tensors if name.endswith("switch_mlp.up_proj.weight"))
        part = checkpoint.read_numpy(name, 1, 3)
        assert np.array_equal(part, checkpoint.read_numpy(name)[1:3])


def test_states_of_other_experts_in_equal_shards_are_told_apart(model: Path) -> None:
    move_experts(model)
    digests = {model_digest(model)}
    files = [path for path in (model / MOVED_NAME).iterdir() if path.suffix == MOVED_SUFFIX]
    for path in files:
        path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
        digests.add(model_digest(model))
    assert len(digests) == len(files) + 1 > 2


def test_a_conversation_and_uses_that_were_kept_are_found_after_a_move_and_after_undoing_it(
    model: Path, tmp_path: Path
) -> None:
    prompt = [int(each) for each in np.random.default_rng(0).integers(0, 256, 300)]
    request = PlanRequest(prefill_chunk=256, lookahead="off")
    found: list[tuple[int, list[int]]] = []
    for change in (None, move_experts, restore_experts):
        if change is not None:
            change(model)
        with load(model, request=request, warm_directory=tmp_path / "warm") as engine:
            engine.keep_on_disk(options(tmp_path / "kept"))
            *_, last = engine.generate(prompt, sampling=GREEDY, max_tokens=6)
            assert isinstance(last, Finished)
            found.append((last.usage.cached_tokens, list(last.token_ids)))
    (cold, ids), *others = found
    assert cold == 0
    assert others == [(256, ids), (256, ids)]
    assert len(list((tmp_path / "warm").iterdir())) == 1


class Killed(BaseException):
    """What a kill is to the code under test: nothing of it runs any more, not even what cleans up."""


CHANGES = ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir", "symlink")


def kill_before(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Let the process end before its change number `number` to a file; return a count of those it came to."""
    count, last = [0], [""]

    def ended(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def change(*arguments: Any, **keywords: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_WRONLY:
                return real(*arguments, **keywords)
            if (name, last[0]) != ("write", "write"):  # one write to a file stands for those that follow it
                count[0] += 1
            last[0] = name
            if count[0] > number:
                raise Killed
            return real(*arguments, **keywords)

        return change

    for name in CHANGES:
        monkeypatch.setattr(os, name, ended(name))
    return count


def changes_of(run: Callable[[Path], object], model: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        count = kill_before(patch, 10**9)
        run(model)
    return count[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards and no draft head, since every change to a file is one case."""
    model = testing.write_tiny_model(tmp_path_factory.mktemp("killed") / "model")
    split(model, 2)
    return model


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring nothing to the disk: what a kill leaves is in the page cache."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(record_files, "open_past_cache", lambda paths: {})


def killed_everywhere(
    start: Path, folder: Path, first: Callable[[Path], object], then: Callable[[Path], object]
) -> Iterator[Path]:
    """Kill `first` before each of its changes; the checkpoint is whole then, and after `then` what it should be."""
    tensors = tensors_of(start)
    count = changes_of(first, Path(shutil.copytree(start, folder / "all")))
    assert count > 20
    shutil.rmtree(folder / "all")
    for number in range(count):
        model = Path(shutil.copytree(start, folder / str(number)))
        with pytest.MonkeyPatch.context() as patch:
            kill_before(patch, number)
            with pytest.raises(Killed):
                first(model)
        assert tensors_of(model) == tensors, number
        then(model)
        yield model
        shutil.rmtree(model)


@pytest.mark.usefixtures("quick_disk")
def test_a_kill_at_any_change_leaves_a_whole_checkpoint_and_moving_goes_on(small: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(small, tmp_path / "moved"))
    move_experts(moved)
    wanted = {name: digest for name, digest in files_of(moved).items() if not name.endswith(MOVED_INDEX)}
    for model in killed_everywhere(small, tmp_path, move_experts, move_experts):
        found = files_of(model)
        assert {name: found[name] for name in found if not name.endswith(MOVED_INDEX)} == wanted


@pytest.mark.usefixtures("quick_disk")
def test_a_kill_at_any_change_of_moving_can_be_undone(small: Path, tmp_path: Path) -> None:
    wanted = files_of(small)
    for model in killed_everywhere(small, tmp_path, move_experts, restore_experts):
        assert files_of(model) == wanted


@pytest.mark.usefixtures("quick_disk")
def test_a_kill_at_any_change_of_undoing_leaves_a_whole_checkpoint_and_undoing_goes_on(
    small: Path, tmp_path: Path
) -> None:
    wanted = files_of(small)
    moved = Path(shutil.copytree(small, tmp_path / "moved"))
    move_experts(moved)
    for model in killed_everywhere(moved, tmp_path, restore_experts, restore_experts):
        assert files_of(model) == wanted


def test_a_disk_that_becomes_full_is_one_sentence_and_leaves_a_whole_checkpoint(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tensors_of(small)
    for start, run in ((small, move_experts), (None, restore_experts)):
        model = Path(shutil.copytree(start or tmp_path / "moved", tmp_path / f"model{run.__name__}"))
        real, left = os.write, [200_000]

        def write(fd: int, data: memoryview, real: Any = real, left: list[int] = left) -> int:
            if left[0] <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            count = int(real(fd, data[: left[0]]))
            left[0] -= count
            return count

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(CheckpointError, match=r"cannot be written: No space left on device; it needs [\d,]+ b"):
                run(model)
        assert tensors_of(model) == tensors
        assert not list(model.rglob("*.partial"))
        run(model)
        assert tensors_of(model) == tensors
        if start is not None:
            model.rename(tmp_path / "moved")


def test_too_little_room_is_said_before_anything_is_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(model)
    usage = shutil.disk_usage(model)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
        with pytest.raises(CheckpointError, match="free some space"):
            move_experts(model)
    assert files_of(model) == before
    assert not (model / MOVED_NAME).exists()


def test_a_directory_that_cannot_be_written_to_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    for run in (move_experts, restore_experts):
        with pytest.raises(CheckpointError, match="cannot be written to"):
            run(model)


def test_no_two_processes_move_at_a_time(model: Path) -> None:
    with claimed(model / MOVED_NAME, doing="move of experts"):
        for run in (move_experts, restore_experts):
            with pytest.raises(CheckpointError, match="another move of experts is writing"):
                run(model)


def test_experts_are_not_moved_while_they_are_repacked_and_the_other_way_round(model: Path) -> None:
    before = files_of(model)
    with claimed(model, doing="repacking"):
        for run in (move_experts, repack_checkpoint):
            with pytest.raises(CheckpointError, match="another repacking is writing"):
                run(model)
    assert files_of(model) == before
    refused = []

    def repack(step: RepackProgress) -> None:
        with pytest.raises(CheckpointError, match="another repacking is writing") as error:
            repack_checkpoint(model)
        refused.append(error)

    move_experts(model, progress=repack)
    assert refused
    restore_experts(model)
    assert files_of(model) == before


def test_shards_that_are_links_to_a_shared_store_are_left_alone(model: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, shard in enumerate(sorted(model.glob("*.safetensors"))):
        shard.rename(blobs / str(number))
        shard.symlink_to(Path("..") / "blobs" / str(number))
    before = files_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"is a link to \.\./blobs/0.*cp -rL"):
        move_experts(model)
    assert files_of(tmp_path) == before
    assert not (model / MOVED_NAME).exists()


def test_shards_with_a_second_name_are_left_alone(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "other", copy_function=os.link)
    with pytest.raises(CheckpointError, match="has another name elsewhere"):
        move_experts(model)
    assert not (model / MOVED_NAME).exists()


def test_records_beside_and_records_instead_exclude_each_other(model: Path) -> None:
    repack_checkpoint(model)
    with pytest.raises(
        CheckpointError, match=r"repacked holds records beside the stacked tensors.*`slotstream repack --undo`"
    ):
        move_experts(model)
    shutil.rmtree(model / "repacked")
    move_experts(model)
    with pytest.raises(CheckpointError, match=r"are records already.*`slotstream repack --undo`"):
        repack_checkpoint(model)
    assert not (model / "repacked").exists()


def test_a_mirror_of_a_moved_checkpoint_is_refused(model: Path, whole: Path) -> None:
    move_experts(model)
    request = PlanRequest(experts_per_layer=2, mtp="off", lookahead="off")
    with (
        pytest.raises(MirrorMismatch, match="`slotstream repack --undo`"),
        load(model, request=request, mirrors=[whole]),
    ):
        pass


def garble(path: Path, where: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


def test_a_damaged_record_is_not_put_into_a_shard(model: Path) -> None:
    move_experts(model)
    garble(model / MOVED_NAME / "layer-00000.records")
    with pytest.raises(CheckpointDamaged, match="cannot be put together as it was"):
        restore_experts(model)
    garble(model / MOVED_NAME / "layer-00000.records")
    restore_experts(model)


def test_a_record_that_was_damaged_before_its_shard_went_is_written_anew(model: Path, tmp_path: Path) -> None:
    tensors, before = tensors_of(model), files_of(model)

    def stop(step: RepackProgress) -> None:
        if step.file_name.endswith(".safetensors"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        move_experts(model, progress=stop)
    garble(model / MOVED_NAME / "layer-00001.records")
    assert "layer-00001.records" in move_experts(model).files
    assert tensors_of(model) == tensors
    restore_experts(model)
    assert files_of(model) == before


def lose_file(model: Path) -> None:
    (model / MOVED_NAME / "layer-00000.records").unlink()


def shorten_file(model: Path) -> None:
    os.truncate(model / MOVED_NAME / "layer-00000.records", 4096)


def lose_index(model: Path) -> None:
    (model / MOVED_NAME / MOVED_INDEX).unlink()


def garble_index(model: Path) -> None:
    (model / MOVED_NAME / MOVED_INDEX).write_text("{")


def date_index_later(model: Path) -> None:
    index = model / MOVED_NAME / MOVED_INDEX
    index.write_text(index.read_text().replace('"version": 1', '"version": 2'))


def point_index_elsewhere(model: Path) -> None:
    index = model / MOVED_NAME / MOVED_INDEX
    index.write_text(index.read_text().replace("layer-00000.records", "../config.json"))


def enlarge_offset(model: Path) -> None:
    index = model / MOVED_NAME / MOVED_INDEX
    document = json.loads(index.read_text())
    document["files"][0]["tensors"][0]["offset"] = 2**40
    index.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        (lose_file, CheckpointMissing, "layer-00000.records cannot be read"),
        (shorten_file, CheckpointDamaged, "is 4,096 bytes long instead of"),
        (lose_index, CheckpointDamaged, f"{INDEX_NAME} of .* but it is in no file"),
        (garble_index, CheckpointDamaged, "is not valid JSON"),
        (date_index_later, CheckpointDamaged, "version 2; this version reads"),
        (point_index_elsewhere, CheckpointDamaged, "where the name of a file belongs"),
        (enlarge_offset, CheckpointDamaged, "ends at byte"),
    ],
)
def test_damage_to_the_records_is_one_sentence_and_removes_nothing(
    model: Path, change: Callable[[Path], None], kind: type[CheckpointError], sentence: str
) -> None:
    move_experts(model)
    change(model)
    left = files_of(model)
    for run in (Checkpoint.open, move_experts, restore_experts):
        with pytest.raises(kind, match=sentence):
            run(model)
    assert files_of(model) == left


def forget_shards(model: Path) -> None:
    index = model / MOVED_NAME / MOVED_INDEX
    index.write_text(json.dumps({**json.loads(index.read_text()), "shards": []}))


def test_undoing_without_knowing_the_shards_removes_nothing(model: Path) -> None:
    move_experts(model)
    forget_shards(model)
    left = files_of(model)
    with pytest.raises(CheckpointDamaged, match="whose shard is not known"):
        restore_experts(model)
    assert files_of(model) == left


def test_a_shard_with_other_experts_does_not_pass_for_the_one_they_were_moved_from(model: Path, whole: Path) -> None:
    move_experts(model)
    tensors, name = tensors_of(model), "model-00002-of-00003.safetensors"
    slim = (model / name).read_bytes()
    stacked = (whole / name).read_bytes()
    header = (model / MOVED_NAME / f"{name}.header").read_bytes()
    (model / name).write_bytes(
        header + bytes(len(stacked) - len(header))
    )  # as a download that was cut off may leave it
    with pytest.raises(CheckpointDamaged, match="is not the file its experts were moved from"):
        restore_experts(model)
    (model / name).write_bytes(slim)
    assert tensors_of(model) == tensors
    restore_experts(model)
    assert files_of(model) == files_of(whole)


@pytest.mark.parametrize("document", [b"[]", b'{"a":"b"}', b'{"a":{}}', b"{", b"\xff", b"[" * 100_000])
def test_a_damaged_header_that_was_kept_is_one_sentence(model: Path, document: bytes) -> None:
    move_experts(model)
    tensors = tensors_of(model)
    (model / MOVED_NAME / "mtp.safetensors.header").write_bytes(len(document).to_bytes(8, "little") + document)
    with pytest.raises(CheckpointDamaged, match=r"the header of mtp\.safetensors that was kept is damaged"):
        restore_experts(model)
    assert tensors_of(model) == tensors


def test_a_directory_of_that_name_with_something_else_is_no_concern(model: Path) -> None:
    mine = ("notes.txt", "sales.records", "page.header", "letter.partial")
    (model / MOVED_NAME).mkdir()
    for name in mine:
        (model / MOVED_NAME / name).write_text("mine")
    before = files_of(model)
    tensors_of(model)
    move_experts(model)
    restore_experts(model)
    assert files_of(model) == before


def test_a_directory_that_another_move_removes_meanwhile_is_not_written_to(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, lock = files_of(model), fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        if (model / MOVED_NAME).is_dir():  # not while the model itself is claimed
            (model / MOVED_NAME).rmdir()
            (model / MOVED_NAME).mkdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(CheckpointError, match="run this again"):
        move_experts(model)
    assert files_of(model) == before
