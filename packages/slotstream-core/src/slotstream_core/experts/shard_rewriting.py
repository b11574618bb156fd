"""Writing a shard anew without some of its tensors, and exactly as it was.

A file takes its name when it is complete on the disk and was read back; until then the one that had it stays.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX
from slotstream_core.errors import CheckpointDamaged, CheckpointError
from slotstream_core.experts.packed import opened_files
from slotstream_core.experts.record_files import digest_from_disk, keep_owner, read_exactly, sync_directory, write_all
from slotstream_planner.headers import DTYPE_BYTES, read_headers
from slotstream_planner.moved import MovedFile, MovedTensor

BLOCK_BYTES: Final = 8 * 2**20


def read_header(path: Path) -> bytes:
    """Return a shard's header with its length, as it is stored.

    Raises:
        CheckpointDamaged: It cannot be read.
    """
    with opened_files((path,)) as opened:
        prefix = bytearray(8)
        read_exactly(opened[path], path, 0, memoryview(prefix))
        header = bytearray(int.from_bytes(prefix, "little"))
        read_exactly(opened[path], path, 8, memoryview(header))
        return bytes(prefix + header)


class NewFile:
    """A file on its way to replacing another, or to a name nothing has. A context manager.

    Args:
        path: The name it gets.
        byte_count: Its length, for messages.
        like: A file whose owner and permissions it gets.
    """

    def __init__(self, path: Path, byte_count: int, like: os.stat_result) -> None:
        self._path = path
        self._byte_count = byte_count
        self._partial = path.with_name(path.name + PARTIAL_SUFFIX)
        self._digest = hashlib.sha256()
        with self._refusals():
            self._descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        keep_owner(self._descriptor, like)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            self._close()
            self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            CheckpointError: The disk refused them.
        """
        with self._refusals():
            write_all(self._descriptor, memoryview(data))
        self._digest.update(data)

    def finish(self, *, sha256: str | None = None) -> None:
        """Bring it to the disk, read it back, and give it its name.

        Args:
            sha256: What its digest must be, if that is known.

        Raises:
            CheckpointError: The disk refused it.
            CheckpointDamaged: It is not what it must be.
        """
        with self._refusals():
            os.fsync(self._descriptor)
        if sha256 not in (None, self._digest.hexdigest()):
            raise CheckpointDamaged(
                f"{self._path} cannot be put together as it was: its digest would be another one; verify the files it "
                "is made of, or download the checkpoint again"
            )
        if digest_from_disk(self._partial) != self._digest.hexdigest():
            raise CheckpointDamaged(f"{self._path}: the disk gave back other bytes than were written; check the disk")
        with self._refusals():
            self._partial.replace(self._path)
            self._close()
            sync_directory(self._path.parent)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"{self._path} cannot be written: {error.strerror}; it needs {self._byte_count:,} bytes"
            ) from error


def write_without(
    path: Path, names: frozenset[str], *, before_replacing: Callable[[str, bytes], None], advance: Callable[[int], None]
) -> None:
    """Write a shard anew without some tensors.

    Args:
        path: The shard.
        names: The tensors to leave out; the file has all of them.
        before_replacing: Called with the digest and the header of the file as it is, before the new one takes its name.
        advance: Called with the bytes read so far.

    Raises:
        CheckpointError: The disk refused the file, or it cannot be read.
    """
    header = read_header(path)
    slim = _header_without(header, names)
    tensors = read_headers(path)
    byte_count = len(slim) + sum(tensor.byte_count for tensor in tensors if tensor.name not in names)
    digest = hashlib.sha256(header)
    with NewFile(path, byte_count, path.stat()) as out:
        out.write(slim)
        for tensor in tensors:
            for block in _stored_bytes(path, tensor.offset, tensor.byte_count):
                digest.update(block)
                if tensor.name not in names:
                    out.write(block)
            advance(tensor.offset + tensor.byte_count)
        before_replacing(digest.hexdigest(), header)
        out.finish()


def write_with(
    path: Path,
    header: bytes,
    sha256: str,
    *,
    byte_count: int,
    places: dict[str, tuple[Path, MovedFile, MovedTensor]],
    advance: Callable[[int], None],
) -> None:
    """Write a shard as it was.

    Args:
        path: The shard, which lacks some of its tensors.
        header: Its header as it was, with its length.
        sha256: Its digest as it was.
        byte_count: Its length as it was.
        places: By name, the file of every tensor it lacks, and where in it.
        advance: Called with the bytes written so far.

    Raises:
        CheckpointError: The disk refused the file.
        CheckpointDamaged: What was put together is not what was taken apart.
    """
    held = {tensor.name: tensor for tensor in read_headers(path)}
    names = _in_order(path, header)
    done_bytes = len(header)
    with NewFile(path, byte_count, path.stat()) as out:
        out.write(header)
        for name in names:
            blocks: Iterator[memoryview]
            if name in held:
                blocks = _stored_bytes(path, held[name].offset, held[name].byte_count)
            elif name in places:
                blocks = _pieces(*places[name])
            else:
                raise CheckpointDamaged(f"{name} of {path.name} is in no file; download the checkpoint again")
            for block in blocks:
                out.write(block)
                done_bytes += len(block)
            advance(done_bytes)
        out.finish(sha256=sha256)


def _in_order(path: Path, header: bytes) -> list[str]:
    """Return the names in a header that was kept, in the order of their data."""
    try:
        places = {
            name: entry["data_offsets"] for name, entry in json.loads(header[8:]).items() if name != "__metadata__"
        }
        return sorted(places, key=lambda name: (places[name], name))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(
            f"the header of {path.name} that was kept is damaged ({type(error).__name__}); download the checkpoint "
            "again"
        ) from error


def _header_without(header: bytes, names: frozenset[str]) -> bytes:
    """Return a header without some tensors, the data of the others moved together."""
    document = json.loads(header[8:])
    entries = {name: entry for name, entry in document.items() if name not in names}
    position = 0
    for name in sorted(
        (name for name in entries if name != "__metadata__"), key=lambda name: (entries[name]["data_offsets"], name)
    ):
        begin, end = entries[name]["data_offsets"]
        entries[name] = {**entries[name], "data_offsets": [position, position + end - begin]}
        position += end - begin
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _stored_bytes(path: Path, offset: int, byte_count: int) -> Iterator[memoryview]:
    """Read a stretch of a file block by block; each view is valid until the next is asked for."""
    room = memoryview(bytearray(min(BLOCK_BYTES, byte_count)))
    with opened_files((path,)) as opened:
        for start in range(0, byte_count, BLOCK_BYTES):
            block = room[: min(BLOCK_BYTES, byte_count - start)]
            read_exactly(opened[path], path, offset + start, block)
            yield block


def _pieces(path: Path, file: MovedFile, tensor: MovedTensor) -> Iterator[memoryview]:
    """Read a tensor's entries out of the records of a file, several together."""
    experts = tensor.shape[0]
    piece_bytes = math.prod(tensor.shape[1:]) * DTYPE_BYTES[tensor.dtype]
    at_once = max(1, BLOCK_BYTES // piece_bytes)
    room = memoryview(bytearray(min(at_once, experts) * piece_bytes))
    with opened_files((path,)) as opened:
        for start in range(0, experts, at_once):
            count = min(at_once, experts - start)
            for index in range(count):
                offset = tensor.offset + (start + index) * file.stride_bytes
                read_exactly(opened[path], path, offset, room[index * piece_bytes : (index + 1) * piece_bytes])
            yield room[: count * piece_bytes]
