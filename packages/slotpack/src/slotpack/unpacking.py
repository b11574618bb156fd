"""Packages on the local disk: check them, restore the model, list what is inside."""

import collections
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

from slotpack import codec
from slotpack.cancellation import Cancellation
from slotpack.catalog import model_from_package
from slotpack.errors import FrameError, PackError
from slotpack.frames import HEADER_BYTES, Kind
from slotpack.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, ObjectEntry, parse_manifest
from slotpack.progress import ProgressSink
from slotpack.pulling import PullOptions, PullReport, pull


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageSummary:
    """What a package holds.

    Attributes:
        manifest: Its manifest.
        object_bytes: Bytes of all objects.
        model_bytes: Bytes of all files.
        objects_by_kind: Number, object bytes and decoded bytes of the objects of each kind; kinds of objects that are
            not there are not counted.
    """

    manifest: Manifest
    object_bytes: int
    model_bytes: int
    objects_by_kind: dict[Kind, tuple[int, int, int]]


def read_package(package: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of a package directory.

    Raises:
        PackError: When there is none.
        ManifestError: When it breaks the format.
    """
    path = pathlib.Path(package) / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            return parse_manifest(file.read(MAX_MANIFEST_BYTES + 1))
    except OSError as error:
        raise PackError(f"{path} cannot be read ({error.strerror}); pass the directory of a package") from error


def _read_object(package: pathlib.Path, entry: ObjectEntry) -> bytes:
    try:
        data = (package / entry.path).read_bytes()
    except OSError as error:
        raise PackError(f"{entry.path} cannot be read: {error.strerror}") from error
    if len(data) != entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise PackError(f"{entry.path} does not have its size and SHA-256; copy the package again")
    return data


def verify_package(package: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Decode every object and check every digest, including those of the reconstructed files.

    Args:
        package: The package directory.
        progress: Called with objects done and all objects.

    Raises:
        PackError: Naming the first object or file that is wrong.
        ManifestError: When the manifest breaks the format.
    """
    directory = pathlib.Path(package)
    manifest = read_package(directory)
    pieces: dict[str, list[tuple[int, int, int, int]]] = {entry.path: [] for entry in manifest.files}
    for number, (entry, raw) in enumerate(_decode_all(directory, manifest.objects)):
        if hashlib.sha256(raw).hexdigest() != entry.raw_sha256:
            raise PackError(f"{entry.path} decodes to other bytes than the manifest says")
        position = 0
        for item in entry.ranges:
            pieces[item.file].append((item.offset_bytes, number, position, item.length_bytes))
            position += item.length_bytes
        if progress is not None:
            progress(number + 1, 2 * len(manifest.objects))
    _verify_files(directory, manifest, pieces, progress)
    return manifest


def _decode_all(directory: pathlib.Path, entries: Sequence[ObjectEntry]) -> Iterator[tuple[ObjectEntry, bytes]]:
    """Decode objects in order, as many at once as the coder gains from."""
    for start in range(0, len(entries), codec.batch_frames):
        batch = entries[start : start + codec.batch_frames]
        decoded = codec.decode_many([_read_object(directory, entry) for entry in batch])
        for entry, raw in zip(batch, decoded, strict=True):
            if isinstance(raw, FrameError):
                raise PackError(f"{entry.path} cannot be decoded: {raw}") from raw
            if len(raw) != entry.raw_size_bytes:
                raise PackError(f"{entry.path} decodes to {len(raw):,} bytes, not {entry.raw_size_bytes:,}")
            yield entry, raw


def _decode(directory: pathlib.Path, entry: ObjectEntry) -> bytes:
    return next(_decode_all(directory, [entry]))[1]


def _verify_files(
    directory: pathlib.Path,
    manifest: Manifest,
    pieces: dict[str, list[tuple[int, int, int, int]]],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Hash every file from its objects in file order; a few decoded objects are kept because matrices interleave."""
    recent: collections.OrderedDict[int, bytes] = collections.OrderedDict()
    done = 0
    for entry in manifest.files:
        digest = hashlib.sha256()
        for _offset, number, position, length in sorted(pieces[entry.path]):
            if number not in recent:
                recent[number] = _decode(directory, manifest.objects[number])
                while len(recent) > 8:
                    recent.popitem(last=False)
            digest.update(memoryview(recent[number])[position : position + length])
            done += 1
            if progress is not None:
                progress(min(len(manifest.objects) + done, 2 * len(manifest.objects)), 2 * len(manifest.objects))
        if digest.hexdigest() != entry.sha256:
            raise PackError(f"{entry.path} would not have its SHA-256; the package does not hold the original model")


def unpack_package(
    package: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    progress: ProgressSink | None = None,
    cancel: Cancellation | None = None,
) -> PullReport:
    """Restore a package's model into a directory, with the same engine and guarantees as a download.

    Raises:
        PackError: When there is no package.
        PullError: When a file cannot be restored.
    """
    read_package(package)
    model = model_from_package(pathlib.Path(package), name="package", directory_name="package")
    return pull(model, output, options=PullOptions(transport="compressed"), progress=progress, cancel=cancel)


def inspect_package(package: str | os.PathLike[str]) -> PackageSummary:
    """Return a package's contents from its manifest and the headers of its objects.

    Raises:
        PackError: When there is no package.
        ManifestError: When the manifest breaks the format.
    """
    directory = pathlib.Path(package)
    manifest = read_package(directory)
    kinds: dict[Kind, tuple[int, int, int]] = {}
    for entry in manifest.objects:
        try:
            with (directory / entry.path).open("rb") as file:
                head = file.read(HEADER_BYTES)
        except OSError:
            continue
        number = int.from_bytes(head[12:16], "little")
        if len(head) < HEADER_BYTES or number not in (0, 1, 2, 3):
            raise PackError(f"{entry.path} is not a Slotpack object")
        count, object_bytes, raw_bytes = kinds.get(Kind(number), (0, 0, 0))
        kinds[Kind(number)] = (count + 1, object_bytes + entry.size_bytes, raw_bytes + entry.raw_size_bytes)
    return PackageSummary(
        manifest=manifest,
        object_bytes=manifest.transfer_bytes,
        model_bytes=manifest.model_bytes,
        objects_by_kind=kinds,
    )
