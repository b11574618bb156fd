"""The slot pool: which expert lies in which slot, and who may touch it.

One thread (the one that owns MLX) calls everything here; reader lanes only fill the bytes of slots that are held for
them. A slot is in one of six states:

    free      unmapped, no holds, on the free list
    resident  mapped, 0 or more holds; with 0 holds CLOCK may choose it
    reading   unmapped, held by its read and by the leases that asked for it
    spoiled   unmapped after a failed read, still held by leases that have not let go; then free
    reserved  unmapped, held by a ticket: a record that a forecast named is being read into it, or lies there complete
    lent      unmapped and held by a sweep, which reads records into it and gives it back, or has one adopted

Tickets, and what becomes of them when their records are asked for, are in `slotstream_core.experts.tickets`.

A record is mapped only after all its pieces arrived, and a victim is unmapped before its bytes change. Nothing here
knows the order in which a model asks, so what a slot holds never influences a result, only how long it takes.

Who holds what is kept by `Residency`. Where compiled lanes read, a request is one call of compiled code, which redeems
tickets, holds slots and has read what is missing; what is under way is written down here.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import PoolError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.compiled_requests import CompiledRequests, CompiledRun
from slotstream_core.experts.confidence import Ids, Logits, RankConfidence
from slotstream_core.experts.integrity import UNMAPPED, first_contradiction
from slotstream_core.experts.leases import AheadLimits, Loading, PoolLease
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.residency import CHECKED, COUNTED, WARMED, CompiledGrants, Count, Residency
from slotstream_core.experts.resident import ResidentLease
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.stacks import Lease, Slots
from slotstream_core.experts.stats import ExpertStats, Waited
from slotstream_core.experts.tickets import CompiledTickets, Forecast, Tickets, record_to_read
from slotstream_core.experts.under_way import ReadsUnderWay
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
        self._residency = Residency(record_count=self.layout.record_count, slot_count=slot_count)
        self.slots = SlotArrays(self.layout, slot_count, reader.memory)
        self._under_way = ReadsUnderWay(self._residency)
        self._leases: set[PoolLease] = set()
        self._lent: set[int] = set()
        self._open_books()

    def _open_books(self) -> None:
        """Make what works on the residency and the slots as they are now."""
        lanes, source = self._reader.compiled_lanes, self._reader.source
        self._compiled: CompiledGrants | None = None
        self._requests: CompiledRequests | None = None
        self._tickets: Tickets | CompiledTickets = Tickets(self._residency, self._reader, self.slots)
        if lanes is not None:
            native = importlib.import_module("slotstream_core._native")
            self._compiled = CompiledGrants(native, self._residency, source, self.slots)
            if (places := source.strides) is not None:
                self._tickets = CompiledTickets(native, self._compiled, self._residency, lanes, self.slots, places)
            self._requests = CompiledRequests(
                self._compiled, self._tickets, self._under_way, self._reader, load=self._load, lease=self._lease
            )
        self._under_way.grants = self._compiled

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
        return self._residency.resident_count

    @property
    def ticket_count(self) -> int:
        """Slots reserved for records that a forecast named."""
        return len(self._tickets.slots)

    @property
    def lent_count(self) -> int:
        """Slots that are lent."""
        return len(self._lent)

    @property
    def has_unused(self) -> bool:
        """Whether a slot holds nothing and is held by nobody."""
        return self._residency.counts[Count.FREE] > 0

    @property
    def uses(self) -> tuple[int, ...]:
        """How many requests asked for each record since the pool was made, by layer * experts a layer + expert."""
        return tuple(self._residency.uses)

    @property
    def stats(self) -> ExpertStats:
        """A snapshot of the totals."""
        counts = self._residency.counts
        whole = {name: int(value) for name, value in self._totals.items() if not name.endswith("_s")}
        for count in COUNTED:
            whole[count.name.lower()] += counts[count]
        read_s = self._totals["read_s"] + counts[Count.READ_NS] / 1e9
        return ExpertStats(**whole, read_s=read_s, wait_s=self.waited.wait_s)

    @property
    def waited(self) -> Waited:
        """Two of the totals, without a snapshot of all."""
        counts, totals = self._residency.counts, self._totals
        wait_s = totals["wait_s"] + counts[Count.WAIT_NS] / 1e9
        return Waited(wait_s, int(totals["bytes_read"]) + counts[Count.BYTES_READ])

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> PoolLease:
        """Hold a slot for each expert, start reading those that are missing, and return at once.

        Equal ids share one slot. Hits and misses are counted on distinct experts. Small records that the page cache
        holds may be read by the call itself.

        Args:
            layer: The layer.
            experts: Ids; an array's shape becomes that of the lease's slots.
            threads: Compiled products' threads, by their address, that may help to read; 0 for none.

        Raises:
            PoolError: An id or layer is out of range, or more slots are needed than others leave.
            ExpertReadError: The reader is closed.
        """
        lease = None if self._requests is None else self._requests.request(layer, experts, threads)
        return lease if isinstance(lease, PoolLease) else self._request_in_steps(layer, experts)

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        """As `request`, for work that ends before the pool is asked for anything else.

        Where compiled code finds or brings every record at once nothing is held, so nothing is to be given back.

        Raises:
            PoolError: As `request`.
            ExpertReadError: As `request`.
        """
        lease = None if self._requests is None else self._requests.request(layer, experts, threads, brief=True)
        if isinstance(lease, np.ndarray):
            return ResidentLease(lease)
        return lease or self._request_in_steps(layer, experts)

    def _request_in_steps(self, layer: int, experts: Sequence[int] | Slots) -> PoolLease:
        ids = np.asarray(experts)
        keys = self._keys(layer, ids.reshape(-1).tolist())
        distinct = list(dict.fromkeys(keys))
        self._settle_finished()
        self._under_way.redeem(self._tickets, self._reader, layer, ids)
        self._under_way.finish_cancelled(distinct)
        if self._residency.lacks(distinct):
            self.drop_tickets()
            self._tickets.finish_dropped()
            self._under_way.finish_abandoned()
            if self._residency.lacks(distinct):
                needed, idle = self._residency.needed(distinct), self._residency.idle
                raise PoolError(
                    f"{len(distinct)} experts of layer {layer} need {needed} more slots, and {idle} of "
                    f"{self.slot_count} are not held by work under way; give the pool more slots or make passes smaller"
                )
        taken: list[int] = []
        try:
            slot_of, missing = self._residency.grant(distinct, taken)
            waits = self._under_way.bringing(distinct)
            if missing:
                waits.append(self._load([number for key in missing for number in (key, slot_of[key])]))
        except BaseException:
            for slot in taken:
                self._residency.let_go(slot)
            raise
        slots = np.array([slot_of[key] for key in keys], np.int32).reshape(ids.shape)
        return self._lease(slots, taken, distinct, waits)

    def open_run(self, top: int) -> CompiledRun | None:
        """Have compiled code make the requests of one row, layer by layer; None where only Python can.

        Args:
            top: Experts of each request.
        """
        return None if self._requests is None or self._reader.closed else self._requests.open_run(top)

    def _lease(self, slots: Slots, held: Sequence[int] | Slots, keys: Sequence[int], waits: list[Loading]) -> PoolLease:
        lease = PoolLease(self, slots, held, keys, waits)
        self._leases.add(lease)
        return lease

    def _record(self, key: int, slot: int) -> Record:
        return record_to_read(self._residency, self.layout, key, slot)

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
        first = self._keys(layer, [0])[0]
        distinct = list(dict.fromkeys(key - first for key in self._keys(layer, list(experts))))
        self._settle_finished()
        self._reader.refuse_when_closed()
        return self._tickets.read_ahead(layer, distinct, self._asked(layer), limits)

    def foresee(
        self,
        layer: int,
        logits: Logits,
        confidence: RankConfidence,
        *,
        least: float,
        issue_limit: int,
        limits: AheadLimits,
    ) -> tuple[Ids, int]:
        """Read ahead, as `read_ahead` does, the experts at those ranks of a forecast that are believed.

        Args:
            layer: The layer it is for.
            logits: Its forecast router logits, [rows, experts], contiguous.
            confidence: How far this kind of forecast is believed.
            least: How often a rank must have been right.
            issue_limit: Most experts looked at.
            limits: What may be taken.

        Returns:
            The experts by rank, [rows, ranks], to learn from, and how many reads were issued.

        Raises:
            PoolError: The layer is out of range.
            ExpertReadError: The reader is closed.
        """
        self._keys(layer, ())
        self._under_way.settle_finished()
        self._reader.refuse_when_closed()
        return self._tickets.foresee(
            layer, logits, confidence, self._asked(layer), least=least, issue_limit=issue_limit, limits=limits
        )

    def _asked(self, layer: int) -> list[int]:
        """The experts of a layer that are on their way for somebody."""
        first = layer * self.layout.expert_count
        last = first + self.layout.expert_count
        return [key - first for key in self._under_way.keys if first <= key < last]

    def requested(self, layer: int, chosen: npt.NDArray[np.integer], forecasts: Sequence[Forecast]) -> None:
        """Drop the tickets of all layers up to one, whose requests have been made, and learn from what it asked for.

        Args:
            layer: The layer.
            chosen: Its experts, for every row, [rows, top].
            forecasts: What was forecast of it.
        """
        self._tickets.requested(layer, chosen, forecasts)

    def drop_tickets(self) -> None:
        """Give up everything that is read ahead, complete or not. Nothing waits here."""
        self._tickets.drop()

    def hold_layer(self, layer: int) -> PoolLease | None:
        """Hold every expert of a layer if all are resident, counting nothing; else return None.

        Raises:
            PoolError: The layer is out of range.
        """
        first = self._keys(layer, [0])[0]
        self._settle_finished()
        if UNMAPPED in self._residency.slot_of[first : first + self.layout.expert_count]:
            return None
        return self.hold_resident(layer, range(self.layout.expert_count))[1]

    def hold_resident(self, layer: int, experts: Sequence[int]) -> tuple[list[int], PoolLease]:
        """Hold those of some distinct experts that are resident; return them, in the given order, and their lease.

        Nothing is read, nothing is counted, and no reference bit changes.

        Raises:
            PoolError: An id or the layer is out of range.
        """
        keys = self._keys(layer, experts)
        self._settle_finished()
        slot_of = self._residency.slot_of
        found = [key for key in keys if slot_of[key] != UNMAPPED]
        slots = [slot_of[key] for key in found]
        for slot in slots:
            self._residency.hold(slot)
        lease = self._lease(np.array(slots, np.int32), slots, (), [])
        return [key - layer * self.layout.expert_count for key in found], lease

    def missing(self, layer: int) -> list[int]:
        """Return the experts of a layer that are not resident, by id.

        Raises:
            PoolError: The layer is out of range.
        """
        keys = self._keys(layer, range(self.layout.expert_count))
        self._settle_finished()
        return [expert for expert, key in enumerate(keys) if self._residency.slot_of[key] == UNMAPPED]

    def lend(self, count: int) -> list[int]:
        """Hand out up to `count` slots that hold nothing: unused ones first, then what CLOCK gives up.

        The records of the latter are unmapped. Held until `take_back` or `adopt`; fewer come when the others are held.
        """
        lent: list[int] = []
        self.drop_tickets()
        self._settle_finished()
        while len(lent) < count and self._residency.idle:
            slot = self._residency.take_slot()
            self._residency.hold(slot)
            self._lent.add(slot)
            lent.append(slot)
        return lent

    def take_back(self, slots: Iterable[int]) -> None:
        """Return lent slots; their contents are forgotten. No read into them may be under way."""
        for slot in slots:
            self._lent.remove(slot)
            self._residency.let_go(slot)

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
        residency = self._residency
        possible = residency.idle and (residency.counts[Count.FREE] or evicting)
        resident = residency.slot_of[key] != UNMAPPED
        if not possible or resident or residency.coming[key] != UNMAPPED or key in self._tickets.slots:
            return slot
        other = residency.take_slot()
        residency.hold(other)
        self._lent.add(other)
        residency.publish(key, slot)
        if evicting:
            residency.clock.touch(slot)
        self._lent.remove(slot)
        self._residency.let_go(slot)
        return other

    def publish_lent(self, layer: int, expert: int, slot: int) -> None:
        """Publish the complete record in a lent slot, which is lent no longer. It is among the first to go.

        Nothing may have been requested since the slot was lent, so that the record is neither resident nor being read.
        """
        (key,) = self._keys(layer, [expert])
        self._residency.publish(key, slot)
        self._residency.marks[key] |= WARMED
        self._totals["warmed"] += 1
        self._lent.remove(slot)
        self._residency.let_go(slot)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Mark those of some experts that are resident as just used."""
        for key in self._keys(layer, experts):
            if (slot := self._residency.slot_of[key]) != UNMAPPED:
                self._residency.clock.touch(slot)

    def lent_record(self, layer: int, expert: int, slot: int) -> Record:
        """Return what to read to bring an expert into a lent slot, its scales to be checked the first time."""
        return self._record(layer * self.layout.expert_count + expert, slot)

    def found_sound(self, layer: int, experts: Sequence[int]) -> None:
        """Take note that the scales of records read into lent slots are finite, so that nobody looks at them again."""
        for key in self._keys(layer, experts):
            self._residency.marks[key] |= CHECKED

    @property
    def can_fetch(self) -> bool:
        """Whether `fetch_lent` may bring anything."""
        return self._compiled is not None and self._compiled.can_fetch

    def fetch_lent(self, layer: int, experts: Sequence[int], slots: Sequence[int], *, threads: int) -> list[bool]:
        """Read small records that the page cache holds into lent slots, at once; nothing is published.

        Args:
            layer: Of the records.
            experts: Distinct.
            slots: Of each.
            threads: Compiled products' threads, by their address, that help; 0 for none.

        Returns:
            Whether each is complete in its slot, its scales checked. The others are to be read by lanes.

        Raises:
            ExpertReadError: The reader is closed.
        """
        self._reader.refuse_when_closed()
        if self._compiled is None:
            return [False] * len(experts)
        came = self._compiled.fetch(layer, np.array(experts, np.int32), np.array(slots, np.int32), threads)
        return [bool(each) for each in came]

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

    def _load(self, places: list[int]) -> Loading:
        records = [self._record(key, slot) for key, slot in zip(places[::2], places[1::2], strict=True)]
        batch = self._reader.prepare(records, self.slots)
        # Everything is on record before the first byte can move, so an interrupt here leaves nothing unaccounted for.
        loading = self._under_way.note(batch, places)
        for key, slot in zip(places[::2], places[1::2], strict=True):
            self._residency.expect(key, slot)
        try:
            self._reader.submit(batch)
        except BaseException:
            batch.cancel()
            raise
        return loading

    def _settle_finished(self) -> None:
        self._tickets.settle()
        self._under_way.settle_finished()

    def settle_lease(self, lease: PoolLease) -> None:
        """See `LeasingPool.settle_lease`."""
        started = time.perf_counter_ns()
        for loading in lease.waits:
            loading.batch.done.wait()
            self._under_way.settle(loading)
        self._residency.counts[Count.WAIT_NS] += time.perf_counter_ns() - started

    def end_lease(self, lease: PoolLease) -> None:
        """See `LeasingPool.end_lease`."""
        self._leases.discard(lease)
        held = lease.held
        if self._compiled is not None and isinstance(held, np.ndarray):
            self._compiled.let_go(held)
        else:
            for slot in held:
                self._residency.let_go(slot)
        for loading in lease.waits:
            if not loading.settled and all(self._residency.holds[slot] == 1 for slot in loading.slots):
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
        self._tickets.finish_dropped()
        self._under_way.finish()
        if slot_count == self.slot_count:
            return
        self._tickets.end()
        self._compiled = self._requests = self._under_way.grants = None  # the arrays may go
        self._tickets = Tickets(self._residency, self._reader, self.slots)
        if slot_count > self.slot_count:
            self.slots.grow(slot_count)
            self._residency.grow(slot_count)
        else:
            self._residency.start_over(slot_count)
            del self.slots, self._tickets  # the old arrays go before the new ones are made
            drop_buffer_cache()
            self.slots = SlotArrays(self.layout, slot_count, self._reader.memory)
        self._open_books()

    def forget(self) -> None:
        """Unmap every record nobody holds, so that it is read again when asked for."""
        self.drop_tickets()
        self._settle_finished()
        self._residency.forget()

    def check_integrity(self) -> None:
        """Verify that the bookkeeping agrees with itself.

        Raises:
            PoolError: It does not; the message names the first contradiction. This is a defect of the program.
        """
        found = first_contradiction(
            slot_of={key: slot for key, slot in enumerate(self._residency.slot_of) if slot != UNMAPPED},
            key_of=self._residency.key_of,
            holds=self._residency.holds,
            idle=self._residency.idle,
            free=self._residency.free,
            reading_slot={key: slot for key, slot in enumerate(self._residency.coming) if slot != UNMAPPED},
            leased=[slot for lease in self._leases for slot in lease.held_slots],
            being_read=self._under_way.slots + self._tickets.being_read,
            tickets=self._tickets.slots,
            lent=self._lent,
        )
        if found is not None:
            raise PoolError(f"the slot pool contradicts itself: {found}")

    def contents(self) -> dict[tuple[int, int], int]:
        """Return the slot of every resident record by (layer, expert)."""
        return {divmod(key, self.layout.expert_count): slot for key, slot in self._residency.resident().items()}
