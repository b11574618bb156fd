"""CLOCK: which slot to reuse."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Clock:
    """One reference bit a slot and a hand that walks round.

    The hand skips held slots, clears and skips a set bit, and stops at the first clear one. A hit sets the bit.

    Args:
        slot_count: Slots.
        memory: Where the hand's position is kept, for code that moves it too; memory of its own when not given.
        place: Its index there.

    Attributes:
        referenced: The bits, a byte each.
    """

    def __init__(self, slot_count: int, memory: array[int] | None = None, place: int = 0) -> None:
        self.referenced = bytearray(slot_count)
        self._memory = array("q", [0]) if memory is None else memory
        self._place = place

    def touch(self, slot: int) -> None:
        """Record a hit."""
        self.referenced[slot] = 1

    def forget(self, slot: int) -> None:
        """Clear the bit of a slot whose record is gone."""
        self.referenced[slot] = 0

    def grow(self, slot_count: int) -> None:
        """Add slots, with clear bits, behind the last; the bits are in new memory then."""
        self.referenced = bytearray(self.referenced.ljust(slot_count, b"\0"))

    def victim(self, holds: Sequence[int]) -> int | None:
        """Return the slot to reuse, moving the hand past it, or None when every slot is held.

        Args:
            holds: By slot, how many leases and reads hold it; only slots with 0 are chosen.
        """
        referenced, hand, count = self.referenced, self._memory[self._place], len(self.referenced)
        for _ in range(2 * count):
            slot = hand
            hand = hand + 1 if hand + 1 < count else 0
            if holds[slot]:
                continue
            if referenced[slot]:
                referenced[slot] = 0
                continue
            self._memory[self._place] = hand
            return slot
        return None
