"""What a safetensors file contains, read from its header alone.

Format: an 8-byte little-endian header length, that many bytes of JSON (`name -> {dtype, shape, data_offsets}` and an
optional `__metadata__`), then the tensor data without gaps.  Nothing past the header is read.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

from slotstream_core.errors import CheckpointDamaged, CheckpointMissing

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
class TensorInfo:
    """One stored tensor.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Its safetensors type, a key of `DTYPE_BYTES`.
        shape: Its dimensions, slowest first.
        path: The file that holds it.
        offset: First byte of its data in the file.
        byte_count: Bytes of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    byte_count: int


def read_header(path: Path) -> list[TensorInfo]:
    """Return the tensors of one file, in the order of their data, checked against the file's length.

    Raises:
        CheckpointMissing: The file does not exist or cannot be opened.
        CheckpointDamaged: The file is truncated, or its header is malformed or contradicts itself.
    """
    try:
        with path.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            header_bytes = int.from_bytes(prefix, "little")
            _check_header_length(path, file_bytes, len(prefix), header_bytes)
            raw = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointMissing(f"{path} cannot be read: {error.strerror}") from error
    data_start = 8 + header_bytes
    tensors = [
        _parse_entry(path, name, entry, data_start)
        for name, entry in _parse_json(path, raw).items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.byte_count))
    _check_extents(path, tensors, data_start, file_bytes)
    return tensors


def _check_header_length(path: Path, file_bytes: int, prefix_bytes: int, header_bytes: int) -> None:
    if prefix_bytes < 8:
        raise CheckpointDamaged(
            f"{path} is {file_bytes:,} bytes long; a safetensors file starts with an 8-byte header length. "
            "Download or convert it again"
        )
    if header_bytes > min(file_bytes - 8, MAX_HEADER_BYTES):
        raise CheckpointDamaged(
            f"{path} announces a header of {header_bytes:,} bytes and is {file_bytes:,} bytes long; it is truncated or "
            "not a safetensors file. Download or convert it again"
        )


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise CheckpointDamaged(f"the header of {path} names {repeated} twice")
        return entries

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(f"the header of {path} ({len(raw):,} bytes) is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointDamaged(f"the header of {path} is {type(header).__name__} where a JSON object belongs")
    return header


def _parse_entry(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(offsets) or len(offsets) != 2:
        raise CheckpointDamaged(f"{name} in {path} has a malformed header entry: {str(entry)[:200]}")
    if dtype not in DTYPE_BYTES:
        raise CheckpointDamaged(f"{name} in {path} has the type {dtype}; known are {', '.join(DTYPE_BYTES)}")
    begin, end = offsets
    needed_bytes = DTYPE_BYTES[dtype] * math.prod(shape)
    if end - begin != needed_bytes:
        raise CheckpointDamaged(
            f"{name} in {path} spans {end - begin:,} bytes; {dtype} {list(shape)} needs {needed_bytes:,}"
        )
    return TensorInfo(
        name=name, dtype=dtype, shape=tuple(shape), path=path, offset=data_start + begin, byte_count=needed_bytes
    )


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < _MAX_DIMENSION for item in value)


def _check_extents(path: Path, tensors: list[TensorInfo], data_start: int, file_bytes: int) -> None:
    position = data_start
    for before, tensor in zip([None, *tensors], tensors, strict=False):
        if tensor.offset < position and before is not None:
            raise CheckpointDamaged(
                f"{tensor.name} in {path} starts at byte {tensor.offset:,}, inside {before.name}, which ends at byte "
                f"{position:,}"
            )
        if tensor.offset > position:
            raise CheckpointDamaged(
                f"{path} has {tensor.offset - position:,} bytes that belong to no tensor before {tensor.name}"
            )
        position = tensor.offset + tensor.byte_count
        if position > file_bytes:
            raise CheckpointDamaged(
                f"{path} is truncated: {tensor.name} ends at byte {position:,} and the file is {file_bytes:,} bytes "
                "long. Download or convert it again"
            )
    if position != file_bytes:
        raise CheckpointDamaged(
            f"{path} is {file_bytes:,} bytes long and its tensors end at byte {position:,}; the header does not belong "
            "to this file"
        )
