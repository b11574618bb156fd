"""Moving a checkpoint's experts into records of their own, in place of the stacked tensors, and back.

For a disk that cannot hold the experts twice. One shard at a time: the layers it holds are written as records, read
back, and named in the index; then the shard is written anew without them, in one step, its header and digest being
kept. A tensor that a shard still has is read there, so the checkpoint is whole at every moment, whatever part of it was
done. Moving back puts each shard together again, compares its digest with the one it had, and removes records that no
shard lacks. Either goes on where the last run ended, in whichever direction that went.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from slotstream_core.checkpoint.claiming import check_free_space, claimed, not_in_use
from slotstream_core.checkpoint.headers import CONFIG_NAME, list_directory, read_directory, read_moved
from slotstream_core.checkpoint.records import INDEX_NAME, RECORDS_NAME, PartName
from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CheckpointDamaged, CheckpointError, RecordsUnusable
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.packed import first_difference, record_pieces
from slotstream_core.experts.record_files import (
    FILE_SUFFIX,
    PREFIXES,
    LayerFile,
    digest_from_disk,
    keep_owner,
    layer_files,
    sync_directory,
    write_records,
)
from slotstream_core.experts.repacking import RepackProgress, alone_in, is_of_records, stacked_layouts
from slotstream_core.experts.shard_rewriting import NewFile, read_header, write_with, write_without
from slotstream_planner.headers import read_headers
from slotstream_planner.moved import MOVED_INDEX, MOVED_NAME, MovedExperts, MovedFile, MovedShard, MovedTensor

HEADER_SUFFIX: Final = ".header"
_OURS: Final = re.compile(
    rf"(({'|'.join(PREFIXES.values())})-\d+{re.escape(FILE_SUFFIX)}|.*\.safetensors{re.escape(HEADER_SUFFIX)})"
    rf"({re.escape(PARTIAL_SUFFIX)})?|{re.escape(MOVED_INDEX + PARTIAL_SUFFIX)}"
)
"""Names of files that are written into the directory, except the index."""

Progress = Callable[[RepackProgress], None]


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """What moving experts did.

    Attributes:
        direction: Into records, back into shards, or, of records beside the stacked tensors, away.
        directory: The records; those that stay where `repacked` led, if it was a link.
        shards: Shards written anew by this run.
        files: Files of records written, or removed, by this run.
        record_bytes: Bytes of records that there are now.
    """

    direction: Literal["moved", "restored", "removed"]
    directory: Path
    shards: tuple[str, ...]
    files: tuple[str, ...]
    record_bytes: int


def move_experts(model: Path, *, progress: Progress | None = None) -> MoveReport:
    """Let records take the place of a checkpoint's stacked expert tensors; nothing is done where they have.

    Needs room for the records of one shard's layers and for what else is in that shard.

    Args:
        model: The checkpoint's directory.
        progress: Called before and after each file.

    Raises:
        CheckpointError: The checkpoint cannot be read, one of its shards is a link or has a second name, other records
            lie beside it, it is in use, it cannot be written to, or the disk has too little room.
    """
    directory = _writable(model)
    with alone_in(directory), not_in_use(directory):
        _refuse_records_beside(directory)
        return _move(directory, progress)


def _move(directory: Path, progress: Progress | None) -> MoveReport:
    with _taken(directory) as store:
        with Checkpoint.open(directory) as checkpoint:  # closed before shards go, or their space would stay taken
            pending = _stacked_shards(stacked_layouts(checkpoint))
        for path in pending:
            _refuse_shared_file(path)
        store.remove_leftovers()
        written: list[str] = []
        whole: set[str] = set()
        for path, files in pending.items():
            written += _write_layers(store, path, [file for file in files if file.name not in whole], progress)
            whole.update(file.name for file in files)
            _write_without(store, path, files, progress)
        return store.report("moved", [path.name for path in pending], written)


def restore_experts(model: Path, *, progress: Progress | None = None) -> MoveReport:
    """Write a checkpoint's shards as they were, bit for bit, and remove the records; nothing is done where none lack.

    Needs room for one shard.

    Args:
        model: The checkpoint's directory.
        progress: Called before and after each shard.

    Raises:
        CheckpointError: The checkpoint cannot be read or written to, it is in use, or the disk has too little room.
        CheckpointDamaged: A record does not hold what was moved into it.
    """
    directory = _writable(model)
    if not (directory / MOVED_NAME).is_dir():
        return MoveReport(direction="restored", directory=directory / MOVED_NAME, shards=(), files=(), record_bytes=0)
    with alone_in(directory), not_in_use(directory), _taken(directory) as store:
        Checkpoint.open(directory).close()
        store.needed(store.index.shards)  # or nothing is removed
        store.remove_leftovers()
        rewritten: list[str] = []
        removed: list[str] = []
        for shard in store.index.shards:
            if _write_with(store, shard, progress):
                rewritten.append(shard.name)
            removed += store.drop(tuple(other for other in store.index.shards if other.name != shard.name))
        removed += store.drop(())
        return store.report("restored", rewritten, removed)


def undo_repacking(model: Path, *, progress: Progress | None = None) -> MoveReport:
    """Let a checkpoint have its experts in its stacked tensors alone: `restore_experts`, or `remove_records`.

    Args:
        model: The checkpoint's directory.
        progress: See `restore_experts`.

    Raises:
        CheckpointError: See both.
    """
    directory = _writable(model)
    beside = directory / RECORDS_NAME
    if not (directory / MOVED_NAME).is_dir() and (beside.is_symlink() or beside.is_dir()):
        return remove_records(directory)
    return restore_experts(directory, progress=progress)


def remove_records(model: Path) -> MoveReport:
    """Remove the records beside a checkpoint's stacked tensors, or the link to them if they lie elsewhere.

    What a link leads to stays, since other copies of the checkpoint may use it; so do files that are no records.

    Args:
        model: The checkpoint's directory.

    Raises:
        CheckpointError: It cannot be written to, or is in use.
    """
    directory = _writable(model)
    beside = directory / RECORDS_NAME
    with alone_in(directory), not_in_use(directory), _refusals(beside):
        if beside.is_symlink():
            elsewhere = beside.parent / beside.readlink()
            left_bytes = sum(path.stat().st_size for path in elsewhere.glob(f"*{FILE_SUFFIX}"))
            beside.unlink()
            return MoveReport(direction="removed", directory=elsewhere, shards=(), files=(), record_bytes=left_bytes)
        with claimed(beside, doing="repacking"):
            names = sorted(filter(is_of_records, list_directory(beside)), key=lambda name: (name != INDEX_NAME, name))
            for name in names:  # the index first: without it nothing is used
                (beside / name).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            beside.rmdir()
    files = tuple(name for name in names if name.endswith(FILE_SUFFIX))
    return MoveReport(direction="removed", directory=beside, shards=(), files=files, record_bytes=0)


class _Store:
    """The directory of records, claimed, and its index."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.directory = model / MOVED_NAME
        self.index = read_moved(model) or MovedExperts()

    def file(self, name: str) -> MovedFile | None:
        return next((file for file in self.index.files if file.name == name), None)

    def header_path(self, shard: str) -> Path:
        return self.directory / (shard + HEADER_SUFFIX)

    def keep(self, index: MovedExperts) -> None:
        """Let another index count."""
        path = self.directory / MOVED_INDEX
        if index.files or index.shards:
            text = json.dumps(index.document(), indent=2).encode()
            with NewFile(path, len(text), (self.model / CONFIG_NAME).stat()) as out:
                out.write(text)
                out.finish()
        else:
            with _refusals(path):
                path.unlink(missing_ok=True)
                sync_directory(self.directory)
        self.index = index

    def add_file(self, file: MovedFile) -> None:
        others = tuple(other for other in self.index.files if other.name != file.name)
        self.keep(replace(self.index, files=(*others, file)))

    def add_shard(self, shard: MovedShard, header: bytes) -> None:
        with NewFile(self.header_path(shard.name), len(header), (self.model / shard.name).stat()) as out:
            out.write(header)
            out.finish()
        others = tuple(other for other in self.index.shards if other.name != shard.name)
        self.keep(replace(self.index, shards=(*others, shard)))

    def drop(self, shards: tuple[MovedShard, ...]) -> list[str]:
        """Note that only these shards still lack tensors, and remove the records that none lacks; return their names.

        Raises:
            CheckpointDamaged: No shard is left, and yet some tensor is nowhere else.
        """
        needed = self.needed(shards)
        files = tuple(file for file in self.index.files if file.name in needed)
        gone = [file.name for file in self.index.files if file not in files]
        if gone or shards != self.index.shards:
            self.keep(MovedExperts(files=files, shards=shards))
        self.remove_leftovers()
        return gone

    def needed(self, shards: tuple[MovedShard, ...]) -> frozenset[str]:
        """Return the files of records that hold what no shard has.

        Args:
            shards: Those known to lack tensors.

        Raises:
            CheckpointDamaged: There are such files and no such shard.
        """
        present = read_directory(self.model)
        names = frozenset(tensor.path.name for tensor in present.values() if tensor.path.parent.name == MOVED_NAME)
        if names and not shards:
            raise CheckpointDamaged(
                f"{self.directory / min(names)} holds experts whose shard is not known; download the checkpoint again"
            )
        return names

    def remove_leftovers(self) -> None:
        """Remove files that an interrupted run left and the index does not name; others' files stay."""
        known = {file.name for file in self.index.files}
        known |= {self.header_path(shard.name).name for shard in self.index.shards}
        with _refusals(self.directory):
            for path in sorted(self.directory.iterdir()):
                if path.name not in known and _OURS.fullmatch(path.name):
                    path.unlink(missing_ok=True)
            for path in self.model.glob(f"*.safetensors{PARTIAL_SUFFIX}"):
                if path.with_suffix("").exists():
                    path.unlink(missing_ok=True)

    def report(self, direction: Literal["moved", "restored"], shards: list[str], files: list[str]) -> MoveReport:
        return MoveReport(
            direction=direction,
            directory=self.directory,
            shards=tuple(shards),
            files=tuple(files),
            record_bytes=sum(file.file_bytes for file in self.index.files),
        )


