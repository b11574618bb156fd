"""One checkpoint in several directories: who is asked for what, what a failing one costs, and what is refused."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.records import RECORDS_NAME
from slotstream_core.engine import load
from slotstream_core.errors import ExpertReadError, MirrorMismatch
from slotstream_core.events import Finished
from slotstream_core.experts.batches import Record
from slotstream_core.experts.directories import (
    REMEASURE_AFTER,
    CompiledDirectories,
    Directories,
    Fault,
    PythonDirectories,
)
from slotstream_core.experts.mirrors import RUN_RECORDS, MirroredExperts
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.repacking import repack_checkpoint
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.native.lanes import READ_FUNCTION, lane_library
from slotstream_planner import PlanRequest
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file, read_batch
from tests.core.test_pool import assert_slots_hold

pytestmark = pytest.mark.usefixtures("lanes")

NAMES = (Path("first"), Path("second"), Path("third"))


class Disks:
    """Simulated disks that read one record after the other at fixed speeds, in simulated time."""

    def __init__(self, stored: ExpertFile, speeds: Sequence[float]) -> None:
        self.now_s = 0.0
        self.sources = [ScriptedSource(stored.layout()) for _ in speeds]
        self.mirrored = MirroredExperts(self.sources, NAMES[: len(speeds)], clock=lambda: self.now_s)
        self.chooser = self.mirrored._chooser
        self.record_bytes = stored.layout().record_bytes
        self.speeds = list(speeds)
        self.brought = [0] * len(speeds)
        self._free_s = [0.0] * len(speeds)
        self._under_way: list[tuple[float, int, int, int]] = []
        self._serial = 0

    def ask(self) -> int:
        """Ask for a record; return the disk that was chosen."""
        fd = self.mirrored.locate_all([(0, 0)])[0][0][0]
        disk = next(index for index, source in enumerate(self.sources) if fd in source.descriptors)
        self.chooser.begin(disk, self.now_s)
        self._free_s[disk] = max(self.now_s, self._free_s[disk]) + self.record_bytes / self.speeds[disk]
        self._serial += 1
        heapq.heappush(self._under_way, (self._free_s[disk], self._serial, disk, fd))
        return disk

    def finish_one(self) -> None:
        """Let time pass until the next record is there."""
        self.now_s, _, disk, fd = heapq.heappop(self._under_way)
        self.chooser.end(disk, self.now_s, self.record_bytes)
        self.mirrored.settle(fd, self.record_bytes)
        self.brought[disk] += 1

    def run(self, records: int, *, at_once: int) -> list[int]:
        """Read records, so many at a time; return what each disk brought."""
        self.brought = [0] * len(self.speeds)
        for _ in range(at_once):
            self.ask()
        for _ in range(records):
            self.finish_one()
            self.ask()
        for _ in range(at_once):
            self.finish_one()
        return self.brought


@pytest.mark.parametrize("speeds", [(3e6, 1e6), (1e6, 1e6), (5e6, 1e6), (1e6, 2e6, 4e6)])
def test_bytes_split_as_the_speeds_do(stored: ExpertFile, speeds: tuple[float, ...]) -> None:
    disks = Disks(stored, speeds)
    disks.run(200, at_once=24)
    brought = disks.run(1200, at_once=24)
    for count, speed in zip(brought, speeds, strict=True):
        assert count / sum(brought) == pytest.approx(speed / sum(speeds), abs=0.06)


def test_two_disks_bring_records_nearly_as_fast_as_both_together(stored: ExpertFile) -> None:
    disks = Disks(stored, (3.18e6, 1.81e6))
    disks.run(100, at_once=16)
    started = disks.now_s
    brought = disks.run(1000, at_once=16)
    rate = sum(brought) * disks.record_bytes / (disks.now_s - started)
    assert rate > 0.88 * (3.18e6 + 1.81e6)


def test_a_single_record_goes_to_the_fast_disk_and_the_slow_one_is_tried_now_and_then(stored: ExpertFile) -> None:
    disks = Disks(stored, (1e6, 9e6))
    disks.run(50, at_once=4)
    chosen = []
    for _ in range(2 * REMEASURE_AFTER):
        chosen.append(disks.ask())
        disks.finish_one()
    assert 1 <= chosen.count(0) <= 3


def test_a_disk_that_was_slow_for_a_while_is_used_again(stored: ExpertFile) -> None:
    disks = Disks(stored, (1e6, 1e4))
    disks.run(300, at_once=8)
    disks.speeds[1] = 1e6
    disks.run(6000, at_once=8)
    brought = disks.run(600, at_once=8)
    assert brought[1] > 0.3 * sum(brought)


class ScriptedMirrors(MirroredExperts):
    """Mirrors whose scripted sources compiled lanes call, too."""

    def __init__(self, sources: Sequence[ScriptedSource]) -> None:
        super().__init__(sources, NAMES[: len(sources)])
        of = {fd: source for source in sources for fd in source.descriptors}
        self._callback = READ_FUNCTION(
            lambda context, fd, buffers, count, offset: of[fd]._read(context, fd, buffers, count, offset)
        )

    @property
    def native_read(self) -> int | None:
        address = ctypes.cast(self._callback, ctypes.c_void_p).value
        return None if self.native_mirrors is None else address


def mirrored_reader(
    stored: ExpertFile, change: Callable[[ScriptedSource], None] | None = None
) -> tuple[MirroredExperts, list[ScriptedSource]]:
    sources = [ScriptedSource(stored.layout()) for _ in range(2)]
    if change is not None:
        change(sources[1])
    return ScriptedMirrors(sources), sources


EVERY = [(layer, expert) for layer in range(2) for expert in range(6)]


def fail_all(source: ScriptedSource) -> None:
    source.failing = set(EVERY)


def cut_all(source: ScriptedSource) -> None:
    source.short = set(EVERY)


def read_all(source: ExpertSource, stored: ExpertFile) -> None:
    """Read everything through a small pool and compare every slot with the file."""
    with StreamedExperts(source, slot_count=4, lane_count=3) as experts:
        assert experts.pool.reader.compiled is (source.native_mirrors is not None)
        for _ in range(2):
            for layer, expert in EVERY:
                asked = [expert, (expert + 2) % 6]  # no neighbours, which one directory would bring
                lease = experts.request(layer, asked)
                lease.wait()
                assert_slots_hold(stored, experts.pool, layer, asked, lease)
                lease.release()


def test_both_directories_bring_the_same_bytes(stored: ExpertFile) -> None:
    mirrored, sources = mirrored_reader(stored)
    read_all(mirrored, stored)
    assert all(source.read_count for source in sources)
    assert all(count > 0 for count in mirrored.bytes_by_directory.values())
    assert mirrored.queued_bytes == 0


@pytest.mark.parametrize("change", [fail_all, cut_all])
def test_a_directory_that_fails_is_left_out_and_its_reads_are_made_elsewhere(
    stored: ExpertFile, change: Callable[[ScriptedSource], None], caplog: pytest.LogCaptureFixture
) -> None:
    mirrored, sources = mirrored_reader(stored, change)
    with caplog.at_level(logging.WARNING):
        read_all(mirrored, stored)
    left_out = [line for line in caplog.messages if "second is left out from now on" in line]
    assert len(left_out) == 1
    assert sources[1].read_count <= 9 * 3  # what was under way on the lanes when it failed
    assert mirrored.queued_bytes == 0


def test_a_directory_that_fails_in_the_middle_loses_no_read(stored: ExpertFile) -> None:
    mirrored, sources = mirrored_reader(stored)
    with StreamedExperts(mirrored, slot_count=12, lane_count=2) as experts:
        for layer, expert in EVERY:
            if (layer, expert) == (0, 3):
                fail_all(sources[1])
            lease = experts.request(layer, [expert])
            lease.wait()
            assert_slots_hold(stored, experts.pool, layer, [expert], lease)
            lease.release()
        assert experts.stats.failed_records == 0


def test_when_all_directories_fail_the_request_does_and_later_ones_need_not(stored: ExpertFile) -> None:
    mirrored, sources = mirrored_reader(stored, fail_all)
    fail_all(sources[0])
    with StreamedExperts(mirrored, slot_count=4, lane_count=2) as experts:
        with pytest.raises(ExpertReadError, match="reading expert 1 of layer 0 failed"):
            experts.request(0, [1]).wait()
        for source in sources:
            source.failing = set()
        lease = experts.request(0, [1])
        lease.wait()
        assert_slots_hold(stored, experts.pool, 0, [1], lease)
        lease.release()
    assert mirrored.queued_bytes == 0


def test_reads_that_are_given_up_are_no_longer_queued(stored: ExpertFile) -> None:
    mirrored, _ = mirrored_reader(stored)
    with ExpertReader(mirrored, lane_count=1) as reader:
        arrays = SlotArrays(mirrored.layout, 4)
        for give_up in ("cancel", "retract"):
            batch = reader.prepare([Record(0, expert, expert, False) for expert in range(4)], arrays)
            assert mirrored.queued_bytes == 4 * mirrored.layout.record_bytes
            getattr(batch, give_up)()
            assert mirrored.queued_bytes == 0


def test_neighbours_go_to_one_directory_and_are_read_together_there(tmp_path: Path) -> None:
    with expert_file(tmp_path, experts=40) as stored:
        sources = [ScriptedSource(stored.layout()) for _ in range(2)]
        mirrored = ScriptedMirrors(sources)
        experts = [*range(20), 25, 27, *range(30, 34)]
        with StreamedExperts(mirrored, slot_count=64, lane_count=2) as streamed:
            lease = streamed.request(1, experts)
            lease.wait()
            assert_slots_hold(stored, streamed.pool, 1, experts, lease)
            lease.release()
        brought = list(mirrored.bytes_by_directory.values())
        runs = [8, 8, 4, 1, 1, 4]
        assert sum(brought) == len(experts) * mirrored.layout.record_bytes
        assert max(brought) <= (8 + 4 + 1 + 1) * mirrored.layout.record_bytes  # in turns while nothing is measured
        # The pieces of a run are read together, so there are as many reads as kinds and runs, or fewer.
        assert sum(source.read_count for source in sources) <= len(runs) * len(mirrored.layout.kinds)


def test_places_of_a_run_are_all_in_one_directory(stored: ExpertFile) -> None:
    mirrored, _ = mirrored_reader(stored)
    asked = [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5), (1, 0), (1, 3)]
    of = [mirrored._owner[places[0][0]] for places in mirrored.locate_all(asked)]
    runs = [list(group) for _, group in itertools.groupby(zip(of, (0, 0, 0, 1, 1, 2, 3), strict=True), lambda p: p[1])]
    assert all(len({directory for directory, _ in run}) == 1 for run in runs)
    assert set(of) == {0, 1}


def test_a_run_has_an_end(tmp_path: Path) -> None:
    with expert_file(tmp_path, experts=40) as stored:
        mirrored, _ = mirrored_reader(stored)
        of = [mirrored._owner[places[0][0]] for places in mirrored.locate_all([(0, expert) for expert in range(40)])]
        assert [len(list(group)) for _, group in itertools.groupby(of)] == [RUN_RECORDS] * 5


def choosers(count: int) -> list[Directories]:
    library = lane_library({})
    if library is None:
        pytest.skip("installed without a compiler")
    return [PythonDirectories(count), CompiledDirectories(library, count)]


@pytest.mark.parametrize("compiled", [False, True])
def test_one_long_stall_is_forgotten_by_the_next_read_that_tries_the_directory_again(compiled: bool) -> None:
    chooser, now_s, record_bytes = choosers(2)[compiled], 0.0, 1 << 20

    def read(took_s: float) -> int:
        nonlocal now_s
        chosen = chooser.choose(record_bytes, 1)
        chooser.begin(chosen, now_s)
        now_s += took_s
        chooser.end(chosen, now_s, record_bytes)
        chooser.settle(chosen, record_bytes)
        return chosen

    waiting = chooser.choose(record_bytes, 1)
    assert read(0.001) != waiting
    chooser.settle(waiting, record_bytes)
    stalled = read(0.4)
    assert stalled == waiting
    assert [read(0.001) for _ in range(REMEASURE_AFTER)].count(stalled) == 0
    assert read(0.001) == stalled
    assert chooser.state(stalled).bytes_per_s == pytest.approx(record_bytes / 0.001)


@pytest.mark.parametrize("seed", range(6))
def test_compiled_code_chooses_as_python_does_whatever_happens(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))
    pair = choosers(count)
    now_s, under_way = 0.0, [0] * count
    for _ in range(4000):
        now_s += float(random.exponential(0.004))
        directory, size = int(random.integers(count)), int(random.integers(1, 1 << 22))
        match int(random.integers(8)):
            case 0 | 1 | 2:
                records = int(random.integers(1, 9))
                assert len({chooser.choose(size, records) for chooser in pair}) == 1
            case 3 | 4:
                for chooser in pair:
                    chooser.begin(directory, now_s)
                under_way[directory] += 1
            case 5 | 6 if under_way[directory]:
                for chooser in pair:
                    chooser.end(directory, now_s, size)
                    chooser.settle(directory, size)
                under_way[directory] -= 1
            case 7 if random.integers(200) == 0:
                fault = Fault(3, 5, size, size, 0)
                assert len({chooser.leave_out(directory, fault, size) for chooser in pair}) == 1
        assert pair[0].state(directory) == pair[1].state(directory)


def test_a_piece_that_fails_in_every_directory_is_said_alike_by_both_kinds_of_lanes(stored: ExpertFile) -> None:
    texts = []
    for native in (True, False):
        sources = [ScriptedSource(stored.layout()) for _ in range(2)]
        sources[0].failing = sources[1].short = {(1, 3)}
        mirrored = ScriptedMirrors(sources)
        with ExpertReader(mirrored, lane_count=1, native=native and mirrored.native_mirrors is not None) as reader:
            errors = read_batch(reader, SlotArrays(mirrored.layout, 4), [Record(1, 3, 0, True)]).errors
            texts.append(str(errors[0]))
        assert mirrored.queued_bytes == 0
    assert texts[0] == texts[1]
    assert "got 0 (the file ends there)" in texts[0]


def test_the_log_says_which_read_made_a_directory_be_left_out(
    stored: ExpertFile, caplog: pytest.LogCaptureFixture
) -> None:
    mirrored, sources = mirrored_reader(stored)
    sources[0].failing = {(0, 2)}
    with caplog.at_level(logging.WARNING), StreamedExperts(mirrored, slot_count=6, lane_count=2) as experts:
        lease = experts.request(0, [2])
        lease.wait()
        assert_slots_hold(stored, experts.pool, 0, [2], lease)
        lease.release()
        assert experts.stats.failed_records == 0
        assert experts.stats.bytes_read == mirrored.layout.record_bytes
    assert [line for line in caplog.messages if "left out" in line] == [
        line
        for line in caplog.messages
        if line.startswith(f"reading {stored.path} failed: wanted ") and "(Input/output error); first is" in line
    ]
    assert len(caplog.messages) == 1


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return testing.write_tiny_model(tmp_path_factory.mktemp("mirrors") / "model", draft=True)


@pytest.fixture
def model(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def reply(model: Path, *mirrors: Path) -> tuple[list[int], dict[Path, int]]:
    request = PlanRequest(experts_per_layer=2, mtp="off", lookahead="off")
    with load(model, request=request, mirrors=mirrors) as engine:
        *_, last = engine.generate(list(range(40)), sampling=GREEDY, max_tokens=6)
        assert isinstance(last, Finished)
        return list(last.token_ids), engine.reading.bytes_by_directory


def copied(model: Path, path: Path) -> Path:
    return Path(shutil.copytree(model, path))


def linked(model: Path, path: Path) -> Path:
    """The same files under another directory of the same disk."""
    return Path(shutil.copytree(model, path, copy_function=os.link))


def shards_alone(model: Path, path: Path) -> Path:
    path.mkdir()
    for shard in model.glob("*.safetensors"):
        shutil.copy(shard, path)
    return path


def repacked(model: Path, path: Path) -> Path:
    copied(model, path)
    repack_checkpoint(path)
    return path


def records_alone(model: Path, path: Path) -> Path:
    repack_checkpoint(model, path)
    (model / RECORDS_NAME).unlink()
    return path


@pytest.mark.parametrize("make", [copied, linked, shards_alone, repacked, records_alone])
@pytest.mark.parametrize("own", ["stacked", "repacked"])
def test_the_reply_is_the_same_with_a_mirror_of_any_layout(
    model: Path, tmp_path: Path, make: Callable[[Path, Path], Path], own: str
) -> None:
    expected, none = reply(model)
    assert none == {}
    mirror = make(model, tmp_path / "mirror")
    if own == "repacked":
        repack_checkpoint(model)
    ids, brought = reply(model, mirror)
    assert ids == expected
    assert set(brought) == {model, mirror}
    assert all(brought.values())


def test_three_directories_work_together(model: Path, tmp_path: Path) -> None:
    mirrors = (copied(model, tmp_path / "one"), repacked(model, tmp_path / "two"))
    ids, brought = reply(model, *mirrors)
    assert ids == reply(model)[0]
    assert set(brought) == {model, *mirrors}


def test_a_streamed_draft_head_is_mirrored_too(model: Path, tmp_path: Path) -> None:
    request = PlanRequest(experts_per_layer=4, mtp="on", mtp_experts="streamed", lookahead="off")
    ids = []
    for mirrors in ((), (copied(model, tmp_path / "mirror"),)):
        with load(model, request=request, mirrors=mirrors) as engine:
            *_, last = engine.generate(list(range(40)), sampling=GREEDY, max_tokens=6)
            assert isinstance(last, Finished)
            ids.append(list(last.token_ids))
    assert ids[0] == ids[1]


def shard_of(directory: Path) -> Path:
    return next(directory.glob("model*.safetensors"))


def shorten(mirror: Path) -> None:
    os.truncate(shard_of(mirror), shard_of(mirror).stat().st_size - 1)


def rename_tensor(mirror: Path) -> None:
    content = shard_of(mirror).read_bytes()
    shard_of(mirror).write_bytes(content.replace(b"switch_mlp", b"switch_mlq", 1))


def train_further(mirror: Path) -> None:
    other = testing.write_tiny_model(mirror.with_name("trained"), draft=True, seed=5)
    shutil.copy(shard_of(other), shard_of(mirror))


def remove_shard(mirror: Path) -> None:
    shard_of(mirror).unlink()


def garble_length(mirror: Path) -> None:
    content = shard_of(mirror).read_bytes()
    shard_of(mirror).write_bytes(b"\xff" * 8 + content[8:])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (shorten, "bytes long and the checkpoint's"),
        (rename_tensor, r"the header of .* is not that of"),
        (train_further, "holds other bytes of"),
        (remove_shard, "cannot be read"),
        (garble_length, r"the header of .* is not that of"),
    ],
)
def test_a_mirror_of_something_else_is_refused_and_its_file_named(
    model: Path, tmp_path: Path, change: Callable[[Path], None], sentence: str
) -> None:
    mirror = copied(model, tmp_path / "mirror")
    name = shard_of(mirror).name
    change(mirror)
    with pytest.raises(MirrorMismatch, match=sentence) as caught:
        reply(model, mirror)
    assert name in str(caught.value)


def test_a_directory_without_a_model_is_refused(model: Path, tmp_path: Path) -> None:
    for mirror in (tmp_path / "nowhere", tmp_path, model / "config.json"):
        with pytest.raises(MirrorMismatch):
            reply(model, mirror)


def test_the_checkpoint_is_no_mirror_of_itself(model: Path, tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to(model)
    with pytest.raises(MirrorMismatch, match="is the checkpoint itself"):
        reply(model, tmp_path / "same")


def test_records_of_another_training_are_refused_as_a_mirror(model: Path, tmp_path: Path) -> None:
    other = testing.write_tiny_model(tmp_path / "other", draft=True, seed=5)
    with pytest.raises(MirrorMismatch, match="holds other bytes of"):
        reply(model, repack_checkpoint(other).directory)


def test_records_of_another_size_or_with_a_damaged_index_are_refused_as_a_mirror(model: Path, tmp_path: Path) -> None:
    other = testing.write_tiny_model(tmp_path / "other", bits=8)
    records = repack_checkpoint(other).directory
    with pytest.raises(MirrorMismatch, match="made from other shards"):
        reply(model, records)
    (records / "index.json").write_text(json.dumps({"format": "zip"}))
    with pytest.raises(MirrorMismatch, match="is 'zip' version None"):
        reply(model, records)
