"""What a checkpoint's safetensors files contain, read from their headers alone.

Format: an 8-byte little-endian header length, that many bytes of JSON (`name -> {dtype, shape, data_offsets}` and an
optional `__metadata__`), then the tensor data without gaps.  Nothing past the header is read, so a 10 GB shard costs a
few hundred kilobytes of reading.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

from slotstream_planner.errors import CheckpointUnreadable, GeometryError
from slotstream_planner.moved import MOVED_INDEX, MOVED_NAME, MovedExperts, MovedFile, MovedTensor

__all__ = [
    "DRAFT_NAME",
    "DTYPE_BYTES",
    "INDEX_NAME",
    "TensorHeader",
    "list_directory",
    "read_checkpoint_headers",
    "read_headers",
    "read_json",
    "read_moved",
]

INDEX_NAME: Final = "model.safetensors.index.json"
DRAFT_NAME: Final = "mtp.safetensors"

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""Bytes of one element of each safetensors type."""

MAX_HEADER_BYTES: Final = 100_000_000
_MAX_DIMENSION: Final = 2**48


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One stored tensor.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Its safetensors type, a key of `DTYPE_BYTES`.
        shape: Its dimensions, slowest first.
        path: The file that holds it.
        offset: First byte of its data in the file.
        byte_count: Bytes of its data.
        stride_bytes: From the beginning of one entry of the first axis to the next, where they lie in records; None
            where all data is one stretch.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    byte_count: int
    stride_bytes: int | None = None

    @property
    def elements(self) -> int:
        """The number of stored elements."""
        return self.byte_count // DTYPE_BYTES[self.dtype]


def read_headers(path: Path) -> list[TensorHeader]:
    """Return the tensors of one file, in the order of their data, checked against the file's length.

    Raises:
        CheckpointUnreadable: The file does not exist or cannot be opened.
        GeometryError: The file is truncated, or its header is malformed or contradicts itself.
    """
    try:
        _refuse_special_file(path)
        with path.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            header_bytes = int.from_bytes(prefix, "little")
            _check_header_length(path, file_bytes, len(prefix), header_bytes)
            raw = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointUnreadable(f"{path} cannot be read: {error.strerror}") from error
    data_start = 8 + header_bytes
    tensors = [
        _parse_entry(path, name, entry, data_start)
        for name, entry in _parse_json(path, raw).items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.byte_count))
    _check_extents(path, tensors, data_start, file_bytes)
    return tensors


