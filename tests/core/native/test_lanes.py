"""Compiled reading lanes: the same bytes and errors as Python's, nothing kept or left running, and honest fallbacks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.errors import ExpertReadError, NativeError, SettingError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.native.binding import library_path
from slotstream_core.native.lanes import LaneLibrary, lane_library
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file, have_ended, read_batch, thread_numbers

built = pytest.mark.skipif(library_path() is None, reason="installed without a compiler")


def everything(stored: ExpertFile) -> SlotArrays:
    """Every record, read by Python's lanes: record r lies in slot r."""
    layout = stored.layout()
    arrays = SlotArrays(layout, layout.record_count)
    with StoredExperts(layout) as source, ExpertReader(source, lane_count=2, native=False) as reader:
        assert not reader.compiled
        count = layout.expert_count
        records = [Record(number // count, number % count, number, True) for number in range(layout.record_count)]
        assert read_batch(reader, arrays, records).errors == {}
    return arrays


@built
@pytest.mark.parametrize("direct", [False, True])
def test_ten_thousand_random_records_arrive_as_python_reads_them(stored: ExpertFile, direct: bool) -> None:
    wanted, random = everything(stored), np.random.default_rng(5)
    layout = stored.layout()
    arrays = SlotArrays(layout, 16)
    left = 10_000
    with (
        StoredExperts(layout, direct=direct) as source,
        ExpertReader(source, lane_count=3, ahead_lane_count=2, native=True) as reader,
    ):
        assert reader.compiled
        while left > 0:
            count, ahead = int(random.integers(1, 17)), bool(random.integers(2))
            keys = random.choice(layout.record_count, count, replace=False)
            slots = random.permutation(16)[:count]
            records = [
                Record(*divmod(int(key), layout.expert_count), int(slot), bool(random.integers(2)))
                for key, slot in zip(keys, slots, strict=True)
            ]
            parts = [records[index : index + 1] for index in range(count)] if ahead else [records]
            batches = [reader.prepare(part, arrays) for part in parts]
            for batch in batches:
                if ahead:
                    reader.submit_ahead(batch)
                if not ahead or random.integers(2):
                    reader.submit(batch)
            for batch in batches:
                assert batch.done.wait(240)
                assert batch.errors == {}
                assert batch.read_s > 0
            assert sum(batch.bytes_read for batch in batches) == count * layout.record_bytes
            for mine, other in zip(arrays.views, wanted.views, strict=True):
                assert np.array_equal(mine[slots], other[keys])
            left -= count


@built
def test_both_kinds_of_lanes_say_the_same_of_a_fault(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored:
        layout = stored.layout()
        texts = []
        for native in (True, False):
            said = []
            source = ScriptedSource(layout)
            source.failing.add((0, 1))
            source.short.add((1, 3))
            with ExpertReader(source, lane_count=2, native=native) as reader:
                assert reader.compiled is native
                arrays = SlotArrays(layout, 4)
                for records in ([Record(0, 1, 0, True)], [Record(1, 2, 0, True), Record(1, 3, 1, True)]):
                    errors = read_batch(reader, arrays, records).errors
                    said.append({index: (type(error), str(error)) for index, error in errors.items()})
            texts.append(said)
        assert texts[0] == texts[1]
        assert "Input/output error" in texts[0][0][0][1]
        assert "got 0 (the file ends there)" in texts[0][1][1][1]


@built
def test_values_that_are_not_finite_are_found_and_named_alike(tmp_path: Path) -> None:
    with expert_file(tmp_path) as stored:
        layout = stored.layout()
        place = layout.extents(1, 2)[4]
        with place.path.open("r+b") as out:
            out.seek(place.offset + 6)
            out.write(b"\x80\x7f")  # infinity
        texts = []
        for native in (True, False):
            with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, native=native) as reader:
                batch = read_batch(reader, SlotArrays(layout, 2), [Record(1, 2, 0, True), Record(1, 3, 1, True)])
                assert list(batch.errors) == [0]
                texts.append((type(batch.errors[0]), str(batch.errors[0])))
                unchecked = read_batch(reader, SlotArrays(layout, 2), [Record(1, 2, 0, False)])
                assert unchecked.errors == {}
        assert texts[0] == texts[1]
        assert "up_proj.scales holds values that are not finite for expert 2" in texts[0][1]


@built
def test_slots_are_not_kept_alive_by_reads_that_are_done(stored: ExpertFile) -> None:
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=2, native=True) as reader:
        arrays = SlotArrays(source.layout, 2)
        batch = read_batch(reader, arrays, [Record(0, 0, 0, True)])
        never_submitted = reader.prepare([Record(0, 1, 1, True)], arrays)
        alive = weakref.ref(arrays)
        del arrays, never_submitted
        gc.collect()
        assert alive() is None
        assert batch.errors == {}


@built
def test_a_grown_pool_is_read_into_where_it_lies_then(stored: ExpertFile) -> None:
    wanted = everything(stored)
    with StreamedExperts(StoredExperts(stored.layout()), slot_count=2, lane_count=1) as experts:
        for slot_count in (2, 5, 40):
            experts.resize(slot_count)
            lease = experts.request(1, [7, 9])
            lease.wait()
            for expert, slot in zip((7, 9), lease.slots, strict=True):
                for mine, other in zip(experts.pool.slots.views, wanted.views, strict=True):
                    assert mine[slot].tobytes() == other[24 + expert].tobytes()
            lease.release()


@built
def test_a_reader_that_is_forgotten_ends_its_threads(stored: ExpertFile) -> None:
    before = thread_numbers()
    with StoredExperts(stored.layout()) as source:
        reader = ExpertReader(source, lane_count=7, native=True)
        started = thread_numbers() - before
        assert len(started) == 7
        del reader
        gc.collect()
        assert have_ended(started)


EXIT_IN_MID_READ = """
import sys
from pathlib import Path
from slotstream_core.experts import reader as reader_module
from slotstream_core.experts.batches import Record
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slots import SlotArrays
from tests.core.expert_files import ScriptedSource, expert_file

with expert_file(Path(sys.argv[1])) as stored:
    source = ScriptedSource(stored.layout())
    source.open_gate.clear()
    reader = ExpertReader(source, lane_count=2, native=True)
    assert reader.compiled
    arrays = SlotArrays(source.layout, 4)
    batch = reader.prepare([Record(0, 0, 0, True), Record(0, 3, 3, True)], arrays)
    reader.submit(batch)
    source.entered.acquire()
    reader_module.CLOSE_WAIT_S = 0.0
    reader.close()
print("left in mid-read")
"""


@built
def test_a_process_may_exit_while_a_disk_does_not_answer(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", EXIT_IN_MID_READ, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    assert done.stdout == "left in mid-read\n", done.stderr
    assert done.returncode == 0


def test_python_reads_where_compiled_lanes_cannot(tmp_path: Path) -> None:
    with expert_file(tmp_path, float_dtype="F16") as halves, expert_file(tmp_path, float_dtype="F32") as floats:
        for layout in (halves.layout(), floats.layout("BF16")):  # changes of type they do not know
            with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, native=True) as reader:
                assert not reader.compiled
                assert read_batch(reader, SlotArrays(layout, 1), [Record(0, 2, 0, True)]).errors == {}


def test_compiled_lanes_are_switched_off_by_the_environment(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTSTREAM_NATIVE", "0")
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=1) as reader:
        assert not reader.compiled
    monkeypatch.setenv("SLOTSTREAM_NATIVE", "perhaps")
    with StoredExperts(stored.layout()) as source, pytest.raises(SettingError, match="SLOTSTREAM_NATIVE"):
        ExpertReader(source, lane_count=1)


def test_a_library_that_is_not_one_is_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "_native.so"
    path.write_bytes(b"no library")
    with pytest.raises(NativeError, match=r"_native\.so cannot be used"):
        LaneLibrary(path)
    assert lane_library({}, path=path) is None
    assert "experts are read by Python's threads" in caplog.text


@built
def test_what_cannot_be_planned_is_refused(stored: ExpertFile) -> None:
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=1, native=True) as reader:
        arrays = SlotArrays(source.layout, 2)
        with pytest.raises(NativeError, match="does not exist"):
            reader.prepare([Record(0, 0, 2, True)], arrays)
        with pytest.raises(NativeError, match="missing, negative"):
            reader.prepare([], arrays)
        batch = reader.prepare([Record(0, 0, 1, True)], arrays)
        with pytest.raises(NativeError, match="reading experts ahead"):
            reader.submit_ahead(batch)  # without lanes that read ahead
    with pytest.raises(ExpertReadError, match="closed"):
        reader.prepare([Record(0, 0, 1, True)], arrays)
