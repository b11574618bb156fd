"""Records read ahead: a forecast reserves slots for them, and a request redeems what it finds there.

A ticket is a record that a forecast named and nobody asked for yet. Its slot is held by the ticket, and by the read as
long as a lane may write there. Redeemed, a complete record is mapped and nothing moves; one under way is handed to the
request, which joins it; one not begun, or failed, gives its slot back and is read as any other. A dropped ticket gives
up its hold; its read is cancelled, and lets go when it ends.

`Tickets` is the reference. `CompiledTickets` does in one call (csrc/tickets.h) what a forecast needs and what a request
teaches, and leaves the same books; it is used where compiled lanes read and the source says where records always lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.compiled import WAIT_MS, CompiledBatch, CompiledLanes
from slotstream_core.experts.confidence import RATE, Ids, Logits, RankConfidence, rank_experts
from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.leases import AheadLimits
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.residency import CHECKED, CompiledGrants, Count, Granted, Residency, granted_of
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.stacks import Slots

TOLD: Final = 4
"""Numbers that a compiled request tells before those of the records it joined."""

THERE: Final = 2
"""What a compiled request returns where every record is there and nothing is held."""

FORECASTS_A_CALL: Final = 8
"""Most forecasts that one call of the compiled code learns from."""

Forecast = tuple[RankConfidence, Ids]
"""What one kind of forecast is believed, and what it ranked this time, [rows, ranks]."""


class Joined(NamedTuple):
    """A record on its way that was asked for; the read's hold of its slot goes to whoever asked."""

    key: int
    slot: int
    batch: Batch


class Asked(NamedTuple):
    """What a request by `CompiledTickets.ask` came to.

    Attributes:
        joined: Records on their way that were tickets; what is asked for of them is waited for from now on.
        granted: None when the request was refused; what it lists as absent is being read, by `batch`.
        batch: None when nothing had to be read, or when the reads of what is absent could not be planned.
        held: Whether slots are held for it.
    """

    joined: list[Joined]
    granted: Granted | None
    batch: CompiledBatch | None
    held: bool = True


@dataclass(slots=True, eq=False)
class _Ticket:
    key: int
    slot: int
    batch: Batch
    settled: bool = False
    dropped: bool = False


