"""What a pull leaves on disk while it is unfinished, and how it is trusted afterwards.

    .pull.lock               held while a process writes to the directory
    .slotpack-state.json     one bit an object: its bytes are verified, written and synced
    <file>.slotpack.part     the file under construction, at its final size
    <file>.part, .partmap    the same for the raw transport, with one bit a chunk

A part file is only ever opened without following links, and must be a regular file with a single link: anything else
is refused, never followed, truncated or removed.  Metadata that cannot be read means starting over, never a failure.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from slotpack.errors import DirectoryBusy, NotEnoughSpace, UnsafeFile
from slotpack.files import PIECE_BYTES, sync_directory, write_atomically
from slotpack.manifest import FileEntry

STATE_NAME = ".slotpack-state.json"
LOCK_NAME = ".pull.lock"
PACKED_SUFFIX = ".slotpack.part"
RAW_SUFFIX = ".part"
MAP_SUFFIX = ".partmap"
MAX_STATE_BYTES = 2**20
MARGIN_BYTES = 2 * 10**9


class FreeSpace(Protocol):
    """Tells how many bytes a file system can still take."""

    def __call__(self, directory: pathlib.Path) -> int:
        """Return the free bytes below a directory."""
        ...


def free_bytes(directory: pathlib.Path) -> int:
    """Return the bytes that an unprivileged process can still write below a directory."""
    return shutil.disk_usage(directory).free


@contextlib.contextmanager
def lock_directory(directory: pathlib.Path) -> Iterator[None]:
    """Hold the directory's lock.

    Raises:
        DirectoryBusy: When another process holds it.
        UnsafeFile: When something else stands in the lock file's place.
    """
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UnsafeFile(f"{path} cannot be used as a lock ({error.strerror}); remove it and try again") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DirectoryBusy(
                f"another process is downloading into {directory}; wait until it has finished"
            ) from error
        yield
    finally:
        os.close(descriptor)


def read_small_json(path: pathlib.Path) -> Any:
    """Return a small JSON file's content, or None when it is absent, too large, unsafe or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_STATE_BYTES:
            return None
        try:
            return json.loads(file.read(MAX_STATE_BYTES + 1))
        except (ValueError, RecursionError, OSError):
            return None


def _clean_bits(bits: Any, count: int) -> list[int] | None:
    if isinstance(bits, list) and len(bits) == count and all(type(bit) is int and bit in (0, 1) for bit in bits):
        return list(bits)
    return None


class Ledger(Protocol):
    """Which jobs are verified, written and synced; durable before `mark` returns."""

    def is_done(self, index: int) -> bool:
        """Tell whether a job's bytes are on disk."""
        ...

    def mark(self, index: int) -> None:
        """Record a job as done."""
        ...

    def clear(self, indices: Sequence[int]) -> None:
        """Record jobs as not done."""
        ...

    def finish(self) -> None:
        """Remove the record after everything is in place."""
        ...


class PackedLedger:
    """The state file of a compressed pull: one bit an object, bound to one manifest."""

    def __init__(self, directory: pathlib.Path, manifest_digest: str, count: int) -> None:
        self._path = directory / STATE_NAME
        self._digest = manifest_digest
        self._lock = threading.Lock()
        stored = read_small_json(self._path)
        bits = None
        if isinstance(stored, dict) and stored.get("manifest") == manifest_digest:
            bits = _clean_bits(stored.get("done"), count)
        self._bits = bits if bits is not None else [0] * count

    def is_done(self, index: int) -> bool:
        """Tell whether an object's bytes are on disk."""
        return self._bits[index] == 1

    def mark(self, index: int) -> None:
        """Record an object as done."""
        with self._lock:
            self._bits[index] = 1
            self._save()

    def clear(self, indices: Sequence[int]) -> None:
        """Record objects as not done."""
        with self._lock:
            changed = [index for index in indices if self._bits[index]]
            for index in changed:
                self._bits[index] = 0
            if changed:
                self._save()

    def finish(self) -> None:
        """Remove the state file."""
        self._path.unlink(missing_ok=True)

    def _save(self) -> None:
        document = {"manifest": self._digest, "done": self._bits}
        write_atomically(self._path, json.dumps(document, separators=(",", ":")).encode())


class RawLedger:
    """The `.partmap` files of a raw pull: one bit a chunk, one map a file, bound to the file's digest.

    Args:
        directory: The model directory.
        chunks: For every file, the numbers of its jobs, in file order.
        chunk_bytes: Length of a chunk; a map with another length is ignored.
    """

    def __init__(
        self, directory: pathlib.Path, chunks: Sequence[tuple[FileEntry, Sequence[int]]], chunk_bytes: int
    ) -> None:
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._file_of = {index: (entry, jobs) for entry, jobs in chunks for index in jobs}
        self._done: set[int] = set()
        for entry, jobs in chunks:
            stored = read_small_json(self._map_path(entry))
            if isinstance(stored, dict) and all(stored.get(k) == v for k, v in self._identity(entry).items()):
                bits = _clean_bits(stored.get("done"), len(jobs)) or []
                self._done |= {index for index, bit in zip(jobs, bits, strict=False) if bit}

    def is_done(self, index: int) -> bool:
        """Tell whether a chunk's bytes are on disk."""
        return index in self._done

    def mark(self, index: int) -> None:
        """Record a chunk as written."""
        with self._lock:
            self._done.add(index)
            self._save(index)

    def clear(self, indices: Sequence[int]) -> None:
        """Record chunks as not written."""
        with self._lock:
            changed = [index for index in indices if index in self._done]
            self._done -= set(changed)
            for entry_path in {self._file_of[index][0].path for index in changed}:
                self._save(next(index for index in changed if self._file_of[index][0].path == entry_path))

    def finish(self) -> None:
        """Remove every map."""
        for entry in {entry for entry, _jobs in self._file_of.values()}:
            self._map_path(entry).unlink(missing_ok=True)

    def _map_path(self, entry: FileEntry) -> pathlib.Path:
        return self._directory / (entry.path + MAP_SUFFIX)

    def _identity(self, entry: FileEntry) -> dict[str, object]:
        return {"size": entry.size_bytes, "sha256": entry.sha256, "chunk": self._chunk_bytes}

    def _save(self, index: int) -> None:
        entry, jobs = self._file_of[index]
        document = {**self._identity(entry), "done": [int(job in self._done) for job in jobs]}
        write_atomically(self._map_path(entry), json.dumps(document, separators=(",", ":")).encode())


