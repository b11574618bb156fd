"""Sweeps over expert records: each missing one is read once, the pool keeps what it had, and slots come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import ExpertReadError, PoolError
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.experts.sweeping import RING_GROUPS, ExpertSweep, SweepOptions, ring_size
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file
from tests.core.test_pool import assert_slot_holds

LAYERS, EXPERTS = 3, 20
RECORDS = LAYERS * EXPERTS
Rows = npt.NDArray[np.int64]

pytestmark = pytest.mark.usefixtures("lanes")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), layers=LAYERS, experts=EXPERTS) as opened:
        yield opened


def streamed(stored: ExpertFile, slots: int, options: SweepOptions | None = None) -> StreamedExperts:
    return StreamedExperts(
        ScriptedSource(stored.layout()), slot_count=slots, lane_count=2, sweeping=options or SweepOptions()
    )


def from_files(stored: ExpertFile, slots: int, options: SweepOptions | None = None) -> StreamedExperts:
    """Records that compiled code may read from the page cache itself."""
    return StreamedExperts(
        StoredExperts(stored.layout()), slot_count=slots, lane_count=2, sweeping=options or SweepOptions()
    )


def rows_of(*experts: int) -> Rows:
    rows = np.zeros(EXPERTS, np.int64)
    rows[list(experts)] = 1
    return rows


def opened_sweep(experts: StreamedExperts, *, ends_prompt: bool = False) -> ExpertSweep:
    sweep = experts.open_sweep(ends_prompt=ends_prompt)
    assert sweep is not None
    return sweep


def take(stored: ExpertFile, experts: StreamedExperts, sweep: ExpertSweep, layer: int, rows: Rows) -> list[list[int]]:
    """Sweep one layer, comparing every place with the file; returns the ids of each group."""
    groups = []
    for group in sweep.layer(layer, rows):
        for expert, slot in zip(group.experts, group.slots.tolist(), strict=True):
            assert_slot_holds(stored, experts.pool, layer, expert, slot)
        groups.append(list(group.experts))
        group.release()
        experts.pool.check_integrity()
    return groups


def sweep_all(stored: ExpertFile, experts: StreamedExperts, rows: Sequence[Rows], *, ends_prompt: bool = False) -> None:
    with opened_sweep(experts, ends_prompt=ends_prompt) as sweep:
        for layer, counts in enumerate(rows):
            take(stored, experts, sweep, layer, counts)
    experts.pool.check_integrity()


def warm(experts: StreamedExperts, layer: int, ids: Sequence[int]) -> None:
    lease = experts.request(layer, ids)
    lease.wait()
    lease.release()


@settings(max_examples=40)
@given(
    slots=st.integers(8, RECORDS - 1),
    group=st.integers(1, 8),
    choices=st.lists(st.sets(st.integers(0, EXPERTS - 1), min_size=1), min_size=LAYERS, max_size=LAYERS),
    resident=st.sets(st.integers(0, RECORDS - 1), max_size=12),
    ends_prompt=st.booleans(),
    scripted=st.booleans(),
)
def test_any_routing_gets_every_needed_expert_once_and_reads_only_what_is_missing(
    stored: ExpertFile,
    slots: int,
    group: int,
    choices: list[set[int]],
    resident: set[int],
    ends_prompt: bool,
    scripted: bool,
) -> None:
    options = SweepOptions(group_records=group)
    with streamed(stored, slots, options) if scripted else from_files(stored, slots, options) as experts:
        for key in sorted(resident):
            warm(experts, *((key // EXPERTS), [key % EXPERTS]))
        before = experts.stats
        with opened_sweep(experts, ends_prompt=ends_prompt) as sweep:
            for layer, chosen in enumerate(choices):
                held = {expert for at, expert in experts.pool.contents() if at == layer}
                groups = take(stored, experts, sweep, layer, rows_of(*chosen))
                order = [expert for ids in groups for expert in ids]
                assert sorted(order) == sorted(chosen)
                first = chosen & held
                assert order[: len(first)] == sorted(first)
                assert order[len(first) :] == sorted(chosen - held)
        done = experts.stats.since(before)
        assert done.hits + done.misses == sum(len(chosen) for chosen in choices)
        assert done.swept_records == done.misses + done.swept_in_vain
        assert done.bytes_read == done.swept_records * experts.layout.record_bytes
        experts.pool.check_integrity()


def test_consecutive_ids_are_read_in_one_piece_a_tensor(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=48, lane_count=1) as experts, opened_sweep(experts) as sweep:
        group = list(range(ring_size(48, EXPERTS) // RING_GROUPS))
        assert take(stored, experts, sweep, 0, rows_of(*group)) == [group]
        assert source.read_count == len(experts.layout.kinds)


def test_records_read_ahead_of_the_routing_are_used_by_the_next_layer(stored: ExpertFile) -> None:
    everything = np.ones(EXPERTS, np.int64)
    with streamed(stored, 24) as experts:
        sweep_all(stored, experts, [everything] * LAYERS, ends_prompt=True)
        assert experts.stats.swept_records == RECORDS
        assert experts.stats.swept_in_vain == 0
        with opened_sweep(experts) as sweep:
            take(stored, experts, sweep, 0, everything)
            before = experts.stats
            take(stored, experts, sweep, 1, rows_of(EXPERTS - 1))
            wasted = experts.stats.since(before).swept_in_vain
        assert 0 < wasted <= ring_size(24, EXPERTS)


def test_records_that_the_page_cache_holds_come_at_once_in_groups_of_nearly_the_whole_ring(
    stored: ExpertFile, lanes: str
) -> None:
    stored.path.read_bytes()  # a machine short of memory may have dropped pages since they were written
    with from_files(stored, 48) as experts, opened_sweep(experts) as sweep:
        assert experts.pool.can_fetch == (lanes == "compiled")
        everything, ring = list(range(EXPERTS)), ring_size(48, EXPERTS)
        groups = take(stored, experts, sweep, 0, rows_of(*everything))
        if experts.pool.can_fetch:
            first = ring // 2  # until it is known that groups are released in time
            rest, most = everything[first:], ring - 1
            assert groups == [everything[:first], *(rest[at : at + most] for at in range(0, len(rest), most))]
        assert experts.stats.swept_records == experts.stats.misses == EXPERTS


@pytest.mark.parametrize("late_from", [0, 1, 2, 3])
def test_groups_may_be_released_late_though_those_before_were_not(stored: ExpertFile, late_from: int) -> None:
    everything = list(range(EXPERTS))
    with from_files(stored, 48) as experts, opened_sweep(experts) as sweep:
        take(stored, experts, sweep, 0, rows_of(*everything))
        found: list[int] = []
        with ExitStack() as held:
            for number, group in enumerate(sweep.layer(1, rows_of(*everything))):
                held.close()  # only now the one before
                found += group.experts
                if number < late_from:
                    group.release()
                else:
                    held.callback(group.release)
        assert found == everything
        experts.pool.check_integrity()


def test_a_record_that_the_page_cache_lacks_leaves_the_rest_of_a_sweep_to_lanes(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def cached(pool: SlotPool, layer: int, ids: Sequence[int], slots: Sequence[int], *, threads: int) -> list[bool]:
        asked.append(layer)
        real = read_now(pool, layer, ids, slots, threads=threads)
        return [came and expert != 7 for came, expert in zip(real, ids, strict=True)]

    read_now = SlotPool.fetch_lent
    monkeypatch.setattr(SlotPool, "can_fetch", True)
    monkeypatch.setattr(SlotPool, "fetch_lent", cached)
    with from_files(stored, 24) as experts:
        with opened_sweep(experts) as sweep:
            for layer in range(LAYERS):
                groups = take(stored, experts, sweep, layer, rows_of(*range(EXPERTS)))
                assert sorted(expert for group in groups for expert in group) == list(range(EXPERTS))
        assert set(asked) == {0}
        assert experts.stats.swept_records == RECORDS


def test_a_sparse_layer_reads_nothing_ahead(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts:
        sweep_all(stored, experts, [rows_of(1, 2, 3)] * LAYERS)
        assert experts.stats.swept_records == 3 * LAYERS
        assert experts.stats.swept_in_vain == 0


def test_the_pool_keeps_what_it_held_but_for_the_slots_it_lends(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts:
        for layer in range(LAYERS):
            warm(experts, layer, range(8))
        before = experts.pool.contents()
        assert len(before) == 24
        sweep_all(stored, experts, [np.ones(EXPERTS, np.int64)] * LAYERS)
        after = experts.pool.contents()
        assert after.items() <= before.items()
        assert len(before) - len(after) == ring_size(24, EXPERTS)


def test_slots_that_hold_nothing_are_filled_and_none_is_emptied(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts:
        warm(experts, 2, [19, 18])
        sweep_all(stored, experts, [np.ones(EXPERTS, np.int64)] * LAYERS)
        contents = experts.pool.contents()
        assert len(contents) == 24 - ring_size(24, EXPERTS)
        assert {(2, 19), (2, 18)} <= contents.keys()
        assert experts.stats.evictions == 0


def test_the_end_of_a_prompt_leaves_the_most_chosen_experts_in_the_pool(stored: ExpertFile) -> None:
    slots = 30
    kept = (slots - ring_size(slots, EXPERTS)) // LAYERS
    rows = np.arange(EXPERTS) // 2  # two experts with every count: the lower id goes first
    with streamed(stored, slots) as experts:
        for layer in range(LAYERS):
            warm(experts, layer, range(10))
        sweep_all(stored, experts, [rows] * LAYERS, ends_prompt=True)
        by_rows = sorted(range(EXPERTS), key=lambda expert: (-int(rows[expert]), expert))
        contents = experts.pool.contents()
        for layer in range(LAYERS):
            assert {(layer, expert) for expert in by_rows[:kept]} <= contents.keys()
        assert experts.stats.admitted == kept * LAYERS
        for (layer, expert), slot in contents.items():
            assert_slot_holds(stored, experts.pool, layer, expert, slot)


def test_admission_can_be_switched_off(stored: ExpertFile) -> None:
    with streamed(stored, 24, SweepOptions(admits=False)) as experts:
        sweep_all(stored, experts, [np.ones(EXPERTS, np.int64)] * LAYERS, ends_prompt=True)
        assert experts.stats.admitted == 0


def test_a_failed_read_ends_the_sweep_and_gives_every_slot_back(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=24, lane_count=2) as experts:
        for layer in range(LAYERS):
            warm(experts, layer, range(8))
        before = experts.pool.contents()
        source.failing = {(1, 15)}
        with pytest.raises(ExpertReadError, match="of layer 1 failed"):
            sweep_all(stored, experts, [np.ones(EXPERTS, np.int64)] * LAYERS, ends_prompt=False)
        experts.pool.check_integrity()
        assert experts.pool.contents().items() <= before.items()
        assert not experts.pool.lent_count
        source.failing = set()
        sweep_all(stored, experts, [np.ones(EXPERTS, np.int64)] * LAYERS)


def test_scales_are_looked_at_once_though_a_sweep_keeps_nothing(stored: ExpertFile) -> None:
    with streamed(stored, 12, SweepOptions(admits=False)) as experts:
        assert isinstance(experts.pool.reader.source, ScriptedSource)
        warm(experts, 2, range(12))  # no slot is unused
        experts.pool.reader.source.failing = {(0, 5)}
        with pytest.raises(ExpertReadError), opened_sweep(experts) as sweep:
            take(stored, experts, sweep, 0, rows_of(3, 4, 5))
        records = {expert: experts.pool.lent_record(0, expert, 0) for expert in (3, 4, 5)}
        assert {expert: record.check for expert, record in records.items()} == {3: False, 4: False, 5: True}


def test_a_failed_read_ahead_that_is_not_needed_harms_nobody(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with StreamedExperts(source, slot_count=24, lane_count=2) as experts:
        source.failing = {(1, 0), (1, 1)}
        sweep_all(stored, experts, [np.ones(EXPERTS, np.int64), rows_of(5, 6), rows_of(1)])
        assert experts.stats.failed_records > 0


def test_a_sweep_left_in_the_middle_gives_every_slot_back(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts:
        with opened_sweep(experts) as sweep:
            groups = sweep.layer(0, np.ones(EXPERTS, np.int64))
            left = next(groups)
        left.release()
        experts.pool.check_integrity()
        assert not experts.pool.lent_count
        experts.resize(30)


def test_a_consumer_that_keeps_every_group_is_told_so(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts, opened_sweep(experts) as sweep:
        groups = sweep.layer(0, np.ones(EXPERTS, np.int64))
        with pytest.raises(PoolError, match="release its groups"):
            list(groups)


def test_lent_slots_keep_a_pool_from_changing_size(stored: ExpertFile) -> None:
    with streamed(stored, 24) as experts, opened_sweep(experts), pytest.raises(PoolError, match="lent"):
        experts.resize(30)


@pytest.mark.parametrize("slots", [1, 2, 7, RECORDS])
def test_a_pool_without_room_for_a_ring_or_with_room_for_all_is_not_swept(stored: ExpertFile, slots: int) -> None:
    with streamed(stored, slots) as experts:
        assert experts.open_sweep(ends_prompt=True) is None


def test_rings_stay_within_half_the_pool() -> None:
    for slots in range(1, 5000, 7):
        size = ring_size(slots, 512)
        assert size == 0 or RING_GROUPS <= size <= min(256, slots // 2)
