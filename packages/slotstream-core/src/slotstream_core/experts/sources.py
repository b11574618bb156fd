"""Finding and reading expert records: through the page cache, or past it."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import CheckpointMissing
from slotstream_core.experts.directories import Fault
from slotstream_core.experts.layout import ExpertLayout
from slotstream_planner.lanes import MERGE_BYTES

DIRECT_ALIGNMENT = 4096  # covers the logical block of every common disk and the page of a CPU that has 4 KiB pages


class ExpertSource(Protocol):
    """Finds and reads expert records; knows nothing of slots."""

    @property
    def layout(self) -> ExpertLayout:
        """What a record is made of."""

    @property
    def alignment(self) -> int:
        """1, or what offsets, lengths and buffer addresses of reads must be multiples of."""

    @property
    def merge_bytes(self) -> int:
        """How long a read of pieces that adjoin may become; a single piece may be longer."""

    @property
    def native_read(self) -> int | None:
        """How compiled lanes read: 0 by the system's `preadv`, an address by that `ss_read_function`, None not at all.

        Where it is not None, `read` is never asked by them.
        """

    @property
    def strides(self) -> npt.NDArray[np.int64] | None:
        """Where records always lie: [layers, kinds, 3], descriptor, offset of expert 0, distance from one to the next.

        None where `locate_all` chooses anew each time.
        """

    @property
    def native_mirrors(self) -> int | None:
        """The `ss_mirrors` by which compiled lanes choose among the places of a record; None where there is one."""

    @property
    def descriptors(self) -> Sequence[int]:
        """What it reads through."""

    def locate_all(self, records: Sequence[tuple[int, int]]) -> Sequence[Sequence[tuple[int, int]]]:
        """Return the descriptor and offset of every piece of some records, in the order of `layout.kinds`.

        Whoever asks is going to read them, and says so with `settle` when that is over.

        Args:
            records: Layer and expert of each.
        """

    def locate_everywhere(self, layer: int, expert: int) -> Sequence[Sequence[tuple[int, int]]]:
        """Return the same of one record in every place it lies in, for whoever chooses by `native_mirrors`."""

    def settle(self, fd: int, byte_count: int) -> None:
        """Say that located bytes are not waited for any more: they arrived, failed, or were given up."""

    def elsewhere(self, fault: Fault, layer: int, expert: int) -> Sequence[tuple[int, int]] | None:
        """Return where else a record lies after a read of it failed; nothing is to be settled.

        None when there is no other place.
        """

    def report_left_out(self) -> None:
        """Say in the log which directories compiled lanes have given up since the last call."""

    def path(self, fd: int) -> Path:
        """Return the file behind a descriptor, for messages."""

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers in order from an offset, once; return the bytes read, fewer than asked at worst, 0 at the end.

        Called by several threads at once.

        Raises:
            OSError: The file cannot be read.
        """


