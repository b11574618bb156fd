"""Files that a device fetches from itself: the same bytes, nothing read, and everything else as with lanes."""

from __future__ import annotations

import logging
import mmap
import os
import threading

import numpy as np
import pytest

from slotstream_core.errors import BackendError, CheckpointDamaged, ExpertReadError
from slotstream_core.experts import mapped_files as module
from slotstream_core.experts.batches import Record
from slotstream_core.experts.mapped_files import regions_of
from slotstream_core.experts.mirrors import MirroredExperts
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.loading import begin_pinning
from slotstream_core.native.binding import library_path
from slotstream_planner import Machine, PlanRequest, plan, published_geometry
from tests.core.expert_files import ExpertFile, ScriptedSource, read_batch
from tests.core.pinning_device import EXPERTS, LAYERS, PinningDevice, check_slots, random_records, reading, settled

pytestmark = [
    pytest.mark.skipif(library_path() is None, reason="installed without a compiler"),
    pytest.mark.usefixtures("steps_of_a_few_pages"),
]

GB = 10**9


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_records_arrive_as_they_lie_on_disk_whatever_is_pinned(many: ExpertFile, share: float) -> None:
    device, random = PinningDevice(), np.random.default_rng(7)
    layout = many.layout("BF16")
    whole = LAYERS * EXPERTS * layout.record_bytes
    with reading(many, device, pinned_bytes=int(share * whole)) as (reader, arrays):
        assert reader.mapped is not None
        pinned = reader.mapped.pinned_bytes
        assert share * whole - mmap.PAGESIZE < pinned <= max(share * whole, reader.mapped.byte_count * (share == 1))
        read = 0
        for turn in range(40):
            ahead = turn % 3 == 2
            records = random_records(random, 1 if ahead else int(random.integers(1, 33)), checked=turn % 2 == 1)
            batch = read_batch(reader, arrays, records, ahead=ahead)
            assert batch.errors == {}
            assert batch.bytes_read == len(records) * layout.record_bytes
            read += batch.bytes_read
            check_slots(many, arrays, records)
    assert (device.fetched > 0) == (share > 0)
    assert device.fetched < read  # what is to be checked is read
    assert device.overwritten == 0
    assert device.registered == {}
    assert not device.unregistered_in_use


def test_what_need_not_be_checked_is_not_read_at_all(many: ExpertFile) -> None:
    device = PinningDevice()
    with reading(many, device) as (reader, arrays):
        records = [Record(5, 39, 0, False), Record(0, 0, 1, False)]
        batch = read_batch(reader, arrays, records)
        check_slots(many, arrays, records)
        assert device.fetched == batch.bytes_read == 2 * reader.source.layout.record_bytes
        before = device.fetched
        read_batch(reader, arrays, [Record(5, 39, 0, True)])
        weights = sum(kind.disk_bytes for kind in reader.source.layout.kinds if kind.part == "weight")
        assert device.fetched - before == weights


def test_scales_that_are_not_finite_are_found_in_a_pinned_file(many: ExpertFile) -> None:
    layout = many.layout("BF16")
    place = layout.extents(1, 2)[4]
    with place.path.open("r+b") as out:
        out.seek(place.offset + 6)
        out.write(b"\x80\x7f")  # infinity
    with reading(many, PinningDevice()) as (reader, arrays):
        batch = read_batch(reader, arrays, [Record(1, 2, 0, True), Record(1, 3, 1, True)])
        assert list(batch.errors) == [0]
        assert isinstance(batch.errors[0], CheckpointDamaged)


def test_the_host_looks_at_no_page_of_a_file_that_became_shorter(many: ExpertFile) -> None:
    device = PinningDevice()
    with reading(many, device) as (reader, arrays):
        device.keeps_pages = True
        with many.path.open("r+b") as out:
            out.truncate(100)
        batch = read_batch(reader, arrays, [Record(5, 2, 0, True), Record(5, 3, 1, False)])
        assert list(batch.errors) == [0]
        assert isinstance(batch.errors[0], ExpertReadError)
        assert "the file ends there" in str(batch.errors[0])


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.usefixtures("compiled_code_on")
def test_a_device_that_fails_publishes_nothing(many: ExpertFile, begun: bool) -> None:
    device = PinningDevice()
    layout = many.layout("BF16")
    with (
        StoredExperts(layout) as source,
        StreamedExperts(source, slot_count=40, lane_count=2, memory=device) as experts,
    ):
        assert experts.mapped is not None
        settled(experts.mapped, 1 << 40)
        assert experts.mapped.pinned_bytes == experts.mapped.byte_count
        if begun:
            device.copy_code = lambda number: 700 if number == 3 else 0
        else:
            device.finish_code = lambda number: 700 if number == 1 else 0
        lease = experts.request(1, [2, 5])
        with pytest.raises(BackendError, match="the CUDA runtime says 700"):
            lease.wait()
        experts.pool.check_integrity()
        assert experts.pool.resident_count < 2
        device.copy_code = device.finish_code = lambda number: 0
        again = experts.request(1, [2, 5])
        again.wait()
        for expert, slot in zip((2, 5), again.slots, strict=True):
            check_slots(many, experts.pool.slots, [Record(1, expert, slot, False)])
        again.release()


