"""A request in one compiled call leaves the books as Python's does, whatever is under way, joined or failing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from slotstream_core.errors import ExpertReadError, NativeError, PoolError
from slotstream_core.experts.leases import AheadLimits, PoolLease
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.tickets import CompiledTickets, Tickets
from slotstream_core.native.binding import library_path
from tests.core.expert_files import ExpertFile, ScriptedSource, expert_file
from tests.core.twin_pools import Twin, Wandering, both

pytestmark = [
    pytest.mark.skipif(library_path() is None, reason="installed without a compiler"),
    pytest.mark.usefixtures("compiled_code_on"),
]

LAYERS, EXPERTS, SLOTS, MOST = 2, 16, 14, 4


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    with expert_file(tmp_path_factory.mktemp("experts"), layers=LAYERS, experts=EXPERTS) as opened:
        yield opened


class Asking(Twin):
    """One lane reads what is asked for, another ahead."""

    def __init__(self, opened: ExitStack, source: ScriptedSource, *, native: bool) -> None:
        reader = opened.enter_context(ExpertReader(source, lane_count=1, ahead_lane_count=1, native=native))
        super().__init__(source, SlotPool(reader, slot_count=SLOTS))

    def hold_reads_back(self) -> None:
        """From now on a lane stops at its first read."""
        while self.source.entered.acquire(blocking=False):
            pass
        self.source.open_gate.clear()

    def read_ahead(self, layer: int, experts: list[int]) -> int:
        """Name experts; when this returns the lane is at the first of them."""
        issued = self.pool.read_ahead(layer, experts, AheadLimits(reserved=3, in_flight=3, spare=0))
        assert not issued or self.source.entered.acquire(timeout=60)
        return issued

    def request(self, layer: int, experts: list[int]) -> object:
        """Ask, and let it be read; when this returns the lane is at the first read that nobody made yet."""
        under_way = [loading for loading in self.pool._under_way._loadings if not loading.from_ticket]
        lease = self.pool.request(layer, np.array(experts, np.int32))
        self.leases.append(lease)
        if not under_way and any(not loading.from_ticket for loading in lease.waits):
            assert self.source.entered.acquire(timeout=60)
        return lease.slots.tolist(), [(loading.places, loading.from_ticket) for loading in lease.waits]

    def finish(self) -> list[str]:
        """Let everything be read; say what became of each request that was not given up."""
        self.source.open_gate.set()
        outcomes = []
        for lease in self.leases:
            try:
                lease.wait()
            except ExpertReadError as error:
                outcomes.append(str(error))
            else:
                outcomes.append("came")
                self._check_bytes(lease)
        self.pool._under_way.finish()
        self.finish_tickets()
        return outcomes

    def _check_bytes(self, lease: PoolLease) -> None:
        residency, layout = self.pool._residency, self.pool.layout
        for slot in lease.held_slots:
            layer, expert = divmod(residency.key_of[slot], layout.expert_count)
            for kind, (fd, offset) in enumerate(self.source.locate(layer, expert)):
                if not layout.kinds[kind].converts:
                    wanted = bytearray(layout.kinds[kind].disk_bytes)
                    ScriptedSource.__base__.read(self.source, fd, [memoryview(wanted)], offset)  # type: ignore[union-attr]
                    assert self.pool.slots.views[kind][slot].tobytes() == wanted


def some(rng: np.random.Generator, most: int) -> list[int]:
    """Experts, perhaps one of them twice."""
    return [int(expert) for expert in rng.integers(0, EXPERTS, int(rng.integers(1, most + 1)))]


@pytest.mark.parametrize("seed", range(3))
def test_requests_of_any_kind_leave_the_same_books(stored: ExpertFile, seed: int) -> None:
    rng = np.random.default_rng(seed)
    seen = set()
    with ExitStack() as opened:
        twins = [
            Asking(opened, ScriptedSource(stored.layout()), native=True),
            Asking(opened, Wandering(stored.layout()), native=True),
            Asking(opened, ScriptedSource(stored.layout()), native=False),
        ]
        assert [type(twin.pool._tickets) for twin in twins] == [CompiledTickets, Tickets, Tickets]

        def all_of(action: Any) -> Any:
            results = [action(twin) for twin in twins]
            both(results[1:])
            return both(results[:2])

        for _ in range(60):
            failing = (
                {(int(rng.integers(LAYERS)), expert) for expert in some(rng, 2)} if rng.integers(3) == 0 else set()
            )
            layer = int(rng.integers(LAYERS))
            named = some(rng, 3)
            asked = [some(rng, MOST), [*named[1:], *some(rng, 2)]]
            drops, gives_up = rng.integers(4) == 0, int(rng.integers(4))
            for twin in twins:
                twin.source.failing = failing
                twin.hold_reads_back()
            if rng.integers(2):
                all_of(lambda twin: twin.read_ahead(layer, named))  # noqa: B023 - called at once
            all_of(Asking.books)
            for experts in asked:
                all_of(lambda twin: twin.request(layer, experts))  # noqa: B023 - called at once
                all_of(Asking.books)
            if drops:
                all_of(lambda twin: twin.pool.drop_tickets())
            if gives_up < 2:
                all_of(lambda twin: twin.leases.pop(gives_up).release())  # noqa: B023 - called at once
                seen.add("given up")
            all_of(lambda twin: [loading.batch.cancelled for loading in twin.pool._under_way._loadings])
            seen.update(all_of(Asking.finish))
            all_of(Asking.books)
            all_of(Asking.release_all)
            all_of(Asking.books)
        stats = twins[0].pool.stats
        assert {"came", "given up"} < seen  # and errors
        assert min(stats.ahead_joined, stats.ahead_retracted, stats.ahead_wasted, stats.wasted_bytes) > 0
        assert min(stats.failed_records, stats.hits, stats.misses, stats.evictions) > 0


def test_a_request_that_joins_a_read_waits_for_it_and_fails_with_it(stored: ExpertFile) -> None:
    with ExitStack() as opened:
        twin = Asking(opened, ScriptedSource(stored.layout()), native=True)
        twin.source.failing = {(1, 2)}
        twin.hold_reads_back()
        first, second = twin.request(1, [2, 6]), twin.request(1, [6, 2, 9])
        assert first != second
        assert [len(lease.waits) for lease in twin.leases] == [1, 2]
        assert [lease.late() != [] for lease in twin.leases] == [True, True]
        outcomes = twin.finish()
        assert all("expert 2 of layer 1" in outcome for outcome in outcomes)
        assert twin.pool.contents().keys() == {(1, 6), (1, 9)}
        twin.pool.check_integrity()


def test_a_visit_of_records_on_their_way_is_a_request_that_holds_them(stored: ExpertFile) -> None:
    with ExitStack() as opened:
        twin = Asking(opened, ScriptedSource(stored.layout()), native=True)
        twin.hold_reads_back()
        missing = twin.pool.visit(1, np.array([2, 6], np.int32))
        joining = twin.pool.visit(1, np.array([6], np.int32))
        assert [len(missing.late()), len(joining.late())] == [2, 2]  # of one batch
        assert twin.pool._residency.idle == SLOTS - 2
        twin.source.open_gate.set()
        missing.wait()
        joining.wait()
        missing.release()
        joining.release()
        assert twin.pool._residency.idle == SLOTS
        assert twin.pool.visit(1, np.array([2, 6], np.int32)).late() == []
        assert twin.pool._residency.idle == SLOTS
        twin.pool.check_integrity()


def test_a_request_that_was_interrupted_leaves_no_record_that_seems_to_come(
    stored: ExpertFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with ExitStack() as opened:
        pool = Asking(opened, ScriptedSource(stored.layout()), native=True).pool
        with monkeypatch.context() as patch:
            patch.setattr(pool._under_way, "note", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.request(0, [1, 2])
        assert pool._residency.idle == SLOTS - 2
        with pytest.raises(PoolError, match="interrupted request left record 2 unread"):
            pool.request(0, [2])
        pool.request(0, [3]).wait()


def test_reads_that_cannot_be_planned_leave_nothing_held(stored: ExpertFile) -> None:
    class Misplaced(ScriptedSource):
        """Says that records lie where none can."""

        @property
        def strides(self) -> Any:
            places = super().strides.copy()
            places[:, :, 1] = -1
            places[:, :, 2] = 0
            return places

        def locate(self, layer: int, expert: int) -> Any:
            return [(fd, -1) for fd, _ in super().locate(layer, expert)]

    with ExitStack() as opened:
        source = Misplaced(stored.layout())
        twin = Asking(opened, source, native=True)
        with pytest.raises(NativeError, match="planning reads"):
            twin.pool.request(0, [1, 2])
        twin.pool.check_integrity()
        assert twin.pool._residency.idle == len(twin.pool._residency.free) == SLOTS
        assert twin.pool.resident_count == 0


def test_a_request_whose_reads_only_python_can_plan_is_counted_once(stored: ExpertFile) -> None:
    class Misplaced(ScriptedSource):
        """Compiled code alone is told that records lie where none can."""

        @property
        def strides(self) -> Any:
            places = super().strides.copy()
            places[:, :, 1] = -(2**40)
            return places

    with ExitStack() as opened:
        twins = [
            Asking(opened, source(stored.layout()), native=native)
            for source, native in ((Misplaced, True), (ScriptedSource, False))
        ]
        assert isinstance(twins[0].pool._tickets, CompiledTickets)
        for experts in ([1, 2, 1], [2, 3]):
            both([twin.request(0, experts) for twin in twins])
            assert both([twin.finish() for twin in twins])[-1] == "came"
            both([twin.books() for twin in twins])
        assert twins[0].pool.stats.requests == 2
        assert twins[0].pool._residency.uses[2] == 2
