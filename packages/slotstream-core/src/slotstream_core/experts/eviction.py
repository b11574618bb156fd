"""CLOCK: which slot to reuse."""

from __future__ import annotations

from collections.abc import Sequence


class Clock:
    """One reference bit a slot and a hand that walks round.

    The hand skips held slots, clears and skips a set bit, and stops at the first clear one. A hit sets the bit.
    """

    def __init__(self, slot_count: int) -> None:
        self._referenced = bytearray(slot_count)
        self._hand = 0

    def touch(self, slot: int) -> None:
        """Record a hit."""
        self._referenced[slot] = 1

    def forget(self, slot: int) -> None:
        """Clear the bit of a slot whose record is gone."""
        self._referenced[slot] = 0

    def grow(self, slot_count: int) -> None:
        """Add slots, with clear bits, behind the last."""
        self._referenced += bytes(slot_count - len(self._referenced))

    def victim(self, holds: Sequence[int]) -> int | None:
        """Return the slot to reuse, moving the hand past it, or None when every slot is held.

        Args:
            holds: By slot, how many leases and reads hold it; only slots with 0 are chosen.
        """
        referenced, hand, count = self._referenced, self._hand, len(self._referenced)
        for _ in range(2 * count):
            slot = hand
            hand = hand + 1 if hand + 1 < count else 0
            if holds[slot]:
                continue
            if referenced[slot]:
                referenced[slot] = 0
                continue
            self._hand = hand
            return slot
        return None
