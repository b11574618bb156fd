"""Whether reads should go through the page cache or past it, by a short measurement where that is open."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.sources import DIRECT_ALIGNMENT, StoredExperts, prefers_direct

AccessSwitch = Literal["auto", "cached", "direct"]

ROUNDS: Final = 2
ROUND_S: Final = 0.055  # of each way; both ways twice stay below 0.3 s with reads to spare
PATIENCE_S: Final = 0.15  # a disk that took longer for the first round of both ways is not asked for a second
LANES: Final = 4
READ_BYTES: Final = 1 << 20  # of a longer record only the beginning is read
DIRECT_ADVANTAGE: Final = 1.1
"""Reads past the cache take less processor time and leave memory to others, so they may take this much longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadProbe:
    """What a few random records took, read both ways by `LANES` threads.

    Attributes:
        cached_bytes_per_s: Through the page cache, when nothing is in it.
        direct_bytes_per_s: Past it.
        seconds: How long the measurement took.
    """

    cached_bytes_per_s: float
    direct_bytes_per_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadAccess:
    """How to read, and why.

    Attributes:
        direct: Whether past the page cache.
        reason: In words.
        probe: What was measured for it, if anything was.
    """

    direct: bool
    reason: str
    probe: ReadProbe | None = None


def choose_access(layout: ExpertLayout, *, available_bytes: int, switch: AccessSwitch = "auto") -> ReadAccess:
    """Decide how experts are read.

    They are read through the page cache if the memory left can hold them all. Otherwise a few records are read both
    ways for a quarter of a second, and the way is taken that is expected to bring a missing expert sooner.

    Args:
        layout: The experts.
        available_bytes: Memory left to the page cache once the plan's memory is taken.
        switch: What was asked for; auto decides.
    """
    if switch == "cached":
        return ReadAccess(direct=False, reason="as asked")
    if switch == "direct":
        refused = refuses_direct(layout)
        return ReadAccess(
            direct=not refused, reason="the file system has no usable reads past it" if refused else "as asked"
        )
    if not prefers_direct(layout, available_bytes=available_bytes):
        return ReadAccess(direct=False, reason="memory can hold them all")
    probe = probe_reads(layout)
    if probe is None:
        return ReadAccess(direct=False, reason="the file system has no usable reads past it")
    share = max(0, available_bytes) / (layout.record_count * layout.record_bytes)
    direct = favours_direct(probe, cached_share=share)
    rates = f"{probe.direct_bytes_per_s / 1e6:,.0f} MB/s past it, {probe.cached_bytes_per_s / 1e6:,.0f} through it"
    return ReadAccess(direct=direct, reason=f"measured {rates}, in {probe.seconds:.2f} s", probe=probe)


def favours_direct(probe: ReadProbe, *, cached_share: float) -> bool:
    """Compare what a missing expert takes: past the cache always the disk, else only where the cache has not got it.

    Args:
        probe: The rates.
        cached_share: How much of the experts the page cache can hold, 0 to 1.
    """
    cached_s = (1 - cached_share) / probe.cached_bytes_per_s
    return 1 / probe.direct_bytes_per_s <= DIRECT_ADVANTAGE * cached_s


def refuses_direct(layout: ExpertLayout) -> bool:
    """Whether a file system that holds these experts has no reads past the page cache."""
    with StoredExperts(layout, direct=True) as source:
        return source.alignment == 1


def probe_reads(layout: ExpertLayout, *, seed: int = 0) -> ReadProbe | None:
    """Read random records both ways, in turns, and forget the pages this leaves; None where only one way is possible.

    Takes less than 0.3 s on a disk that answers a read of a mebibyte within 40 ms.
    """
    started = time.perf_counter()
    with StoredExperts(layout) as cached, StoredExperts(layout, direct=True) as direct:
        if direct.alignment == 1:
            return None
        places = _reads(cached, direct, seed)
        rates: dict[bool, tuple[int, float]] = {}
        for turn in range(2 * ROUNDS):
            if turn == 2 and time.perf_counter() - started > PATIENCE_S:
                break
            past = turn % 2 == 1
            done = _run(direct if past else cached, places, past=past)
            before = rates.get(past, (0, 0.0))
            rates[past] = before[0] + done[0], before[1] + done[1]
    if not all(byte_count and seconds for byte_count, seconds in rates.values()):
        return None
    return ReadProbe(
        cached_bytes_per_s=rates[False][0] / rates[False][1],
        direct_bytes_per_s=rates[True][0] / rates[True][1],
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of whole blocks, by the descriptors of either way."""

    descriptors: tuple[int, int]
    offset: int
    byte_count: int


def _reads(cached: StoredExperts, direct: StoredExperts, seed: int) -> Iterator[_Read]:
    """Yield the reads of every record in random order, again and again; both ways take from the same iterator."""
    layout = cached.layout
    order = random.Random(seed)
    records = list(range(layout.record_count))
    order.shuffle(records)
    whole = layout.record_bytes if layout.repacked else 0
    for record in itertools.cycle(records):
        layer, expert = divmod(record, layout.expert_count)
        pairs = zip(cached.locate(layer, expert), direct.locate(layer, expert), strict=True)
        for kind, ((mine, offset), (theirs, _)) in zip(layout.kinds, pairs, strict=True):
            start = offset // DIRECT_ALIGNMENT * DIRECT_ALIGNMENT
            length = min(whole or kind.disk_bytes, READ_BYTES)
            blocks = -(-(offset + length - start) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
            yield _Read((mine, theirs), start, blocks)
            if whole:
                break


class _Lane(threading.Thread):
    def __init__(self, source: StoredExperts, places: Iterator[_Read], guard: threading.Lock, *, past: bool) -> None:
        super().__init__(daemon=True)
        self._source, self._places, self._guard, self._past = source, places, guard, past
        self.read_bytes = 0
        self.failed = False

    def run(self) -> None:
        deadline = time.perf_counter() + ROUND_S
        with mmap.mmap(-1, READ_BYTES + 2 * DIRECT_ALIGNMENT) as buffer, memoryview(buffer) as view:
            while True:  # at least once, however long this thread had to wait for a processor
                with self._guard:
                    place = next(self._places, None)
                if place is None:
                    return
                fd = place.descriptors[self._past]
                try:
                    if not self._past:
                        _forget(fd, place)
                    self.read_bytes += self._source.read(fd, [view[: place.byte_count]], place.offset)
                    if not self._past:
                        _forget(fd, place)
                except OSError:
                    self.failed = True
                    return
                if time.perf_counter() >= deadline:
                    return


def _run(source: StoredExperts, places: Iterator[_Read], *, past: bool) -> tuple[int, float]:
    """Read until the round's time is over; return the bytes and the time, no bytes after a failure."""
    guard = threading.Lock()
    lanes = [_Lane(source, places, guard, past=past) for _ in range(LANES)]
    started = time.perf_counter()
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    read_bytes = 0 if any(lane.failed for lane in lanes) else sum(lane.read_bytes for lane in lanes)
    return read_bytes, time.perf_counter() - started


def _forget(fd: int, place: _Read) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, place.offset, place.byte_count, os.POSIX_FADV_DONTNEED)
