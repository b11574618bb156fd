"""Bringing a layer's experts past a pass that needs most of them, in the order of their ids.

A prompt pass of many rows uses nearly every expert of every layer. Taking them through the pool would replace all it
holds, record by record, and keep nothing that the next token needs. A sweep leaves the pool alone: resident experts
are used where they lie, and the missing ones pass through a ring of slots that the pool lends for the time being.
Consecutive ids are read together, a group is computed while the next ones are on their way, and when a layer's last
record is under way the ring goes on with the next layer's, before its routing is known. At the end the slots go back.

Small records that the page cache holds are not worth a thread of their own: the threads that compute bring a group of
them at once, just before they compute it. The first record that is not there ends that for the rest of the sweep.

Only a sweep that ends a prompt changes what the pool holds: of each layer it leaves there the experts that most rows
chose, since the reply is about to use them. Other sweeps merely fill slots that hold nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import PoolError
from slotstream_core.experts.batches import Batch
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.pool import SlotPool

GROUP_RECORDS: Final = 32
"""Experts computed, and read, together."""

GROUP_LIMIT: Final = 512
"""Largest group that may be asked for."""

RING_GROUPS: Final = 4
"""Batches of reads the ring holds: with half of them computed, the other half is under way."""

RING_RECORDS: Final = 256
"""Most slots of a ring: enough to read through a layer's attention."""

RING_SHARE: Final = 6
"""One slot in so many goes to the ring."""

