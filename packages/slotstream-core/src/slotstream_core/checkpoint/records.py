"""Repacked experts: what the directory of records beside a checkpoint's stacked tensors holds, and whether it fits.

The directory `repacked` of a checkpoint (or one elsewhere that this name links to) has one file a layer. A record is
one expert's pieces, one after the other; it begins on a page and is padded to whole pages with zeros, so that one read
fetches it, past the page cache too. `index.json` appears last. It names the layout, the SHA-256 of every file, and the
shards the records came from: their names, lengths and the SHA-256 of their headers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from slotstream_core.checkpoint.headers import DTYPE_BYTES, list_directory, read_json_object
from slotstream_core.errors import CheckpointError, RecordsUnusable
from slotstream_planner.headers import MAX_HEADER_BYTES
from slotstream_planner.index_entries import as_file_name, as_size, as_text

RECORDS_NAME: Final = "repacked"
INDEX_NAME: Final = "index.json"
FORMAT: Final = "slotstream-records"
VERSION: Final = 1
PAGE_BYTES: Final = 4096

PartName = Literal["trunk", "draft"]
PARTS: Final[tuple[PartName, ...]] = ("trunk", "draft")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordPiece:
    """One piece of every record of a part.

    Attributes:
        name: Such as "gate.scales".
        dtype: Its safetensors type.
        shape: Of one expert's piece.
        offset: Of its first byte, from the start of the record.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFile:
    """The records of one layer, expert 0 first.

    Attributes:
        name: In the directory.
        module: The layer's expert module in the checkpoint.
        sha256: Of the whole file, in hexadecimal.
    """

    name: str
    module: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordPart:
    """The experts of the model's own layers, or of its draft head.

    Attributes:
        part: Which of the two.
        expert_count: Records a file.
        record_bytes: Bytes of one expert.
        stride_bytes: From one record to the next: `record_bytes` in whole pages.
        pieces: What a record is made of, in its order.
        files: One a layer, first layer first.
    """

    part: PartName
    expert_count: int
    record_bytes: int
    stride_bytes: int
    pieces: tuple[RecordPiece, ...]
    files: tuple[RecordFile, ...]

    @property
    def file_bytes(self) -> int:
        """Length of each file."""
        return self.expert_count * self.stride_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A shard that holds experts, as it was when the records were written.

    Attributes:
        name: In the checkpoint's directory.
        file_bytes: Its length.
        header_sha256: Of the safetensors header with its length, in hexadecimal.
    """

    name: str
    file_bytes: int
    header_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordsIndex:
    """What `index.json` says.

    Attributes:
        directory: Where it lies.
        sources: The shards the records came from, by name.
        parts: The trunk, and the draft head where there is one.
    """

    directory: Path
    sources: tuple[SourceFile, ...]
    parts: tuple[RecordPart, ...]

    @property
    def byte_count(self) -> int:
        """Bytes of all record files."""
        return sum(part.file_bytes * len(part.files) for part in self.parts)

    def part(self, name: PartName) -> RecordPart | None:
        """Return a part; None where there is none of that name."""
        return next((part for part in self.parts if part.part == name), None)

    def document(self) -> dict[str, Any]:
        """Return the contents of `index.json`."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "sources": [asdict(source) for source in self.sources],
            "parts": [asdict(part) for part in self.parts],
        }