def test_a_driver_that_refuses_leaves_the_rest_to_the_lanes(many: ExpertFile, caplog: pytest.LogCaptureFixture) -> None:
    device = PinningDevice()
    device.refusal_at = 2
    with caplog.at_level(logging.WARNING), reading(many, device) as (reader, arrays):
        assert reader.mapped is not None
        assert reader.mapped.pinned_bytes == 2 * module.STEP_BYTES
        records = random_records(np.random.default_rng(1), 32, checked=False)
        assert read_batch(reader, arrays, records).errors == {}
        check_slots(many, arrays, records)
    assert [record.message for record in caplog.records if "pinned" in record.message] == [
        "0.00 GB of the files of experts are pinned, the others are read, which is slower: "
        "pinning failed: the CUDA runtime says 801"
    ]


def test_a_device_that_does_not_fetch_what_is_there_is_not_used(
    many: ExpertFile, caplog: pytest.LogCaptureFixture
) -> None:
    device = PinningDevice()
    device.lies = True
    with reading(many, device) as (reader, arrays):
        records = [Record(0, 0, 0, False)]
        read_batch(reader, arrays, records)
        check_slots(many, arrays, records)
        assert device.fetched == 0
        assert device.registered == {}
        assert reader.mapped is not None
        assert reader.mapped.pinned_bytes == 0
    assert "does not fetch the bytes of a mapped file" in caplog.text


def test_what_cannot_be_pinned_is_said_when_it_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(
        kind="cuda", ram_bytes=40 * GB, available_bytes=40 * GB, working_set_bytes=None, cores=4,
        host_available_bytes=200 * GB,
    )  # fmt: skip
    said: dict[float | str, list[int]] = {}
    for size in (1.5, "auto", "off"):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            begin_pinning(PinnedFiles([]), plan(published_geometry(), machine, PlanRequest(pinned_gb=size)))
        said[size] = [
            record.levelno for record in caplog.records if "files of experts are not pinned" in record.message
        ]
    assert said == {1.5: [logging.WARNING], "auto": [logging.INFO], "off": []}


def test_a_file_that_was_replaced_is_not_mapped(many: ExpertFile, caplog: pytest.LogCaptureFixture) -> None:
    device = PinningDevice()
    layout = many.layout("BF16")
    with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, memory=device, native=True) as reader:
        contents = many.path.read_bytes()
        many.path.unlink()
        many.path.write_bytes(contents[::-1])
        assert reader.mapped is not None
        reader.mapped.pin(1 << 40)
        assert reader.mapped.finished.wait(240)
        assert reader.mapped.pinned_bytes == 0
    assert "replaced or became shorter" in caplog.text


