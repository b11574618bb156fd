"""Reading one checkpoint from several directories at once, each read from where it is expected to arrive first.

`slotstream_core.experts.directories` decides. Records that lie side by side go to one directory together, up to
`RUN_RECORDS`, so that they are still read together there.

A directory whose read fails is left out from then on, and its reads are made again elsewhere. All directories hold the
same bytes, so where a record came from changes nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from slotstream_core.experts.directories import Directories, Fault, open_directories
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.native.lanes import LaneLibrary, lane_library

logger = logging.getLogger("slotstream.experts")

RUN_RECORDS: Final = 8
"""Most records that lie side by side and go to one directory together; `SS_MIRROR_RUN` of csrc/mirrors.h."""


class MirroredExperts:
    """The source of a checkpoint that lies in several directories.

    Args:
        sources: One a directory, for the same experts; each may have its own layout on disk. They stay their owner's to
            close.
        directories: Their names, for messages and totals.
        clock: What time it is, in seconds, for reads that Python makes.
        chooser: Which directory is asked; when not given, what `choose_directories` says.
    """

    def __init__(
        self,
        sources: Sequence[ExpertSource],
        directories: Sequence[Path],
        *,
        clock: Callable[[], float] = time.perf_counter,
        chooser: Directories | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._directories = tuple(directories)
        self._clock = clock
        self._chooser = chooser or choose_directories(len(self._sources), os.environ)
        self._owner = {fd: index for index, source in enumerate(self._sources) for fd in source.descriptors}
        self._left_out: set[int] = set()
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
    def native_read(self) -> int | None:
        """See `ExpertSource`: the system's reads, where compiled lanes can ask which directory to read from."""
        by_system = all(source.native_read == 0 for source in self._sources)
        return 0 if by_system and self.native_mirrors is not None else None

    @property
    def native_mirrors(self) -> int | None:
        """See `ExpertSource`."""
        return self._chooser.address

    @property
    def strides(self) -> None:
        """See `ExpertSource`: a record lies in several places."""
        return None

    @property
    def descriptors(self) -> Sequence[int]:
        """See `ExpertSource`."""
        return tuple(self._owner)

    @property
    def bytes_by_directory(self) -> dict[Path, int]:
        """Bytes read from each directory so far."""
        return {path: self._chooser.state(index).total_bytes for index, path in enumerate(self._directories)}

    @property
    def queued_bytes(self) -> int:
        """Bytes that are located and not settled, in all directories."""
        return sum(self._chooser.state(index).queued_bytes for index in range(len(self._sources)))

    def locate_all(self, records: Sequence[tuple[int, int]]) -> list[Sequence[tuple[int, int]]]:
        """See `ExpertSource`. Chooses directories; `settle` must follow for every byte."""
        everywhere = [self.locate_everywhere(layer, expert) for layer, expert in records]
        found: list[Sequence[tuple[int, int]]] = []
        while len(found) < len(records):
            run = self._run(everywhere, len(found))
            index = self._chooser.choose(run * self._record_bytes, run)
            found += [places[index] for places in everywhere[len(found) : len(found) + run]]
        return found

    def locate_everywhere(self, layer: int, expert: int) -> list[Sequence[tuple[int, int]]]:
        """See `ExpertSource`: in the order of the directories."""
        return [places for source in self._sources for places in source.locate_everywhere(layer, expert)]

    def path(self, fd: int) -> Path:
        """See `ExpertSource`."""
        return self._sources[self._owner[fd]].path(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `ExpertSource`. Measures the directory."""
        directory = self._owner[fd]
        self._chooser.begin(directory, self._clock())
        count = 0
        try:
            count = self._sources[directory].read(fd, buffers, offset)
            return count
        finally:
            self._chooser.end(directory, self._clock(), count)

    def settle(self, fd: int, byte_count: int) -> None:
        """See `ExpertSource`."""
        self._chooser.settle(self._owner[fd], byte_count)

    def elsewhere(self, fault: Fault, layer: int, expert: int) -> Sequence[tuple[int, int]] | None:
        """See `ExpertSource`. Leaves out the directory that failed, unless it is the last; does not queue bytes."""
        other = self._chooser.leave_out(self._owner[fault.fd], fault, self._record_bytes)
        if other is None:
            return None
        self.report_left_out()
        return self.locate_everywhere(layer, expert)[other]

    def report_left_out(self) -> None:
        """See `ExpertSource`: one line in the log for each directory, once."""
        for index, directory in enumerate(self._directories):
            state = self._chooser.state(index)
            if state.usable or index in self._left_out:
                continue
            self._left_out.add(index)
            fault = state.fault
            logger.warning(
                "reading %s failed: wanted %s bytes at offset %s, got %s (%s); %s is left out from now on",
                self.path(fault.fd),
                f"{fault.wanted:,}",
                f"{fault.offset:,}",
                f"{fault.got:,}",
                fault.reason,
                directory,
            )

    def _run(self, everywhere: Sequence[Sequence[Sequence[tuple[int, int]]]], first: int) -> int:
        """Return how many records from the first on lie side by side in one directory at least."""
        step = self.layout.kinds[0].disk_bytes

        def adjoins(number: int) -> bool:
            pairs = zip(everywhere[number - 1], everywhere[number], strict=True)
            return any(here[0] == (before[0][0], before[0][1] + step) for before, here in pairs)

        end = first + 1
        while end < min(len(everywhere), first + RUN_RECORDS) and adjoins(end):
            end += 1
        return end - first


def choose_directories(count: int, environment: Mapping[str, str]) -> Directories:
    """Return what chooses among so many directories: the compiled lanes' way if the environment allows it.

    Raises:
        SettingError: SLOTSTREAM_NATIVE has a value that cannot be used.
    """
    library: LaneLibrary | None = lane_library(environment)
    return open_directories(library, count)
