"""Measure how fast a disk answers cold, parallel reads of one expert record.

The model's own files are read when they are there; otherwise a temporary file is written beside where they
would be, and removed. Reads bypass the page cache (``O_DIRECT`` on Linux, ``F_NOCACHE`` on macOS) or, where
a file system offers neither, follow a request to forget the pages. At most 2 GB are read and 512 MB written.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotstream_planner.errors import ForecastError
from slotstream_planner.moved import MOVED_NAME, MOVED_SUFFIX
from slotstream_planner.units import GB, MB, format_bytes

__all__ = ["DiskProbe", "probe_disk"]

_ALIGNMENT: Final = 4096
_MOST_READ_BYTES: Final = 2 * GB
_TEMPORARY_BYTES: Final = 512 * MB
_LEAST_FREE_BYTES: Final = 2 * GB
_LANES: Final = 32
_SMALLEST_RECORD_BYTES: Final = 64 * 1024
_F_NOCACHE: Final = 48
_MEMORY_LIKE_BYTES_PER_S: Final = 25e9


@dataclass(frozen=True, kw_only=True)
class DiskProbe:
    """What the probe measured.

    Attributes:
        bytes_per_s: Rate of parallel reads.
        read_bytes: How much was read.
        seconds: How long that took.
        record_bytes: Size of one read.
        lanes: Reads in flight.
        source: Whether the model's files or a temporary file were read.
        cold: Whether the page cache was bypassed; False means only asked to forget.
    """

    bytes_per_s: float
    read_bytes: int
    seconds: float
    record_bytes: int
    lanes: int
    source: str
    cold: bool

    @property
    def suspect(self) -> bool:
        """Whether the rate looks like memory and not like a disk."""
        return self.bytes_per_s > _MEMORY_LIKE_BYTES_PER_S


def probe_disk(
    directory: Path,
    *,
    record_bytes: int,
    seconds: float = 8.0,
    limit_bytes: int = _MOST_READ_BYTES,
    temporary_bytes: int = _TEMPORARY_BYTES,
    seed: int = 0,
) -> DiskProbe:
    """Measure the disk that holds, or will hold, a checkpoint directory.

    Args:
        directory: The checkpoint's directory; it need not exist.
        record_bytes: Size of one read; rounded up to whole 4,096-byte blocks and to at least 64 kB.
        seconds: How long to read.
        limit_bytes: The most to read, 2 GB at most.
        temporary_bytes: Size of the temporary file; model files of a quarter of it are used instead.
        seed: Seed of the random positions.

    Raises:
        ForecastError: The disk cannot be read or written, or has no room for the temporary file.
    """
    size = -(-max(record_bytes, _SMALLEST_RECORD_BYTES) // _ALIGNMENT) * _ALIGNMENT
    limit_bytes = min(limit_bytes, _MOST_READ_BYTES)
    try:
        with _files(directory, size, temporary_bytes) as (files, source):
            return _read(files, source, size, seconds, limit_bytes, seed)
    except OSError as error:
        raise ForecastError(
            f"the disk of {directory} cannot be measured: {error.strerror or error}; use --no-probe to plan without"
        ) from error


@contextlib.contextmanager
def _files(directory: Path, size: int, temporary_bytes: int) -> Iterator[tuple[list[Path], str]]:
    """Yield files large enough to read from: the model's own, or a temporary one removed afterwards."""
    files = [*directory.glob("*.safetensors"), *(directory / MOVED_NAME).glob(f"*{MOVED_SUFFIX}")]
    own = [path for path in sorted(files) if path.stat().st_size >= 4 * size]
    if sum(path.stat().st_size for path in own) >= temporary_bytes // 4:
        yield own, "the model's files"
        return
    parent = _existing_parent(directory)
    free = shutil.disk_usage(parent).free
    if free < _LEAST_FREE_BYTES:
        raise ForecastError(
            f"{parent} has {format_bytes(free)} free and measuring it needs {format_bytes(_LEAST_FREE_BYTES)}; "
            "free some space or use --no-probe"
        )
    with tempfile.NamedTemporaryFile(dir=parent, prefix=".slotstream-probe-") as stream:
        block = os.urandom(min(4 * MB, temporary_bytes))
        for _ in range(temporary_bytes // len(block)):
            stream.write(block)
        stream.flush()
        os.fsync(stream.fileno())
        yield [Path(stream.name)], "a temporary file"


def _existing_parent(directory: Path) -> Path:
    path = directory.absolute()
    while not path.is_dir():
        path = path.parent
    return path


class _Lane:
    """One thread's aligned buffer and what it read."""

    def __init__(self, size: int) -> None:
        self.buffer = mmap.mmap(-1, size)
        self.read_bytes = 0
        self.error: OSError | None = None

    def run(self, plan: Iterator[tuple[int, int]], lock: threading.Lock, deadline_s: float) -> None:
        try:
            while True:  # at least once, however long this thread had to wait for a processor
                with lock:
                    position = next(plan, None)
                if position is None:
                    return
                descriptor, offset = position
                self.read_bytes += os.preadv(descriptor, [self.buffer], offset)
                if time.perf_counter() >= deadline_s:
                    return
        except OSError as error:
            self.error = error


def _read(files: Sequence[Path], source: str, size: int, seconds: float, limit_bytes: int, seed: int) -> DiskProbe:
    descriptors: list[int] = []
    lanes = [_Lane(size) for _ in range(_LANES)]
    try:
        cold = True
        for path in files:
            descriptor, direct = _open_cold(path)
            descriptors.append(descriptor)
            cold = cold and direct
        plan = _positions(descriptors, [path.stat().st_size for path in files], size, limit_bytes, seed)
        lock = threading.Lock()
        started_s = time.perf_counter()
        threads = [
            threading.Thread(target=lane.run, args=(plan, lock, started_s + seconds), daemon=True) for lane in lanes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed_s = time.perf_counter() - started_s
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        for lane in lanes:
            lane.buffer.close()
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
    read_bytes = sum(lane.read_bytes for lane in lanes)
    if read_bytes == 0:
        raise ForecastError(f"no read finished within {seconds:g} s; the disk is too slow or too busy to measure")
    return DiskProbe(
        bytes_per_s=read_bytes / elapsed_s,
        read_bytes=read_bytes,
        seconds=elapsed_s,
        record_bytes=size,
        lanes=_LANES,
        source=source,
        cold=cold,
    )


def _open_cold(path: Path) -> tuple[int, bool]:
    """Open a file past the page cache; say whether that is certain."""
    if sys.platform == "darwin":
        import fcntl

        descriptor = os.open(path, os.O_RDONLY)
        fcntl.fcntl(descriptor, _F_NOCACHE, 1)
        return descriptor, True
    if hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            return descriptor, True
    descriptor = os.open(path, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor, False


def _positions(
    descriptors: Sequence[int], sizes: Sequence[int], size: int, limit_bytes: int, seed: int
) -> Iterator[tuple[int, int]]:
    """Yield record positions in random order, as (descriptor, offset), up to the limit.

    No position comes again before every other one has been read.
    """
    places = [
        (descriptor, index * size)
        for descriptor, length in zip(descriptors, sizes, strict=True)
        for index in range(length // size)
    ]
    random.Random(seed).shuffle(places)
    yield from itertools.islice(itertools.cycle(places), limit_bytes // size)