def test_a_file_that_shrinks_as_it_is_mapped_is_read(
    many: ExpertFile, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorter(*_: object, **__: object) -> mmap.mmap:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(mmap, "mmap", shorter)
    with caplog.at_level(logging.WARNING), reading(many, PinningDevice()) as (reader, arrays):
        records = [Record(0, 1, 2, False)]
        assert read_batch(reader, arrays, records).errors == {}
        check_slots(many, arrays, records)
    assert ["mmap length" in record.getMessage() for record in caplog.records] == [True]


def test_closing_waits_for_copies_under_way_before_anything_is_unmapped(many: ExpertFile) -> None:
    device = PinningDevice()
    device.open_gate.clear()
    with reading(many, device, lanes=1, ahead=0) as (reader, arrays):
        batch = reader.prepare([Record(0, 1, 0, False)], arrays)
        reader.submit(batch)
        device.entered.acquire()
        closing = threading.Thread(target=reader.close)
        closing.start()
        assert device.registered
        device.open_gate.set()
        closing.join(240)
        assert not closing.is_alive()
        assert batch.done.wait(240)
        assert batch.errors == {}
    assert device.registered == {}
    assert not device.unregistered_in_use


def test_reads_ahead_are_taken_back_before_they_begin(many: ExpertFile) -> None:
    device = PinningDevice()
    device.open_gate.clear()
    with reading(many, device, lanes=1, ahead=2) as (reader, arrays):
        batches = [reader.prepare([Record(0, slot, slot, False)], arrays) for slot in range(12)]
        for batch in batches:
            reader.submit_ahead(batch)
        device.entered.acquire()
        taken_back = [batch.retract() for batch in batches]
        device.open_gate.set()
        assert taken_back[-1]
        assert sum(taken_back) >= 10  # no more than two are begun
        for batch in batches:
            assert batch.done.wait(240)
            assert batch.errors == {} or batch.cancelled


def test_copies_ahead_are_begun_by_who_asks_unless_something_is_waited_for(many: ExpertFile) -> None:
    device, me = PinningDevice(), threading.get_ident()
    with reading(many, device) as (reader, arrays):
        records = [Record(0, expert, expert, False) for expert in range(3)]
        read_batch(reader, arrays, records[:1], ahead=True)
        assert set(device.copied_by) == {me}
        device.copied_by.clear()
        device.open_gate.clear()
        while device.entered.acquire(blocking=False):
            pass
        wanted, ahead = (reader.prepare([record], arrays) for record in records[1:])
        reader.submit(wanted)
        assert device.entered.acquire(timeout=240)
        begun = len(device.copied_by)
        reader.submit_ahead(ahead)
        assert set(device.copied_by) == {me}
        assert len(device.copied_by) == begun > 0
        device.open_gate.set()
        assert ahead.done.wait(240)
        assert wanted.done.wait(240)
        assert device.copied_by[:begun] == [me] * begun
        assert me not in device.copied_by[begun:]
        assert len(device.copied_by) == 2 * begun
        check_slots(many, arrays, records)


def test_without_a_thread_for_it_files_are_read(
    many: ExpertFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    device = PinningDevice()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with reading(many, device) as (reader, arrays):
        assert read_batch(reader, arrays, [Record(0, 0, 0, False)]).errors == {}
    assert device.fetched == 0
    assert "can't start new thread" in caplog.text


def test_pinning_ends_when_the_lanes_are_closed(many: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    device, going = PinningDevice(), threading.Event()

    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        going.set()
        device.open_gate.wait()
        return preadv(fd, buffers, offset)

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(module, "STOP_WAIT_S", 0.0)
    device.open_gate.clear()
    layout = many.layout("BF16")
    with StoredExperts(layout) as source:
        reader = ExpertReader(source, lane_count=1, memory=device, native=True)
        mapped = reader.mapped
        assert mapped is not None
        mapped.pin(1 << 40)
        assert going.wait(240)
        reader.close()
        assert not mapped.finished.is_set()
    device.open_gate.set()
    assert mapped.finished.wait(240)
    mapped.close()
    assert device.registered == {}
    assert mapped.pinned_bytes == 0
    mapped.pin(1 << 40)
    assert mapped.finished.is_set()


def test_only_files_that_the_system_reads_through_its_page_cache_are_mapped(many: ExpertFile) -> None:
    layout = many.layout("BF16")
    with (
        StoredExperts(layout) as source,
        StoredExperts(layout, direct=True) as direct,
        StoredExperts(layout, native=False) as by_python,
        ScriptedSource(layout) as scripted,
    ):
        assert [(region.start, region.end) for region in regions_of(source)] == [(0, many.path.stat().st_size)]
        if direct.alignment > 1:
            assert regions_of(direct) == []
        assert regions_of(by_python) == regions_of(scripted) == []
        assert regions_of(MirroredExperts([source, direct], [many.path, many.path])) == []
        with ExpertReader(source, lane_count=1, native=True) as reader:
            assert reader.mapped is None


def test_a_forked_child_lets_nothing_go(many: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    device = PinningDevice()
    with reading(many, device) as (reader, _):
        assert reader.mapped is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            reader.mapped.finished.clear()  # what pins has no thread there
            reader.mapped.close()
        assert device.registered
        reader.mapped.finished.set()
    assert device.registered == {}
