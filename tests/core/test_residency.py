"""Compiled grants leave the books as Python's do, read small records themselves, and leave what fails to the lanes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.errors import CheckpointDamaged, ExpertReadError, PoolError
from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.residency import CompiledGrants, Count, Residency
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.native import NativeLibrary
from slotstream_core.native.binding import library_path
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file
from tests.core.twin_pools import state_of

pytestmark = [
    pytest.mark.skipif(library_path() is None, reason="installed without a compiler"),
    pytest.mark.usefixtures("compiled_code_on"),
]
native = pytest.importorskip("slotstream_core._native")

LAYERS, EXPERTS, SLOTS = 2, 6, 7


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), layers=LAYERS, experts=EXPERTS) as opened:
        yield opened


class Elsewhere(StoredExperts):
    """Says that records lie behind descriptors that cannot be read, except to lanes."""

    @property
    def strides(self) -> npt.NDArray[np.int64]:
        unreadable = super().strides.copy()
        unreadable[:, :, 0] = 10**6
        return unreadable


def left_to_lanes(lease: PoolLease) -> list[tuple[int, int]]:
    """The records, by layer and expert, that a request waits for."""
    return [(record.layer, record.expert) for loading in lease.waits for record in loading.batch.records]


def test_ten_thousand_requests_leave_the_same_books_as_python(stored: ExpertFile) -> None:
    rng = np.random.default_rng(0)
    layout = stored.layout()
    with StoredExperts(layout) as source:
        unread = Elsewhere(layout)
        plain = Residency(record_count=layout.record_count, slot_count=SLOTS)
        other = Residency(record_count=layout.record_count, slot_count=SLOTS)
        compiled = CompiledGrants(native, other, unread, SlotArrays(layout, SLOTS))
        leases: list[tuple[list[int], npt.NDArray[np.int32]]] = []
        pending: dict[int, int] = {}
        refused = joined = 0
        for _ in range(10_000):
            while len(pending) > int(rng.integers(4)):
                key, slot = pending.popitem()
                came = bool(rng.integers(4))
                plain.take_in(key, slot, came=came)
                if came:
                    compiled.take_in([key, slot])
                else:
                    other.take_in(key, slot, came=False)
            while len(leases) > int(rng.integers(3)):
                taken, held = leases.pop(int(rng.integers(len(leases))))
                for slot in taken:
                    plain.let_go(slot)
                compiled.let_go(held)
            layer = int(rng.integers(LAYERS))
            ids = rng.integers(0, EXPERTS, int(rng.integers(1, 6))).astype(np.int32)
            keys = (layer * EXPERTS + ids).tolist()
            distinct = list(dict.fromkeys(keys))
            held = np.zeros(len(ids) + 1, np.int32)
            granted = compiled.grant(layer, ids, held, 0)
            if plain.lacks(distinct):
                refused += 1
                assert granted is None
                continue
            taken = []
            slot_of, missing = plain.grant(distinct, taken)
            assert granted is not None
            slots, absent, coming = granted
            assert list(coming) == [key for key in distinct if key in pending]
            joined += len(coming)
            assert slots.tolist() == [slot_of[key] for key in keys]
            assert absent == [number for key in missing for number in (key, slot_of[key])]
            assert held[1 : 1 + held[0]].tolist() == taken
            leases.append((taken, held))
            for key in missing:
                fate = rng.integers(8)  # 0: its read failed
                if fate > 5:
                    plain.expect(key, slot_of[key])
                    other.expect(key, slot_of[key])
                    pending[key] = slot_of[key]
                elif fate:
                    plain.publish(key, slot_of[key])
                    other.publish(key, slot_of[key])
            assert state_of(plain) == state_of(other)
        assert min(refused, joined) > 100
        assert min(plain.counts[count] for count in (Count.HITS, Count.MISSES, Count.EVICTIONS)) > 1_000
        unread.close()
        assert source.strides.shape == (LAYERS, len(layout.kinds), 3)


def open_pool(reader: ExpertReader) -> SlotPool:
    return SlotPool(reader, slot_count=SLOTS)


@pytest.mark.parametrize("bits", [4, None])
def test_small_records_in_the_page_cache_are_there_at_once_without_a_lane(tmp_path: Path, bits: int | None) -> None:
    with (
        expert_file(tmp_path, layers=LAYERS, experts=EXPERTS, bits=4 if bits else None) as stored,
        StoredExperts(stored.layout()) as source,
        ExpertReader(source, lane_count=2, native=True) as reader,
        ExpertReader(source, lane_count=2, native=False) as slow,
        NativeLibrary.load(threads=2) or pytest.fail("the library is installed") as library,
    ):
        stored.path.read_bytes()
        pool, reference = open_pool(reader), open_pool(slow)
        for layer, ids in ((0, [[5, 1], [1, 2]]), (1, [[0, 3], [4, 3]]), (0, [[2, 0], [0, 1]])):
            experts = np.array(ids, np.int32)
            lease = pool.request(layer, experts, threads=library.handle)
            assert left_to_lanes(lease) == []
            lease.wait()
            wanted = reference.request(layer, experts)
            wanted.wait()
            assert lease.slots.tolist() == wanted.slots.tolist()
            for view, other in zip(pool.slots.views, reference.slots.views, strict=True):
                assert np.array_equal(view[lease.slots.reshape(-1)], other[wanted.slots.reshape(-1)])
            lease.release()
            wanted.release()
            pool.check_integrity()
        counted = ("requests", "hits", "misses", "evictions", "bytes_read")
        assert [getattr(pool.stats, name) for name in counted] == [getattr(reference.stats, name) for name in counted]
        assert pool.stats.wait_s > 0
        assert pool.stats.read_s > 0
        assert pool.uses == reference.uses


def test_a_visit_leaves_the_books_as_a_request_that_was_given_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with (
        expert_file(tmp_path, layers=LAYERS, experts=EXPERTS) as stored,
        StoredExperts(stored.layout()) as source,
        ExpertReader(source, lane_count=2, native=True) as reader,
        NativeLibrary.load(threads=2) or pytest.fail("the library is installed") as library,
    ):
        stored.path.read_bytes()
        visited, asked = open_pool(reader), open_pool(reader)
        for _ in range(200):
            layer, experts = int(rng.integers(LAYERS)), rng.integers(0, EXPERTS, (2, 3)).astype(np.int32)
            visit = visited.visit(layer, experts, threads=library.handle)
            lease = asked.request(layer, experts, threads=library.handle)
            assert visit.late() == []
            visit.wait()
            lease.wait()
            assert visit.slots.tolist() == lease.slots.tolist()
            for view, other in zip(visited.slots.views, asked.slots.views, strict=True):
                assert np.array_equal(view[visit.slots.reshape(-1)], other[lease.slots.reshape(-1)])
            assert visited._residency.idle == SLOTS  # held for nobody, before it is given back
            visit.release()
            lease.release()
            assert state_of(visited._residency) == state_of(asked._residency)
            visited.check_integrity()
        assert min(visited.stats.hits, visited.stats.misses, visited.stats.evictions) > 100
        with pytest.raises(PoolError, match="expert 6 of layer 1 does not exist"):
            visited.visit(1, [6])


def test_what_cannot_be_read_at_once_is_left_to_the_lanes(stored: ExpertFile) -> None:
    with ScriptedSource(stored.layout()) as source, ExpertReader(source, lane_count=2, native=True) as reader:
        pool = open_pool(reader)
        lease = pool.request(1, [4, 0, 4])
        assert left_to_lanes(lease) == [(1, 4), (1, 0)]
        assert pool.resident_count == 0
        lease.wait()
        again = pool.request(1, [0, 4])
        again.wait()
        assert again.slots.tolist() == lease.slots.tolist()[1::-1]
        assert pool.stats.bytes_read == 2 * pool.layout.record_bytes
        lease.release()
        again.release()
        pool.check_integrity()


def test_a_record_that_is_not_finite_fails_its_request_and_leaves_no_slot(tmp_path: Path) -> None:
    with expert_file(tmp_path, layers=1, experts=EXPERTS) as stored:
        layout = stored.layout()
        scales = next(index for index, kind in enumerate(layout.kinds) if kind.part == "scales")
        piece = layout.layers[0][scales]
        writing = os.open(stored.path, os.O_WRONLY)
        os.pwrite(writing, b"\x80\x7f", piece.offset + 3 * layout.kinds[scales].disk_bytes)
        os.close(writing)
        with StoredExperts(layout) as source, ExpertReader(source, lane_count=2, native=True) as reader:
            pool = open_pool(reader)
            lease = pool.request(0, [2, 3])
            assert left_to_lanes(lease) == [(0, 3)]
            with pytest.raises(CheckpointDamaged, match=r"not finite for expert 3"):
                lease.wait()
            pool.check_integrity()
            assert pool.contents().keys() == {(0, 2)}
            again = pool.request(0, [2])
            assert left_to_lanes(again) == []
            again.wait()


def test_a_file_that_ends_too_soon_fails_its_request_with_the_numbers(tmp_path: Path) -> None:
    with expert_file(tmp_path, layers=1, experts=EXPERTS) as stored:
        layout = stored.layout()
        with StoredExperts(layout) as source, ExpertReader(source, lane_count=1, native=True) as reader:
            os.truncate(stored.path, stored.path.stat().st_size - 1)
            pool = open_pool(reader)
            lease = pool.request(0, [0, EXPERTS - 1])
            with pytest.raises(ExpertReadError, match=rf"expert {EXPERTS - 1} of layer 0.*the file ends there"):
                lease.wait()
            pool.check_integrity()
            assert pool.contents().keys() == {(0, 0)}
            assert pool.resident_count + len(pool._residency.free) == SLOTS


def test_a_closed_reader_reads_nothing_whatever_the_page_cache_holds(stored: ExpertFile) -> None:
    with StoredExperts(stored.layout()) as source:
        with ExpertReader(source, lane_count=1, native=True) as reader:
            pool = open_pool(reader)
        with pytest.raises(ExpertReadError, match="closed"):
            pool.request(0, [1])
        pool.check_integrity()
        assert pool.resident_count == 0


@pytest.mark.parametrize("ids", [[1, EXPERTS], [-1], [2**40], np.array([2**32]), np.array([[0, 9]], np.int32)])
def test_ids_that_do_not_exist_are_refused_and_change_nothing(
    stored: ExpertFile, ids: list[int] | npt.NDArray[np.int32]
) -> None:
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=1, native=True) as reader:
        pool = open_pool(reader)
        with pytest.raises(PoolError, match="does not exist"):
            pool.request(0, ids)
        assert pool.stats.requests == pool.resident_count == 0
        pool.check_integrity()


def test_resizing_lets_the_compiled_code_see_the_new_slots(stored: ExpertFile) -> None:
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=1, native=True) as reader:
        pool = SlotPool(reader, slot_count=2)
        pool.request(0, [0, 1]).release()
        for slot_count in (5, 3):
            pool.resize(slot_count)
            lease = pool.request(0, range(slot_count))
            lease.wait()
            assert sorted(lease.slots.tolist()) == list(range(slot_count))
            lease.release()
            pool.check_integrity()
        with pytest.raises(PoolError, match="at least one slot"):
            pool.resize(0)
        pool.check_integrity()


def test_a_pool_grows_while_something_still_refers_to_its_compiled_code(stored: ExpertFile) -> None:
    with StoredExperts(stored.layout()) as source, ExpertReader(source, lane_count=1, native=True) as reader:
        pool = SlotPool(reader, slot_count=2)
        pool.request(0, [0, 1]).release()
        kept = pool._compiled  # as the traceback of a failed request may
        pool.resize(5)
        assert kept is not pool._compiled
        assert set(pool.contents()) == {(0, 0), (0, 1)}
        pool.check_integrity()


def test_the_compiled_code_refuses_arrays_that_do_not_belong_together(stored: ExpertFile) -> None:
    layout = stored.layout()
    with StoredExperts(layout) as source:
        residency = Residency(record_count=layout.record_count, slot_count=3)
        grants = CompiledGrants(native, residency, source, SlotArrays(layout, 3))
        ids = np.zeros(2, np.int32)
        with pytest.raises(ValueError, match="another size"):
            grants.grant(0, ids, np.zeros(2, np.int32), 0)
        held = np.array([1, 2], np.int32)
        with pytest.raises(ValueError, match="not held"):
            grants.let_go(held)
        short = Residency(record_count=layout.record_count + 1, slot_count=3)
        with pytest.raises(ValueError, match="disagree"):
            CompiledGrants(native, short, source, SlotArrays(layout, 3))
        assert residency.key_of.count(UNMAPPED) == 3
