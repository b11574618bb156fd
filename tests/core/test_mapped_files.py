"""Files that a device fetches from itself: the same bytes, nothing read, and everything else as with lanes."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.errors import BackendError, CheckpointDamaged, ExpertReadError
from slotstream_core.experts import mapped_files as module
from slotstream_core.experts.batches import Record
from slotstream_core.experts.mapped_files import MappedFiles, regions_of
from slotstream_core.experts.mirrors import MirroredExperts
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import HostPins
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.loading import pin_files
from slotstream_core.native.binding import library_path
from slotstream_planner import Machine, PlanRequest, plan, published_geometry
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file, read_batch
from tests.core.native.test_device_lanes import ScriptedDevice

pytestmark = pytest.mark.skipif(library_path() is None, reason="installed without a compiler")

GB = 10**9
LAYERS, EXPERTS = 6, 40
"""Of a file of some 70 pages."""


class PinningDevice(ScriptedDevice):
    """A device that fetches from what was registered, and says what it copied from there."""

    def __init__(self) -> None:
        super().__init__()
        self.pins: HostPins | None = self
        self.registered: dict[int, int] = {}
        self.once_registered: dict[int, int] = {}
        self.stuck_at: int | None = None
        self.fetched_unpinned = False
        self.refusal_at: int | None = None
        self.lies = False
        self.keeps_pages = False
        self.fetched = 0
        self.copied_by: list[int] = []
        self.unregistered_in_use = False
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.entered = threading.Semaphore(0)

    def register(self, address: int, byte_count: int) -> None:
        assert address % mmap.PAGESIZE == byte_count % mmap.PAGESIZE == 0
        for start, size in self.registered.items():
            assert address + byte_count <= start or start + size <= address
        if len(self.registered) == self.refusal_at:
            raise BackendError("pinning failed: the CUDA runtime says 801")
        self.registered[address] = self.once_registered[address] = byte_count

    def unregister(self, address: int) -> None:
        if address == self.stuck_at:
            raise BackendError("letting pinned memory go failed: the CUDA runtime says 713")
        size = self.registered[address]
        with self._lock:
            begun = [source for copies in self._begun.values() for _, source, _ in copies]
        self.unregistered_in_use |= any(address <= source < address + size for source in begun)
        del self.registered[address]

    def fetch(self, address: int, byte_count: int) -> bytes:
        assert self._is_registered(address, byte_count)
        return b"?" * byte_count if self.lies else ctypes.string_at(address, byte_count)

    def _is_registered(self, address: int, byte_count: int) -> bool:
        pages = range(address // mmap.PAGESIZE, (address + byte_count - 1) // mmap.PAGESIZE + 1)
        spans = list(self.registered.items())
        return all(any(start <= page * mmap.PAGESIZE < start + size for start, size in spans) for page in pages)

    def _finish(self, stream: int) -> int:
        self.entered.release()
        self.open_gate.wait()
        return super()._finish(stream)

    def _copy(self, target: int, source: int, byte_count: int, direction: int, stream: int) -> int:
        self.copied_by.append(threading.get_ident())
        pinned = self._is_registered(source, byte_count)
        self.fetched += pinned * byte_count
        self.fetched_unpinned |= not pinned and any(
            start <= source < start + size for start, size in list(self.once_registered.items())
        )
        if pinned and self.keeps_pages:  # of a file that became shorter, which only the device may look at
            return 0
        return super()._copy(target, source, byte_count, direction, stream)


@pytest.fixture
def many(tmp_path: Path) -> Iterator[ExpertFile]:
    with expert_file(tmp_path, layers=LAYERS, experts=EXPERTS) as stored:
        yield stored


@pytest.fixture(autouse=True)
def steps_of_a_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 3 * mmap.PAGESIZE)


@contextmanager
def reading(
    stored: ExpertFile, device: PinningDevice, *, pinned_bytes: int = 1 << 40, lanes: int = 3, ahead: int = 2
) -> Iterator[tuple[ExpertReader, SlotArrays]]:
    layout = stored.layout("BF16")
    with (
        StoredExperts(layout) as source,
        ExpertReader(source, lane_count=lanes, ahead_lane_count=ahead, memory=device, native=True) as reader,
    ):
        assert reader.mapped is not None
        reader.mapped.pin(pinned_bytes)
        assert reader.mapped.finished.wait(240)
        yield reader, SlotArrays(layout, 32, device)


def check_slots(stored: ExpertFile, arrays: SlotArrays, records: list[Record]) -> None:
    for record in records:
        for kind, view in enumerate(arrays.views):
            assert view[record.slot].tobytes() == stored.bytes_of(arrays.layout, record.layer, record.expert, kind)


def random_records(random: np.random.Generator, count: int, *, checked: bool) -> list[Record]:
    keys = random.choice(LAYERS * EXPERTS, count, replace=False).tolist()
    return [Record(*divmod(int(key), EXPERTS), slot, checked) for slot, key in enumerate(keys)]


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
        experts.pin_files(1 << 40)
        assert experts.pool.reader.mapped is not None
        assert experts.pool.reader.mapped.finished.wait(240)
        assert experts.pinned_bytes == experts.pool.reader.mapped.byte_count
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


def test_what_cannot_be_pinned_is_said_when_it_was_asked_for(
    many: ExpertFile, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(
        kind="cuda", ram_bytes=40 * GB, available_bytes=40 * GB, working_set_bytes=None, cores=4,
        host_available_bytes=200 * GB,
    )  # fmt: skip
    said: dict[float | str, list[int]] = {}
    with StreamedExperts(StoredExperts(many.layout()), slot_count=2, lane_count=1) as experts:
        assert experts.pinned_bytes == 0
        for size in (1.5, "auto", "off"):
            caplog.clear()
            with caplog.at_level(logging.INFO):
                pin_files(experts, plan(published_geometry(), machine, PlanRequest(pinned_gb=size)))
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


def settled(mapped: MappedFiles, wanted_bytes: int) -> None:
    mapped.pin(wanted_bytes)
    assert mapped.finished.wait(240)


def test_what_was_pinned_last_is_given_back_first_and_pinned_again(many: ExpertFile) -> None:
    device = PinningDevice()
    with reading(many, device) as (reader, arrays):
        mapped, random = reader.mapped, np.random.default_rng(5)
        assert mapped is not None
        first, whole = min(device.registered), mapped.byte_count
        for wanted in (whole // 2, 5 * mmap.PAGESIZE, whole - mmap.PAGESIZE, 0, whole):
            before = mapped.pinned_bytes
            settled(mapped, wanted)
            if wanted < before:  # whole steps
                assert wanted - module.STEP_BYTES < mapped.pinned_bytes <= wanted
            else:
                assert mapped.pinned_bytes == wanted // mmap.PAGESIZE * mmap.PAGESIZE
            assert mapped.wanted_bytes == mapped.pinned_bytes == sum(device.registered.values())
            assert not device.registered or min(device.registered) == first
            assert all(address < first + mapped.pinned_bytes for address in device.registered)
            fetched = device.fetched
            records = random_records(random, 32, checked=False)
            assert read_batch(reader, arrays, records).errors == {}
            check_slots(many, arrays, records)
            assert (device.fetched > fetched) == (mapped.pinned_bytes > 0)
    assert not device.unregistered_in_use
    assert not device.fetched_unpinned


def test_a_part_is_let_go_after_the_copies_from_it_and_found_no_more_meanwhile(
    many: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = PinningDevice()
    with reading(many, device, lanes=2, ahead=1) as (reader, arrays):
        mapped = reader.mapped
        assert mapped is not None
        planned = reader.prepare([Record(1, 1, 1, False)], arrays)  # and not handed over yet
        device.open_gate.clear()
        under_way = reader.prepare([Record(0, 1, 0, False)], arrays)
        reader.submit(under_way)
        assert device.entered.acquire(timeout=240)
        fetched, asked, quiet = device.fetched, threading.Event(), mapped._library.mapped_quiet

        def ask(handle: int) -> int:
            found: int = quiet(handle)
            asked.set()
            return found

        monkeypatch.setattr(mapped._library, "mapped_quiet", ask)
        mapped.pin(0)
        assert asked.wait(240)
        late = reader.prepare([Record(0, 2, 2, False)], arrays)  # nobody waits for it: it found nothing
        assert mapped.pinned_bytes == mapped.byte_count
        device.open_gate.set()
        assert under_way.done.wait(240)
        assert not mapped.finished.wait(0.05)  # what was planned may still be handed over
        assert device.registered
        reader.submit(planned)
        assert planned.done.wait(240)
        assert mapped.finished.wait(240)
        assert device.registered == {}
        assert mapped.pinned_bytes == 0
        reader.submit(late)
        assert late.done.wait(240)
        check_slots(many, arrays, [Record(0, 1, 0, False), Record(1, 1, 1, False), Record(0, 2, 2, False)])
        assert device.fetched == fetched + reader.source.layout.record_bytes
    assert not device.unregistered_in_use
    assert not device.fetched_unpinned


def test_requests_go_on_while_parts_come_and_go(many: ExpertFile) -> None:
    device, random = PinningDevice(), np.random.default_rng(9)
    with reading(many, device) as (reader, arrays):
        mapped, ends = reader.mapped, threading.Event()
        assert mapped is not None
        whole = mapped.byte_count

        def come_and_go() -> None:
            wanted = np.random.default_rng(2)
            while not ends.is_set():
                mapped.pin(int(wanted.integers(0, whole + 1)))
                mapped.finished.wait(0.01)

        tide = threading.Thread(target=come_and_go)
        tide.start()
        for turn in range(150):
            records = random_records(random, 1 if turn % 3 == 2 else 24, checked=turn % 5 == 4)
            assert read_batch(reader, arrays, records, ahead=turn % 3 == 2).errors == {}
            check_slots(many, arrays, records)
        ends.set()
        tide.join(240)
        settled(mapped, 0)
        assert mapped._library.mapped_users(mapped.handle) == 0
    assert device.fetched > 0
    assert device.registered == {}
    assert not device.unregistered_in_use
    assert not device.fetched_unpinned


def test_what_the_driver_refused_is_not_asked_for_again(many: ExpertFile) -> None:
    device = PinningDevice()
    device.refusal_at = 2
    with reading(many, device) as (reader, _):
        mapped = reader.mapped
        assert mapped is not None
        assert mapped.most_bytes == mapped.wanted_bytes == 2 * module.STEP_BYTES
        device.refusal_at = None
        settled(mapped, mapped.byte_count)
        assert mapped.pinned_bytes == 2 * module.STEP_BYTES
        settled(mapped, module.STEP_BYTES)
        assert mapped.pinned_bytes == module.STEP_BYTES
        settled(mapped, mapped.byte_count)
        assert mapped.pinned_bytes == 2 * module.STEP_BYTES


def test_what_the_driver_keeps_counts_as_pinned(many: ExpertFile, caplog: pytest.LogCaptureFixture) -> None:
    device = PinningDevice()
    with reading(many, device) as (reader, _):
        mapped = reader.mapped
        assert mapped is not None
        device.stuck_at = sorted(device.registered)[3]
        settled(mapped, 0)
        assert mapped.pinned_bytes == sum(device.registered.values()) == 4 * module.STEP_BYTES
        device.stuck_at = None
        settled(mapped, 0)
        assert device.registered == {}
    assert "letting pinned memory go failed" in caplog.text


def test_closing_lets_go_of_what_was_to_be_given_back_and_is_in_use(many: ExpertFile) -> None:
    device = PinningDevice()
    with reading(many, device, lanes=1, ahead=0) as (reader, arrays):
        assert reader.mapped is not None
        held = reader.prepare([Record(0, 1, 0, False)], arrays)
        reader.mapped.pin(0)
        reader.close()
        assert device.registered == {}
        assert reader.mapped.pinned_bytes == 0
        del held


class Reads:
    """What is read to be pinned, from now on, and whether a request was reading then."""

    def __init__(self, mapped: MappedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beside_requests: list[bool] = []
        preadv = os.preadv

        def watched(fd: int, buffers: list[memoryview], offset: int) -> int:
            self.beside_requests.append(mapped._library.mapped_users(mapped.handle) > 0)
            return preadv(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", watched)


def test_files_are_read_to_be_pinned_while_no_request_reads(many: ExpertFile, monkeypatch: pytest.MonkeyPatch) -> None:
    device = PinningDevice()
    monkeypatch.setattr(module, "READ_BYTES", mmap.PAGESIZE)
    monkeypatch.setattr(module, "LEAST_WAIT_S", 600.0)
    with reading(many, device, pinned_bytes=0) as (reader, arrays):
        mapped = reader.mapped
        assert mapped is not None
        reads = Reads(mapped, monkeypatch)
        request = reader.prepare([Record(0, 1, 0, False)], arrays)
        mapped.pin(mapped.byte_count)
        assert not mapped.finished.wait(0.05)
        assert reads.beside_requests == []
        reader.submit(request)
        assert request.done.wait(240)
        assert mapped.finished.wait(240)
        assert mapped.pinned_bytes == mapped.byte_count
        assert len(reads.beside_requests) == mapped.byte_count // mmap.PAGESIZE
        assert not any(reads.beside_requests)


def test_files_are_pinned_some_day_although_requests_read_all_the_time(
    many: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_WAIT_S", 0.0)
    with reading(many, PinningDevice(), pinned_bytes=0) as (reader, arrays):
        mapped = reader.mapped
        assert mapped is not None
        reads = Reads(mapped, monkeypatch)
        request = reader.prepare([Record(0, 1, 0, False)], arrays)
        settled(mapped, mapped.byte_count)
        assert mapped.pinned_bytes == mapped.byte_count
        assert all(reads.beside_requests)
        reader.submit(request)


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
