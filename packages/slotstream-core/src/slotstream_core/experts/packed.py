"""Choosing where expert records are read from: repacked ones where a checkpoint has them and they are its own."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slotstream_core.checkpoint.records import (
    PartName,
    RecordPart,
    RecordPiece,
    RecordsIndex,
    check_files,
    check_sources,
    identify_sources,
    read_index_file,
    read_records_index,
)
from slotstream_core.errors import CheckpointError, MirrorMismatch, RecordsUnusable
from slotstream_core.experts.layout import ExpertLayout, Extent, StoredPiece

logger = logging.getLogger("slotstream.experts")

SAMPLE_BYTES: Final = 4096
SAMPLE_STEP: Final = 7919  # a prime: sampled experts spread over the ids


def record_pieces(layout: ExpertLayout) -> tuple[RecordPiece, ...]:
    """Return how the pieces of a layout lie in a record."""
    pieces: list[RecordPiece] = []
    offset = 0
    for kind in layout.kinds:
        pieces.append(RecordPiece(name=kind.name, dtype=kind.disk_dtype, shape=kind.shape, offset=offset))
        offset += kind.disk_bytes
    return tuple(pieces)


def repacked_layout(stacked: ExpertLayout, index: RecordsIndex, part: RecordPart) -> ExpertLayout:
    """Return the same experts as records of their own.

    Raises:
        RecordsUnusable: The records are made of other pieces, or there are not as many.
    """
    modules = [layer[0].tensor.rsplit(".", 2)[0] for layer in stacked.layers]
    if (
        part.pieces != record_pieces(stacked)
        or part.expert_count != stacked.expert_count
        or [file.module for file in part.files] != modules
    ):
        raise RecordsUnusable(f"the records in {index.directory} are not made as this checkpoint's experts are")
    layers = tuple(
        tuple(
            StoredPiece(
                tensor=stored.tensor,
                path=index.directory / file.name,
                offset=piece.offset,
                stride_bytes=part.stride_bytes,
            )
            for stored, piece in zip(layer, part.pieces, strict=True)
        )
        for layer, file in zip(stacked.layers, part.files, strict=True)
    )
    return dataclasses.replace(stacked, layers=layers)


def find_repacked(directory: Path, stacked: ExpertLayout, name: PartName) -> ExpertLayout | None:
    """Return the layout of a checkpoint's repacked records; None when it has none.

    Args:
        directory: The checkpoint's.
        stacked: Where its stacked tensors hold the experts.
        name: Which experts.

    Raises:
        RecordsUnusable: There are records, and they are damaged, incomplete, or another checkpoint's.
        CheckpointError: A shard cannot be read.
    """
    index = read_records_index(directory)
    part = None if index is None else index.part(name)
    if index is None or part is None:
        return None
    check_sources(index, identify_sources(stacked.paths))
    check_files(index)
    repacked = repacked_layout(stacked, index, part)
    difference = first_difference(stacked, repacked)
    if difference is not None:
        raise RecordsUnusable(f"{difference.path} holds other experts than the stacked tensors ({difference.tensor})")
    return repacked


def best_layout(directory: Path, stacked: ExpertLayout, name: PartName) -> ExpertLayout:
    """Return the repacked layout where it can be used, else, after a line in the log if there is one, the stacked one.

    Raises:
        CheckpointError: A shard cannot be read.
    """
    if stacked.repacked:  # its experts were moved into records
        return stacked
    try:
        return find_repacked(directory, stacked, name) or stacked
    except RecordsUnusable as error:
        logger.warning("%s; the stacked tensors are read instead. `slotstream repack` writes the records anew", error)
        return stacked


def mirror_layout(directory: Path, mirror: Path, stacked: ExpertLayout, name: PartName) -> ExpertLayout | None:
    """Return where a mirror holds the same experts: its records if it has usable ones, else its stacked tensors.

    A mirror is another copy of the checkpoint's directory, of which the shards with experts are enough, or a directory
    of records that `slotstream repack --output` wrote from it.

    Args:
        directory: The checkpoint's.
        mirror: The other directory.
        stacked: Where the checkpoint's own stacked tensors hold the experts.
        name: Which experts; a mirror of records alone may lack the draft head's, and None is returned.

    Raises:
        MirrorMismatch: It does not hold the same checkpoint, or the checkpoint's experts were moved into records.
        CheckpointError: A shard of the checkpoint itself cannot be read.
    """
    if stacked.repacked:
        raise MirrorMismatch(
            f"the experts of {directory} were moved into records, which are not compared with a mirror; "
            "`slotstream repack --undo` brings the stacked tensors back"
        )
    try:
        if mirror.resolve() == directory.resolve():
            raise MirrorMismatch(f"{mirror} is the checkpoint itself; a mirror is a second copy of it")
        index = read_index_file(mirror)
    except OSError as error:
        raise MirrorMismatch(f"the mirror {mirror} cannot be read: {error.strerror or error}") from error
    except RecordsUnusable as error:
        raise MirrorMismatch(f"the mirror {mirror} cannot be used: {error}") from error
    if index is None:
        copy = _copied_layout(mirror, stacked)
        found = best_layout(mirror, copy, name)
    else:
        part = index.part(name)
        if part is None:
            return None
        try:
            check_sources(index, identify_sources(stacked.paths))
            check_files(index)
            found = repacked_layout(stacked, index, part)
        except RecordsUnusable as error:
            raise MirrorMismatch(f"the mirror {mirror} does not hold the same checkpoint: {error}") from error
    try:
        difference = first_difference(stacked, found)
    except RecordsUnusable as error:
        raise MirrorMismatch(f"the mirror {mirror} cannot be used: {error}") from error
    if difference is not None:
        raise MirrorMismatch(
            f"{difference.path} holds other bytes of {difference.tensor} than the checkpoint; copy it again"
        )
    return found


def _copied_layout(mirror: Path, stacked: ExpertLayout) -> ExpertLayout:
    """Return the same layout in the files of another directory, whose lengths and headers must be the same."""
    for path in stacked.paths:
        copy = mirror / path.name
        try:
            (mine,), (theirs,) = identify_sources((path,)), identify_sources((copy,))
        except CheckpointError as error:
            raise MirrorMismatch(f"the mirror {mirror} cannot be used: {error}; copy the checkpoint again") from error
        if mine.file_bytes != theirs.file_bytes:
            raise MirrorMismatch(
                f"{copy} is {theirs.file_bytes:,} bytes long and the checkpoint's {mine.file_bytes:,}; copy it again"
            )
        if mine != theirs:
            raise MirrorMismatch(f"the header of {copy} is not that of {path}; copy it again")
    layers = tuple(
        tuple(dataclasses.replace(piece, path=mirror / piece.path.name) for piece in layer) for layer in stacked.layers
    )
    return dataclasses.replace(stacked, layers=layers)


def first_difference(left: ExpertLayout, right: ExpertLayout) -> StoredPiece | None:
    """Compare samples of two layouts of the same experts; return the first piece of the second that differs.

    Compared are the first bytes of three pieces of one expert a layer, another one in each layer: experts of another
    training or quantisation differ everywhere, and this reads little.

    Raises:
        RecordsUnusable: A file cannot be opened or read.
    """
    with opened_files(left.paths) as mine, opened_files(right.paths) as theirs:
        for layer, kind, expert in _sampled(left):
            if _sample(left.extent(layer, kind, expert), mine) != _sample(right.extent(layer, kind, expert), theirs):
                return right.layers[layer][kind]
    return None


def sample_digest(layout: ExpertLayout) -> str:
    """Return a digest of the samples that `first_difference` compares: the same wherever the same experts lie.

    Raises:
        RecordsUnusable: A file cannot be opened or read.
    """
    digest = hashlib.sha256(f"{layout.layer_count}:{layout.expert_count}:{layout.record_bytes}".encode())
    with opened_files(layout.paths) as files:
        for layer, kind, expert in _sampled(layout):
            digest.update(_sample(layout.extent(layer, kind, expert), files))
    return digest.hexdigest()


def _sampled(layout: ExpertLayout) -> Iterator[tuple[int, int, int]]:
    """Yield layer, kind and expert of each sampled piece."""
    kinds = sorted({0, len(layout.kinds) // 2, len(layout.kinds) - 1})
    for layer in range(layout.layer_count):
        for kind in kinds:
            yield layer, kind, layer * SAMPLE_STEP % layout.expert_count


def _sample(extent: Extent, files: Mapping[Path, int]) -> bytes:
    return _read(files[extent.path], extent.path, extent.offset, min(extent.byte_count, SAMPLE_BYTES))


@contextmanager
def opened_files(paths: tuple[Path, ...]) -> Iterator[dict[Path, int]]:
    """Open files for reading and close them afterwards.

    Raises:
        RecordsUnusable: One cannot be opened.
    """
    opened: dict[Path, int] = {}
    try:
        for path in paths:
            try:
                opened[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise RecordsUnusable(f"{path} cannot be opened: {error.strerror}") from error
        yield opened
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _read(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    try:
        data = os.pread(descriptor, length, offset)
    except OSError as error:
        raise RecordsUnusable(f"{path} cannot be read: {error.strerror}") from error
    if len(data) != length:
        raise RecordsUnusable(f"{path} ends before byte {offset + length:,}")
    return data
