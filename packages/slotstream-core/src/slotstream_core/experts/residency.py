"""Which record lies in which slot, who holds it, and which slot goes next: the bookkeeping of a slot pool.

Records are known by their key, layer * experts a layer + expert. Everything lies in flat arrays, which compiled code
(csrc/residency.h) reads and changes as well: `Residency` is the reference, `CompiledGrants` does in one call what a
request needs, and both leave the same arrays behind.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from types import ModuleType
from typing import Final, NamedTuple

import numpy as np

from slotstream_core.errors import PoolError
from slotstream_core.experts.compiled import piece_kinds
from slotstream_core.experts.eviction import Clock
from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.experts.stacks import Slots

CHECKED: Final = 1
"""Mark of a record whose scales were found to be finite."""

WARMED: Final = 2
"""Mark of a resident record that a warm start brought and nobody asked for yet."""


class Count(IntEnum):
    """Places in `Residency.counts`; `ss_count` of csrc/residency.h."""

    IDLE = 0
    FREE = 1
    HAND = 2
    REQUESTS = 3
    HITS = 4
    MISSES = 5
    EVICTIONS = 6
    WARM_USED = 7
    BYTES_READ = 8
    READ_NS = 9
    WAIT_NS = 10
    AHEAD_RECORDS = 11
    AHEAD_USED = 12
    AHEAD_JOINED = 13
    AHEAD_RETRACTED = 14
    AHEAD_WASTED = 15
    AHEAD_BYTES = 16
    WASTED_BYTES = 17
    FAILED_RECORDS = 18


COUNTED = (
    *(Count.REQUESTS, Count.HITS, Count.MISSES, Count.EVICTIONS, Count.WARM_USED, Count.BYTES_READ),
    *(count for count in Count if count >= Count.AHEAD_RECORDS),
)
"""Totals of `ExpertStats` that the residency counts."""


class Residency:
    """The state of every record and slot. Used by one thread.

    Args:
        record_count: Records of the checkpoint.
        slot_count: Slots.

    Raises (constructor):
        PoolError: Fewer than one slot.

    Attributes:
        slot_of: By key, the slot of a resident record, else `UNMAPPED`.
        coming: By key, the slot of a record that was asked for and is on its way, else `UNMAPPED`.
        marks: By key, `CHECKED` and `WARMED`.
        uses: By key, how many requests asked for it.
        key_of: By slot, the key of its record, or `UNMAPPED`.
        holds: By slot, who holds it: leases, reads, tickets and loans.
        clock: Chooses among slots without holds.
        counts: Totals and the numbers of idle and free slots, by `Count`.
    """

    def __init__(self, *, record_count: int, slot_count: int) -> None:
        if slot_count < 1:
            raise PoolError(f"a pool needs at least one slot, not {slot_count}")
        self.slot_of = array("i", [UNMAPPED]) * record_count
        self.coming = array("i", [UNMAPPED]) * record_count
        self.marks = bytearray(record_count)
        self.uses = array("q", [0]) * record_count
        self.counts = array("q", [0]) * len(Count)
        self._start(slot_count)

    def _start(self, slot_count: int) -> None:
        self.key_of = array("i", [UNMAPPED]) * slot_count
        self.holds = array("i", [0]) * slot_count
        self._free = array("i", range(slot_count - 1, -1, -1))  # taken from the end in use: lowest first
        self.counts[Count.IDLE] = self.counts[Count.FREE] = slot_count
        self.counts[Count.HAND] = 0
        self.clock = Clock(slot_count, self.counts, Count.HAND)

    @property
    def idle(self) -> int:
        """Slots without holds."""
        return self.counts[Count.IDLE]

    @property
    def free(self) -> Sequence[int]:
        """Slots without holds and record; the last is taken first."""
        return self._free[: self.counts[Count.FREE]]

    @property
    def free_memory(self) -> array[int]:
        """What `free` is the beginning of."""
        return self._free

    @property
    def resident_count(self) -> int:
        """Records that can be used without reading."""
        return len(self.key_of) - self.key_of.count(UNMAPPED)

    def resident(self) -> dict[int, int]:
        """The slot of every resident record, by key."""
        return {key: slot for slot, key in enumerate(self.key_of) if key != UNMAPPED}

    def hold(self, slot: int) -> None:
        """Hold a slot once more."""
        if not self.holds[slot]:
            self.counts[Count.IDLE] -= 1
        self.holds[slot] += 1

    def let_go(self, slot: int) -> None:
        """Undo one hold; without holds and record a slot is free."""
        self.holds[slot] -= 1
        if not self.holds[slot]:
            self.counts[Count.IDLE] += 1
            if self.key_of[slot] == UNMAPPED:
                self._set_free(slot)

    def _set_free(self, slot: int) -> None:
        self.clock.forget(slot)
        self._free[self.counts[Count.FREE]] = slot
        self.counts[Count.FREE] += 1

    def take_slot(self) -> int:
        """Return a slot without holds and record, evicting if none is free.

        Raises:
            PoolError: Every slot is held.
        """
        if self.counts[Count.FREE]:
            self.counts[Count.FREE] -= 1
            return self._free[self.counts[Count.FREE]]
        slot = self.clock.victim(self.holds)
        if slot is None:
            raise PoolError(f"every one of the {len(self.holds)} slots is held; release a lease first")
        self._unmap(slot)
        self.counts[Count.EVICTIONS] += 1
        return slot

    def _unmap(self, slot: int) -> None:
        key = self.key_of[slot]
        self.slot_of[key] = self.key_of[slot] = UNMAPPED
        self.marks[key] &= ~WARMED

    def publish(self, key: int, slot: int) -> None:
        """Map a record whose bytes are complete, and sound, in a slot that is held."""
        self.slot_of[key] = slot
        self.key_of[slot] = key
        self.marks[key] |= CHECKED

    def expect(self, key: int, slot: int) -> None:
        """Hold a slot for the read that brings a record which was asked for."""
        self.hold(slot)
        self.coming[key] = slot

    def take_in(self, key: int, slot: int, *, came: bool) -> None:
        """Undo `expect`: the read ended, and the record is complete in its slot, or it never will be."""
        self.coming[key] = UNMAPPED
        if came:
            self.publish(key, slot)
        self.let_go(slot)

    def forget(self) -> None:
        """Unmap every record nobody holds."""
        for slot, key in enumerate(self.key_of):
            if key != UNMAPPED and not self.holds[slot]:
                self._unmap(slot)
                self._set_free(slot)

    def needed(self, keys: Iterable[int]) -> int:
        """Count the idle slots a request for distinct records would use up: one a miss, and one a hit nobody holds."""
        needed = 0
        for key in keys:
            slot = self._find(key)
            needed += slot == UNMAPPED or not self.holds[slot]
        return needed

    def lacks(self, keys: Iterable[int]) -> bool:
        """Whether fewer slots are idle than `needed`."""
        return self.counts[Count.IDLE] < self.needed(keys)

    def _find(self, key: int) -> int:
        slot = self.slot_of[key]
        return slot if slot != UNMAPPED else self.coming[key]

    def grant(self, keys: Sequence[int], taken: list[int]) -> tuple[dict[int, int], list[int]]:
        """Hold a slot for each of some distinct records, evicting others for those that are missing.

        Args:
            keys: The records; the caller made sure that the request does not lack slots. Those on their way are hits.
            taken: Slots are appended as they are held, for a caller that must let them go.

        Returns:
            The slot of every record, and the missing ones, whose slots hold nothing yet.
        """
        slot_by_key: dict[int, int] = {}
        missing: list[int] = []
        for key in keys:  # every hit is held before any victim is chosen
            self.uses[key] += 1
            slot = self._find(key)
            if slot == UNMAPPED:
                missing.append(key)
                continue
            if self.marks[key] & WARMED:
                self.marks[key] &= ~WARMED
                self.counts[Count.WARM_USED] += 1
            self.hold(slot)
            taken.append(slot)
            self.clock.touch(slot)
            slot_by_key[key] = slot
        for key in missing:
            slot = self.take_slot()
            self.hold(slot)
            taken.append(slot)
            slot_by_key[key] = slot
        self.counts[Count.REQUESTS] += 1
        self.counts[Count.HITS] += len(keys) - len(missing)
        self.counts[Count.MISSES] += len(missing)
        return slot_by_key, missing

    def grow(self, slot_count: int) -> None:
        """Add slots; every record stays. The arrays are new ones: compiled code may still refer to the old."""
        added = slot_count - len(self.key_of)
        free = array("i", [*range(slot_count - 1, len(self.key_of) - 1, -1), *self.free])
        self._free = free + array("i", [0]) * (slot_count - len(free))
        self.key_of = self.key_of + array("i", [UNMAPPED]) * added
        self.holds = self.holds + array("i", [0]) * added
        self.counts[Count.IDLE] += added
        self.counts[Count.FREE] += added
        self.clock.grow(slot_count)

    def start_over(self, slot_count: int) -> None:
        """Have so many slots, all of them empty; none may be held.

        Raises:
            PoolError: Fewer than one slot.
        """
        if slot_count < 1:
            raise PoolError(f"a pool needs at least one slot, not {slot_count}")
        self.forget()
        self._start(slot_count)


def as_ids(experts: Sequence[int] | Slots) -> Slots | None:
    """Return ids as compiled grants take them; None when one of them is no id of any expert."""
    if isinstance(experts, np.ndarray) and experts.dtype == np.int32:
        return np.ascontiguousarray(experts)
    try:
        return np.array(experts.tolist() if isinstance(experts, np.ndarray) else experts, np.int32)
    except OverflowError:
        return None


class Granted(NamedTuple):
    """What a request came to.

    Attributes:
        slots: Of each id, in the shape of the ids.
        absent: Key and slot of each record that is still to be read, one after the other.
        coming: Keys of records that were on their way already.
    """

    slots: Slots
    absent: list[int]
    coming: list[int]


def granted_of(slots: Slots, records: Slots, absent: int, coming: int) -> Granted:
    """Return what compiled code wrote to `records`, which has three times as many values as there are ids, or more."""
    return Granted(slots, records[: 2 * absent].tolist(), records[2 * slots.size :][:coming].tolist())


class CompiledGrants:
    """A request's bookkeeping in one call, and the reads of small records that the page cache holds.

    Args:
        native: The compiled module.
        residency: Whose arrays are used. They must not change their length while this object exists.
        source: Where records lie; where it says how, small ones are read by the call itself.
        arrays: The slots.

    Attributes:
        handle: The bookkeeping for other functions of the module.
    """

    def __init__(self, native: ModuleType, residency: Residency, source: ExpertSource, arrays: SlotArrays) -> None:
        self._native = native
        self._room = np.empty(0, np.int32)
        readable = arrays.memory.direct and source.alignment == 1 and source.native_read == 0
        self.handle = native.residency(
            residency.slot_of,
            residency.coming,
            residency.marks,
            residency.uses,
            residency.key_of,
            residency.holds,
            residency.clock.referenced,
            residency.free_memory,
            residency.counts,
            piece_kinds(arrays),
            source.strides if readable else None,
            source.layout.layer_count,
        )

    def grant(self, layer: int, ids: Slots, held: Slots, threads: int) -> Granted | None:
        """Hold a slot for every distinct id, and read what can be read at once.

        Args:
            layer: Their layer.
            ids: Contiguous, any shape; equal ids share a slot.
            held: Filled for `let_go`; one longer than `ids` has values.
            threads: The compiled products' threads by their address, to share the reads; 0 for the caller alone.

        Returns:
            None, with nothing done, when an id does not exist or too few slots are idle.
        """
        if len(self._room) < 3 * ids.size:
            self._room = np.empty(3 * ids.size, np.int32)
        slots = np.empty(ids.shape, np.int32)
        counts = self._native.grant(self.handle, threads, layer, ids, slots, held, self._room)
        return None if counts is None else granted_of(slots, self._room, *counts)

    def take_in(self, places: Sequence[int]) -> None:
        """As `Residency.take_in` for records that came, key and slot of each, one after the other."""
        self._native.take_in(self.handle, np.array(places, np.int32))

    @property
    def can_fetch(self) -> bool:
        """Whether `fetch` may bring anything: records are small, and lie where it can read them."""
        return bool(self._native.can_fetch(self.handle))

    def fetch(self, layer: int, ids: Slots, slots: Slots, threads: int) -> bytes:
        """Read into lent slots those records that the page cache holds; nothing is mapped.

        Args:
            layer: Their layer.
            ids: Distinct.
            slots: Of each.
            threads: As for `grant`.

        Returns:
            For each id 1 when it is in its slot, else 0.
        """
        came: bytes = self._native.fetch(self.handle, threads, layer, ids, slots)
        return came

    def let_go(self, held: Slots) -> None:
        """Undo the holds that `grant` noted. A second call does nothing."""
        self._native.let_go(self.handle, held)
