"""Reading ahead: a record a forecast names waits in a reserved slot and is mapped only when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import ExpertReadError, PoolError
from slotstream_core.experts.leases import AheadLimits, PoolLease
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.streamed import StreamedExperts
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file
from tests.core.test_pool import assert_slot_holds, assert_slots_hold
from tests.core.twin_pools import finish_tickets

pytestmark = pytest.mark.usefixtures("lanes")

NOTHING = np.empty(0, np.int32)
LIMITS = AheadLimits(reserved=4, in_flight=4, spare=2)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), layers=3) as opened:
        yield opened


def open_experts(source: ScriptedSource, *, slots: int = 10) -> StreamedExperts:
    return StreamedExperts(source, slot_count=slots, lane_count=2, ahead_lane_count=1)


def finish_reads(pool: SlotPool) -> None:
    """Wait for everything under way, whoever asked for it."""
    for loading in list(pool._under_way._loadings):
        loading.batch.done.wait()
    finish_tickets(pool)


def use(experts: StreamedExperts, layer: int, ids: list[int]) -> PoolLease:
    lease = experts.request(layer, ids)
    lease.wait()
    return lease


def test_a_record_read_ahead_is_not_resident_until_somebody_asks(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        assert experts.pool.read_ahead(1, [2, 5], LIMITS) == 2
        finish_reads(experts.pool)
        assert experts.pool.contents() == {}
        experts.pool.check_integrity()
        reads = source.read_count
        lease = use(experts, 1, [5])
        assert source.read_count == reads
        assert_slots_hold(stored, experts.pool, 1, [5], lease)
        assert (experts.stats.hits, experts.stats.misses, experts.stats.ahead_used) == (1, 0, 1)
        lease.release()
        experts.pool.check_integrity()
        assert experts.pool.contents().keys() == {(1, 5)}
        assert experts.pool.ticket_count == 1


def test_a_record_under_way_is_joined_and_waited_for(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        source.open_gate.clear()
        experts.pool.read_ahead(1, [3], LIMITS)
        source.entered.acquire()
        lease = experts.request(1, [3, 4])
        source.open_gate.set()
        lease.wait()
        assert_slots_hold(stored, experts.pool, 1, [3, 4], lease)
        assert (experts.stats.ahead_joined, experts.stats.misses) == (1, 1)
        assert experts.stats.bytes_read == 2 * source.layout.record_bytes
        assert experts.stats.wasted_bytes == 0
        lease.release()
        experts.pool.check_integrity()


def test_a_record_no_lane_began_is_taken_back_and_read_on_demand(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        source.open_gate.clear()
        blocking = experts.request(0, [0])  # shuts the lane that reads ahead out
        experts.pool.read_ahead(1, [3], LIMITS)
        lease = experts.request(1, [3])
        source.open_gate.set()
        blocking.wait()
        lease.wait()
        assert_slots_hold(stored, experts.pool, 1, [3], lease)
        assert (experts.stats.ahead_retracted, experts.stats.misses, experts.stats.ahead_bytes) == (1, 2, 0)
        blocking.release()
        lease.release()
        experts.pool.check_integrity()


def test_a_failed_read_ahead_is_read_again_on_demand(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        source.failing.add((1, 3))
        experts.pool.read_ahead(1, [3], LIMITS)
        finish_reads(experts.pool)
        source.failing.clear()
        lease = use(experts, 1, [3])
        assert_slots_hold(stored, experts.pool, 1, [3], lease)
        assert (experts.stats.failed_records, experts.stats.misses, experts.stats.ahead_used) == (1, 1, 0)
        lease.release()
        experts.pool.check_integrity()


def test_a_joined_read_that_fails_fails_the_request_that_joined(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        source.open_gate.clear()
        source.failing.add((1, 3))
        experts.pool.read_ahead(1, [3], LIMITS)
        source.entered.acquire()
        lease = experts.request(1, [3])
        source.open_gate.set()
        with pytest.raises(ExpertReadError, match="expert 3 of layer 1"):
            lease.wait()
        experts.pool.check_integrity()
        assert experts.pool.contents() == {}


def test_what_nobody_asked_for_is_counted_as_waste_and_its_slots_return(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        experts.pool.read_ahead(1, [0, 1, 2], LIMITS)
        finish_reads(experts.pool)
        experts.pool.requested(0, NOTHING, ())
        assert experts.pool.ticket_count == 3  # of a layer still to come
        use(experts, 1, [1]).release()
        experts.pool.requested(1, NOTHING, ())
        assert experts.pool.ticket_count == 0
        assert experts.stats.ahead_wasted == 2
        assert experts.stats.wasted_bytes == 2 * source.layout.record_bytes
        assert experts.stats.ahead_bytes == 3 * source.layout.record_bytes
        experts.pool.check_integrity()
        assert experts.pool.contents().keys() == {(1, 1)}


def test_reading_ahead_leaves_the_spare_slots_and_never_a_held_one(stored: ExpertFile) -> None:
    with open_experts(ScriptedSource(stored.layout()), slots=6) as experts:
        held = use(experts, 0, [0, 1])
        assert experts.pool.read_ahead(1, range(6), LIMITS) == 2  # 6 slots, 2 held, 2 spare
        assert_slots_hold(stored, experts.pool, 0, [0, 1], held)
        limits = AheadLimits(reserved=1, in_flight=4, spare=0)
        assert experts.pool.read_ahead(2, range(6), limits) == 0
        experts.pool.check_integrity()
        held.release()


def test_a_request_gets_its_slots_whatever_is_reserved(stored: ExpertFile) -> None:
    with open_experts(ScriptedSource(stored.layout()), slots=4) as experts:
        experts.pool.read_ahead(1, [0, 1, 2, 3], AheadLimits(reserved=4, in_flight=4, spare=0))
        lease = use(experts, 0, [0, 1, 2, 3])
        assert_slots_hold(stored, experts.pool, 0, [0, 1, 2, 3], lease)
        assert experts.pool.ticket_count == 0
        lease.release()
        experts.pool.check_integrity()


def test_a_resident_named_by_a_forecast_is_kept_over_one_that_is_not(stored: ExpertFile) -> None:
    with open_experts(ScriptedSource(stored.layout()), slots=4) as experts:
        use(experts, 1, [0, 1, 2, 3]).release()
        experts.pool.read_ahead(1, [0, 4, 5, 1], AheadLimits(reserved=4, in_flight=4, spare=0))
        finish_reads(experts.pool)
        assert {(1, 0), (1, 1)} == experts.pool.contents().keys()


def test_a_resize_and_forgetting_drop_every_ticket(stored: ExpertFile) -> None:
    with open_experts(ScriptedSource(stored.layout())) as experts:
        for slots in (12, 6, 0):
            experts.pool.read_ahead(1, [0, 1], LIMITS)
            if slots:
                experts.resize(slots)
            else:
                experts.pool.forget()
            assert experts.pool.ticket_count == 0
            use(experts, 1, [0]).release()
            experts.pool.check_integrity()


def test_reading_ahead_waits_while_a_request_waits(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source) as experts:
        source.open_gate.clear()
        demand = experts.request(0, [0])
        source.entered.acquire()
        reads = source.read_count
        experts.pool.read_ahead(1, [1], LIMITS)
        assert not source.entered.acquire(timeout=0.02)
        assert source.read_count == reads
        source.open_gate.set()
        demand.wait()
        finish_reads(experts.pool)
        assert source.read_count > reads
        demand.release()


def test_layers_and_experts_out_of_range_are_refused(stored: ExpertFile) -> None:
    with open_experts(ScriptedSource(stored.layout())) as experts:
        with pytest.raises(PoolError, match="layer"):
            experts.pool.read_ahead(1, [6], LIMITS)
        experts.pool.check_integrity()


Step = tuple[str, int, tuple[int, ...]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ahead", "request", "release", "expire", "drop", "hold back", "let go", "fail", "heal", "finish"]
        ),
        st.integers(0, 2),
        st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS)
def test_any_order_of_reading_ahead_and_asking_keeps_the_books_and_the_bytes(
    stored: ExpertFile, steps: list[Step]
) -> None:
    source = ScriptedSource(stored.layout())
    with open_experts(source, slots=9) as experts:
        held: list[tuple[int, tuple[int, ...], PoolLease]] = []
        for action, layer, ids in steps:
            match action:
                case "ahead":
                    experts.pool.read_ahead(layer, ids, AheadLimits(reserved=4, in_flight=3, spare=1))
                case "request":
                    while len(held) > 1:
                        held.pop(0)[2].release()
                    if experts.pool._residency.idle < 4 or any(
                        loading.batch.cancelled for loading in experts.pool._under_way._loadings
                    ):
                        source.open_gate.set()  # it may wait for abandoned reads to end
                    held.append((layer, ids, experts.request(layer, ids)))
                case "release" if held:
                    held.pop()[2].release()
                case "expire":
                    experts.pool.requested(layer, NOTHING, ())
                case "drop":
                    experts.pool.drop_tickets()
                case "hold back":
                    source.open_gate.clear()
                case "let go":
                    source.open_gate.set()
                case "fail":
                    source.failing |= {(layer, expert) for expert in ids}
                case "heal":
                    source.failing.clear()
                case "finish" if source.open_gate.is_set():
                    finish_reads(experts.pool)
                case _:
                    pass
            experts.pool.check_integrity()
        source.open_gate.set()
        for layer, ids, lease in held:
            try:
                lease.wait()
            except ExpertReadError:
                continue
            assert_slots_hold(stored, experts.pool, layer, list(ids), lease)
            lease.release()
        experts.pool.drop_tickets()
        finish_reads(experts.pool)
        for (layer, expert), slot in experts.pool.contents().items():
            assert_slot_holds(stored, experts.pool, layer, expert, slot)
        experts.pool.check_integrity()
        stats = experts.stats
        ended = stats.ahead_used + stats.ahead_joined + stats.ahead_retracted + stats.ahead_wasted
        assert ended <= stats.ahead_records  # the rest failed and was read on demand
        assert stats.wasted_bytes <= stats.ahead_bytes <= stats.bytes_read
