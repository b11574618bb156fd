"""Jobs of a pull and where their bytes come from: package objects, raw files, or a local package."""

import dataclasses
import hashlib
import pathlib
import urllib.parse
from collections.abc import Sequence
from typing import Literal, Protocol

from slotpack import codec
from slotpack.errors import FrameError, IntegrityError, ObjectUnavailable, TransferError
from slotpack.frames import MAX_FRAME_BYTES
from slotpack.manifest import FileEntry, FileRange, Manifest, ObjectEntry
from slotpack.transport import Connection, Request

CHUNK_BYTES = 32 * 2**20
Form = Literal["object", "original"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work: bytes that are fetched, checked and written together.

    Attributes:
        index: Position in the plan.
        ranges: Where the decoded bytes go, in order.
        transfer_bytes: Bytes on the wire.
        raw_bytes: Bytes written.
        is_optional: Whether the model is complete without them.
    """

    index: int
    ranges: tuple[FileRange, ...]
    transfer_bytes: int
    raw_bytes: int
    is_optional: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Payload:
    """What a fetch returned: a package object still to be decoded, or the original bytes."""

    data: bytes | bytearray
    form: Form


class Fetcher(Protocol):
    """Turns jobs into bytes.  `fetch` runs in a network thread, `decode_many` in a decoder thread."""

    @property
    def fallback_count(self) -> int:
        """Jobs whose bytes came from the original files although a package was asked."""
        ...

    def fetch(self, job: Job, connection: Connection, wanted: Form) -> Payload:
        """Return a job's bytes, from the form wanted or, failing that, from the original files."""
        ...

    def decode_many(self, received: Sequence[tuple[Job, Payload]]) -> list[bytes | bytearray | IntegrityError]:
        """Return the bytes to write for each job, verified as far as they can be on their own.

        An `IntegrityError` stands where they cannot be trusted; the caller asks again for the original form.
        """
        ...


def join_url(base: str, path: str) -> str:
    """Return the URL of a path below a base."""
    return f"{base.rstrip('/')}/{urllib.parse.quote(path)}"


def local_base(base: str) -> pathlib.Path | None:
    """Return the directory of a file:// base, or None for a network base."""
    parts = urllib.parse.urlsplit(base)
    return pathlib.Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None


def check_base(base: str) -> None:
    """Refuse a source that is no http, https or file URL.

    Raises:
        TransferError: Naming the source.
    """
    try:
        parts = urllib.parse.urlsplit(base)
        is_usable = bool(parts.path) if parts.scheme == "file" else bool(parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable or parts.scheme not in ("http", "https", "file"):
        raise TransferError(f"{base!r} is not a source: give an http://, https:// or file:// address")


def fetch_part(base: str, path: str, connection: Connection, request: Request) -> bytes | bytearray:
    """Return a resource or a range of it from a network or local base.

    Raises:
        TransferError: When it cannot be had.
    """
    directory = local_base(base)
    if directory is None:
        return connection.fetch(request)
    try:
        with (directory / path).open("rb") as file:
            file.seek(request.offset_bytes or 0)
            data = file.read(request.size_bytes + (request.offset_bytes is None))
    except OSError as error:
        raise ObjectUnavailable(f"{directory / path} cannot be read: {error.strerror}", status=404) from error
    if len(data) != request.size_bytes:
        raise TransferError(f"{directory / path} does not have the expected {request.size_bytes:,} bytes")
    return data


class RawFiles:
    """The original files below one or more bases, tried in order."""

    def __init__(self, bases: Sequence[str], files: Sequence[FileEntry]) -> None:
        self._bases = tuple(bases)
        self._sizes = {entry.path: entry.size_bytes for entry in files}

    def fetch_ranges(
        self, ranges: Sequence[FileRange], connection: Connection, raw_sha256: str | None
    ) -> bytes | bytearray:
        """Return the concatenated ranges from the first base that has them right.

        Raises:
            TransferError: When no base has them.
            IntegrityError: When the last base answered with other bytes.
        """
        failure: TransferError | IntegrityError = TransferError("no source of the original files is known")
        for base in self._bases:
            try:
                pieces = [self._fetch_range(base, item, connection) for item in ranges]
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            except TransferError as error:
                failure = error
                continue
            if raw_sha256 is None or hashlib.sha256(data).hexdigest() == raw_sha256:
                return data
            failure = IntegrityError(f"{base} holds other bytes of {ranges[0].file} than the pinned ones")
        raise failure

    def _fetch_range(self, base: str, item: FileRange, connection: Connection) -> bytes | bytearray:
        request = Request(
            url=join_url(base, item.file),
            size_bytes=item.length_bytes,
            offset_bytes=item.offset_bytes,
            whole_bytes=self._sizes[item.file],
        )
        return fetch_part(base, item.file, connection, request)


class PackedFetcher:
    """Package objects first, the same ranges of the original files when an object is missing or wrong."""

    def __init__(self, manifest: Manifest, bases: Sequence[str], raw_files: RawFiles) -> None:
        self._objects = manifest.objects
        self._bases = tuple(bases)
        self._raw_files = raw_files
        self._fallbacks: set[int] = set()

    @property
    def fallback_count(self) -> int:
        """Jobs whose bytes came from the original files."""
        return len(self._fallbacks)

    def fetch(self, job: Job, connection: Connection, wanted: Form) -> Payload:
        """Return the object with its digest checked, or the original bytes with theirs."""
        entry = self._objects[job.index]
        failure: TransferError | IntegrityError = TransferError("no source of the package is known")
        if wanted == "object":
            for base in self._bases:
                try:
                    return Payload(data=self._fetch_object(base, entry, connection), form="object")
                except (TransferError, IntegrityError) as error:
                    failure = error
        try:
            data = self._raw_files.fetch_ranges(entry.ranges, connection, entry.raw_sha256)
        except (TransferError, IntegrityError) as error:
            raise type(failure)(*failure.args, **_details(failure)) from error
        self._fallbacks.add(job.index)
        return Payload(data=data, form="original")

    def _fetch_object(self, base: str, entry: ObjectEntry, connection: Connection) -> bytes | bytearray:
        request = Request(url=join_url(base, entry.path), size_bytes=entry.size_bytes)
        data = fetch_part(base, entry.path, connection, request)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise IntegrityError(f"the object {entry.path} from {base} does not have its SHA-256")
        return data

    def decode_many(self, received: Sequence[tuple[Job, Payload]]) -> list[bytes | bytearray | IntegrityError]:
        """Return the decoded bytes of each object, checked against the manifest."""
        decoded = iter(codec.decode_many([payload.data for _, payload in received if payload.form == "object"]))
        return [
            payload.data if payload.form == "original" else _checked(self._objects[job.index], next(decoded))
            for job, payload in received
        ]


def _checked(entry: ObjectEntry, raw: bytes | FrameError) -> bytes | IntegrityError:
    if isinstance(raw, FrameError):
        return IntegrityError(f"the object {entry.path} cannot be decoded: {raw}")
    if len(raw) != entry.raw_size_bytes or hashlib.sha256(raw).hexdigest() != entry.raw_sha256:
        return IntegrityError(f"the object {entry.path} decodes to other bytes than the manifest says")
    return raw


def _details(error: TransferError | IntegrityError) -> dict[str, int]:
    return {"status": error.status} if isinstance(error, ObjectUnavailable) else {}


class OriginalFetcher:
    """Chunks of the original files.  Their bytes are only verified once the whole file is there."""

    def __init__(self, raw_files: RawFiles) -> None:
        self._raw_files = raw_files

    @property
    def fallback_count(self) -> int:
        """Always 0: there is no package to fall back from."""
        return 0

    def fetch(self, job: Job, connection: Connection, wanted: Form) -> Payload:
        """Return a chunk's bytes."""
        return Payload(data=self._raw_files.fetch_ranges(job.ranges, connection, None), form="original")

    def decode_many(self, received: Sequence[tuple[Job, Payload]]) -> list[bytes | bytearray | IntegrityError]:
        """Return the bytes as they came."""
        return [payload.data for _job, payload in received]


def packed_jobs(manifest: Manifest) -> list[Job]:
    """Return one job an object."""
    return [
        Job(
            index=index,
            ranges=entry.ranges,
            transfer_bytes=entry.size_bytes,
            raw_bytes=entry.raw_size_bytes,
            is_optional=manifest.file_by_path[entry.ranges[0].file].optional,
        )
        for index, entry in enumerate(manifest.objects)
    ]


def raw_jobs(files: Sequence[FileEntry], chunk_bytes: int = CHUNK_BYTES) -> list[Job]:
    """Return one job for each 32 MiB of every file, required files first."""
    jobs: list[Job] = []
    for entry in sorted(files, key=lambda item: item.optional):
        for start in range(0, entry.size_bytes, chunk_bytes):
            length = min(chunk_bytes, entry.size_bytes - start)
            item = FileRange(file=entry.path, offset_bytes=start, length_bytes=length)
            jobs.append(
                Job(
                    index=len(jobs),
                    ranges=(item,),
                    transfer_bytes=length,
                    raw_bytes=length,
                    is_optional=entry.optional,
                )
            )
    return jobs


def fetch_manifest(bases: Sequence[str], path: str, connection: Connection, size_limit: int = MAX_FRAME_BYTES) -> bytes:
    """Return the manifest from the first base that has it; the caller checks its digest.

    Raises:
        TransferError: When no base has it.
    """
    failure = TransferError("no source of the package is known")
    for base in bases:
        directory = local_base(base)
        try:
            if directory is None:
                return connection.fetch_document(join_url(base, path), size_limit)
            with (directory / path).open("rb") as file:
                return file.read(size_limit + 1)
        except OSError as error:
            failure = ObjectUnavailable(f"{base}/{path} cannot be read: {error.strerror}", status=404)
        except TransferError as error:
            failure = error
    raise failure
