"""The slot pool: what is resident, what is held, and that a failure costs one request and nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import CheckpointDamaged, ExpertReadError, PoolError
from slotstream_core.experts.eviction import Clock
from slotstream_core.experts.layout import FloatName, PieceDtype
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slots import MLX_DTYPES
from slotstream_core.experts.stacks import Experts
from slotstream_core.experts.streamed import StreamedExperts
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file

pytestmark = pytest.mark.usefixtures("lanes")


def assert_slots_hold(stored: ExpertFile, pool: SlotPool, layer: int, experts: Sequence[int], lease: PoolLease) -> None:
    """Compare the slots of a waited lease, byte by byte, with the file."""
    for expert, slot in zip(experts, lease.slots.tolist(), strict=True):
        assert_slot_holds(stored, pool, layer, expert, slot)


def assert_slot_holds(stored: ExpertFile, pool: SlotPool, layer: int, expert: int, slot: int) -> None:
    for index, kind in enumerate(pool.layout.kinds):
        disk = stored.bytes_of(pool.layout, layer, expert, index)
        wanted = mx.array(np.frombuffer(disk, np.uint8)).view(MLX_DTYPES[kind.disk_dtype])
        wanted = wanted.astype(MLX_DTYPES[kind.slot_dtype])
        held = pool.slots.views[index][slot].tobytes()
        assert held == bytes(memoryview(wanted).cast("B")), (layer, expert, kind.name)  # type: ignore[arg-type]


def test_a_hit_is_not_read_again(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=6, lane_count=2) as experts:
        first = experts.request(0, [1, 4])
        first.wait()
        first.release()
        reads = source.read_count
        second = experts.request(0, [4, 1])
        second.wait()
        assert second.slots.tolist() == first.slots.tolist()[::-1]
        assert source.read_count == reads
        assert_slots_hold(stored, experts.pool, 0, [4, 1], second)
        assert (experts.stats.hits, experts.stats.misses, experts.stats.requests) == (2, 2, 2)
        assert experts.stats.bytes_read == 2 * source.layout.record_bytes


def test_equal_ids_share_a_slot_and_count_once(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=2, lane_count=2) as experts:
        lease = experts.request(1, [3, 3, 2, 3])
        lease.wait()
        assert lease.slots[0] == lease.slots[1] == lease.slots[3] != lease.slots[2]
        assert experts.stats.misses == 2
        lease.release()
        experts.pool.check_integrity()


def test_a_request_beyond_the_free_slots_is_refused_with_the_numbers(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=3, lane_count=2) as experts:
        held = experts.request(0, [0, 1])
        with pytest.raises(PoolError, match=r"2 experts of layer 1 need 2 more slots, and 1 of 3"):
            experts.request(1, [0, 1])
        experts.pool.check_integrity()
        held.wait()
        held.release()
        again = experts.request(1, [0, 1])
        again.wait()
        assert_slots_hold(stored, experts.pool, 1, [0, 1], again)


@pytest.mark.parametrize(("layer", "expert"), [(0, 6), (0, -1), (2, 0), (-1, 0)])
def test_ids_out_of_range_are_refused(stored: ExpertFile, layer: int, expert: int) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=3, lane_count=1) as experts:
        with pytest.raises(PoolError, match="layer"):
            experts.request(layer, [0, expert])
        experts.pool.check_integrity()
        assert experts.pool.resident_count == 0


def test_a_pool_without_slots_is_refused(stored: ExpertFile) -> None:
    with pytest.raises(PoolError, match="at least one slot"):
        StreamedExperts(ScriptedSource(stored.layout()), slot_count=0, lane_count=1)


def test_release_twice_lets_go_once(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=2, lane_count=1) as experts:
        one, other = experts.request(0, [0]), experts.request(0, [0])
        one.wait()
        one.release()
        one.release()
        experts.pool.check_integrity()
        with pytest.raises(PoolError):
            experts.request(1, [0, 1])
        other.wait()
        other.release()
        experts.request(1, [0, 1]).wait()


def test_a_held_slot_is_never_refilled(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=2, lane_count=1) as experts:
        held = experts.request(0, [5])
        held.wait()
        for expert in range(6):
            other = experts.request(1, [expert])
            other.wait()
            assert other.slots[0] != held.slots[0]
            other.release()
        assert_slots_hold(stored, experts.pool, 0, [5], held)


@pytest.mark.parametrize("fault", ["EIO", "short"])
def test_a_failed_read_fails_only_its_request(stored: ExpertFile, fault: str) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=5, lane_count=2) as experts:
        kept = experts.request(0, [0, 1])
        kept.wait()
        (source.failing if fault == "EIO" else source.short).add((1, 3))
        lease = experts.request(1, [1, 3])
        with pytest.raises(ExpertReadError, match=r"expert 3 of layer 1.*wanted .* bytes at offset .*, got 0"):
            lease.wait()
        experts.pool.check_integrity()
        assert experts.pool.contents().keys() == {(0, 0), (0, 1), (1, 1)}  # what arrived stays, what did not is gone
        assert_slot_holds(stored, experts.pool, 1, 1, experts.pool.contents()[1, 1])
        assert_slots_hold(stored, experts.pool, 0, [0, 1], kept)
        with pytest.raises(ExpertReadError):
            lease.wait()
        source.failing.clear()
        source.short.clear()
        again = experts.request(1, [1, 3])
        again.wait()
        assert_slots_hold(stored, experts.pool, 1, [1, 3], again)
        assert experts.stats.failed_records == 1


def test_a_victim_of_a_failed_read_is_free_and_not_stale(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=1, lane_count=1) as experts:
        first = experts.request(0, [0])
        first.wait()
        first.release()
        source.failing.add((0, 1))
        with pytest.raises(ExpertReadError):
            experts.request(0, [1]).wait()
        assert experts.pool.contents() == {}
        reads = source.read_count
        back = experts.request(0, [0])
        back.wait()
        assert source.read_count > reads
        assert_slots_hold(stored, experts.pool, 0, [0], back)


def test_two_requests_for_a_record_under_way_share_one_read(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=4, lane_count=2) as experts:
        source.open_gate.clear()
        one = experts.request(0, [2])
        other = experts.request(0, [2, 3])
        one.release()  # must not cancel what the other waits for
        source.open_gate.set()
        other.wait()
        assert_slots_hold(stored, experts.pool, 0, [2, 3], other)
        assert experts.stats.misses == 2
        experts.pool.check_integrity()


def test_a_joined_read_that_fails_fails_both_requests_and_frees_the_slot(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    source.failing.add((0, 2))
    with StreamedExperts(source, slot_count=2, lane_count=2) as experts:
        source.open_gate.clear()
        one, other = experts.request(0, [2]), experts.request(0, [2])
        source.open_gate.set()
        for lease in (one, other):
            with pytest.raises(ExpertReadError):
                lease.wait()
            experts.pool.check_integrity()
        experts.request(1, [0, 1]).wait()


def test_an_abandoned_request_gives_its_slots_to_the_next(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=2, lane_count=1) as experts:
        source.open_gate.clear()
        lease = experts.request(0, [0, 1])
        source.entered.acquire()  # a lane is inside a read of it
        lease.release()
        experts.pool.check_integrity()
        with pytest.raises(PoolError, match="released before"):
            lease.wait()
        opener = threading.Thread(target=source.open_gate.set)
        opener.start()
        following = experts.request(0, [1, 2])
        following.wait()
        opener.join()
        assert_slots_hold(stored, experts.pool, 0, [1, 2], following)
        experts.pool.check_integrity()


def test_slots_of_an_abandoned_request_come_free_although_another_shares_its_read(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=6, lane_count=2) as experts:
        source.open_gate.clear()
        abandoned = experts.request(0, [0, 1, 2])
        sharing = experts.request(0, [0, 3])
        done = abandoned.waits[0].batch.done
        waiting = done.wait

        def opened() -> bool:
            source.open_gate.set()
            return waiting()

        monkeypatch.setattr(done, "wait", opened)
        abandoned.release()
        following = experts.request(1, [0, 1, 2, 3])
        following.wait()
        sharing.wait()
        assert_slots_hold(stored, experts.pool, 1, [0, 1, 2, 3], following)
        assert_slots_hold(stored, experts.pool, 0, [0, 3], sharing)
        experts.pool.check_integrity()


def test_an_interrupt_while_waiting_leaves_the_pool_consistent(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=4, lane_count=2) as experts:
        source.open_gate.clear()
        lease = experts.request(0, [0, 1, 2])
        done = lease.waits[0].batch.done
        waiting = done.wait

        def interrupted() -> bool:
            signal.raise_signal(signal.SIGINT)
            return waiting()

        monkeypatch.setattr(done, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lease.wait()
        monkeypatch.undo()
        experts.pool.check_integrity()
        lease.release()
        experts.pool.check_integrity()
        source.open_gate.set()
        again = experts.request(0, [0, 1, 2])
        again.wait()
        assert_slots_hold(stored, experts.pool, 0, [0, 1, 2], again)
        again.release()
        experts.pool.check_integrity()


def test_scales_that_are_not_finite_are_refused_by_tensor_name(tmp_path: Path) -> None:
    with expert_file(tmp_path) as damaged:
        layout = damaged.layout()
        place = damaged.places["layers.1.mlp.switch_mlp.up_proj.scales"]
        size = place.byte_count // layout.expert_count
        with damaged.path.open("r+b") as out:
            out.seek(place.offset + 4 * size + 6)
            out.write(b"\xc0\x7f")
        with StreamedExperts(ScriptedSource(layout), slot_count=4, lane_count=2) as experts:
            with pytest.raises(CheckpointDamaged, match=r"layers\.1\.mlp\.switch_mlp\.up_proj\.scales .*expert 4"):
                experts.request(1, [3, 4]).wait()
            experts.pool.check_integrity()
            assert experts.pool.contents().keys() == {(1, 3)}


@pytest.mark.parametrize("slot_count", range(2, 13))
@pytest.mark.parametrize("bits", [4, 8, None])
def test_every_pool_size_puts_the_same_bytes_in_slots(
    tmp_path: Path, slot_count: int, bits: Literal[4, 8] | None
) -> None:
    order = np.random.default_rng(5)
    with expert_file(tmp_path, bits=bits) as stored:
        layout = stored.layout()
        assert len(layout.kinds) == (9 if bits else 3)
        with StreamedExperts(ScriptedSource(layout), slot_count=slot_count, lane_count=3) as experts:
            for _ in range(8):
                layer, wanted = int(order.integers(2)), order.permutation(6)[: min(experts.group_limit, 3)].tolist()
                lease = experts.request(layer, wanted)
                lease.wait()
                assert_slots_hold(stored, experts.pool, layer, wanted, lease)
                lease.release()
                experts.pool.check_integrity()


@pytest.mark.parametrize("float_name", ["F32", "BF16"])
@pytest.mark.parametrize("float_dtype", ["BF16", "F16", "F32"])
def test_slots_hold_every_stored_type_in_the_compute_type(
    tmp_path: Path, float_dtype: PieceDtype, float_name: FloatName
) -> None:
    with (
        expert_file(tmp_path, float_dtype=float_dtype, bits=None) as stored,
        StreamedExperts(ScriptedSource(stored.layout(float_name)), slot_count=2, lane_count=1) as experts,
    ):
        lease = experts.request(1, [5])
        lease.wait()
        assert_slots_hold(stored, experts.pool, 1, [5], lease)


def test_growing_keeps_records_and_shrinking_starts_cold(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=3, lane_count=1) as experts:
        lease = experts.request(0, [1, 2, 3])
        with pytest.raises(PoolError, match="1 requests hold slots"):
            experts.resize(5)
        lease.wait()
        lease.release()
        experts.resize(5)
        experts.pool.check_integrity()
        reads = source.read_count
        again = experts.request(0, [3, 2, 1])
        again.wait()
        assert source.read_count == reads
        assert_slots_hold(stored, experts.pool, 0, [3, 2, 1], again)
        assert experts.arrays(0).gate.weight.shape[0] == 5
        again.release()
        experts.resize(2)
        experts.pool.check_integrity()
        assert experts.pool.resident_count == 0
        assert experts.group_limit == 1
        with pytest.raises(PoolError, match="at least one slot"):
            experts.resize(0)
        last = experts.request(0, [0, 5])
        last.wait()
        assert_slots_hold(stored, experts.pool, 0, [0, 5], last)


def test_a_layer_that_is_in_place_to_stay_needs_no_lease(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=12, lane_count=2) as experts:
        experts.request(0, [3, 1]).wait()
        assert experts.places(0) is None
        experts.load_all()
        for layer in (0, 1):
            places = experts.places(layer)
            assert places is not None
            for expert, slot in enumerate(np.array(places).tolist()):
                assert_slot_holds(stored, experts.pool, layer, expert, slot)
            assert experts.places(layer) is places
        experts.pool.check_integrity()
        assert experts.stats.evictions == 0


def test_places_of_a_whole_layer_end_with_a_resize(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=12, lane_count=2) as experts:
        experts.load_all()
        assert experts.places(1) is not None
        experts.resize(11)
        experts.pool.check_integrity()
        assert experts.places(1) is None
        with pytest.raises(PoolError, match="12 experts do not fit in 11 slots"):
            experts.load_all()


def test_a_layer_of_a_smaller_pool_is_never_in_place_to_stay(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=11, lane_count=2) as experts:
        experts.request(0, range(6)).wait()
        assert experts.places(0) is None


def test_the_group_limit_lets_two_requests_be_held_at_once(stored: ExpertFile) -> None:
    for slot_count in range(2, 13):
        with StreamedExperts(ScriptedSource(stored.layout()), slot_count=slot_count, lane_count=1) as experts:
            limit = experts.group_limit
            leases = [experts.request(layer, range(limit)) for layer in (0, 1)]
            for lease in leases:
                lease.wait()
            assert limit == (6 if slot_count == 12 else min(6, slot_count // 2))


def test_streamed_experts_satisfy_the_seam(stored: ExpertFile) -> None:
    with StreamedExperts(ScriptedSource(stored.layout()), slot_count=2, lane_count=1) as experts:
        seam: Experts = experts
        assert seam.group_limit == 1


def test_the_clock_gives_a_hit_a_second_chance() -> None:
    clock = Clock(4)
    clock.touch(0)
    clock.touch(2)
    assert clock.victim([0, 0, 0, 0]) == 1  # 0 is cleared and skipped
    assert clock.victim([0, 0, 0, 1]) == 0  # 2 is cleared, 3 is held, then 0
    assert clock.victim([1, 1, 1, 1]) is None
    assert clock.victim([0, 0, 0, 0]) == 1
    assert clock.victim([0, 0, 0, 0]) == 2


class Model:
    """A plain dictionary of what must be resident, told of every step."""

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.held: dict[tuple[int, int], int] = {}

    def fits(self, layer: int, experts: Sequence[int]) -> bool:
        return len(self.held.keys() | {(layer, expert) for expert in experts}) <= self.slot_count

    def change(self, layer: int, experts: Sequence[int], step: int) -> None:
        for expert in set(experts):
            key = (layer, expert)
            self.held[key] = self.held.get(key, 0) + step
            if not self.held[key]:
                del self.held[key]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 1), st.lists(st.integers(0, 5), min_size=1, max_size=5)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just([0])),
        st.tuples(st.just("fail"), st.integers(0, 1), st.lists(st.integers(0, 5), min_size=1, max_size=1)),
        st.tuples(st.just("abandon"), st.integers(0, 1), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(slot_count=st.integers(1, 12), steps=STEPS)
def test_any_sequence_of_requests_agrees_with_a_plain_dictionary(
    stored: ExpertFile, slot_count: int, steps: list[tuple[str, int, list[int]]]
) -> None:
    source = ScriptedSource(stored.layout())
    with ExpertReader(source, lane_count=2) as reader:
        pool, model = SlotPool(reader, slot_count=slot_count), Model(slot_count)
        live: list[tuple[int, list[int], PoolLease]] = []
        for action, number, experts in steps:
            if action == "release":
                if live:
                    layer, wanted, lease = live.pop(number % len(live))
                    lease.release()
                    model.change(layer, wanted, -1)
            elif not model.fits(number, experts):
                with pytest.raises(PoolError):
                    pool.request(number, experts)
            else:
                source.failing = {(number, expert) for expert in experts} if action == "fail" else set()
                lease = pool.request(number, experts)
                must_fail = bool(source.failing - pool.contents().keys())
                if action == "abandon":
                    lease.release()
                elif must_fail:
                    with pytest.raises(ExpertReadError):
                        lease.wait()
                else:
                    lease.wait()
                    assert_slots_hold(stored, pool, number, experts, lease)
                    live.append((number, experts, lease))
                    model.change(number, experts, 1)
            pool.check_integrity()
            assert model.held.keys() <= pool.contents().keys()
        for layer, wanted, lease in live:
            assert_slots_hold(stored, pool, layer, wanted, lease)  # nothing touched them since
        for (layer, expert), slot in pool.contents().items():
            assert_slot_holds(stored, pool, layer, expert, slot)