class PartFile:
    """A file under construction at its final size.  `write` may be called from several threads."""

    def __init__(self, path: pathlib.Path, size_bytes: int) -> None:
        """Open or create the part file and give it its final size on disk.

        Raises:
            UnsafeFile: When a link or a special file stands there.
            NotEnoughSpace: When the disk cannot hold it.
        """
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(path.parent, size_bytes) from error
            raise _unsafe(path, error.strerror or "cannot be opened") from error
        try:
            facts = os.fstat(self._descriptor)
            problem = part_problem(facts)
            if problem is not None:
                raise _unsafe(path, problem)
            if facts.st_size > size_bytes:
                os.ftruncate(self._descriptor, size_bytes)
            _allocate(self._descriptor, size_bytes, path.parent)
        except BaseException:
            os.close(self._descriptor)
            raise

    def write(self, offset_bytes: int, data: memoryview) -> None:
        """Write all of `data` at an offset.

        Raises:
            NotEnoughSpace: When the disk is full.
        """
        while data:
            try:
                count = os.pwrite(self._descriptor, data, offset_bytes)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise disk_full(self.path.parent, len(data)) from error
                raise
            data = data[count:]
            offset_bytes += count

    def hash(self, before_piece: Callable[[], None]) -> str:
        """Return the SHA-256 of the whole file; `before_piece` runs before every 4 MiB and may raise to stop."""
        digest = hashlib.sha256()
        offset = 0
        while True:
            before_piece()
            piece = os.pread(self._descriptor, PIECE_BYTES, offset)
            if not piece:
                return digest.hexdigest()
            digest.update(piece)
            offset += len(piece)

    def sync(self) -> None:
        """Make everything written durable."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _allocate(descriptor: int, size_bytes: int, directory: pathlib.Path) -> None:
    if size_bytes == 0:
        return
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes)
        else:
            os.ftruncate(descriptor, size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise disk_full(directory, size_bytes) from error
        os.ftruncate(descriptor, size_bytes)  # a file system without preallocation


def part_problem(facts: os.stat_result) -> str | None:
    """Say why something cannot be used as a part file, or return None."""
    if not stat.S_ISREG(facts.st_mode):
        return "it is not a regular file"
    if facts.st_nlink != 1:
        return f"it has {facts.st_nlink} hard links"
    return None


def _unsafe(path: pathlib.Path, reason: str) -> UnsafeFile:
    return UnsafeFile(f"{path} cannot be used for the download: {reason}; move it away and try again")


def disk_full(directory: pathlib.Path, needed_bytes: int) -> NotEnoughSpace:
    """Return the error for a write that the disk refused."""
    free = free_bytes(directory)
    return NotEnoughSpace(
        f"the disk of {directory} is full: {needed_bytes:,} more bytes are needed and {free:,} are free; "
        "free some space and run the download again",
        needed_bytes=needed_bytes,
        free_bytes=free,
    )


def has_usable_part(path: pathlib.Path, size_bytes: int) -> bool:
    """Tell whether a part file of the final size is there.

    Raises:
        UnsafeFile: When a link or a special file stands in its place.
    """
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return False
    problem = "it is a symbolic link" if stat.S_ISLNK(facts.st_mode) else part_problem(facts)
    if problem is not None:
        raise _unsafe(path, problem)
    return facts.st_size == size_bytes


def allocated_bytes(path: pathlib.Path) -> int:
    """Return what a part file already occupies on disk, 0 when there is none."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def admit(
    directory: pathlib.Path, missing: Sequence[tuple[pathlib.Path, int]], margin_bytes: int, free: FreeSpace
) -> None:
    """Refuse a pull that the disk cannot hold.

    Args:
        directory: Where the model goes.
        missing: Part file and final size of every file that is still to be made.
        margin_bytes: What must stay free.
        free: The file system's answer.

    Raises:
        NotEnoughSpace: With both numbers.
    """
    needed = sum(max(0, size - allocated_bytes(part)) for part, size in missing) + margin_bytes
    available = free(directory)
    if missing and available < needed:
        raise NotEnoughSpace(
            f"{directory} needs {_decimal(needed)} ({_decimal(margin_bytes)} of it spare) and has "
            f"{_decimal(available)} free; free some space or choose another directory",
            needed_bytes=needed,
            free_bytes=available,
        )


def _decimal(byte_count: int) -> str:
    """A size in GB, or in MB below one."""
    return f"{byte_count / 1e9:.1f} GB" if byte_count >= 10**9 else f"{byte_count / 1e6:.1f} MB"


def put_in_place(part: pathlib.Path, final: pathlib.Path) -> None:
    """Rename a verified part file to its final name, durably."""
    part.replace(final)
    sync_directory(final.parent)
