"""Slots held for one request, and the reads that bring records into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import PoolError, SlotstreamError
from slotstream_core.experts.batches import Batch


@dataclass(slots=True, eq=False)
class Loading:
    """A batch under way.

    Attributes:
        batch: The reads.
        places: Key and slot of each of its records, one after the other.
        settled: Whether what it brought was taken in.
        from_ticket: Whether a forecast asked for it first.
    """

    batch: Batch
    places: list[int]
    settled: bool = False
    from_ticket: bool = False

    @property
    def keys(self) -> list[int]:
        """Of its records."""
        return self.places[::2]

    @property
    def slots(self) -> list[int]:
        """Where the records go."""
        return self.places[1::2]


@dataclass(frozen=True, kw_only=True, slots=True)
class AheadLimits:
    """How much reading ahead may take from the pool.

    Attributes:
        reserved: Most slots with a ticket at once.
        in_flight: Most records being read ahead, or waiting to be, at once.
        spare: Idle slots that must be left for requests; with no more than these nothing is read ahead.
    """

    reserved: int
    in_flight: int
    spare: int


class LeasingPool(Protocol):
    """What a lease asks of the pool that gave it."""

    def settle_lease(self, lease: PoolLease) -> None:
        """Wait for the reads of a lease and take note of what they brought."""

    def end_lease(self, lease: PoolLease) -> None:
        """Take the slots of a lease back."""


class PoolLease:
    """Slots held for one request; see `slotstream_core.experts.stacks.Lease` for the contract.

    Args:
        pool: Who gave it.
        slots: Of each id.
        held: Slots of distinct records; an array's first value is how many follow, as compiled grants write it.
        keys: Records whose reads decide whether `wait` succeeds.
        waits: Reads under way that bring them.
    """

    __slots__ = ("__weakref__", "_error", "_keys", "_pool", "_ready", "_released", "held", "slots", "waits")

    def __init__(
        self,
        pool: LeasingPool,
        slots: npt.NDArray[np.int32],
        held: Sequence[int] | npt.NDArray[np.int32],
        keys: Sequence[int],
        waits: list[Loading],
    ) -> None:
        self.slots = slots
        self.held = held
        self.waits = waits
        self._pool = pool
        self._keys = keys
        self._released = False
        self._ready = not waits
        self._error: SlotstreamError | None = None

    @property
    def held_slots(self) -> list[int]:
        """Slots it holds, once each."""
        return list(self.held) if not isinstance(self.held, np.ndarray) else self.held[1 : 1 + self.held[0]].tolist()

    def late(self) -> list[int]:
        """See `Lease.late`."""
        return [slot for loading in self.waits if not loading.batch.done.is_set() for slot in loading.slots]

    def wait(self) -> None:
        """See `Lease.wait`.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
            PoolError: The lease was released before its records were there.
        """
        if self._error is not None:
            raise self._error
        if self._ready:
            return
        if self._released:
            raise PoolError("this lease was released before its records arrived; request the experts again")
        self._pool.settle_lease(self)
        wanted = frozenset(self._keys)
        self._error = next((error for key, error in self._failures() if key in wanted), None)
        if self._error is not None:
            self.release()
            raise self._error
        self._ready = True

    def _failures(self) -> Iterable[tuple[int, SlotstreamError]]:
        for loading in self.waits:
            for index, error in sorted(loading.batch.errors.items()):
                yield loading.keys[index], error

    def release(self) -> None:
        """See `Lease.release`. A read still under way is abandoned: skipped if not started, kept if it completes."""
        if not self._released:
            self._released = True
            self._pool.end_lease(self)
