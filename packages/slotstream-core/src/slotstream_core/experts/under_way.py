"""Reads that requests wait for, and what becomes of the records they bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slotstream_core.errors import PoolError
from slotstream_core.experts.batches import Batch
from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.leases import Loading
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.residency import CompiledGrants, Count, Residency
from slotstream_core.experts.stacks import Slots
from slotstream_core.experts.tickets import CompiledTickets, Joined, Tickets


class ReadsUnderWay:
    """The batches of records that were asked for. Used by the pool's thread.

    While a batch is noted, each of its records is expected in its slot (`Residency.expect`); settling it undoes that.

    Args:
        residency: The pool's books; totals are counted there.

    Attributes:
        grants: Compiled code that works on the same books, if there is any.
    """

    def __init__(self, residency: Residency) -> None:
        self.grants: CompiledGrants | None = None
        self._residency = residency
        self._loadings: list[Loading] = []
        self._by_key: dict[int, Loading] = {}

    @property
    def keys(self) -> Iterable[int]:
        """Of the records that are on their way."""
        return self._by_key.keys()

    @property
    def slots(self) -> list[int]:
        """Slots that these reads hold, once for each."""
        return [slot for loading in self._loadings for slot in loading.slots]

    @property
    def any_cancelled(self) -> bool:
        """Whether nobody may join one of them."""
        return any(loading.batch.cancelled for loading in self._loadings)

    def note(self, batch: Batch, places: list[int], *, from_ticket: bool = False) -> Loading:
        """Remember a batch and key and slot of each of its records, one after the other."""
        loading = Loading(batch=batch, places=places, from_ticket=from_ticket)
        self._loadings.append(loading)
        for key in loading.keys:
            self._by_key[key] = loading
        return loading

    def join(self, joined: Joined) -> Loading:
        """Have the read of a ticket, which the books expect already, waited for by whoever asks for its record."""
        return self.note(joined.batch, [joined.key, joined.slot], from_ticket=True)

    def redeem(
        self, tickets: Tickets | CompiledTickets, reader: ExpertReader, layer: int, experts: Sequence[int] | Slots
    ) -> None:
        """Redeem the tickets of what is asked for, and have what they began waited for."""
        for joined in tickets.redeem(layer, experts):
            self._residency.coming[joined.key] = joined.slot  # the read's hold is the one that it had
            self.join(joined)
            reader.submit(joined.batch)

    def bringing(self, keys: Iterable[int]) -> list[Loading]:
        """The batches that bring any of some records.

        Raises:
            PoolError: A record is expected, but the request for it was interrupted before its batch was noted.
        """
        found: dict[Loading, None] = {}
        for key in keys:
            if (loading := self._by_key.get(key)) is not None:
                found[loading] = None
            elif self._residency.coming[key] != UNMAPPED:
                raise PoolError(f"an interrupted request left record {key} unread; load the model again")
        return list(found)

    def settle_finished(self) -> None:
        """Settle what is done."""
        for loading in [loading for loading in self._loadings if loading.batch.done.is_set()]:
            self.settle(loading)

    def settle(self, loading: Loading) -> None:
        """Publish what a finished batch brought and take back what it did not. A second call does nothing."""
        if loading.settled:
            return
        loading.settled = True
        self._loadings.remove(loading)
        batch, errors = loading.batch, loading.batch.errors
        for key in loading.keys:
            del self._by_key[key]
        if self.grants is not None and not errors:
            self.grants.take_in(loading.places)
        else:
            for index, (key, slot) in enumerate(zip(loading.keys, loading.slots, strict=True)):
                self._residency.take_in(key, slot, came=index not in errors)
        counts = self._residency.counts
        counts[Count.BYTES_READ] += batch.bytes_read
        counts[Count.READ_NS] += int(batch.read_s * 1e9)
        counts[Count.FAILED_RECORDS] += len(errors)
        counts[Count.AHEAD_BYTES] += batch.bytes_read if loading.from_ticket else 0

    def finish(self) -> None:
        """Wait for everything."""
        for loading in list(self._loadings):
            self._finish(loading)

    def finish_abandoned(self) -> None:
        """Wait for reads into slots that nobody else holds.

        Most were cancelled, so this is short. One that brings another record to somebody else was not, and has to end.
        """
        for loading in list(self._loadings):
            if any(self._residency.holds[slot] == 1 for slot in loading.slots):
                self._finish(loading)

    def finish_cancelled(self, keys: Iterable[int]) -> None:
        """Wait for cancelled reads of these records, so that nobody joins a read that will not complete."""
        for loading in self.bringing(keys):
            if loading.batch.cancelled:
                self._finish(loading)

    def _finish(self, loading: Loading) -> None:
        loading.batch.done.wait()
        self.settle(loading)