class Tickets:
    """The tickets of one pool. Used by the pool's thread.

    Args:
        residency: The pool's books; totals are counted there.
        reader: Reads.
        arrays: The slots, as they are until the pool changes its size.
    """

    def __init__(self, residency: Residency, reader: ExpertReader, arrays: SlotArrays) -> None:
        self._residency = residency
        self._reader = reader
        self._arrays = arrays
        self._count = arrays.layout.expert_count
        self._all: list[_Ticket] = []  # and dropped ones whose read did not end, oldest first
        self._named: dict[int, _Ticket] = {}

    @property
    def slots(self) -> dict[int, int]:
        """The slot of every ticket's record, by key."""
        return {key: ticket.slot for key, ticket in self._named.items()}

    @property
    def being_read(self) -> list[int]:
        """Slots that reads hold."""
        return [ticket.slot for ticket in self._all if not ticket.settled]

    def settle(self) -> None:
        """Take back the slots of reads that ended."""
        for ticket in self._all:
            if not ticket.settled and ticket.batch.done.is_set():
                self._settle(ticket)
        self._tidy()

    def _settle(self, ticket: _Ticket) -> None:
        ticket.settled = True
        counts, batch = self._residency.counts, ticket.batch
        counts[Count.BYTES_READ] += batch.bytes_read
        counts[Count.READ_NS] += int(batch.read_s * 1e9)
        counts[Count.AHEAD_BYTES] += batch.bytes_read
        counts[Count.FAILED_RECORDS] += bool(batch.errors) and not batch.cancelled
        counts[Count.WASTED_BYTES] += batch.bytes_read if ticket.dropped else 0
        self._residency.let_go(ticket.slot)

    def _tidy(self) -> None:
        self._all = [ticket for ticket in self._all if not (ticket.settled and ticket.dropped)]

    def read_ahead(self, layer: int, experts: Iterable[int], asked: Sequence[int], limits: AheadLimits) -> int:
        """Reserve slots for experts that are missing and start reading them; see `SlotPool.read_ahead`.

        Args:
            layer: Theirs.
            experts: Distinct, likeliest first.
            asked: Those that are on their way for somebody.
            limits: What may be taken.
        """
        self.settle()
        residency, first = self._residency, layer * self._count
        known, missing = set(asked), []
        for expert in experts:
            slot = residency.slot_of[first + expert]
            if slot != UNMAPPED:
                residency.clock.touch(slot)
            elif first + expert not in self._named and expert not in known:
                missing.append(first + expert)
        room = min(
            limits.reserved - len(self._named),
            limits.in_flight - len(self.being_read),
            residency.idle - max(0, limits.spare),
        )
        issued = missing[: max(0, room)]
        for key in issued:
            self._reserve(key)
        return len(issued)

    def _reserve(self, key: int) -> None:
        slot = self._residency.take_slot()
        self._residency.hold(slot)  # the ticket's
        try:
            record = record_to_read(self._residency, self._arrays.layout, key, slot)
            ticket = _Ticket(key, slot, self._reader.prepare([record], self._arrays))
        except BaseException:
            self._residency.let_go(slot)
            raise
        self._residency.hold(slot)  # the read's
        self._all.append(ticket)
        self._named[key] = ticket
        self._residency.counts[Count.AHEAD_RECORDS] += 1
        self._reader.submit_ahead(ticket.batch)

    def foresee(
        self,
        layer: int,
        logits: Logits,
        confidence: RankConfidence,
        asked: Sequence[int],
        *,
        least: float,
        issue_limit: int,
        limits: AheadLimits,
    ) -> tuple[Ids, int]:
        """Read ahead what a forecast names; see `SlotPool.foresee`."""
        ranked = rank_experts(logits, confidence.ranks)
        wanted = confidence.believed(ranked, least=least)[:issue_limit]
        return ranked, self.read_ahead(layer, wanted, asked, limits)

    def requested(self, layer: int, chosen: npt.NDArray[np.integer], forecasts: Sequence[Forecast]) -> None:
        """Drop the tickets of all layers up to one, and compare its forecasts with what was chosen there."""
        self.drop((layer + 1) * self._count)
        for confidence, ranked in forecasts:
            confidence.learn(ranked, chosen)

    def redeem(self, layer: int, experts: Sequence[int] | Slots) -> list[Joined]:
        """Turn the tickets of what is asked for into residents, reads to wait for, or free slots.

        Args:
            layer: Theirs.
            experts: In any order and shape; nothing happens when one of them does not exist.

        Returns:
            Records on their way.
        """
        ids = np.asarray(experts).reshape(-1).tolist()
        if not all(0 <= expert < self._count for expert in ids):
            return []
        self.settle()
        joined: list[Joined] = []
        for expert in ids:
            if (ticket := self._named.pop(layer * self._count + expert, None)) is not None:
                self._redeem(ticket, joined)
        self._tidy()
        return joined

    def _redeem(self, ticket: _Ticket, joined: list[Joined]) -> None:
        counts, batch = self._residency.counts, ticket.batch
        if batch.retract():
            counts[Count.AHEAD_RETRACTED] += 1
            self._settle(ticket)
        elif not batch.done.is_set():
            counts[Count.AHEAD_JOINED] += 1
            joined.append(Joined(ticket.key, ticket.slot, batch))
            ticket.settled = True
        else:
            if not ticket.settled:
                self._settle(ticket)
            if not batch.errors:
                self._residency.publish(ticket.key, ticket.slot)
                counts[Count.AHEAD_USED] += 1
        ticket.dropped = True
        self._residency.let_go(ticket.slot)

    def drop(self, before: int | None = None) -> None:
        """Give up the tickets of records before a key; without one, all. Nothing waits here."""
        for key in [key for key in self._named if before is None or key < before]:
            ticket = self._named.pop(key)
            ticket.dropped = True
            if ticket.settled:
                self._residency.counts[Count.WASTED_BYTES] += ticket.batch.bytes_read
            else:
                ticket.batch.cancel()
            self._residency.counts[Count.AHEAD_WASTED] += 1
            self._residency.let_go(ticket.slot)
        self._tidy()

    def finish_dropped(self) -> None:
        """Wait for the reads of dropped tickets; they were cancelled, so this is short."""
        for ticket in self._all:
            if ticket.dropped and not ticket.settled:
                ticket.batch.done.wait()
                self._settle(ticket)
        self._tidy()

    def end(self) -> None:
        """Have no tickets any more, and no reads under way for them."""
        self.drop()
        self.finish_dropped()


