"""Writing a checkpoint's experts as records of their own: one file a layer, one read an expert.

Memory stays at two blocks of `block_bytes`, whatever the model's size. A file counts as finished once it was read back
from the disk and its digest is that of the bytes that were put together; a run that was killed is taken up by the next.
The index appears last, so records are used when they are complete or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from slotstream_core.checkpoint.claiming import check_free_space, claimed
from slotstream_core.checkpoint.headers import list_directory
from slotstream_core.checkpoint.records import (
    INDEX_NAME,
    RECORDS_NAME,
    PartName,
    RecordFile,
    RecordPart,
    RecordsIndex,
    identify_sources,
    parse_state,
    read_index_file,
    whole_pages,
)
from slotstream_core.checkpoint.shards import PARTIAL_SUFFIX, write_json
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import CheckpointDamaged, CheckpointError, RecordsUnusable
from slotstream_core.experts.layout import ExpertLayout, draft_modules
from slotstream_core.experts.packed import first_difference, opened_files, record_pieces, repacked_layout
from slotstream_core.experts.reading import trunk_layout
from slotstream_core.experts.record_files import (
    BLOCK_BYTES,
    FILE_SUFFIX,
    VERIFY_BYTES,
    LayerFile,
    digest_from_disk,
    layer_files,
    sync_directory,
    write_records,
)

STATE_NAME: Final = ".slotstream-repack.json"


@dataclass(frozen=True, kw_only=True)
class RepackProgress:
    """How far a repacking is.

    Attributes:
        done_bytes: Bytes of records that are written or were found intact.
        total_bytes: Bytes of all records.
        file_name: The file at hand.
        kept: Whether an earlier run finished that file.
    """

    done_bytes: int
    total_bytes: int
    file_name: str
    kept: bool


@dataclass(frozen=True, kw_only=True)
class RepackReport:
    """What a repacking did.

    Attributes:
        directory: The records.
        written_files: Files written by this run.
        kept_files: Files an earlier run had finished, whose bytes were read and found right.
        total_bytes: Bytes of all of them.
        records: Experts in them.
        record_bytes: Bytes of one of the model's own experts.
        link: What was made to lead to the directory, if it lies elsewhere.
    """

    directory: Path
    written_files: tuple[str, ...]
    kept_files: tuple[str, ...]
    total_bytes: int
    records: int
    record_bytes: int
    link: Path | None


@dataclass(kw_only=True)
class _State:
    """The finished files of an unfinished repacking, by name, with their digests."""

    directory: Path
    identity: str
    finished: dict[str, str] = field(default_factory=dict)

    def record(self, name: str, digest: str) -> None:
        self.finished[name] = digest
        self.save()

    def save(self) -> None:
        write_json(self.directory / STATE_NAME, {"identity": self.identity, "finished": self.finished})

    def intact(self, file: LayerFile) -> bool:
        path = self.directory / file.name
        digest = self.finished.get(file.name)
        if digest is None or not path.is_file() or path.stat().st_size != file.byte_count:
            return False
        return digest_from_disk(path) == digest


def repack_checkpoint(
    model: Path,
    output: Path | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
    progress: Callable[[RepackProgress], None] | None = None,
) -> RepackReport:
    """Write the experts of a checkpoint as records, or check and complete the ones it has.

    Args:
        model: The checkpoint's directory.
        output: Where to write, on another disk for example; `repacked` in the checkpoint becomes a link to it. None
            writes into that directory itself.
        block_bytes: Bytes of records put together at once, at least one record.
        progress: Called before and after each file.

    Raises:
        CheckpointError: The checkpoint cannot be read, another process repacks it, the directory cannot be written to
            or holds something else, or the disk has too little room.
    """
    with alone_in(model), Checkpoint.open(model) as checkpoint:
        layouts = stacked_layouts(checkpoint)
        _refuse_moved(checkpoint.directory, layouts)
        files = layer_files(layouts)
        link = checkpoint.directory / RECORDS_NAME
        destination = link if output is None else output.expanduser().absolute()
        if output is not None:
            _check_link(link, destination)
        with claimed(destination, doing="repacking"):
            index = RecordsIndex(
                directory=destination,
                sources=identify_sources(path for layout in layouts.values() for path in layout.paths),
                parts=(),
            )
            state = _begin(destination, index, layouts)
            report = _write_files(files, state, block_bytes, progress)
            parts = tuple(_part(part, layout, files, state) for part, layout in layouts.items())
            index = RecordsIndex(directory=destination, sources=index.sources, parts=parts)
            _publish(index, layouts, new=bool(report.written_files))
        if output is not None:
            _make_link(link, destination)
        return RepackReport(
            directory=destination,
            written_files=report.written_files,
            kept_files=report.kept_files,
            total_bytes=index.byte_count,
            records=sum(layout.record_count for layout in layouts.values()),
            record_bytes=layouts["trunk"].record_bytes,
            link=link if output is not None else None,
        )


@contextmanager
def alone_in(model: Path) -> Iterator[None]:
    """Keep others that repack a checkpoint, move its experts, or write one away from its directory, if it is one.

    Raises:
        CheckpointError: There is such a process.
    """
    directory = model.expanduser()
    with claimed(directory, doing="repacking") if directory.is_dir() else nullcontext():
        yield


def stacked_layouts(checkpoint: Checkpoint) -> dict[PartName, ExpertLayout]:
    """Return where a checkpoint's stacked tensors hold its experts, the draft head's too if it has one.

    Raises:
        CheckpointError: See `ExpertLayout.from_checkpoint`.
    """
    layouts: dict[PartName, ExpertLayout] = {"trunk": trunk_layout(checkpoint, float_name="F32")}
    if checkpoint.draft:
        layouts["draft"] = ExpertLayout.from_checkpoint(checkpoint, draft_modules(), float_name="F32")
    return layouts


def _part(name: PartName, layout: ExpertLayout, files: Sequence[LayerFile], state: _State) -> RecordPart:
    return RecordPart(
        part=name,
        expert_count=layout.expert_count,
        record_bytes=layout.record_bytes,
        stride_bytes=whole_pages(layout.record_bytes),
        pieces=record_pieces(layout),
        files=tuple(
            RecordFile(name=file.name, module=_module(file), sha256=state.finished[file.name])
            for file in files
            if file.part == name
        ),
    )


def _module(file: LayerFile) -> str:
    return file.layout.layers[file.layer][0].tensor.rsplit(".", 2)[0]


def _identity(index: RecordsIndex, layouts: dict[PartName, ExpertLayout]) -> str:
    """Digest of everything that decides the bytes, except the experts' own."""
    pieces = {part: [str(piece) for piece in record_pieces(layout)] for part, layout in layouts.items()}
    text = json.dumps({"sources": index.document()["sources"], "pieces": pieces, "version": 1}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _begin(directory: Path, index: RecordsIndex, layouts: dict[PartName, ExpertLayout]) -> _State:
    """Take up what an earlier run of the same checkpoint left, complete or not; remove what another one left."""
    present = list_directory(directory)
    foreign = [name for name in sorted(present) if not is_of_records(name)]
    if foreign:
        raise CheckpointError(
            f"{directory} holds {foreign[0]}, which is no record; give a directory that does not exist yet"
        )
    for name in present:
        if name.endswith(PARTIAL_SUFFIX):
            (directory / name).unlink(missing_ok=True)
    identity = _identity(index, layouts)
    state = _State(directory=directory, identity=identity)
    complete = _complete_index(directory)
    if complete is not None and complete.sources == index.sources and _samples_agree(complete, layouts):
        state.finished = {file.name: file.sha256 for part in complete.parts for file in part.files}
        return state
    (directory / INDEX_NAME).unlink(missing_ok=True)
    noted = parse_state((directory / STATE_NAME).read_text("utf-8", "replace")) if STATE_NAME in present else None
    finished = noted.get("finished") if noted is not None and noted.get("identity") == identity else None
    if isinstance(finished, dict) and all(isinstance(digest, str) for digest in finished.values()):
        state.finished = finished
    return state


def is_of_records(name: str) -> bool:
    """Whether a file of this name is one that repacking writes, complete or not."""
    return name in (INDEX_NAME, STATE_NAME) or name.endswith((FILE_SUFFIX, PARTIAL_SUFFIX))


def _complete_index(directory: Path) -> RecordsIndex | None:
    try:
        return read_index_file(directory)
    except RecordsUnusable:
        return None


def _samples_agree(index: RecordsIndex, layouts: dict[PartName, ExpertLayout]) -> bool:
    """Whether finished records hold these experts, as far as samples tell; damage elsewhere shows in the digests."""
    try:
        for name, layout in layouts.items():
            part = index.part(name)
            if part is None or first_difference(layout, repacked_layout(layout, index, part)) is not None:
                return False
    except RecordsUnusable:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class _Written:
    written_files: tuple[str, ...]
    kept_files: tuple[str, ...]


def _write_files(
    files: Sequence[LayerFile], state: _State, block_bytes: int, progress: Callable[[RepackProgress], None] | None
) -> _Written:
    total_bytes = sum(file.byte_count for file in files)
    done_bytes = 0

    def report(file: LayerFile, extra_bytes: int, *, kept: bool = False) -> None:
        if progress is not None:
            progress(
                RepackProgress(
                    done_bytes=done_bytes + extra_bytes, total_bytes=total_bytes, file_name=file.name, kept=kept
                )
            )

    unfinished = [file for file in files if file.name not in state.finished]
    check_free_space(state.directory, sum(file.byte_count for file in unfinished))
    kept, written = [], []
    for file in files:
        known = file.name in state.finished
        report(file, 0, kept=known)
        if known and _still_true(file, state):
            kept.append(file.name)
        else:
            _write_file(file, state, block_bytes, partial(report, file))
            written.append(file.name)
        done_bytes += file.byte_count
        report(file, 0, kept=known)
    return _Written(written_files=tuple(written), kept_files=tuple(kept))


def _still_true(file: LayerFile, state: _State) -> bool:
    """Whether a finished file has its digest and, as far as a sample tells, this checkpoint's experts."""
    if not state.intact(file):
        return False
    one = file.layout.extent(file.layer, 0, 0)
    length = min(one.byte_count, VERIFY_BYTES)
    with opened_files((one.path, state.directory / file.name)) as opened:
        return os.pread(opened[one.path], length, one.offset) == os.pread(
            opened[state.directory / file.name], length, 0
        )


def _write_file(file: LayerFile, state: _State, block_bytes: int, advance: Callable[[int], None]) -> None:
    state.finished.pop(file.name, None)
    state.save()
    (state.directory / INDEX_NAME).unlink(missing_ok=True)
    state.record(file.name, write_records(file, state.directory, block_bytes=block_bytes, advance=advance))


def _publish(index: RecordsIndex, layouts: dict[PartName, ExpertLayout], *, new: bool) -> None:
    """Let the records be used, once they are compared with the stacked tensors in samples."""
    for name, layout in layouts.items():
        part = index.part(name)
        difference = None if part is None else first_difference(layout, repacked_layout(layout, index, part))
        if difference is not None:
            raise CheckpointDamaged(f"{difference.path} has other bytes of {difference.tensor} than the checkpoint")
    path = index.directory / INDEX_NAME
    if new or not path.exists():
        write_json(path, index.document())
        sync_directory(index.directory)
    (index.directory / STATE_NAME).unlink(missing_ok=True)
    known = {file.name for part in index.parts for file in part.files}
    for left in list_directory(index.directory):
        if left.endswith(FILE_SUFFIX) and left not in known:
            (index.directory / left).unlink(missing_ok=True)


def _refuse_moved(directory: Path, layouts: Mapping[PartName, ExpertLayout]) -> None:
    if any(layout.repacked for layout in layouts.values()):
        raise CheckpointError(
            f"the experts of {directory} are records already, in place of the stacked tensors; "
            "`slotstream repack --undo` brings these back"
        )


def _check_link(link: Path, destination: Path) -> None:
    if link.is_dir() and not link.is_symlink():
        raise CheckpointError(
            f"{link} holds records already; `slotstream repack --undo` removes them to keep others in {destination}"
        )
    if not os.access(link.parent, os.W_OK):
        raise CheckpointError(f"{link.parent} cannot be written to, so it cannot lead to records in {destination}")


def _make_link(link: Path, destination: Path) -> None:
    """Let the checkpoint lead to its records, in one step."""
    with tempfile.TemporaryDirectory(dir=link.parent, prefix=f".{RECORDS_NAME}-") as folder:
        new = Path(folder) / RECORDS_NAME
        new.symlink_to(destination, target_is_directory=True)
        new.replace(link)


def report_document(report: RepackReport) -> dict[str, Any]:
    """Return a report as JSON values; sizes in bytes."""
    return {
        "directory": str(report.directory),
        "written_files": list(report.written_files),
        "kept_files": list(report.kept_files),
        "total_bytes": report.total_bytes,
        "records": report.records,
        "record_bytes": report.record_bytes,
        "link": None if report.link is None else str(report.link),
    }
