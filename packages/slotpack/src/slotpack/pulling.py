"""`pull`: from a model's pins to a verified directory.

Life of a pull: choose the transport -> lock the directory -> read and check the manifest -> hash the files that are
already there -> admit the disk space -> transfer -> clean up -> fetch the sidecars.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from slotpack.cancellation import Cancellation, Clock, SystemClock
from slotpack.catalog import CatalogModel, default_directory
from slotpack.errors import PullCancelled, PullError, SlotpackError, TransferError, UnsafeFile
from slotpack.fetching import (
    CHUNK_BYTES,
    Fetcher,
    Job,
    OriginalFetcher,
    PackedFetcher,
    RawFiles,
    check_base,
    fetch_manifest,
    packed_jobs,
    raw_jobs,
)
from slotpack.files import hash_file, write_atomically
from slotpack.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, FileEntry, check_pins, parse_manifest
from slotpack.moved import moved_reason
from slotpack.progress import ProgressSink, PullProgress
from slotpack.resume import (
    MAP_SUFFIX,
    PACKED_SUFFIX,
    RAW_SUFFIX,
    STATE_NAME,
    FreeSpace,
    Ledger,
    PackedLedger,
    RawLedger,
    admit,
    free_bytes,
    has_usable_part,
    lock_directory,
    part_problem,
)
from slotpack.sidecars import SidecarState, ensure_sidecar
from slotpack.transferring import Transfer, TransferPlan
from slotpack.transport import Connection, ConnectionCounter, RedirectCache
from slotpack.tuning import MAX_CONNECTIONS, ConnectionTuner

TransportName = Literal["automatic", "compressed", "raw"]
MANIFEST_COPY_NAME = ".slotpack-manifest.json"
TRANSPORTS: tuple[TransportName, ...] = ("automatic", "compressed", "raw")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullOptions:
    """How to pull.

    Attributes:
        transport: `automatic` takes the compressed package, unless raw sources are given, a raw download is
            unfinished, or the package's manifest cannot be had.
        connections: 1 to 32 to fix the number of connections, None to start at 8 and measure.
        raw_sources: Bases of the original files instead of the catalog's.
        compressed_sources: Bases of the package instead of the catalog's.
        with_sidecars: Whether to fetch the catalog's sidecars as well.
        chunk_bytes: Length of a raw chunk.
        clock: Time source.
        free_space: The file system's free bytes.
        decoders: Decoder threads; None for half the cores, 1 to 8.
    """

    transport: TransportName = "automatic"
    connections: int | None = None
    raw_sources: tuple[str, ...] = ()
    compressed_sources: tuple[str, ...] = ()
    with_sidecars: bool = True
    chunk_bytes: int = CHUNK_BYTES
    clock: Clock = dataclasses.field(default_factory=SystemClock)
    free_space: FreeSpace = free_bytes
    decoders: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PullReport:
    """What a pull did.

    Attributes:
        directory: The verified model directory.
        transport: What was used.
        reused_files: Files that were already there and right.
        skipped: Optional files that could not be had, with the reason.
        received_bytes: Bytes received over the network, failed attempts included.
        fallback_objects: Objects whose bytes came from the original files.
        connections: Most sockets in use at once.
        retries: Repeated requests.
        sidecars: State of every sidecar.
    """

    directory: pathlib.Path
    transport: Literal["compressed", "raw"]
    reused_files: tuple[str, ...]
    skipped: Mapping[str, SlotpackError]
    received_bytes: int
    fallback_objects: int
    connections: int
    retries: int
    sidecars: Mapping[str, SidecarState]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What the hashes of a directory say."""

    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    absent_optional: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every required file is there and every file that is there is right."""
        return not self.missing and not self.damaged


def verify_directory(
    model: CatalogModel,
    directory: pathlib.Path,
    *,
    cancel: Cancellation | None = None,
    progress: ProgressSink | None = None,
) -> Verification:
    """Hash every file of a model, without the network.  Links to files are followed.

    Raises:
        PullCancelled: On cancellation, within 4 MiB.
        PullError: Its experts were moved into records, or a file cannot be read.
    """
    _refuse_moved(directory)
    switch = cancel or Cancellation()
    missing: list[str] = []
    damaged: list[str] = []
    absent: list[str] = []
    for entry in model.files:
        verdict = _judge_file(entry, directory, switch, progress)
        if verdict == "missing":
            (absent if entry.optional else missing).append(entry.path)
        elif verdict == "damaged":
            damaged.append(entry.path)
    return Verification(missing=tuple(missing), damaged=tuple(damaged), absent_optional=tuple(absent))


def _refuse_moved(directory: pathlib.Path) -> None:
    reason = moved_reason(directory)
    if reason is not None:
        raise PullError(reason)


def _judge_file(
    entry: FileEntry, directory: pathlib.Path, cancel: Cancellation, progress: ProgressSink | None
) -> Literal["right", "missing", "damaged"]:
    cancel.raise_if_cancelled()
    path = directory / entry.path
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:
        raise PullError(f"{path} cannot be examined: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise UnsafeFile(f"{path} is not a regular file; move it away and try again")
    if facts.st_size != entry.size_bytes:
        return "damaged"
    if progress is not None:
        progress(PullProgress(phase="checking", file=entry.path))
    try:
        digest = hash_file(path, before_piece=cancel.raise_if_cancelled)
    except OSError as error:
        raise PullError(f"{path} cannot be read: {error.strerror}") from error
    return "right" if digest == entry.sha256 else "damaged"


def choose_transport(
    options: PullOptions, directory: pathlib.Path, files: Sequence[FileEntry]
) -> Literal["compressed", "raw"]:
    """Return the transport of a pull: what was asked for, else raw for raw sources or an unfinished raw download."""
    if options.transport != "automatic":
        return options.transport
    has_raw_download = any(
        (directory / (entry.path + RAW_SUFFIX)).is_file() and (directory / (entry.path + MAP_SUFFIX)).is_file()
        for entry in files
    )
    return "raw" if options.raw_sources or has_raw_download else "compressed"


def pull(
    model: CatalogModel,
    directory: str | os.PathLike[str] | None = None,
    *,
    options: PullOptions | None = None,
    progress: ProgressSink | None = None,
    cancel: Cancellation | None = None,
) -> PullReport:
    """Bring a directory to the model's pinned files, resuming what an earlier run left.

    Returns only after every required file has its SHA-256.  Files that are already right are kept; a wrong one is
    replaced, at once, when its verified replacement is complete.

    Args:
        model: The model and its pins.
        directory: Where it goes; the catalog's place below ~/.slotstream/models when None.
        options: How to pull.
        progress: Called in the calling thread.
        cancel: A switch to stop from another thread.  Ctrl-C in the calling thread does the same.

    Raises:
        PullCancelled: When stopped; verified progress is kept.
        PullError: When the model cannot be completed; the subclass says why.
        ManifestError: When the package's manifest is not the pinned one.
    """
    chosen = options or PullOptions()
    check_options(chosen)
    target = pathlib.Path(directory) if directory is not None else default_directory(model)
    switch = cancel or Cancellation()
    _refuse_moved(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with lock_directory(target):
            return _Pull(model, target, chosen, progress, switch).run()
    except KeyboardInterrupt:
        switch.cancel()
        raise PullCancelled("the download was stopped; run it again to continue from the verified bytes") from None
    except OSError as error:
        raise PullError(f"{target} cannot be used for the download: {error.strerror or error}") from error


def check_options(options: PullOptions) -> None:
    """Refuse options that cannot be followed.

    Raises:
        PullError: Naming the option.
    """
    if options.transport not in TRANSPORTS:
        raise PullError(f"transport is automatic, compressed or raw, not {options.transport!r}")
    if options.connections is not None and not 1 <= options.connections <= MAX_CONNECTIONS:
        raise PullError(f"connections is 1 to {MAX_CONNECTIONS}, not {options.connections}")
    for base in (*options.raw_sources, *options.compressed_sources):
        check_base(base)


class _Pull:
    """One run of `pull`, with the directory's lock held."""

    def __init__(
        self,
        model: CatalogModel,
        directory: pathlib.Path,
        options: PullOptions,
        progress: ProgressSink | None,
        cancel: Cancellation,
    ) -> None:
        self._model = model
        self._directory = directory
        self._options = options
        self._progress = progress
        self._cancel = cancel
        self._counter = ConnectionCounter()
        self._raw_bases = options.raw_sources or model.raw_bases
        self._package_bases = options.compressed_sources or model.package_bases
        self._transport: Literal["compressed", "raw"] = "compressed"

    def run(self) -> PullReport:
        self._transport = choose_transport(self._options, self._directory, self._model.files)
        right = [entry for entry in self._model.files if self._judge(entry) == "right"]
        missing = [entry for entry in self._model.files if entry not in right]
        skipped: Mapping[str, SlotpackError] = {}
        fallbacks = 0
        if missing:
            skipped, fallbacks = self._transfer(self._transport, missing)
        self._remove_leftovers()
        sidecars: dict[str, SidecarState] = {}
        for sidecar in self._model.sidecars if self._options.with_sidecars else ():
            with self._connection() as connection:
                sidecars[sidecar.path] = ensure_sidecar(
                    sidecar, self._directory, connection, cancel=self._cancel, progress=self._progress
                )
        return PullReport(
            directory=self._directory,
            transport=self._transport,
            reused_files=tuple(entry.path for entry in right),
            skipped=skipped,
            received_bytes=self._counter.received_bytes,
            fallback_objects=fallbacks,
            connections=self._counter.peak,
            retries=self._counter.retries,
            sidecars=sidecars,
        )

    def _judge(self, entry: FileEntry) -> Literal["right", "missing", "damaged"]:
        return _judge_file(entry, self._directory, self._cancel, self._progress)

    def _transfer(
        self, transport: Literal["compressed", "raw"], missing: Sequence[FileEntry]
    ) -> tuple[Mapping[str, SlotpackError], int]:
        raw_files = RawFiles(self._raw_bases, self._model.files)
        prepared = None
        if transport == "compressed":
            try:
                prepared = self._prepare_packed(raw_files)
            except TransferError:
                if self._options.transport != "automatic" or not self._raw_bases:
                    raise
                transport = "raw"
        fetcher, jobs, ledger = prepared or self._prepare_raw(raw_files)
        self._transport = transport
        suffix = PACKED_SUFFIX if transport == "compressed" else RAW_SUFFIX
        resumed = self._check_parts(missing, jobs, ledger, suffix)
        parts = [(self._directory / (entry.path + suffix), entry.size_bytes) for entry in missing]
        admit(self._directory, parts, self._model.margin_bytes, self._options.free_space)
        transfer = Transfer(
            plan=TransferPlan(
                directory=self._directory, files=missing, jobs=jobs, suffix=suffix, resumed_parts=frozenset(resumed)
            ),
            fetcher=fetcher,
            ledger=ledger,
            tuner=ConnectionTuner(self._options.connections),
            counter=self._counter,
            clock=self._options.clock,
            cancel=self._cancel,
            progress=self._progress,
            decoders=self._options.decoders,
        )
        outcome = transfer.run()
        ledger.finish()
        return outcome.skipped, fetcher.fallback_count

    def _prepare_packed(self, raw_files: RawFiles) -> tuple[Fetcher, list[Job], Ledger]:
        data = self._read_manifest()
        manifest = parse_manifest(data, digest=self._model.manifest_sha256)
        check_pins(manifest, self._model.files)
        ledger = PackedLedger(self._directory, self._model.manifest_sha256, len(manifest.objects))
        return PackedFetcher(manifest, self._package_bases, raw_files), packed_jobs(manifest), ledger

    def _read_manifest(self) -> bytes:
        """Return the manifest, from the copy of an earlier run when that one has the pinned digest."""
        copy = self._directory / MANIFEST_COPY_NAME
        with contextlib.suppress(OSError):
            if copy.lstat().st_size <= MAX_MANIFEST_BYTES and part_problem(copy.lstat()) is None:
                data = copy.read_bytes()
                if hashlib.sha256(data).hexdigest() == self._model.manifest_sha256:
                    return data
        with self._connection() as connection:
            data = fetch_manifest(self._package_bases, MANIFEST_NAME, connection, MAX_MANIFEST_BYTES)
        if hashlib.sha256(data).hexdigest() == self._model.manifest_sha256:
            write_atomically(copy, data)
        return data

    def _prepare_raw(self, raw_files: RawFiles) -> tuple[Fetcher, list[Job], Ledger]:
        if not self._raw_bases:
            raise TransferError(f"{self._model.name} has no source of original files; use the compressed transport")
        jobs = raw_jobs(self._model.files, self._options.chunk_bytes)
        chunks = [
            (entry, [job.index for job in jobs if job.ranges[0].file == entry.path]) for entry in self._model.files
        ]
        return OriginalFetcher(raw_files), jobs, RawLedger(self._directory, chunks, self._options.chunk_bytes)

    def _check_parts(self, missing: Sequence[FileEntry], jobs: Sequence[Job], ledger: Ledger, suffix: str) -> list[str]:
        """Clear the jobs whose bytes cannot be on disk; return the files whose part file may hold some."""
        usable = {
            entry.path
            for entry in missing
            if has_usable_part(self._directory / (entry.path + suffix), entry.size_bytes)
        }
        lost = {entry.path for entry in missing} - usable
        ledger.clear([job.index for job in jobs if any(item.file in lost for item in job.ranges)])
        held = {item.file for job in jobs if ledger.is_done(job.index) for item in job.ranges}
        return sorted(usable & held)

    def _remove_leftovers(self) -> None:
        """Remove what either transport left behind, now that every required file is verified in place."""
        leftovers = [self._directory / STATE_NAME, self._directory / MANIFEST_COPY_NAME]
        for entry in self._model.files:
            leftovers += [self._directory / (entry.path + end) for end in (PACKED_SUFFIX, RAW_SUFFIX, MAP_SUFFIX)]
        for path in leftovers:
            with contextlib.suppress(FileNotFoundError):
                if part_problem(path.lstat()) is None:
                    path.unlink()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        connection = Connection(
            cancel=self._cancel, clock=self._options.clock, counter=self._counter, redirects=RedirectCache()
        )
        try:
            yield connection
        finally:
            connection.close()