class StoredExperts:
    """The source for a checkpoint: the extents of its layout, read through descriptors of this object's own.

    They are its own because reads of experts jump about: the kernel is told not to read ahead (which its guesses about
    a shared descriptor otherwise cost a third of the disk's throughput), and reads of other tensors still may.

    With `direct`, reads go past the page cache (O_DIRECT on Linux, F_NOCACHE on macOS). That takes about a third of the
    processor time and leaves memory to others, but nothing read before is found in the cache: it suits experts much
    larger than memory. Where the file system cannot do it, `alignment` is 1 and reads are ordinary ones.

    Without `native`, Python's lanes read, whatever is compiled.

    A context manager; descriptors are closed at the latest when the object goes.

    Raises (constructor):
        CheckpointMissing: A file cannot be opened.
    """

    def __init__(self, layout: ExpertLayout, *, direct: bool = False, native: bool = True) -> None:
        self._layout = layout
        self._native = native
        paths = layout.paths
        opened = open_past_cache(paths) if direct else {}
        self._direct = bool(opened)
        opened = opened or _open_ordinary(paths)
        self._paths = {fd: path for path, fd in opened.items()}
        self._close = weakref.finalize(self, close_files, tuple(opened.values()))
        self._starts = [
            [
                (opened[piece.path], piece.offset, piece.stride_bytes or kind.disk_bytes)
                for piece, kind in zip(layer, layout.kinds, strict=True)
            ]
            for layer in layout.layers
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors. Close the reader first; a second call does nothing."""
        self._close()

    @property
    def layout(self) -> ExpertLayout:
        """See `ExpertSource`."""
        return self._layout

    @property
    def alignment(self) -> int:
        """See `ExpertSource`."""
        return DIRECT_ALIGNMENT if self._direct else 1

    @property
    def merge_bytes(self) -> int:
        """See `ExpertSource`: a mebibyte, and a whole record where its pieces adjoin."""
        return max(MERGE_BYTES, self._layout.record_bytes) if self._layout.repacked else MERGE_BYTES

    @property
    def native_read(self) -> int | None:
        """See `ExpertSource`: reads here are the system's, unless they are left to Python."""
        return 0 if self._native else None

    @property
    def strides(self) -> npt.NDArray[np.int64]:
        """See `ExpertSource`."""
        return np.array(self._starts, np.int64)

    @property
    def native_mirrors(self) -> None:
        """See `ExpertSource`: there is one place only."""
        return None

    @property
    def descriptors(self) -> Sequence[int]:
        """See `ExpertSource`."""
        return tuple(self._paths)

    def locate(self, layer: int, expert: int) -> Sequence[tuple[int, int]]:
        """Return the descriptor and offset of every piece of one record, in the order of `layout.kinds`."""
        return [(fd, start + expert * stride) for fd, start, stride in self._starts[layer]]

    def locate_all(self, records: Sequence[tuple[int, int]]) -> Sequence[Sequence[tuple[int, int]]]:
        """See `ExpertSource`."""
        return [self.locate(layer, expert) for layer, expert in records]

    def locate_everywhere(self, layer: int, expert: int) -> Sequence[Sequence[tuple[int, int]]]:
        """See `ExpertSource`."""
        return (self.locate(layer, expert),)

    def settle(self, fd: int, byte_count: int) -> None:
        """See `ExpertSource`: nothing is counted here."""

    def elsewhere(self, fault: Fault, layer: int, expert: int) -> Sequence[tuple[int, int]] | None:
        """See `ExpertSource`: there is one place only."""
        return None

    def report_left_out(self) -> None:
        """See `ExpertSource`: nothing is ever left out."""

    def path(self, fd: int) -> Path:
        """See `ExpertSource`."""
        return self._paths[fd]

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `ExpertSource`."""
        return os.preadv(fd, buffers, offset)


def close_files(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in descriptors:
        os.close(fd)


def _open_ordinary(paths: Sequence[Path]) -> dict[Path, int]:
    opened: dict[Path, int] = {}
    for path in paths:
        try:
            opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            close_files(tuple(opened.values()))
            raise CheckpointMissing(
                f"{path} cannot be opened for reading ({error.strerror}); check that it exists and may be read"
            ) from error
        if sys.platform == "darwin":
            fcntl.fcntl(opened[path], fcntl.F_RDAHEAD, 0)
        else:
            os.posix_fadvise(opened[path], 0, 0, os.POSIX_FADV_RANDOM)
    return opened


def open_past_cache(paths: Sequence[Path]) -> dict[Path, int]:
    """Open every file for reads past the page cache; nothing when one of them cannot be read that way."""
    opened: dict[Path, int] = {}
    try:
        for path in paths:
            if sys.platform == "darwin":
                opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.fcntl(opened[path], fcntl.F_NOCACHE, 1)
            else:
                opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            with mmap.mmap(-1, DIRECT_ALIGNMENT) as block:  # file systems may refuse only when it comes to reading
                os.preadv(opened[path], [block], 0)
    except OSError:
        close_files(tuple(opened.values()))
        return {}
    return opened


def prefers_direct(layout: ExpertLayout, *, available_bytes: int) -> bool:
    """Say whether reads should go past the page cache: when the experts would not fit into the memory left for it.

    Args:
        layout: The experts.
        available_bytes: Memory left to the page cache once the plan's memory is taken.
    """
    return layout.record_count * layout.record_bytes > available_bytes
