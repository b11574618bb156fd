"""Files of records: one layer's experts, each one's pieces one after the other, written and read back."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slotstream_core.checkpoint.records import PartName, whole_pages
from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX, blocks
from slotstream_core.errors import CheckpointDamaged, CheckpointError
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.packed import opened_files
from slotstream_core.experts.sources import close_files, open_past_cache

FILE_SUFFIX: Final = ".records"
BLOCK_BYTES: Final = 32 * 2**20
VERIFY_BYTES: Final = 8 * 2**20
PREFIXES: Final[dict[PartName, str]] = {"trunk": "layer", "draft": "draft"}


@dataclass(frozen=True, kw_only=True)
class LayerFile:
    """One file: which layer of which experts.

    Attributes:
        part: Which experts.
        layout: Where they are read from.
        layer: Which layer of it.
    """

    part: PartName
    layout: ExpertLayout
    layer: int

    @property
    def name(self) -> str:
        """Its name in a directory of records."""
        return f"{PREFIXES[self.part]}-{self.layer:05d}{FILE_SUFFIX}"

    @property
    def stride_bytes(self) -> int:
        """From one record to the next."""
        return whole_pages(self.layout.record_bytes)

    @property
    def byte_count(self) -> int:
        """Length of the file."""
        return self.layout.expert_count * self.stride_bytes


def layer_files(layouts: dict[PartName, ExpertLayout]) -> list[LayerFile]:
    """Return the files of a checkpoint, one a layer."""
    return [
        LayerFile(part=part, layout=layout, layer=layer)
        for part, layout in layouts.items()
        for layer in range(layout.layer_count)
    ]


def write_records(
    file: LayerFile,
    directory: Path,
    *,
    like: os.stat_result | None = None,
    block_bytes: int = BLOCK_BYTES,
    advance: Callable[[int], None] | None = None,
) -> str:
    """Write a file of records under its name, once it was read back; return its SHA-256 in hexadecimal.

    Args:
        file: What to write.
        directory: Where.
        like: A file whose owner and permissions it gets.
        block_bytes: Bytes of records put together at once, at least one record.
        advance: Called with the bytes written so far.

    Raises:
        CheckpointError: The disk refused the bytes.
        CheckpointDamaged: A shard cannot be read, or the disk gave back other bytes than were written.
    """
    path = directory / file.name
    unfinished = path.with_name(path.name + PARTIAL_SUFFIX)
    digest = hashlib.sha256()
    try:
        try:
            with unfinished.open("wb", buffering=0) as out:
                if like is not None:
                    keep_owner(out.fileno(), like)
                done_bytes = 0
                for block in _blocks(file, block_bytes):
                    write_all(out.fileno(), block)
                    digest.update(block)
                    done_bytes += len(block)
                    if advance is not None:
                        advance(done_bytes)
                os.fsync(out.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{unfinished} cannot be written: {error.strerror}; it needs {file.byte_count:,} bytes"
            ) from error
        if digest_from_disk(unfinished) != digest.hexdigest():
            raise CheckpointDamaged(f"{path}: the disk gave back other bytes than were written; check the disk")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return digest.hexdigest()


def keep_owner(descriptor: int, like: os.stat_result) -> None:
    """Give an open file the owner, group and permissions of another, as far as this process and the disk allow."""
    with suppress(OSError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    with suppress(OSError):
        os.fchmod(descriptor, like.st_mode & 0o777)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write every byte where the file's position is."""
    while data:
        data = data[os.write(descriptor, data) :]


def _blocks(file: LayerFile, block_bytes: int) -> Iterator[memoryview]:
    """Put records together, as many as fit into a block; each view is valid until the next is asked for."""
    layout, stride_bytes = file.layout, file.stride_bytes
    most = min(layout.expert_count, max(1, block_bytes // stride_bytes))
    records = np.zeros((most, stride_bytes), dtype=np.uint8)  # the padding stays zero
    room = np.empty(most * max(kind.disk_bytes for kind in layout.kinds), dtype=np.uint8)
    with opened_files(layout.paths) as opened:
        for start, stop in blocks(layout.expert_count, stride_bytes, block_bytes):
            position = 0
            for index, kind in enumerate(layout.kinds):
                extent = layout.extent(file.layer, index, start)
                stored = room[: (stop - start) * kind.disk_bytes]
                read_exactly(opened[extent.path], extent.path, extent.offset, stored.data)
                records[: stop - start, position : position + kind.disk_bytes] = stored.reshape(stop - start, -1)
                position += kind.disk_bytes
            yield records[: stop - start].reshape(-1).data


def read_exactly(descriptor: int, path: Path, offset: int, buffer: memoryview) -> None:
    """Fill a buffer from an offset.

    Raises:
        CheckpointDamaged: The file cannot be read or ends before.
    """
    done = 0
    while done < len(buffer):
        try:
            got = os.preadv(descriptor, [buffer[done : done + (1 << 28)]], offset + done)
        except OSError as error:
            raise CheckpointDamaged(f"{path} cannot be read: {error.strerror}; check the disk") from error
        if got == 0:
            raise CheckpointDamaged(f"{path} became shorter: it ends before byte {offset + len(buffer):,}")
        done += got


def digest_from_disk(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as the disk has them, past the page cache where that can be done.

    Raises:
        CheckpointDamaged: It cannot be read.
    """
    digest = hashlib.sha256()
    opened = open_past_cache((path,))
    try:
        if not opened:
            opened = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC)}
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened[path], 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(-1, VERIFY_BYTES) as room, memoryview(room) as view:
            offset = 0
            while got := os.preadv(opened[path], [view], offset):
                digest.update(view[:got])
                offset += got
                if got % mmap.PAGESIZE:
                    break  # the end of a file that is not made of whole pages
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror}; check the disk") from error
    finally:
        close_files(tuple(opened.values()))
    return digest.hexdigest()


def sync_directory(directory: Path) -> None:
    """Bring a directory's names to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
