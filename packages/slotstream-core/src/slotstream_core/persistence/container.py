"""A file of checksummed payloads with a JSON header at its end; written whole or not at all.

"SLOTPFX1"  payloads, back to back  JSON header, keys sorted  footer of 32 bytes
footer: u64 header offset, u64 header length, u32 CRC-32 of the header, u32 0, "SLOTEND1"; little-endian
"""

import errno
import json
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotstream_core.errors import StateFileDamaged
from slotstream_core.generation.control import StopCheck

MAGIC: Final = b"SLOTPFX1"
END_MAGIC: Final = b"SLOTEND1"
FOOTER: Final = struct.Struct("<QQII8s")
LARGEST_HEADER_BYTES: Final = 16 * 2**20
TAIL_BYTES: Final = 8192
PARTIAL_SUFFIX: Final = ".partial"
OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Where one payload lies in its file, and its checksum."""

    offset: int
    byte_count: int
    crc32: int

    def holds(self, data: bytes) -> bool:
        """Return whether these are the bytes that were written."""
        return len(data) == self.byte_count and zlib.crc32(data) == self.crc32


@dataclass(frozen=True, kw_only=True)
class Container:
    """A file whose header was read and checked.

    Attributes:
        path: The file.
        header: Its JSON header, without the payload table.
        payloads: Its payloads, in order.
        byte_count: Size of the file.
        modified_ns: When it was written or touched last, in nanoseconds since 1970.
    """

    path: Path
    header: Mapping[str, Any]
    payloads: Sequence[Payload]
    byte_count: int
    modified_ns: int

    def read(self, indices: Sequence[int] | None = None, *, stop: StopCheck | None = None) -> list[bytes]:
        """Return payloads, all of them or those of some indices, checked.

        While one is read, the one before it is checked on another thread: both let go of Python's lock.

        Args:
            indices: Which payloads; None for all.
            stop: Asked before each payload; what it raises ends the reading.

        Raises:
            StateFileDamaged: A payload is cut off or has another checksum.
            OSError: The file cannot be read.
        """
        chosen = range(len(self.payloads)) if indices is None else indices
        with opened_file(self.path) as descriptor, ThreadPoolExecutor(max_workers=1) as checker:
            _read_ahead(descriptor)
            found, checks = list[bytes](), list[Future[bool]]()
            for index in chosen:
                if stop is not None:
                    stop.check()
                data = _read_whole(descriptor, self.payloads[index])
                found.append(data)
                checks.append(checker.submit(self.payloads[index].holds, data))
            for index, check in zip(chosen, checks, strict=True):
                if not check.result():
                    raise StateFileDamaged(self.path, f"payload {index} has not the bytes that were written")
        return found


@contextmanager
def opened_file(path: Path) -> Iterator[int]:
    """Open a regular file for reading and yield its descriptor; a pipe or device of that name is never waited for.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _read_ahead(descriptor: int) -> None:
    """Have the system read a file that is not in memory in large pieces, where it can be told."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


def _read_whole(descriptor: int, payload: Payload) -> bytes:
    """Read a payload; what the file lacks of it is missing at the end."""
    pieces, left = list[bytes](), payload.byte_count
    while left:
        piece = os.pread(descriptor, left, payload.offset + payload.byte_count - left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_container(path: Path, header: Mapping[str, Any], payloads: Iterable[bytes | memoryview]) -> int:
    """Write a file for its owner only and put it in place; return its size.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    # without O_NONBLOCK a pipe in its place would be waited for
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(MAGIC)
            table = []
            for data in payloads:
                table.append([file.tell(), len(data), zlib.crc32(data)])
                file.write(data)
            text = json.dumps({**header, "payloads": table}, sort_keys=True, separators=(",", ":")).encode()
            offset = file.tell()
            file.write(text)
            file.write(FOOTER.pack(offset, len(text), zlib.crc32(text), 0, END_MAGIC))
            size = file.tell()
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return size


def read_container(path: Path) -> Container:
    """Read and check a file's header; its payloads are checked when they are read.

    A header that fits the last `TAIL_BYTES` of its file, as nearly all do, costs one read beside the magic's.

    Raises:
        StateFileDamaged: It is cut off, or its parts contradict each other.
        OSError: It cannot be read.
    """
    with opened_file(path) as descriptor:
        status = os.fstat(descriptor)
        offset, text = _read_header(path, descriptor, status.st_size)
    try:
        header = json.loads(text)
        payloads = [
            Payload(offset=int(start), byte_count=int(count), crc32=int(crc))
            for start, count, crc in header["payloads"]
        ]
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise StateFileDamaged(path, f"its header is no list of payloads ({error})") from error
    end = len(MAGIC)
    for payload in payloads:
        if payload.offset != end or payload.byte_count < 0:
            raise StateFileDamaged(path, "its payloads do not lie back to back")
        end += payload.byte_count
    if end != offset:
        raise StateFileDamaged(path, f"its payloads end at byte {end:,} and its header begins at {offset:,}")
    return Container(
        path=path, header=header, payloads=payloads, byte_count=status.st_size, modified_ns=status.st_mtime_ns
    )


def _read_header(path: Path, descriptor: int, size: int) -> tuple[int, bytes]:
    """Return where a file's header begins, and its checked bytes."""
    if size < len(MAGIC) + FOOTER.size or os.pread(descriptor, len(MAGIC), 0) != MAGIC:
        raise StateFileDamaged(path, "it does not begin as a state file")
    tail_offset = max(0, size - TAIL_BYTES)
    tail = os.pread(descriptor, size - tail_offset, tail_offset)
    if len(tail) != size - tail_offset:
        raise StateFileDamaged(path, "it became shorter while it was read")
    offset, length, crc32, zero, magic = FOOTER.unpack(tail[-FOOTER.size :])
    whole = magic == END_MAGIC and zero == 0 and length <= LARGEST_HEADER_BYTES
    if not whole or offset < len(MAGIC) or offset + length + FOOTER.size != size:
        raise StateFileDamaged(path, "it does not end as a state file")
    within = offset - tail_offset
    text = tail[within : -FOOTER.size] if within >= 0 else os.pread(descriptor, length, offset)
    if len(text) != length or zlib.crc32(text) != crc32:
        raise StateFileDamaged(path, "its header has not the bytes that were written")
    return offset, text