class CompiledTickets:
    """See `Tickets`, whose methods these are.

    Args:
        native: The compiled module.
        grants: The compiled form of the residency.
        residency: The books.
        lanes: Read; they keep the slots' memory alive until they are closed or `end` was called.
        arrays: The slots.
        places: Where records lie, `ExpertSource.strides`.
    """

    def __init__(
        self,
        native: ModuleType,
        grants: CompiledGrants,
        residency: Residency,
        lanes: CompiledLanes,
        arrays: SlotArrays,
        places: npt.NDArray[np.int64],
    ) -> None:
        self._native = native
        self._residency = residency
        self._lanes = lanes
        self._arrays = arrays
        self._count = arrays.layout.expert_count
        self._everything = arrays.layout.record_count
        self._handle = native.tickets(grants.handle, lanes.handle, places)
        self._room = np.empty(0, np.int64)
        self._records, self._told = np.empty(0, np.int32), np.empty(TOLD, np.int64)
        lanes.keep(arrays)

    @property
    def slots(self) -> dict[int, int]:
        """See `Tickets.slots`."""
        return {key: slot for key, slot, _, dropped in self._states() if not dropped}

    @property
    def being_read(self) -> list[int]:
        """See `Tickets.being_read`."""
        return [slot for _, slot, reading, _ in self._states() if reading]

    def _states(self) -> list[list[int]]:
        count: int = self._native.list_tickets(self._handle, np.empty(0, np.int32))
        if not count:
            return []
        states = np.empty((count, 4), np.int32)
        self._native.list_tickets(self._handle, states)
        found: list[list[int]] = states.tolist()
        return found

    @property
    def handle(self) -> object:
        """The tickets for other functions of the module."""
        return self._handle

    def settle(self) -> None:
        """See `Tickets.settle`."""
        self._native.settle_tickets(self._handle)

    def read_ahead(self, layer: int, experts: Iterable[int], asked: Sequence[int], limits: AheadLimits) -> int:
        """See `Tickets.read_ahead`."""
        ids = np.array(list(experts), np.int32)
        issued: int = self._native.read_ahead(
            self._handle, layer, ids, _ids(asked), len(ids), limits.reserved, limits.in_flight, limits.spare
        )
        return issued

    def foresee(
        self,
        layer: int,
        logits: Logits,
        confidence: RankConfidence,
        asked: Sequence[int],
        *,
        least: float,
        issue_limit: int,
        limits: AheadLimits,
    ) -> tuple[Ids, int]:
        """See `Tickets.foresee`."""
        ranked = np.empty((len(logits), confidence.ranks), np.int32)
        issued: int = self._native.foresee(
            self._handle,
            layer,
            logits,
            ranked,
            confidence.memory,
            least,
            _ids(asked),
            issue_limit,
            limits.reserved,
            limits.in_flight,
            limits.spare,
        )
        return ranked, issued

    def requested(self, layer: int, chosen: npt.NDArray[np.integer], forecasts: Sequence[Forecast]) -> None:
        """See `Tickets.requested`."""
        ids = np.ascontiguousarray(chosen, np.int32)
        for first in range(0, max(1, len(forecasts)), FORECASTS_A_CALL):
            some = forecasts[first : first + FORECASTS_A_CALL]
            arrays = [array for confidence, ranked in some for array in (confidence.memory, ranked)]
            self._native.requested(self._handle, layer, ids, RATE, *arrays)

    def redeem(self, layer: int, experts: Sequence[int] | Slots) -> list[Joined]:
        """See `Tickets.redeem`."""
        ids = np.ascontiguousarray(experts, np.int32)
        if len(self._room) < 3 * ids.size:
            self._room = np.empty(3 * ids.size, np.int64)
        count: int = self._native.redeem(self._handle, layer, ids, self._room)
        if count <= 0:
            return []
        return self._joined(self._room[: 3 * count])

    def _joined(self, numbers: npt.NDArray[np.int64]) -> list[Joined]:
        """Take over the batches of tickets: key, slot and batch of each, one after the other."""
        told = numbers.reshape(-1, 3).tolist()
        return [Joined(key, slot, self._take_over(batch, [key, slot])) for key, slot, batch in told]

    def _take_over(self, batch: int, places: Sequence[int]) -> CompiledBatch:
        """Take over a batch that reads records, key and slot of each, one after the other."""

        def records() -> list[Record]:
            pairs = zip(places[::2], places[1::2], strict=True)
            return [record_to_read(self._residency, self._arrays.layout, key, slot) for key, slot in pairs]

        return self._lanes.take_over(batch, records, self._arrays)

    def ask(self, layer: int, ids: Slots, held: Slots, threads: int, *, brief: bool) -> Asked:
        """Do in one call what a request needs: redeem tickets, hold slots, and read what is missing.

        Args:
            layer: Theirs.
            ids: Contiguous, any shape; equal ids share a slot.
            held: As for `CompiledGrants.grant`.
            threads: As there.
            brief: Whether nothing needs to be held where every record is there.
        """
        if len(self._records) < 3 * ids.size:
            self._records, self._told = np.empty(3 * ids.size, np.int32), np.empty(TOLD + 3 * ids.size, np.int64)
        slots, told = np.empty(ids.shape, np.int32), self._told
        code: int = self._native.ask(self._handle, threads, layer, ids, slots, held, self._records, told, brief)
        if code == THERE:
            return Asked([], Granted(slots, [], []), None, held=False)
        return self.asked(slots, self._records, told, refused=not code)

    def asked(self, slots: Slots, records: Slots, told: npt.NDArray[np.int64], *, refused: bool) -> Asked:
        """What compiled code told of a request, whose batches are taken over."""
        absent, coming, joined, batch = told[:TOLD].tolist()
        taken_over = self._joined(told[TOLD : TOLD + 3 * joined]) if joined else []
        if refused:
            return Asked(taken_over, None, None)
        granted = granted_of(slots, records, absent, coming)
        return Asked(taken_over, granted, self._take_over(batch, granted.absent) if batch else None)

    def drop(self, before: int | None = None) -> None:
        """See `Tickets.drop`."""
        self._native.drop_tickets(self._handle, self._everything if before is None else before)

    def finish_dropped(self) -> None:
        """See `Tickets.finish_dropped`."""
        while not self._native.finish_dropped(self._handle, WAIT_MS):
            pass

    def end(self) -> None:
        """See `Tickets.end`."""
        self.drop()
        self.finish_dropped()
        self._lanes.let_go(self._arrays)


def _ids(experts: Sequence[int]) -> Ids | None:
    return np.array(experts, np.int32) if experts else None


def record_to_read(residency: Residency, layout: ExpertLayout, key: int, slot: int) -> Record:
    """Return what to read to bring a record into a slot, its scales to be checked the first time."""
    layer, expert = divmod(key, layout.expert_count)
    return Record(layer, expert, slot, not residency.marks[key] & CHECKED)