def whole_pages(byte_count: int) -> int:
    """Return a length rounded up to whole pages."""
    return -(-byte_count // PAGE_BYTES) * PAGE_BYTES


def identify_sources(paths: Iterable[Path]) -> tuple[SourceFile, ...]:
    """Return the identity of shards from their lengths and headers.

    Raises:
        CheckpointError: One cannot be read.
    """
    return tuple(_identify(path) for path in sorted(set(paths), key=lambda path: path.name))


def _identify(path: Path) -> SourceFile:
    try:
        with path.open("rb") as stream:
            prefix = stream.read(8)
            file_bytes = os.fstat(stream.fileno()).st_size
            header = stream.read(min(int.from_bytes(prefix, "little"), MAX_HEADER_BYTES, file_bytes))
            return SourceFile(
                name=path.name,
                file_bytes=file_bytes,
                header_sha256=hashlib.sha256(prefix + header).hexdigest(),
            )
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def read_records_index(checkpoint_directory: Path) -> RecordsIndex | None:
    """Return the index of a checkpoint's records; None when it has none.

    Raises:
        RecordsUnusable: There is one and it is damaged, of another format, or its directory is gone.
    """
    directory = checkpoint_directory / RECORDS_NAME
    if not directory.is_dir():
        if directory.is_symlink():
            raise RecordsUnusable(f"{directory} leads to {directory.readlink()}, which is not there")
        return None
    return read_index_file(directory)


def left_unfinished(checkpoint_directory: Path) -> bool:
    """Whether writing records into a checkpoint's own directory was begun and never ended, and can be continued."""
    directory = checkpoint_directory / RECORDS_NAME
    if directory.is_symlink() or not directory.is_dir():
        return False
    return not (directory / INDEX_NAME).exists() and os.access(directory, os.R_OK | os.W_OK | os.X_OK)


def read_index_file(directory: Path) -> RecordsIndex | None:
    """Return the index of a directory of records; None when there is no index in it.

    Raises:
        RecordsUnusable: It is damaged or of another format.
    """
    path = directory / INDEX_NAME
    try:
        if INDEX_NAME not in list_directory(directory):
            return None
        return _parse(directory, read_json_object(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordsUnusable(f"{path} is damaged ({type(error).__name__}: {error})") from error
    except RecordsUnusable:
        raise
    except CheckpointError as error:
        raise RecordsUnusable(str(error)) from error


def _parse(directory: Path, document: Mapping[str, Any]) -> RecordsIndex:
    path = directory / INDEX_NAME
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise RecordsUnusable(
            f"{path} is {document.get('format')!r} version {document.get('version')!r}; this version reads "
            f"{FORMAT!r} version {VERSION}"
        )
    sources = tuple(
        SourceFile(
            name=as_file_name(entry["name"]),
            file_bytes=as_size(entry["file_bytes"]),
            header_sha256=as_text(entry["header_sha256"]),
        )
        for entry in document["sources"]
    )
    return RecordsIndex(
        directory=directory, sources=sources, parts=tuple(_parse_part(entry) for entry in document["parts"])
    )


def _parse_part(entry: Mapping[str, Any]) -> RecordPart:
    if entry["part"] not in PARTS:
        raise ValueError(f"a part named {entry['part']!r}")
    pieces = tuple(
        RecordPiece(
            name=as_text(piece["name"]),
            dtype=as_text(piece["dtype"]),
            shape=tuple(as_size(length) for length in piece["shape"]),
            offset=as_size(piece["offset"]),
        )
        for piece in entry["pieces"]
    )
    part = RecordPart(
        part=cast(PartName, entry["part"]),
        expert_count=as_size(entry["expert_count"]),
        record_bytes=as_size(entry["record_bytes"]),
        stride_bytes=as_size(entry["stride_bytes"]),
        pieces=pieces,
        files=tuple(
            RecordFile(name=as_file_name(file["name"]), module=as_text(file["module"]), sha256=as_text(file["sha256"]))
            for file in entry["files"]
        ),
    )
    position = 0
    for piece in pieces:
        if piece.offset != position:
            raise ValueError(f"{piece.name} at byte {piece.offset} of a record instead of {position}")
        size = DTYPE_BYTES[piece.dtype]
        for length in piece.shape:
            size *= length
        position += size
    if position != part.record_bytes or part.stride_bytes != whole_pages(position) or not pieces:
        raise ValueError(f"records of {part.record_bytes} bytes every {part.stride_bytes}, pieces of {position}")
    return part


def check_sources(index: RecordsIndex, found: Sequence[SourceFile]) -> None:
    """Check that records came from these very shards.

    Raises:
        RecordsUnusable: A shard is another one, naming it.
    """
    written = set(index.sources)
    for source in found:
        if source not in written:
            raise RecordsUnusable(
                f"the records in {index.directory} were made from other shards than these ({source.name} differs)"
            )


def check_files(index: RecordsIndex) -> None:
    """Check that every file of an index is there and as long as it must be.

    Raises:
        RecordsUnusable: One is not, naming it.
    """
    for part in index.parts:
        for file in part.files:
            path = index.directory / file.name
            try:
                found_bytes = path.stat().st_size
            except OSError as error:
                raise RecordsUnusable(f"{path} cannot be opened: {error.strerror}") from error
            if found_bytes != part.file_bytes:
                raise RecordsUnusable(f"{path} is {found_bytes:,} bytes long instead of {part.file_bytes:,}")


def parse_state(text: str) -> dict[str, Any] | None:
    """Return what an unfinished repacking noted; None when that is damaged."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