def _refuse_special_file(path: Path) -> None:
    """Refuse pipes, sockets and devices, which may keep an opener waiting for ever; directories fail on their own."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise CheckpointUnreadable(f"{path} is a pipe, a socket or a device where a file belongs")


def _check_header_length(path: Path, file_bytes: int, prefix_bytes: int, header_bytes: int) -> None:
    if prefix_bytes < 8:
        raise GeometryError(
            f"{path} is {file_bytes:,} bytes long; a safetensors file starts with an 8-byte header length; "
            "download or convert it again"
        )
    if header_bytes > min(file_bytes - 8, MAX_HEADER_BYTES):
        raise GeometryError(
            f"{path} announces a header of {header_bytes:,} bytes and is {file_bytes:,} bytes long; it is truncated or "
            "not a safetensors file; download or convert it again"
        )


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise GeometryError(f"the header of {path} names {repeated} twice")
        return entries

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise GeometryError(
            f"the header of {path} ({len(raw):,} bytes) is not valid JSON: {error}; download or convert it again"
        ) from error
    if not isinstance(header, dict):
        raise GeometryError(f"the header of {path} is {type(header).__name__} where a JSON object belongs")
    return header


def _parse_entry(path: Path, name: str, entry: object, data_start: int) -> TensorHeader:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise GeometryError(f"{name} in {path} has a malformed header entry: {str(entry)[:200]}")
    if dtype not in DTYPE_BYTES:
        raise GeometryError(f"{name} in {path} has the type {dtype}; known are {', '.join(DTYPE_BYTES)}")
    begin, end = offsets
    needed_bytes = DTYPE_BYTES[dtype] * math.prod(shape)
    if end - begin != needed_bytes:
        raise GeometryError(
            f"{name} in {path} spans {end - begin:,} bytes; {dtype} {list(shape)} needs {needed_bytes:,}"
        )
    return TensorHeader(
        name=name, dtype=dtype, shape=tuple(shape), path=path, offset=data_start + begin, byte_count=needed_bytes
    )


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_DIMENSION for item in value)


def _check_extents(path: Path, tensors: list[TensorHeader], data_start: int, file_bytes: int) -> None:
    position = data_start
    for before, tensor in zip([None, *tensors], tensors, strict=False):
        if tensor.offset < position and before is not None:
            raise GeometryError(
                f"{tensor.name} in {path} starts at byte {tensor.offset:,}, inside {before.name}, which ends at byte "
                f"{position:,}"
            )
        if tensor.offset > position:
            raise GeometryError(
                f"{path} has {tensor.offset - position:,} bytes that belong to no tensor before {tensor.name}"
            )
        position = tensor.offset + tensor.byte_count
        if position > file_bytes:
            raise GeometryError(
                f"{path} is truncated: {tensor.name} ends at byte {position:,} and the file is {file_bytes:,} bytes "
                "long; download or convert it again"
            )
    if position != file_bytes:
        raise GeometryError(
            f"{path} is {file_bytes:,} bytes long and its tensors end at byte {position:,}; the header does not belong "
            "to this file"
        )


def read_checkpoint_headers(directory: Path) -> dict[str, TensorHeader]:
    """Return every tensor of a checkpoint directory by name.

    The files are those that the index names, or all `*.safetensors` when there is no index, and the draft head's own
    `mtp.safetensors` when it is there. Tensors that were moved out of them (`slotstream_planner.moved`) are found too.

    Raises:
        CheckpointUnreadable: No such directory, no safetensors file in it, or a file that cannot be opened.
        GeometryError: A file is truncated or malformed, or the index and the files disagree.
    """
    present = list_directory(directory)
    placed = _read_index(directory / INDEX_NAME) if INDEX_NAME in present else {}
    names = sorted(set(placed.values())) or sorted(name for name in present if name.endswith(".safetensors"))
    if not names:
        raise CheckpointUnreadable(f"{directory} holds no .safetensors file; give the directory of a checkpoint")
    if DRAFT_NAME in present and DRAFT_NAME not in names:
        names.append(DRAFT_NAME)
    tensors: dict[str, TensorHeader] = {}
    for name in names:
        if name not in present:
            raise CheckpointUnreadable(
                f"{INDEX_NAME} names {name}, which is not in {directory}; download or convert that file again"
            )
        for tensor in read_headers(directory / name):
            if tensor.name in tensors:
                other = tensors[tensor.name].path.name
                raise GeometryError(
                    f"{tensor.name} is in both {other} and {name} of {directory}; remove the file that does not belong"
                )
            tensors[tensor.name] = tensor
    moved = {name: tensor for name, tensor in _moved_headers(directory).items() if name not in tensors}
    tensors |= moved
    _check_index(directory, {name: place for name, place in placed.items() if name not in moved}, tensors)
    return tensors


def read_moved(directory: Path) -> MovedExperts | None:
    """Return which experts of a checkpoint were moved into records; None where none were.

    Raises:
        CheckpointUnreadable: The index cannot be opened.
        GeometryError: It is damaged, or of another format.
    """
    path = directory / MOVED_NAME / MOVED_INDEX
    if not path.is_file():
        return None
    try:
        return MovedExperts.parse(read_json(path))
    except ValueError as error:
        raise GeometryError(f"{path} cannot be used: {error}") from error


def _moved_headers(directory: Path) -> dict[str, TensorHeader]:
    """Return the tensors that lie in records, whose files are as long as they must be."""
    tensors: dict[str, TensorHeader] = {}
    moved = read_moved(directory)
    for file in moved.files if moved is not None else ():
        path = directory / MOVED_NAME / file.name
        try:
            found_bytes = path.stat().st_size
        except OSError as error:
            raise CheckpointUnreadable(f"{path} cannot be read: {error.strerror}") from error
        if found_bytes != file.file_bytes:
            raise GeometryError(f"{path} is {found_bytes:,} bytes long instead of {file.file_bytes:,}")
        for tensor in file.tensors:
            tensors[tensor.name] = _moved_header(path, file, tensor)
    return tensors


def _moved_header(path: Path, file: MovedFile, tensor: MovedTensor) -> TensorHeader:
    if tensor.dtype not in DTYPE_BYTES or not tensor.shape or 0 in tensor.shape:
        raise GeometryError(f"{tensor.name} in {path} is {tensor.dtype} {list(tensor.shape)}, which no tensor is")
    byte_count = DTYPE_BYTES[tensor.dtype] * math.prod(tensor.shape)
    piece_bytes = byte_count // tensor.shape[0]
    end = tensor.offset + (tensor.shape[0] - 1) * file.stride_bytes + piece_bytes
    if piece_bytes > file.stride_bytes or end > file.file_bytes:
        raise GeometryError(f"{tensor.name} ends at byte {end:,} of {path}, which has {file.file_bytes:,}")
    return TensorHeader(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        path=path,
        offset=tensor.offset,
        byte_count=byte_count,
        stride_bytes=file.stride_bytes,
    )


def list_directory(directory: Path) -> frozenset[str]:
    """Return the names in a directory.

    Raises:
        CheckpointUnreadable: No such directory, or it may not be read.
    """
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointUnreadable(f"{directory} is not a directory; give the directory of a checkpoint") from error
    except OSError as error:
        raise CheckpointUnreadable(f"{directory} cannot be read: {error.strerror}") from error


def _read_index(path: Path) -> dict[str, str]:
    placed = read_json(path).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise GeometryError(f"{path} has no weight_map; download or convert it again")
    for tensor, name in placed.items():
        if not isinstance(name, str) or Path(name).name != name or not name:
            raise GeometryError(f"{path} places {tensor} in {name!r}, which is not the name of a file beside it")
    return placed


def _check_index(directory: Path, placed: dict[str, str], tensors: dict[str, TensorHeader]) -> None:
    for name, file_name in placed.items():
        found = tensors.get(name)
        if found is None or found.path.name != file_name:
            where = "is in no file" if found is None else f"is in {found.path.name}"
            raise GeometryError(f"{INDEX_NAME} of {directory} places {name} in {file_name}, but it {where}")


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file that holds an object.

    Raises:
        CheckpointUnreadable: No such file, or it cannot be opened.
        GeometryError: Not JSON, or not an object.
    """
    try:
        _refuse_special_file(path)
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointUnreadable(f"{path} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise GeometryError(f"{path} ({len(raw)} bytes) is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise GeometryError(f"{path} holds {type(document).__name__} where a JSON object belongs")
    return document
