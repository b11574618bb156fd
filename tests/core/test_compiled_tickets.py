"""Compiled tickets decide as Python's do: what is named, what is read ahead, and what is learned from the choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.errors import ExpertReadError, PoolError
from slotstream_core.experts.confidence import RankConfidence
from slotstream_core.experts.leases import AheadLimits
from slotstream_core.experts.lookahead import Lookahead
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.tickets import CompiledTickets, Forecast, Tickets
from slotstream_core.native.binding import library_path
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file
from tests.core.twin_pools import Twin, Wandering, both

pytestmark = [
    pytest.mark.skipif(library_path() is None, reason="installed without a compiler"),
    pytest.mark.usefixtures("compiled_code_on"),
]

LAYERS, EXPERTS, SLOTS, RANKS = 3, 12, 14, 6


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), layers=LAYERS, experts=EXPERTS) as opened:
        yield opened


def open_pool(opened: ExitStack, source: ScriptedSource) -> SlotPool:
    reader = opened.enter_context(ExpertReader(source, lane_count=2, ahead_lane_count=1, native=True))
    return SlotPool(reader, slot_count=SLOTS)


class Foreseeing(Twin):
    """With what its forecasts are believed."""

    def __init__(self, opened: ExitStack, source: ScriptedSource) -> None:
        super().__init__(source, open_pool(opened, source))
        self.beliefs = {
            (layer, distance): RankConfidence(ranks=RANKS, top=3) for layer in range(LAYERS) for distance in (0, 1)
        }
        self.forecasts: dict[int, list[Forecast]] = {layer: [] for layer in range(LAYERS)}

    def foresee(self, layer: int, distance: int, logits: npt.NDArray[np.float32], limits: AheadLimits) -> object:
        confidence = self.beliefs[layer, distance]
        ranked, issued = self.pool.foresee(layer, logits, confidence, least=0.4, issue_limit=5, limits=limits)
        self.forecasts[layer].append((confidence, ranked))
        self.finish_tickets()
        return ranked.tolist(), issued

    def request(self, layer: int, ids: npt.NDArray[np.int32]) -> object:
        try:
            lease = self.pool.request(layer, ids)
            self.leases.append(lease)
            self.pool.requested(layer, ids, self.forecasts[layer])
            self.forecasts[layer] = []
            lease.wait()
        except ExpertReadError:
            self.leases.remove(lease)
            return "failed"
        except PoolError:
            return "refused"
        return lease.slots.tolist()

    def books(self) -> tuple[object, ...]:
        shares = {name: belief.shares.tolist() for name, belief in self.beliefs.items()}
        return *super().books(), shares, self.pool._tickets.being_read


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_forecasts_and_requests_leaves_the_books_as_python_does(stored: ExpertFile, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with ExitStack() as opened:
        twins = [Foreseeing(opened, source(stored.layout())) for source in (ScriptedSource, Wandering)]
        assert [type(twin.pool._tickets) for twin in twins] == [CompiledTickets, Tickets]
        seen = set()
        for _ in range(300):
            action, layer = rng.integers(12), int(rng.integers(LAYERS))
            if action < 5:
                logits = rng.integers(-5, 5, (int(rng.integers(1, 4)), EXPERTS)).astype(np.float32)  # with equal ones
                limits = AheadLimits(reserved=int(rng.integers(6)), in_flight=4, spare=int(rng.integers(4)))
                both([twin.foresee(layer, int(action % 2), logits, limits) for twin in twins])
            elif action < 9:
                ids = rng.integers(0, EXPERTS, (int(rng.integers(1, 3)), 3)).astype(np.int32)
                for twin in twins:
                    while len(twin.leases) > 1:
                        twin.leases.pop(0).release()
                outcome = both([twin.request(layer, ids) for twin in twins])
                seen.add(outcome if isinstance(outcome, str) else "granted")
            elif action == 9:
                failing = {(layer, int(expert)) for expert in rng.integers(0, EXPERTS, 5)} if rng.integers(2) else set()
                for twin in twins:
                    twin.source.failing = failing
            elif action == 10:
                for twin in twins:
                    twin.pool.drop_tickets()
            else:
                for twin in twins:
                    twin.release_all()
            both([twin.books() for twin in twins])
        stats = twins[0].pool.stats
        assert {"granted", "failed"} <= seen
        assert min(stats.ahead_records, stats.ahead_used, stats.ahead_wasted, stats.wasted_bytes) > 0
        assert min(stats.failed_records, stats.hits, stats.misses, stats.evictions) > 0


def test_logits_that_are_no_numbers_are_ranked_as_python_ranks_them(stored: ExpertFile) -> None:
    rng = np.random.default_rng(5)
    values = np.array([np.nan, -np.nan, -np.inf, np.inf, -1.0, 0.0, -0.0, 1.0], np.float32)
    limits = AheadLimits(reserved=6, in_flight=6, spare=0)
    with ExitStack() as opened:
        twins = [Foreseeing(opened, source(stored.layout())) for source in (ScriptedSource, Wandering)]
        assert [type(twin.pool._tickets) for twin in twins] == [CompiledTickets, Tickets]
        for _ in range(100):
            logits = rng.choice(values, (2, EXPERTS))
            both([twin.foresee(1, 0, logits, limits) for twin in twins])
            for twin in twins:
                twin.pool.drop_tickets()


def test_the_slots_of_reads_under_way_outlive_a_pool_that_is_gone(stored: ExpertFile) -> None:
    source = ScriptedSource(stored.layout())
    with ExitStack() as opened:
        pool = open_pool(opened, source)
        source.open_gate.clear()
        assert pool.read_ahead(1, [0, 1, 2], AheadLimits(reserved=4, in_flight=4, spare=0)) == 3
        assert source.entered.acquire(timeout=240)
        lanes = pool.reader.compiled_lanes
        assert lanes is not None
        del pool
        assert len(lanes._kept_arrays) == 1
        source.open_gate.set()


def test_a_resized_pool_lets_the_old_slots_go_and_reads_ahead_into_the_new(stored: ExpertFile) -> None:
    with ExitStack() as opened:
        pool = open_pool(opened, ScriptedSource(stored.layout()))
        lanes = pool.reader.compiled_lanes
        assert lanes is not None
        limits = AheadLimits(reserved=4, in_flight=4, spare=0)
        for slot_count in (SLOTS + 3, SLOTS - 3):
            assert pool.read_ahead(1, [0, 1, 2], limits) == 3
            pool.resize(slot_count)
            assert list(lanes._kept_arrays.values()) == [pool.slots]
            assert pool.read_ahead(2, [3], limits) == 1
            pool.drop_tickets()
            pool.check_integrity()


def test_a_forecast_of_a_closed_reader_or_of_no_layer_is_refused(stored: ExpertFile) -> None:
    with ExitStack() as opened:
        pool = open_pool(opened, ScriptedSource(stored.layout()))
        lookahead = Lookahead(pool, top=3, mode="on")
        logits = np.zeros((1, EXPERTS), np.float32)
        with pytest.raises(PoolError, match="layer 3 has no"):
            lookahead.foresee(LAYERS, logits, distance=1)
        pool.reader.close()
        with pytest.raises(ExpertReadError, match="closed"):
            lookahead.foresee(0, logits, distance=1)
        pool.check_integrity()
