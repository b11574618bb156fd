"""Reading one checkpoint from several directories at once, each read from where it is expected to arrive first.

A record goes to the directory with the least (bytes it still has to bring + bytes of this record) / throughput. The
throughput is measured while reading: bytes over the time in which at least one read was under way, recent ones counting
most. Before anything is measured all directories count as equally fast. An even split would wait for the slowest disk,
and the time of a single read says more about the queue before it than about the disk.

A directory whose read fails is left out from then on, and its reads are made again elsewhere. All directories hold the
same bytes, so where a record came from changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.sources import ExpertSource

logger = logging.getLogger("slotstream.experts")

WINDOW_S: Final = 0.5
"""Busy time after which what was measured before counts half."""

REMEASURE_AFTER: Final = 256
"""Records that go elsewhere before a directory is tried again: a disk that was slow for a while comes back."""


@dataclass(kw_only=True, slots=True)
class DirectoryLoad:
    """What one directory has to do and how fast it does it. Guarded by its owner's lock.

    Attributes:
        directory: Which one, for messages.
        queued_bytes: Located and not settled yet.
        total_bytes: Read since the start.
        usable: Whether it is still asked.
    """

    directory: Path
    queued_bytes: int = 0
    total_bytes: int = 0
    usable: bool = True
    passed_over: int = 0
    _under_way: int = 0
    _since_s: float = 0.0
    _busy_s: float = 0.0
    _bytes: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """Measured throughput; None before the first read."""
        return self._bytes / self._busy_s if self._busy_s > 0 and self._bytes else None

    def begin(self, now_s: float) -> None:
        """Count a read that begins."""
        if not self._under_way:
            self._since_s = now_s
        self._under_way += 1

    def end(self, now_s: float, byte_count: int) -> None:
        """Count a read that ended with so many bytes."""
        self._busy_s += now_s - self._since_s
        self._since_s = now_s
        self._under_way -= 1
        self._bytes += byte_count
        self.total_bytes += byte_count
        if self._busy_s > WINDOW_S:
            self._busy_s /= 2
            self._bytes /= 2


class MirroredExperts:
    """The source of a checkpoint that lies in several directories.

    Args:
        sources: One a directory, for the same experts; each may have its own layout on disk. They stay their owner's to
            close.
        directories: Their names, for messages and totals.
        clock: What time it is, in seconds.
    """

    def __init__(
        self,
        sources: Sequence[ExpertSource],
        directories: Sequence[Path],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._lock = threading.Lock()
        self._loads = [DirectoryLoad(directory=directory) for directory in directories]
        self._owner: dict[int, int] = {}
        self._record_bytes = sources[0].layout.record_bytes

    @property
    def layout(self) -> ExpertLayout:
        """See `ExpertSource`: the first directory's."""
        return self._sources[0].layout

    @property
    def alignment(self) -> int:
        """See `ExpertSource`: the strictest."""
        return max(source.alignment for source in self._sources)

    @property
    def merge_bytes(self) -> int:
        """See `ExpertSource`: the longest."""
        return max(source.merge_bytes for source in self._sources)

    @property
    def native_read(self) -> None:
        """See `ExpertSource`: Python's lanes read, which measure and ask elsewhere."""
        return None

    @property
    def strides(self) -> None:
        """See `ExpertSource`: a record lies in several places."""
        return None

    @property
    def bytes_by_directory(self) -> dict[Path, int]:
        """Bytes read from each directory so far."""
        with self._lock:
            return {load.directory: load.total_bytes for load in self._loads}

    def locate(self, layer: int, expert: int) -> Sequence[tuple[int, int]]:
        """See `ExpertSource`. Chooses the directory; `settle` must follow for every byte."""
        with self._lock:
            index = self._choose()
            self._loads[index].queued_bytes += self._record_bytes
        return self._places(index, layer, expert)

    def path(self, fd: int) -> Path:
        """See `ExpertSource`."""
        return self._sources[self._owner[fd]].path(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `ExpertSource`. Measures the directory."""
        self.begin(fd)
        count = 0
        try:
            count = self._sources[self._owner[fd]].read(fd, buffers, offset)
            return count
        finally:
            self.end(fd, count)

    def begin(self, fd: int) -> None:
        """Note that a read begins, for whoever reads by other means than `read`."""
        with self._lock:
            self._loads[self._owner[fd]].begin(self._clock())

    def end(self, fd: int, byte_count: int) -> None:
        """Note that a read which was begun has brought so many bytes."""
        with self._lock:
            self._loads[self._owner[fd]].end(self._clock(), byte_count)

    def settle(self, fd: int, byte_count: int) -> None:
        """See `ExpertSource`."""
        with self._lock:
            load = self._loads[self._owner[fd]]
            load.queued_bytes = max(0, load.queued_bytes - byte_count)

    def elsewhere(self, fd: int, reason: str, layer: int, expert: int) -> Sequence[tuple[int, int]] | None:
        """See `ExpertSource`. Leaves out the directory that failed, unless it is the last; does not queue bytes."""
        with self._lock:
            failed = self._owner[fd]
            others = [index for index, load in enumerate(self._loads) if load.usable and index != failed]
            if not others:
                return None
            newly = self._loads[failed].usable
            self._loads[failed].usable = False
            index = self._choose()
        if newly:
            logger.warning("%s; %s is left out from now on", reason, self._loads[failed].directory)
        return self._places(index, layer, expert)

    def _places(self, index: int, layer: int, expert: int) -> Sequence[tuple[int, int]]:
        places = self._sources[index].locate(layer, expert)
        for fd, _ in places:
            self._owner.setdefault(fd, index)
        return places

    def _choose(self) -> int:
        """Return where one more record is expected to arrive first. The lock is held."""
        usable = [index for index, load in enumerate(self._loads) if load.usable]
        known = [rate for index in usable if (rate := self._loads[index].bytes_per_s) is not None]
        assumed = sum(known) / len(known) if known else 1.0

        def expected_s(index: int) -> float:
            load = self._loads[index]
            return (load.queued_bytes + self._record_bytes) / (load.bytes_per_s or assumed)

        forgotten = [index for index in usable if self._loads[index].passed_over >= REMEASURE_AFTER]
        chosen = forgotten[0] if forgotten else min(usable, key=expected_s)
        for index in usable:
            self._loads[index].passed_over = 0 if index == chosen else self._loads[index].passed_over + 1
        return chosen
