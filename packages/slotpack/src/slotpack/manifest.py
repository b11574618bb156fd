"""The manifest of a package: which objects hold which bytes of which files.

Reading one checks everything that can be checked without its objects: sizes, digests, safe paths, complete coverage
without overlap, and no object that mixes required and optional files.  Nothing is requested from a server before that.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from slotpack.errors import (
    ManifestDigest,
    ManifestError,
    ManifestTooLarge,
    MissingRanges,
    MixedOptional,
    OverlappingRanges,
    PinMismatch,
)
from slotpack.frames import HEADER_BYTES, MAX_FRAME_BYTES, MAX_RAW_BYTES

FORMAT = "slotpack-v1"
MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_OBJECTS = 20_000
MAX_RANGES = 3
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file that a package reconstructs.

    Attributes:
        path: Name inside the model directory; no directories.
        size_bytes: Length.
        sha256: Digest of the whole file, 64 lower-case hexadecimal digits.
        optional: Whether a model without the file is still complete.
    """

    path: str
    size_bytes: int
    sha256: str
    optional: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRange:
    """A run of bytes of one file."""

    file: str
    offset_bytes: int
    length_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectEntry:
    """One immutable object of a package.

    Attributes:
        sha256: Digest of the object as transferred.
        size_bytes: Length as transferred.
        raw_size_bytes: Length of the decoded bytes.
        raw_sha256: Digest of the decoded bytes.
        ranges: Where the decoded bytes go, in order.
    """

    sha256: str
    size_bytes: int
    raw_size_bytes: int
    raw_sha256: str
    ranges: tuple[FileRange, ...]

    @property
    def path(self) -> str:
        """Path of the object inside the package."""
        return f"objects/{self.sha256[:2]}/{self.sha256}.bin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """A validated manifest."""

    files: tuple[FileEntry, ...]
    objects: tuple[ObjectEntry, ...]

    @functools.cached_property
    def file_by_path(self) -> dict[str, FileEntry]:
        """The files by path."""
        return {entry.path: entry for entry in self.files}

    @property
    def transfer_bytes(self) -> int:
        """Bytes of all objects as transferred."""
        return sum(entry.size_bytes for entry in self.objects)

    @property
    def model_bytes(self) -> int:
        """Bytes of all reconstructed files."""
        return sum(entry.size_bytes for entry in self.files)

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, compact separators, one trailing newline."""
        document = {
            "format": FORMAT,
            "files": [
                {"path": f.path, "size": f.size_bytes, "sha256": f.sha256, "optional": f.optional} for f in self.files
            ],
            "objects": [
                {
                    "sha256": o.sha256,
                    "size": o.size_bytes,
                    "rawSize": o.raw_size_bytes,
                    "rawSHA256": o.raw_sha256,
                    "ranges": [{"file": r.file, "offset": r.offset_bytes, "length": r.length_bytes} for r in o.ranges],
                }
                for o in self.objects
            ],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def is_safe_name(path: str) -> bool:
    """Tell whether a path is one plain component that stays inside its directory."""
    if path in ("", ".", "..") or len(path.encode("utf-8", "surrogatepass")) > 255:
        return False
    return all(char.isprintable() and char not in '/\\:*?"<>|' for char in path)


def _field(record: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(record, dict):
        raise ManifestError(f"{where} is not a JSON object")
    value = record.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ManifestError(f"{where} has no {kind.__name__} named {name!r}")
    return value


def _number(record: Any, name: str, low: int, high: int, where: str) -> int:
    value: int = _field(record, name, int, where)
    if not low <= value <= high:
        raise ManifestError(f"{where}: {name} is {value:,}, outside {low:,} to {high:,}")
    return value


def _digest_of(record: Any, name: str, where: str) -> str:
    value: str = _field(record, name, str, where)
    if not _DIGEST.fullmatch(value):
        raise ManifestError(f"{where}: {name} is not 64 lower-case hexadecimal digits")
    return value


def _parse_file(record: Any, index: int) -> FileEntry:
    where = f"file {index}"
    path: str = _field(record, "path", str, where)
    if not is_safe_name(path):
        raise ManifestError(f"{where}: {path!r} is not a plain file name")
    return FileEntry(
        path=path,
        size_bytes=_number(record, "size", 0, 2**63 - 1, where),
        sha256=_digest_of(record, "sha256", where),
        optional=_field(record, "optional", bool, where),
    )


def _parse_object(record: Any, index: int) -> ObjectEntry:
    where = f"object {index}"
    ranges = _field(record, "ranges", list, where)
    if not 1 <= len(ranges) <= MAX_RANGES:
        raise ManifestError(f"{where} has {len(ranges)} ranges, not 1 to {MAX_RANGES}")
    return ObjectEntry(
        sha256=_digest_of(record, "sha256", where),
        size_bytes=_number(record, "size", HEADER_BYTES, MAX_FRAME_BYTES, where),
        raw_size_bytes=_number(record, "rawSize", 1, MAX_RAW_BYTES, where),
        raw_sha256=_digest_of(record, "rawSHA256", where),
        ranges=tuple(
            FileRange(
                file=_field(item, "file", str, where),
                offset_bytes=_number(item, "offset", 0, 2**63 - 1, where),
                length_bytes=_number(item, "length", 1, MAX_RAW_BYTES, where),
            )
            for item in ranges
        ),
    )


def _check_coverage(files: Sequence[FileEntry], objects: Sequence[ObjectEntry]) -> None:
    by_path: dict[str, list[FileRange]] = {entry.path: [] for entry in files}
    for item in itertools.chain.from_iterable(entry.ranges for entry in objects):
        by_path[item.file].append(item)
    for entry in files:
        position = 0
        for item in sorted(by_path[entry.path], key=lambda part: part.offset_bytes):
            if item.offset_bytes < position:
                raise OverlappingRanges(f"two objects hold byte {item.offset_bytes:,} of {entry.path}")
            if item.offset_bytes > position:
                raise MissingRanges(f"no object holds bytes {position:,} to {item.offset_bytes:,} of {entry.path}")
            position += item.length_bytes
        if position > entry.size_bytes:
            raise ManifestError(f"the objects of {entry.path} reach byte {position:,} of {entry.size_bytes:,}")
        if position < entry.size_bytes:
            raise MissingRanges(f"no object holds bytes {position:,} to {entry.size_bytes:,} of {entry.path}")


def check_manifest(manifest: Manifest) -> None:
    """Check what holds between the parts of a manifest.

    Raises:
        ManifestError: The matching subclass.
    """
    by_path = manifest.file_by_path
    if len(by_path) != len(manifest.files) or len({path.casefold() for path in by_path}) != len(by_path):
        raise ManifestError("two files have the same name; names must differ in more than case")
    for index, entry in enumerate(manifest.objects):
        total = sum(item.length_bytes for item in entry.ranges)
        if total != entry.raw_size_bytes:
            raise ManifestError(f"object {index}: its ranges hold {total:,} bytes, not {entry.raw_size_bytes:,}")
        unknown = [item.file for item in entry.ranges if item.file not in by_path]
        if unknown:
            raise ManifestError(f"object {index} names the unknown file {unknown[0]!r}")
        if len({by_path[item.file].optional for item in entry.ranges}) > 1:
            raise MixedOptional(f"object {index} mixes required and optional files")
    _check_coverage(manifest.files, manifest.objects)


def parse_manifest(data: bytes, *, digest: str | None = None) -> Manifest:
    """Read and validate a manifest.

    Args:
        data: The JSON document.
        digest: The pinned SHA-256 of `data`, when there is one.

    Raises:
        ManifestError: The matching subclass; the message names the first fault.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestTooLarge(f"the manifest has {len(data):,} bytes; the limit is {MAX_MANIFEST_BYTES:,}")
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise ManifestDigest(f"the manifest does not have the pinned SHA-256 {digest}; it may be damaged or replaced")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not JSON: {error}") from error
    if _field(document, "format", str, "the manifest") != FORMAT:
        raise ManifestError(f"the manifest's format is {document['format']!r}; this version reads {FORMAT!r}")
    files = _field(document, "files", list, "the manifest")
    objects = _field(document, "objects", list, "the manifest")
    if not 1 <= len(objects) <= MAX_OBJECTS or not 1 <= len(files) <= MAX_OBJECTS * MAX_RANGES:
        raise ManifestError(f"the manifest has {len(objects):,} objects; the format allows 1 to {MAX_OBJECTS:,}")
    manifest = Manifest(
        files=tuple(_parse_file(record, index) for index, record in enumerate(files)),
        objects=tuple(_parse_object(record, index) for index, record in enumerate(objects)),
    )
    check_manifest(manifest)
    return manifest


def check_pins(manifest: Manifest, pins: Iterable[FileEntry]) -> None:
    """Require the manifest to reconstruct exactly the pinned files.

    Raises:
        PinMismatch: Naming the first difference.
    """
    pinned = {entry.path: entry for entry in pins}
    for path in sorted({*pinned, *manifest.file_by_path}):
        if pinned.get(path) != manifest.file_by_path.get(path):
            raise PinMismatch(f"{path} in the manifest differs from the pinned model; nothing was requested")
