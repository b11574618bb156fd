"""Requests of experts that compiled code makes: one a call, or those of a row's layers, one after the other.

What it does not finish itself (a record that is late, failed, or could not be planned) becomes a lease as any other,
whose `wait` waits, or says what went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from slotstream_core.experts.leases import Loading, PoolLease
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.residency import CompiledGrants, as_ids
from slotstream_core.experts.stacks import Slots
from slotstream_core.experts.tickets import TOLD, Asked, CompiledTickets, Tickets
from slotstream_core.experts.under_way import ReadsUnderWay


class Load(Protocol):
    """Has records read by the pool's reader."""

    def __call__(self, places: list[int]) -> Loading:
        """Plan and begin the reads of records, key and slot of each, one after the other."""


class MakeLease(Protocol):
    """Makes the pool's leases."""

    def __call__(
        self, slots: Slots, held: Sequence[int] | Slots, keys: Sequence[int], waits: list[Loading]
    ) -> PoolLease:
        """See `PoolLease`."""


class CompiledRequests:
    """Makes the requests of one pool as long as it keeps its size.

    Args:
        grants: The compiled form of the residency.
        tickets: The pool's.
        under_way: What is being read.
        reader: Reads.
        load: Reads what compiled code could not plan.
        lease: Makes leases.
    """

    def __init__(
        self,
        grants: CompiledGrants,
        tickets: Tickets | CompiledTickets,
        under_way: ReadsUnderWay,
        reader: ExpertReader,
        *,
        load: Load,
        lease: MakeLease,
    ) -> None:
        self._grants = grants
        self._tickets = tickets
        self._under_way = under_way
        self._reader = reader
        self._load = load
        self._lease = lease

    def request(
        self, layer: int, experts: Sequence[int] | Slots, threads: int, *, brief: bool = False
    ) -> PoolLease | Slots | None:
        """As `SlotPool.request`; None, with nothing granted, where compiled code cannot tell all, or refuses.

        With `brief` the slots alone, held for nobody, where every record is there.
        """
        if self._reader.closed:
            return None
        self._under_way.settle_finished()
        if self._under_way.any_cancelled:
            return None
        ids = as_ids(experts)
        if ids is None:
            return None
        held = np.zeros(ids.size + 1, np.int32)
        try:
            if isinstance(self._tickets, CompiledTickets):
                asked = self._tickets.ask(layer, ids, held, threads, brief=brief)
                if asked.granted is not None and not asked.held:
                    return asked.granted.slots
            else:
                self._under_way.redeem(self._tickets, self._reader, layer, ids)
                asked = Asked([], self._grants.grant(layer, ids, held, threads), None)
            return self._lease_of(asked, held)
        except BaseException:
            self._grants.let_go(held)
            raise

    def _lease_of(self, asked: Asked, held: Slots) -> PoolLease | None:
        """The lease of what was asked for, whose reads are under way; None where it was refused."""
        for one in asked.joined:
            self._under_way.join(one)
        granted = asked.granted
        if granted is None:
            return None
        own = [] if asked.batch is None else [self._under_way.note(asked.batch, granted.absent)]
        if granted.absent and not own:
            own.append(self._load(granted.absent))
        waits = [*self._under_way.bringing(granted.coming), *own]
        return self._lease(granted.slots, held, [*granted.coming, *granted.absent[::2]], waits)

    def open_run(self, top: int) -> CompiledRun | None:
        """See `SlotPool.open_run`: None where Python reads, or something that was asked for is still under way."""
        if not isinstance(self._tickets, CompiledTickets):
            return None
        self._under_way.settle_finished()
        return None if any(True for _ in self._under_way.keys) else CompiledRun(self, self._tickets, top)

    def take_over(self, asked: Asked, held: Slots) -> PoolLease | None:
        """The lease of what a run asked for and did not finish; the slots that ``held`` names are the lease's then."""
        own = held.copy()
        held[0] = 0
        try:
            return self._lease_of(asked, own)
        except BaseException:
            self._grants.let_go(own)
            raise

    def lease_run(self, held: Slots) -> PoolLease:
        """A lease of what ``held`` will name, until it is released."""
        return self._lease(np.empty(0, np.int32), held, (), [])


class CompiledRun:
    """The requests of one row, each of the same number of experts, by a function of the compiled module.

    Between two of its calls the slots of the last layer are held, and nothing is under way but what is read ahead and
    what that layer's kernels wait for themselves.

    Args:
        requests: Makes leases of what is not finished.
        tickets: The pool's.
        top: Experts of each request.

    Attributes:
        lease: Holds the slots of the last layer; to be released when nothing reads there any more.
        tickets: For the function.
        slots: Written by it: of each expert, [top].
        held: As `PoolLease` takes it: the slots of the last layer, [top + 1].
        records: Room, [3 * top].
        told: Room for what `CompiledTickets.asked` reads, and one number, [5 + 3 * top].
    """

    def __init__(self, requests: CompiledRequests, tickets: CompiledTickets, top: int) -> None:
        self._requests, self._tickets = requests, tickets
        self.tickets = tickets.handle
        self.slots, self.held = np.zeros(top, np.int32), np.zeros(top + 1, np.int32)
        self.records, self.told = np.zeros(3 * top, np.int32), np.zeros(TOLD + 3 * top + 1, np.int64)
        self.lease = requests.lease_run(self.held)

    @property
    def left(self) -> bool:
        """Whether something is left that kernels wait for, and that was not taken in."""
        return bool(self.told[2] or self.told[3])

    def finish(self, *, refused: bool) -> PoolLease | None:
        """The lease of a request whose records are still to be waited for; None where it was refused.

        Args:
            refused: Whether it was.
        """
        asked = self._tickets.asked(self.slots.copy(), self.records, self.told, refused=refused)
        self.told[2:4] = 0  # its batches have another owner
        return self._requests.take_over(asked, self.held)
