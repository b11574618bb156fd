"""Pinned files are given back in the right order while requests run, and pinned while requests do not read."""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.experts import mapped_files as module
from slotstream_core.experts.batches import Record
from slotstream_core.experts.mapped_files import MappedFiles
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.native.binding import library_path
from tests.core.expert_files import ExpertFile, expert_file, read_batch
from tests.core.pinning_device import EXPERTS, PinningDevice, check_slots, random_records, reading, settled

pytestmark = [
    pytest.mark.skipif(library_path() is None, reason="installed without a compiler"),
    pytest.mark.usefixtures("steps_of_a_few_pages"),
]


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


def test_files_of_several_sources_are_one_amount_the_first_ones_pinned_first(tmp_path: Path) -> None:
    device = PinningDevice()
    with ExitStack() as opened:
        readers = []
        for name in ("head", "layers"):
            (tmp_path / name).mkdir()
            stored = opened.enter_context(expert_file(tmp_path / name, layers=2, experts=EXPERTS))
            source = opened.enter_context(StoredExperts(stored.layout("BF16")))
            readers.append(opened.enter_context(ExpertReader(source, lane_count=1, memory=device, native=True)))
        head, layers = (reader.mapped for reader in readers)
        assert head is not None
        assert layers is not None
        files = PinnedFiles([head, layers])
        each = head.byte_count
        assert files.most_bytes == 2 * each
        for wanted in (each // 2, each + 4 * mmap.PAGESIZE, 2 * each, each, 3 * mmap.PAGESIZE, 0):
            files.pin(wanted)
            assert head.finished.wait(240)
            assert layers.finished.wait(240)
            assert files.pinned_bytes == files.wanted_bytes == head.pinned_bytes + layers.pinned_bytes
            assert wanted - module.STEP_BYTES < files.pinned_bytes <= wanted
            assert head.pinned_bytes == each or layers.pinned_bytes == 0
    assert device.registered == {}


def test_reading_to_pin_gives_way_to_requests_for_other_files_of_the_engine(
    many: ExpertFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = PinningDevice()
    monkeypatch.setattr(module, "LEAST_WAIT_S", 600.0)
    (tmp_path / "head").mkdir()
    with (
        expert_file(tmp_path / "head", layers=1, experts=4) as stored,
        StoredExperts(stored.layout("BF16")) as source,
        ExpertReader(source, lane_count=1, memory=device, native=True) as head,
    ):
        assert head.mapped is not None
        with reading(many, device, pinned_bytes=0) as (reader, arrays):
            assert reader.mapped is not None
            files = PinnedFiles([head.mapped, reader.mapped])
            request = reader.prepare([Record(0, 1, 0, False)], arrays)
            files.pin(head.mapped.byte_count)
            assert not head.mapped.finished.wait(0.05)
            reader.submit(request)
            assert request.done.wait(240)
            assert head.mapped.finished.wait(240)
        assert not reader.mapped.in_use  # closed
        settled(head.mapped, 0)
        settled(head.mapped, head.mapped.byte_count)