AHEAD_COVERAGE: Final = 0.9
"""Read ahead of the routing when at least this share of a layer's experts was needed last."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """How passes of many rows take their experts.

    Attributes:
        enabled: Whether they go expert by expert; otherwise the pool serves them like any other pass.
        admits: Whether the last one of a prompt leaves the experts that most of its rows chose in the pool.
        group_records: Most experts read and computed together, 1 to 512.
        shares_reads: Whether several passes of a prompt may read each expert once between them.
    """

    enabled: bool = True
    admits: bool = True
    group_records: int = GROUP_RECORDS
    shares_reads: bool = True


SWEEPING: Final = SweepOptions()
"""Sweeps as they are unless something else is asked for."""

Rows = npt.NDArray[np.integer]


def ring_size(slot_count: int, expert_count: int) -> int:
    """Return how many slots of a pool a sweep borrows; 0 when the pool is too small to spare a ring."""
    share = max(slot_count // RING_SHARE, min(slot_count // 2, 3 * RING_GROUPS))
    size = min(share, RING_RECORDS, max(RING_GROUPS, expert_count))
    return size if size >= RING_GROUPS else 0


@dataclass(slots=True, eq=False)
class _Coming:
    """Records of one layer on their way into lent slots."""

    layer: int
    experts: list[int]
    slots: list[int]
    batch: Batch


@dataclass(slots=True, eq=False)
class _Resident:
    """The experts of the present layer that were in the pool, held until their last group was computed.

    `groups` counts those not released, plus one while more may follow.
    """

    experts: list[int]
    lease: PoolLease
    groups: int = 1

    def give_up_group(self) -> None:
        self.groups -= 1
        if not self.groups:
            self.lease.release()


class SweepGroup:
    """Some experts of the layer being swept, in place until `release`.

    Attributes:
        experts: Their ids, ascending.
        slots: int32, the place of each.
    """

    def __init__(self, experts: Sequence[int], slots: Sequence[int], give_up: Callable[[], None]) -> None:
        self.experts = tuple(experts)
        self.slots = np.array(slots, np.int32)
        self._give_up = give_up
        self._released = False

    def release(self) -> None:
        """Let the places be refilled. Only after all work that reads them was evaluated; once is enough."""
        if not self._released:
            self._released = True
            self._give_up()


class ExpertSweep:
    """One sweep over the layers, in order, by the thread that owns the pool. A context manager; leaving it is cheap.

    Args:
        pool: Lends the ring and holds what is resident.
        admits: Whether the experts that most rows chose move into the pool.
        group_records: Most experts of a group.
        coverage: Share of a layer's experts that passes needed lately; 0 when unknown.
        threads: Compiled products' threads, by their address, that help to read; 0 for none.
    """

    def __init__(
        self,
        pool: SlotPool,
        *,
        admits: bool,
        group_records: int = GROUP_RECORDS,
        coverage: float = 0.0,
        threads: int = 0,
    ) -> None:
        self.coverage = coverage
        self._pool = pool
        self._admits = admits
        self._ring: set[int] = set()
        self._vacant: deque[int] = deque()
        self._most = group_records
        self._group = 1
        self._kept = 1
        self._threads = threads
        self._fetches = False
        self._in_time = False  # whether the last fetched group was released before the next was asked for
        self._queued = 0  # the layer of the queue
        self._queue: deque[int] = deque()  # experts not asked for yet
        self._coming: deque[_Coming] = deque()
        self._ahead = 0  # the layer to queue when the queue is empty
        self._admitting: frozenset[int] = frozenset()
        self._resident: _Resident | None = None

    def __enter__(self) -> Self:
        layout = self._pool.layout
        self._vacant.extend(self._pool.lend(ring_size(self._pool.slot_count, layout.expert_count)))
        self._ring = set(self._vacant)
        self._group = max(1, min(self._most, len(self._ring) // RING_GROUPS))
        self._kept = max(1, (self._pool.slot_count - len(self._ring)) // layout.layer_count)
        self._fetches = self._pool.can_fetch
        try:
            self._fill()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def layer(self, layer: int, rows: Rows) -> Iterator[SweepGroup]:
        """Yield the needed experts of one layer in groups: resident ones first, then the others by id.

        Release a group at the latest before asking for the next but one. The iterator must be exhausted before the
        next layer's is begun.

        Args:
            layer: The layer.
            rows: [experts], how many rows chose each.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
        """
        needed = np.flatnonzero(rows).tolist()
        resident = self._begin_layer(layer, rows, needed)
        for start in range(0, len(resident.experts), self._most):
            part = slice(start, start + self._most)
            resident.groups += 1
            yield SweepGroup(resident.experts[part], resident.lease.slots[part].tolist(), resident.give_up_group)
        resident.give_up_group()
        while self._fetches and self._queue:
            fetched = self._fetch(layer)
            if fetched is not None:
                yield fetched
                self._in_time = len(self._vacant) == len(self._ring)
        while self._awaits(layer):
            self._fill()
            if not self._coming:
                raise self._without_slots(layer)
            group = self._arrive(self._coming[0], rows)
            if group is not None:
                yield group

    def _without_slots(self, layer: int) -> PoolError:
        return PoolError(f"the sweep of layer {layer} has no slot to read into; release its groups in time")

    def close(self) -> None:
        """Abandon what is still being read and give the lent slots back. A second call does nothing."""
        self._queue.clear()
        self._ahead = self._pool.layout.layer_count
        for coming in self._coming:
            coming.batch.cancel()
        for coming in self._coming:
            self._settle(coming)
            self._pool.count(swept_in_vain=len(coming.experts) - len(coming.batch.errors))
        self._coming.clear()
        self._let_residents_go()
        self._vacant.clear()
        self._pool.take_back(self._ring)
        self._ring = set()

    def _begin_layer(self, layer: int, rows: Rows, needed: list[int]) -> _Resident:
        """Hold the resident experts, queue the missing ones, and return the former."""
        self._let_residents_go()
        self._queue.clear()
        self._ahead = layer + 1
        self.coverage = len(needed) / self._pool.layout.expert_count
        if self._admits:
            by_rows = np.lexsort((np.arange(len(rows)), -rows))
            self._admitting = frozenset(by_rows[: min(self._kept, len(needed))].tolist())
        coming = {expert for each in self._coming if each.layer == layer for expert in each.experts}
        resident, lease = self._pool.hold_resident(layer, [e for e in needed if e not in coming])
        self._resident = _Resident(experts=resident, lease=lease)
        found = coming.union(resident)
        self._queued = layer
        self._queue.extend(expert for expert in needed if expert not in found)
        self._pool.touch(layer, [expert for expert in resident if expert in self._admitting])
        self._pool.count(sweeps=1, hits=len(resident), misses=len(needed) - len(resident))
        self._discard_other_layers(layer)
        self._fill()
        return self._resident

    def _awaits(self, layer: int) -> bool:
        """Whether records of this layer are still under way or queued; they come before those of the next."""
        first = self._coming[0].layer if self._coming else self._queued if self._queue else None
        return first == layer

    def _discard_other_layers(self, layer: int) -> None:
        """Give up what was read for a layer that is not the one that came."""
        for coming in [each for each in self._coming if each.layer != layer]:
            coming.batch.cancel()
            self._coming.remove(coming)
            self._settle(coming)
            self._pool.count(swept_in_vain=len(coming.experts) - len(coming.batch.errors))
            self._vacant.extend(coming.slots)

    def _fetch(self, layer: int) -> SweepGroup | None:
        """Bring the next queued records at once, as far as the page cache holds them; the others stay queued.

        Half the ring is taken, or all of it but one slot while groups are released in time: if this one is not, the
        next still comes.
        """
        ring = len(self._ring)
        most = max(1, ring - 1 if self._in_time else ring // 2)
        count = min(len(self._vacant), self._most, len(self._queue), most)
        if not count:
            raise self._without_slots(layer)
        experts = [self._queue.popleft() for _ in range(count)]
        slots = [self._vacant.popleft() for _ in range(count)]
        came: list[bool] = []
        try:
            came = self._pool.fetch_lent(layer, experts, slots, threads=self._threads)
        finally:
            self._fetches = bool(came) and all(came)
            absent = [index for index in range(count) if not (came and came[index])]
            self._queue.extendleft(experts[index] for index in reversed(absent))
            self._vacant.extend(slots[index] for index in absent)
        self._pool.count(swept_records=count - len(absent))
        if len(absent) == count:
            return None
        found = [index for index in range(count) if came[index]]
        return self._group_of(layer, [experts[index] for index in found], [slots[index] for index in found])

    def _group_of(self, layer: int, experts: list[int], slots: list[int]) -> SweepGroup:
        """Records of the ring that are in place."""
        return SweepGroup(experts, slots, partial(self._give_up, layer, experts, slots))

    def _fill(self) -> None:
        """Ask for queued records, a group at a time, while slots are vacant; then begin the next layer's."""
        while not self._fetches:
            if not self._queue and not self._queue_ahead():
                return
            layer, count = self._queued, min(self._group, len(self._queue))
            if len(self._vacant) < count:
                return
            experts = [self._queue.popleft() for _ in range(count)]
            slots = [self._vacant.popleft() for _ in range(count)]
            records = [self._pool.lent_record(layer, expert, slot) for expert, slot in zip(experts, slots, strict=True)]
            try:
                batch = self._pool.reader.prepare(records, self._pool.slots)
            except BaseException:
                self._vacant.extend(slots)
                raise
            self._coming.append(_Coming(layer=layer, experts=experts, slots=slots, batch=batch))
            self._pool.reader.submit(batch)

    def _queue_ahead(self) -> bool:
        """Queue the missing experts of the layer to come; say whether there are any."""
        layer, layout = self._ahead, self._pool.layout
        if layer >= layout.layer_count or self.coverage < AHEAD_COVERAGE:
            return False
        self._ahead = layout.layer_count  # once, and again when that layer has begun
        self._queued = layer
        self._queue.extend(self._pool.missing(layer))
        return bool(self._queue)

    def _arrive(self, coming: _Coming, rows: Rows) -> SweepGroup | None:
        experts: list[int] = []
        slots: list[int] = []
        while True:
            self._take_in(coming, rows, experts, slots)
            following = self._coming[0] if self._coming else None
            if following is None or following.layer != coming.layer or not following.batch.done.is_set():
                break
            if len(experts) + len(following.experts) > min(self._most, len(self._ring) // 2):
                break
            coming = following
        return self._group_of(coming.layer, experts, slots) if experts else None

    def _take_in(self, coming: _Coming, rows: Rows, experts: list[int], slots: list[int]) -> None:
        """Add the needed records of the first batch to a group, once they are there."""
        self._settle(coming)
        self._coming.popleft()
        needed = 0
        for index, (expert, slot) in enumerate(zip(coming.experts, coming.slots, strict=True)):
            if not rows[expert]:
                self._vacant.append(slot)
                continue
            if index in coming.batch.errors:
                raise coming.batch.errors[index]
            needed += 1
            experts.append(expert)
            slots.append(slot)
        self._pool.count(swept_in_vain=len(coming.experts) - needed)

    def _settle(self, coming: _Coming) -> None:
        """Wait until no lane touches the slots, and add up what the batch did."""
        started = time.perf_counter()
        batch = coming.batch
        batch.done.wait()
        read = [expert for index, expert in enumerate(coming.experts) if index not in batch.errors]
        self._pool.found_sound(coming.layer, read)
        self._pool.count(
            wait_s=time.perf_counter() - started,
            swept_records=len(read),
            bytes_read=batch.bytes_read,
            read_s=batch.read_s,
            failed_records=0 if batch.cancelled else len(batch.errors),
        )

    def _give_up(self, layer: int, experts: Sequence[int], slots: Sequence[int]) -> None:
        """Reuse the ring's slots of a computed group, or hand them to the pool in exchange for others."""
        if not self._ring:
            return  # the sweep was closed, and the slots with it
        if not (self._admits or self._pool.has_unused):
            self._vacant.extend(slots)
            return
        for expert, slot in zip(experts, slots, strict=True):
            admitted = expert in self._admitting
            if admitted or not self._admits:
                other = self._pool.adopt(layer, expert, slot, evicting=admitted)
                self._pool.count(admitted=admitted and other != slot)
                self._ring.remove(slot)
                self._ring.add(other)
                slot = other
            self._vacant.append(slot)

    def _let_residents_go(self) -> None:
        if self._resident is not None:
            self._resident.lease.release()
            self._resident = None
