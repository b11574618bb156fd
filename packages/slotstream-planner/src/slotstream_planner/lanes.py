"""The threads that read experts ("lanes"), and the memory they read into: how many there are, and bytes of each part.

The engine makes what is counted here, and takes the numbers from here, so that a plan and what is loaded agree.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AHEAD_LANES",
    "COPYING_LANES",
    "DEMAND_LANES",
    "LANES_MAX",
    "MERGE_BYTES",
    "PART_BYTES",
    "SCRATCH_STEP_BYTES",
    "STAGING",
    "ahead_lanes",
    "ahead_scratch_bytes",
    "demand_lanes",
    "demand_scratch_bytes",
    "scratch_part_bytes",
]

LANES_MAX: Final = 128
DEMAND_LANES: Final = 32
AHEAD_LANES: Final = 16
COPYING_LANES: Final = 4
STAGING: Final = 8
"""Parts of scratch of a compiled lane that brings records to a device: it reads into one while others are copied."""

PART_BYTES: Final = 1 << 18
"""Longer pieces reach a device in parts: several lanes read one record, and its first copy begins early."""

MERGE_BYTES: Final = 1 << 20
SCRATCH_STEP_BYTES: Final = 1 << 14  # a multiple of every page size in use
_BLOCK_BYTES: Final = 1 << 12
_LARGE_PAGE_BYTES: Final = 1 << 21


def demand_lanes(cores: int, *, copies: bool) -> int:
    """Return how many lanes read what a computation waits for: four a core.

    Where they copy to a device they keep a core busy: one a core, but for that of the thread that waits for them
    (measured: docs/log.md).

    Args:
        cores: Processors.
        copies: Whether compiled lanes bring records to a device with memory of its own.
    """
    if copies:
        return min(DEMAND_LANES, max(COPYING_LANES, cores - 1))
    return min(DEMAND_LANES, 4 * max(1, cores))


def ahead_lanes(lanes: int, *, copies: bool) -> int:
    """Return how many lanes read ahead beside ``lanes``: a quarter, or as many beside a device; at most 16."""
    return max(1, min(AHEAD_LANES, lanes if copies else lanes // 4))


def scratch_part_bytes(record_bytes: int, *, copies: bool) -> int:
    """Return one part of scratch, with a block of the disk at either end of what is read into it.

    That is a record read at once past the page cache. Records that are not repacked are read in pieces and need less,
    but never less than a mebibyte. What compiled lanes copy to a device is read in parts.
    """
    longest = PART_BYTES if copies else max(MERGE_BYTES, record_bytes)
    return _up(longest + 2 * _BLOCK_BYTES, SCRATCH_STEP_BYTES)


def demand_scratch_bytes(record_bytes: int, lanes: int, *, copies: bool) -> int:
    """Return what lanes read into, together with the part of the thread that waits for them and reads itself."""
    parts = lanes * (STAGING if copies else 1) + 1
    return _block_bytes(scratch_part_bytes(record_bytes, copies=copies), parts)


def ahead_scratch_bytes(record_bytes: int, lanes: int, *, copies: bool) -> int:
    """Return what ``lanes`` that read ahead read into."""
    return _block_bytes(scratch_part_bytes(record_bytes, copies=copies), lanes * (STAGING if copies else 1))


def _block_bytes(part_bytes: int, parts: int) -> int:
    return _up(parts * part_bytes + SCRATCH_STEP_BYTES, _LARGE_PAGE_BYTES)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
