"""Whether the bookkeeping of a slot pool agrees with itself."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set

UNMAPPED = -1
"""In place of the key of a slot that holds no record."""


def first_contradiction(
    *,
    slot_of: Mapping[int, int],
    key_of: Sequence[int],
    holds: Sequence[int],
    idle: int,
    free: Sequence[int],
    reading_slot: Mapping[int, int],
    leased: Sequence[int],
    being_read: Sequence[int],
    tickets: Mapping[int, int],
    lent: Set[int],
) -> str | None:
    """Return the first rule that the bookkeeping breaks, None when it is sound.

    Args:
        slot_of: Resident records, key to slot.
        key_of: The key of every slot, or `UNMAPPED`.
        holds: Holds of every slot.
        idle: Slots without holds, as counted.
        free: The list of free slots.
        reading_slot: Records that were asked for and are on their way, key to slot.
        leased: Slots held by leases, once a hold.
        being_read: Slots of all reads under way.
        tickets: Records read ahead that nobody asked for yet, key to slot.
        lent: Slots lent out.
    """
    expected = Counter([*leased, *being_read, *tickets.values(), *lent])
    mapped = {slot: key for key, slot in slot_of.items()}
    keys_of = {slot: key for slot, key in enumerate(key_of) if key != UNMAPPED}
    reading = set(reading_slot.values())
    unused = {slot for slot, key in enumerate(key_of) if key == UNMAPPED and not holds[slot]}
    rules = {
        "two records share a slot": len(mapped) == len(slot_of),
        "the map and its reverse differ": mapped == keys_of,
        "holds do not match leases, reads and tickets": [expected[slot] for slot in range(len(holds))] == list(holds),
        "the count of idle slots is wrong": idle == list(holds).count(0),
        "a slot is listed as free twice": len(set(free)) == len(free),
        "the free list is not the unused slots": set(free) == unused,
        "a slot being read is mapped": not reading & mapped.keys(),
        "a lent slot is mapped or being read": not lent & (mapped.keys() | reading),
        "two reads share a slot": len(reading) == len(reading_slot),
        "a record is both resident and being read": not slot_of.keys() & reading_slot.keys(),
        "a reserved slot is mapped": not mapped.keys() & set(tickets.values()),
        "a record with a ticket is resident or asked for": not tickets.keys() & (slot_of.keys() | reading_slot.keys()),
    }
    return next((rule for rule, kept in rules.items() if not kept), None)