@contextmanager
def _taken(model: Path) -> Iterator[_Store]:
    """Keep other writers out of the directory of records, and remove it at the end if nothing is in it."""
    directory = model / MOVED_NAME
    with claimed(directory, doing="move of experts") as created:
        try:
            if created:
                with _refusals(directory):
                    _own_as(directory, model)
                    sync_directory(model)
            yield _Store(model)
        finally:
            with suppress(OSError):
                directory.rmdir()


def _own_as(directory: Path, model: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        keep_owner(descriptor, model.stat())
    finally:
        os.close(descriptor)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written to: {error.strerror}") from error


def _writable(model: Path) -> Path:
    directory = model.expanduser().absolute()
    if directory.is_dir() and not os.access(directory, os.W_OK):
        raise CheckpointError(f"{directory} cannot be written to; experts are moved inside the checkpoint's directory")
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory; give the directory of a checkpoint")
    return directory


def _refuse_records_beside(directory: Path) -> None:
    beside = directory / RECORDS_NAME
    if beside.is_symlink() or beside.exists():
        raise CheckpointError(
            f"{beside} holds records beside the stacked tensors, and moving is for a disk that cannot hold both; "
            "`slotstream repack --undo` removes them"
        )


def _refuse_shared_file(path: Path) -> None:
    """Refuse shards that another name leads to: their space would not be freed, and others may count on them."""
    if path.is_symlink():
        raise CheckpointError(
            f"{path} is a link to {path.readlink()}, which stays as it is, so that moving would take more space "
            "instead of freeing some; copy the checkpoint into a directory of its own (cp -rL), or use "
            "`slotstream repack` without --move"
        )
    if path.stat().st_nlink > 1:
        raise CheckpointError(
            f"{path} has another name elsewhere, under which it would stay as it is, so that moving would take more "
            "space instead of freeing some; remove that name, or use `slotstream repack` without --move"
        )


def _stacked_shards(layouts: Mapping[PartName, ExpertLayout]) -> dict[Path, list[LayerFile]]:
    """Return the shards that hold stacked tensors of experts, in the order of their names, with the layers of each."""
    shards: dict[Path, list[LayerFile]] = {}
    for file in layer_files(dict(layouts)):
        for piece in file.layout.layers[file.layer]:
            if piece.stride_bytes is None and file not in shards.setdefault(piece.path, []):
                shards[piece.path].append(file)
    return dict(sorted(shards.items()))


def _one_layer(file: LayerFile) -> ExpertLayout:
    return replace(file.layout, layers=(file.layout.layers[file.layer],))


def _described(file: LayerFile, sha256: str) -> MovedFile:
    """Return what the index says of a file of records."""
    kinds = zip(file.layout.layers[file.layer], record_pieces(file.layout), strict=True)
    return MovedFile(
        name=file.name,
        file_bytes=file.byte_count,
        stride_bytes=file.stride_bytes,
        sha256=sha256,
        tensors=tuple(
            MovedTensor(
                name=stored.tensor,
                dtype=piece.dtype,
                shape=(file.layout.expert_count, *piece.shape),
                offset=piece.offset,
            )
            for stored, piece in kinds
        ),
    )


def _is_whole(store: _Store, file: LayerFile) -> bool:
    """Whether a layer was written by an earlier run, from these tensors, and is as it was written."""
    found = store.file(file.name)
    if found is None or found != _described(file, found.sha256):
        return False
    path = store.directory / file.name
    if not path.is_file() or digest_from_disk(path) != found.sha256:
        return False
    layer = _one_layer(file)
    moved = tuple(
        replace(piece, path=path, offset=tensor.offset, stride_bytes=found.stride_bytes)
        for piece, tensor in zip(layer.layers[0], found.tensors, strict=True)
    )
    try:
        return first_difference(layer, replace(layer, layers=(moved,))) is None
    except RecordsUnusable:
        return False


def _write_layers(store: _Store, shard: Path, files: list[LayerFile], progress: Progress | None) -> list[str]:
    """Write the layers of a shard that are not there; return their names."""
    missing = [file for file in files if not _is_whole(store, file)]
    needed_bytes = sum(file.byte_count for file in missing)
    check_free_space(store.directory, needed_bytes)
    for file in missing:
        if any(piece.stride_bytes is not None for piece in file.layout.layers[file.layer]):
            raise CheckpointDamaged(f"{store.directory / file.name} is damaged; download the checkpoint again")
        _tell(progress, file.name, 0, file.byte_count)
        digest = write_records(file, store.directory, like=shard.stat())
        store.add_file(_described(file, digest))
        _tell(progress, file.name, file.byte_count, file.byte_count)
    return [file.name for file in missing]


def _names_in(shard: Path, files: list[LayerFile]) -> frozenset[str]:
    """Return the tensors of some layers that a shard holds."""
    pieces = (piece for file in files for piece in file.layout.layers[file.layer])
    return frozenset(piece.tensor for piece in pieces if piece.path == shard)


def _write_without(store: _Store, shard: Path, files: list[LayerFile], progress: Progress | None) -> None:
    file_bytes, names = shard.stat().st_size, _names_in(shard, files)
    kept_bytes = sum(tensor.byte_count for tensor in read_headers(shard) if tensor.name not in names)
    check_free_space(store.model, kept_bytes)

    def note(sha256: str, header: bytes) -> None:
        store.add_shard(MovedShard(name=shard.name, file_bytes=file_bytes, sha256=sha256), header)

    def advance(done_bytes: int) -> None:
        _tell(progress, shard.name, done_bytes, file_bytes)

    write_without(shard, names, before_replacing=note, advance=advance)


def _write_with(store: _Store, shard: MovedShard, progress: Progress | None) -> bool:
    """Write a shard as it was; False when it is, since the run that noted it did not come to replace it."""
    path, kept = store.model / shard.name, store.header_path(shard.name)
    try:
        header = kept.read_bytes()
    except OSError as error:
        raise CheckpointDamaged(f"{kept} cannot be read: {error.strerror}; download the checkpoint again") from error
    if path.stat().st_size == shard.file_bytes and read_header(path) == header:
        if digest_from_disk(path) != shard.sha256:  # the records may be the only experts that are left
            raise CheckpointDamaged(f"{path} is not the file its experts were moved from; download it again")
        return False
    check_free_space(store.model, shard.file_bytes)
    write_with(
        path,
        header,
        shard.sha256,
        byte_count=shard.file_bytes,
        places={
            tensor.name: (store.directory / file.name, file, tensor)
            for file in store.index.files
            for tensor in file.tensors
        },
        advance=lambda done_bytes: _tell(progress, shard.name, done_bytes, shard.file_bytes),
    )
    return True


def _tell(progress: Progress | None, name: str, done_bytes: int, total_bytes: int) -> None:
    if progress is not None:
        progress(RepackProgress(done_bytes=done_bytes, total_bytes=total_bytes, file_name=name, kept=False))


def move_report_document(report: MoveReport) -> dict[str, Any]:
    """Return a report as JSON values; sizes in bytes."""
    return {
        "direction": report.direction,
        "directory": str(report.directory),
        "shards": list(report.shards),
        "files": list(report.files),
        "record_bytes": report.record_bytes,
    }
