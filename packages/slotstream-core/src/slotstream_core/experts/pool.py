"""The slot pool: which expert lies in which slot, and who may touch it.

One thread (the one that owns MLX) calls everything here; reader lanes only fill the bytes of slots that are held for
them. A slot is in one of four states:

    free      unmapped, no holds, on the free list
    resident  mapped, 0 or more holds; with 0 holds CLOCK may choose it
    reading   unmapped, held by its read and by the leases that asked for it
    spoiled   unmapped after a failed read, still held by leases that have not let go; then free
    reserved  unmapped, held by a ticket: a record that a forecast named is being read into it, or lies there complete
    lent      unmapped and held by a sweep, which reads records into it and gives it back, or has one adopted

A ticket is redeemed when its record is asked for: complete, it is mapped and nothing moves; under way, the request
joins it; not begun, it is taken back and read as any other. Tickets nobody redeems give their slots back as free ones.

A record is mapped only after all its pieces arrived, and a victim is unmapped before its bytes change. Nothing here
knows the order in which a model asks, so what a slot holds never influences a result, only how long it takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from slotstream_core.errors import PoolError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.eviction import Clock
from slotstream_core.experts.integrity import UNMAPPED, first_contradiction
from slotstream_core.experts.leases import AheadLimits, Loading, PoolLease
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.stats import ExpertStats, Waited
from slotstream_core.memory import drop_buffer_cache


class SlotPool:
    """A fixed number of slots for the experts of all layers.

    Raises (constructor):
        PoolError: Fewer than one slot.
    """

    def __init__(self, reader: ExpertReader, *, slot_count: int) -> None:
        self.layout = reader.source.layout
        self._reader = reader
        self._totals = dict.fromkeys(ExpertStats.__dataclass_fields__, 0.0)
        self._checked: set[int] = set()
        self._uses = [0] * self.layout.record_count
        self._start_empty(slot_count)

    def _start_empty(self, slot_count: int) -> None:
        if slot_count < 1:
            raise PoolError(f"a pool needs at least one slot, not {slot_count}")
        self.slots = SlotArrays(self.layout, slot_count, self._reader.memory)
        self._slot_of: dict[int, int] = {}  # resident records: key -> slot
        self._key_of = [UNMAPPED] * slot_count
        self._reading: dict[int, Loading] = {}  # keys whose record is on its way
        self._reading_slot: dict[int, int] = {}
        self._holds = [0] * slot_count  # leases of the slot, plus one while it is being read
        self._idle = slot_count  # slots without holds
        self._free = list(range(slot_count - 1, -1, -1))  # taken from the end: lowest first
        self._clock = Clock(slot_count)
        self._leases: set[PoolLease] = set()
        self._batches: list[Loading] = []
        self._tickets: dict[int, Loading] = {}  # keys of records read ahead that nobody asked for yet
        self._lent: set[int] = set()
        self._warmed: set[int] = set()  # keys of published records of a warm start that nobody asked for yet

    @property
    def reader(self) -> ExpertReader:
        """The lanes that fill the slots."""
        return self._reader

    @property
    def slot_count(self) -> int:
        """Slots in the pool."""
        return self.slots.slot_count

    @property
    def resident_count(self) -> int:
        """Records that can be used without reading."""
        return len(self._slot_of)

    @property
    def ticket_count(self) -> int:
        """Slots reserved for records that a forecast named."""
        return len(self._tickets)

    @property
    def lent_count(self) -> int:
        """Slots that are lent."""
        return len(self._lent)

    @property
    def uses(self) -> tuple[int, ...]:
        """How many requests asked for each record since the pool was made, by layer * experts a layer + expert."""
        return tuple(self._uses)

    @property
    def stats(self) -> ExpertStats:
        """A snapshot of the totals."""
        whole = {name: int(value) for name, value in self._totals.items() if not name.endswith("_s")}
        return ExpertStats(**whole, read_s=self._totals["read_s"], wait_s=self._totals["wait_s"])

    @property
    def waited(self) -> Waited:
        """Two of the totals, without a snapshot of all."""
        return Waited(self._totals["wait_s"], int(self._totals["bytes_read"]))

    def request(self, layer: int, experts: Sequence[int]) -> PoolLease:
        """Hold a slot for each expert, start reading those that are missing, and return at once.

        Equal ids share one slot. Hits and misses are counted on distinct experts.

        Raises:
            PoolError: An id or layer is out of range, or more slots are needed than others leave.
            ExpertReadError: The reader is closed.
        """
        keys = self._keys(layer, experts)
        distinct = list(dict.fromkeys(keys))
        self._settle_finished()
        self._redeem(distinct)
        self._finish_cancelled(distinct)
        if self._idle < self._needed(distinct):
            self.drop_tickets()
            self._finish_abandoned()
            needed = self._needed(distinct)
            if self._idle < needed:
                raise PoolError(
                    f"{len(distinct)} experts of layer {layer} need {needed} more slots, and {self._idle} of "
                    f"{self.slot_count} are not held by work under way; give the pool more slots or make passes smaller"
                )
        taken: list[int] = []
        try:
            return self._grant(layer, keys, distinct, taken)
        except BaseException:
            for slot in taken:
                self._let_go(slot)
            raise

    def read_ahead(self, layer: int, experts: Iterable[int], limits: AheadLimits) -> int:
        """Reserve slots for experts that a forecast names and start reading them, while the limits allow it.

        Residents among them count as touched, so that the reservations do not evict what is about to be used.

        Args:
            layer: The layer that may ask for them.
            experts: Likeliest first.
            limits: What may be taken.

        Returns:
            How many reads were issued.

        Raises:
            PoolError: An id or layer is out of range.
            ExpertReadError: The reader is closed.
        """
        keys = self._keys(layer, list(experts))
        self._settle_finished()
        missing: list[int] = []
        for key in keys:
            if (slot := self._slot_of.get(key)) is not None:
                self._clock.touch(slot)
            elif key not in self._reading and key not in self._tickets:
                missing.append(key)
        in_flight = sum(loading.ahead for loading in self._batches)
        room = min(limits.reserved - len(self._tickets), limits.in_flight - in_flight, self._idle - limits.spare)
        issued = missing[: max(0, room)]
        for key in issued:
            self._reserve(layer, key)
        return len(issued)

    def _reserve(self, layer: int, key: int) -> None:
        slot = self._take_slot()
        record = Record(layer, key - layer * self.layout.expert_count, slot, key not in self._checked)
        self._hold(slot)  # the ticket's
        try:
            loading = Loading(
                batch=self._reader.prepare([record], self.slots), keys=(key,), from_ticket=True, ahead=True
            )
        except BaseException:
            self._let_go(slot)
            raise
        self._hold(slot)  # the read's
        self._batches.append(loading)
        self._tickets[key] = loading
        self._totals["ahead_records"] += 1
        self._reader.submit_ahead(loading.batch)

    def _redeem(self, keys: Iterable[int]) -> None:
        """Turn the tickets of these records into residents, reads to wait for, or free slots."""
        for key in keys if self._tickets else ():
            loading = self._tickets.pop(key, None)
            if loading is None:
                continue
            batch, slot = loading.batch, loading.slots[0]
            if batch.retract():
                self._totals["ahead_retracted"] += 1
                self._settle(loading)
            elif not batch.done.is_set():
                loading.ahead = False
                self._reading[key] = loading
                self._reading_slot[key] = slot
                self._totals["ahead_joined"] += 1
                self._reader.submit(batch)
            else:
                self._settle(loading)
                if not batch.errors:
                    self._publish(key, slot)
                    self._totals["ahead_used"] += 1
            self._let_go(slot)

    def expire(self, layer: int) -> None:
        """Drop the tickets of all layers up to this one: their requests have been made."""
        last = (layer + 1) * self.layout.expert_count
        self._drop([key for key in self._tickets if key < last])

    def drop_tickets(self) -> None:
        """Give up everything that is read ahead, complete or not. Nothing waits here."""
        self._drop(list(self._tickets))

    def _drop(self, keys: Iterable[int]) -> None:
        for key in keys:
            loading = self._tickets.pop(key)
            loading.wanted = False
            if loading.settled:
                self._totals["wasted_bytes"] += loading.batch.bytes_read
            else:
                loading.batch.cancel()
            self._totals["ahead_wasted"] += 1
            self._let_go(loading.slots[0])

    def hold_layer(self, layer: int) -> PoolLease | None:
        """Hold every expert of a layer if all are resident, counting nothing; else return None.

        Raises:
            PoolError: The layer is out of range.
        """
        keys = self._keys(layer, range(self.layout.expert_count))
        self._settle_finished()
        if not self._slot_of.keys() >= set(keys):
            return None
        slots = [self._slot_of[key] for key in keys]
        for slot in slots:
            self._hold(slot)
        lease = PoolLease(self, np.array(slots, np.int32), tuple(slots), keys, [])
        self._leases.add(lease)
        return lease

    def hold_resident(self, layer: int, experts: Sequence[int]) -> tuple[list[int], PoolLease]:
        """Hold those of some distinct experts that are resident; return them, in the given order, and their lease.

        Nothing is read, nothing is counted, and no reference bit changes.

        Raises:
            PoolError: An id or the layer is out of range.
        """
        keys = self._keys(layer, experts)
        self._settle_finished()
        found = [key for key in keys if key in self._slot_of]
        slots = [self._slot_of[key] for key in found]
        for slot in slots:
            self._hold(slot)
        lease = PoolLease(self, np.array(slots, np.int32), tuple(slots), found, [])
        self._leases.add(lease)
        return [key - layer * self.layout.expert_count for key in found], lease

    def missing(self, layer: int) -> list[int]:
        """Return the experts of a layer that are not resident, by id.

        Raises:
            PoolError: The layer is out of range.
        """
        keys = self._keys(layer, range(self.layout.expert_count))
        return [expert for expert, key in enumerate(keys) if key not in self._slot_of]

    def lend(self, count: int) -> list[int]:
        """Hand out up to `count` slots that hold nothing: unused ones first, then what CLOCK gives up.

        The records of the latter are unmapped. Held until `take_back` or `adopt`; fewer come when the others are held.
        """
        lent: list[int] = []
        self.drop_tickets()
        self._settle_finished()
        while len(lent) < count and self._idle:
            slot = self._take_slot()
            self._hold(slot)
            self._lent.add(slot)
            lent.append(slot)
        return lent

    def take_back(self, slots: Iterable[int]) -> None:
        """Return lent slots; their contents are forgotten. No read into them may be under way."""
        for slot in slots:
            self._lent.remove(slot)
            self._let_go(slot)

    def adopt(self, layer: int, expert: int, slot: int, *, evicting: bool) -> int:
        """Publish the complete record in a lent slot and lend another slot in its place.

        Args:
            layer: Of the record.
            expert: Of the record.
            slot: The lent slot that holds it.
            evicting: Whether CLOCK may give up a record for the new slot, and the adopted one counts as just used;
                otherwise only an unused slot is taken, and the adopted record is among the first to go.

        Returns:
            The slot lent instead; the same one, with nothing published, when the record is resident or being read
            already or no slot can be had.
        """
        (key,) = self._keys(layer, [expert])
        possible = self._idle and (self._free or evicting)
        if not possible or key in self._slot_of or key in self._reading or key in self._tickets:
            return slot
        other = self._take_slot()
        self._hold(other)
        self._lent.add(other)
        self._publish(key, slot)
        if evicting:
            self._clock.touch(slot)
        self._lent.remove(slot)
        self._let_go(slot)
        return other

    def publish_lent(self, layer: int, expert: int, slot: int) -> None:
        """Publish the complete record in a lent slot, which is lent no longer. It is among the first to go.

        Nothing may have been requested since the slot was lent, so that the record is neither resident nor being read.
        """
        (key,) = self._keys(layer, [expert])
        self._publish(key, slot)
        self._warmed.add(key)
        self._totals["warmed"] += 1
        self._lent.remove(slot)
        self._let_go(slot)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Mark those of some experts that are resident as just used."""
        for key in self._keys(layer, experts):
            if key in self._slot_of:
                self._clock.touch(self._slot_of[key])

    def lent_record(self, layer: int, expert: int, slot: int) -> Record:
        """Return what to read to bring an expert into a lent slot, its scales to be checked the first time."""
        return Record(layer, expert, slot, layer * self.layout.expert_count + expert not in self._checked)

    def count(self, **amounts: float) -> None:
        """Add to totals of `ExpertStats` on behalf of a sweep."""
        for name, amount in amounts.items():
            self._totals[name] += amount

    def _keys(self, layer: int, experts: Sequence[int]) -> list[int]:
        count = self.layout.expert_count
        if not 0 <= layer < self.layout.layer_count:
            raise PoolError(f"layer {layer} has no streamed experts; there are {self.layout.layer_count} such layers")
        base = layer * count
        keys: list[int] = []
        for expert in experts:
            number = int(expert)
            if not 0 <= number < count:
                raise PoolError(f"expert {number} of layer {layer} does not exist; ids are 0 to {count - 1}")
            keys.append(base + number)
        return keys

    def _needed(self, keys: Iterable[int]) -> int:
        """Count the idle slots a request would use up: one a miss, and one a hit nobody holds yet."""
        needed = 0
        for key in keys:
            slot = self._slot_of.get(key, self._reading_slot.get(key, UNMAPPED))
            needed += slot == UNMAPPED or not self._holds[slot]
        return needed

    def _grant(self, layer: int, keys: list[int], distinct: list[int], taken: list[int]) -> PoolLease:
        slot_by_key: dict[int, int] = {}
        waits: list[Loading] = []
        missing: list[int] = []
        for key in distinct:  # hold every hit before any victim is chosen
            self._uses[key] += 1
            slot = self._slot_of.get(key, UNMAPPED)
            if slot == UNMAPPED:
                loading = self._reading.get(key)
                if loading is None:
                    missing.append(key)
                    continue
                slot = self._reading_slot[key]
                if loading not in waits:
                    waits.append(loading)
            self._hold(slot)
            taken.append(slot)
            self._clock.touch(slot)
            slot_by_key[key] = slot
        records: list[Record] = []
        for key in missing:
            slot = self._take_slot()
            self._hold(slot)
            taken.append(slot)
            slot_by_key[key] = slot
            expert = key - layer * self.layout.expert_count
            records.append(Record(layer, expert, slot, key not in self._checked))
        if records:
            waits.append(self._load(tuple(missing), records))
        if self._warmed and (used := self._warmed.intersection(distinct)):
            self._warmed -= used
            self._totals["warm_used"] += len(used)
        self._totals["requests"] += 1
        self._totals["hits"] += len(distinct) - len(missing)
        self._totals["misses"] += len(missing)
        lease = PoolLease(self, np.array([slot_by_key[key] for key in keys], np.int32), tuple(taken), distinct, waits)
        self._leases.add(lease)
        return lease

    def _load(self, keys: tuple[int, ...], records: list[Record]) -> Loading:
        batch = self._reader.prepare(records, self.slots)
        loading = Loading(batch=batch, keys=keys)
        # Everything is on record before the first byte can move, so an interrupt here leaves nothing unaccounted for.
        self._batches.append(loading)
        for key, record in zip(keys, records, strict=True):
            self._hold(record.slot)
            self._reading[key] = loading
            self._reading_slot[key] = record.slot
        try:
            self._reader.submit(batch)
        except BaseException:
            batch.cancel()
            raise
        return loading

    def _take_slot(self) -> int:
        """Return an unmapped slot, evicting if none is free. The caller made sure that one exists."""
        if self._free:
            return self._free.pop()
        slot = self._clock.victim(self._holds)
        if slot is None:
            raise PoolError(f"every one of the {self.slot_count} slots is held; release a lease first")
        del self._slot_of[self._key_of[slot]]
        self._warmed.discard(self._key_of[slot])
        self._key_of[slot] = UNMAPPED
        self._totals["evictions"] += 1
        return slot

    def _hold(self, slot: int) -> None:
        if not self._holds[slot]:
            self._idle -= 1
        self._holds[slot] += 1

    def _let_go(self, slot: int) -> None:
        self._holds[slot] -= 1
        if not self._holds[slot]:
            self._idle += 1
            if self._key_of[slot] == UNMAPPED:
                self._clock.forget(slot)
                self._free.append(slot)

    def _settle_finished(self) -> None:
        for loading in [loading for loading in self._batches if loading.batch.done.is_set()]:
            self._settle(loading)

    def _settle(self, loading: Loading) -> None:
        """Publish what a finished batch brought and take back what it did not. A second call does nothing."""
        if loading.settled:
            return
        loading.settled = True
        self._batches.remove(loading)
        batch = loading.batch
        for index, (key, record) in enumerate(zip(loading.keys, batch.records, strict=True)):
            if not loading.ahead:
                del self._reading[key], self._reading_slot[key]
                if index not in batch.errors:
                    self._publish(key, record.slot)
            self._let_go(record.slot)
        self._totals["bytes_read"] += batch.bytes_read
        self._totals["read_s"] += batch.read_s
        if not batch.cancelled or not loading.ahead:
            self._totals["failed_records"] += len(batch.errors)
        if not loading.wanted:
            self._totals["wasted_bytes"] += batch.bytes_read
        if loading.from_ticket:
            self._totals["ahead_bytes"] += batch.bytes_read

    def _publish(self, key: int, slot: int) -> None:
        self._slot_of[key] = slot
        self._key_of[slot] = key
        self._checked.add(key)

    def _finish_abandoned(self) -> None:
        """Wait for reads that only their own lanes still hold; they were cancelled, so this is short."""
        for loading in list(self._batches):
            if all(self._holds[slot] == 1 for slot in loading.slots):
                loading.batch.done.wait()
                self._settle(loading)

    def _finish_cancelled(self, keys: Iterable[int]) -> None:
        """Wait for cancelled reads of these records, so that nobody joins a read that will not complete."""
        for key in keys:
            loading = self._reading.get(key)
            if loading is not None and loading.batch.cancelled:
                loading.batch.done.wait()
                self._settle(loading)

    def settle_lease(self, lease: PoolLease) -> None:
        """See `LeasingPool.settle_lease`."""
        started = time.perf_counter()
        for loading in lease.waits:
            loading.batch.done.wait()
            self._settle(loading)
        self._totals["wait_s"] += time.perf_counter() - started

    def end_lease(self, lease: PoolLease) -> None:
        """See `LeasingPool.end_lease`."""
        self._leases.discard(lease)
        for slot in lease.held:
            self._let_go(slot)
        for loading in lease.waits:
            if not loading.settled and all(self._holds[slot] == 1 for slot in loading.slots):
                loading.batch.cancel()
        lease.waits = []

    def resize(self, slot_count: int) -> None:
        """Change the number of slots between requests. Growing keeps every record; shrinking starts cold.

        `slots.arrays` are new objects afterwards. Growing needs, on top of the new arrays, the largest old one.

        Raises:
            PoolError: A lease is not released, or fewer than one slot is asked for.
        """
        if self._leases or self._lent:
            raise PoolError(
                f"the pool cannot change size while {len(self._leases)} requests hold slots and {len(self._lent)} "
                "slots are lent"
            )
        self.drop_tickets()
        for loading in list(self._batches):
            loading.batch.done.wait()
            self._settle(loading)
        old_count = self.slot_count
        if slot_count > old_count:
            self.slots.grow(slot_count)
            added = slot_count - old_count
            self._key_of += [UNMAPPED] * added
            self._holds += [0] * added
            self._idle += added
            self._free[:0] = range(slot_count - 1, old_count - 1, -1)
            self._clock.grow(slot_count)
        elif slot_count < old_count:
            if slot_count >= 1:
                del self.slots  # the old arrays go before the new ones are made
                drop_buffer_cache()
            self._start_empty(slot_count)

    def forget(self) -> None:
        """Unmap every record nobody holds, so that it is read again when asked for."""
        self.drop_tickets()
        self._settle_finished()
        for slot, key in enumerate(self._key_of):
            if key != UNMAPPED and not self._holds[slot]:
                del self._slot_of[key]
                self._warmed.discard(key)
                self._key_of[slot] = UNMAPPED
                self._clock.forget(slot)
                self._free.append(slot)

    def check_integrity(self) -> None:
        """Verify that the bookkeeping agrees with itself.

        Raises:
            PoolError: It does not; the message names the first contradiction. This is a defect of the program.
        """
        found = first_contradiction(
            slot_of=self._slot_of,
            key_of=self._key_of,
            holds=self._holds,
            idle=self._idle,
            free=self._free,
            reading_slot=self._reading_slot,
            leased=[slot for lease in self._leases for slot in lease.held],
            being_read=[slot for loading in self._batches for slot in loading.slots],
            tickets={key: loading.slots[0] for key, loading in self._tickets.items()},
            lent=self._lent,
        )
        if found is not None:
            raise PoolError(f"the slot pool contradicts itself: {found}")

    def contents(self) -> dict[tuple[int, int], int]:
        """Return the slot of every resident record by (layer, expert)."""
        return {divmod(key, self.layout.expert_count): slot for key, slot in self._slot_of.items()}
