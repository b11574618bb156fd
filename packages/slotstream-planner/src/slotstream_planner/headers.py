"""Read what a safetensors file contains from its header alone.

The header is an 8-byte little-endian length and that many bytes of JSON; tensor data follows. Nothing
past the header is read, so a 10 GB shard costs a few hundred kilobytes of reading.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotstream_planner.errors import GeometryError

__all__ = ["DTYPE_BYTES", "TensorHeader", "read_checkpoint_headers", "read_headers"]

DTYPE_BYTES: Final[dict[str, int]] = {
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

_MAX_HEADER_BYTES: Final = 100_000_000
_INDEX_NAME: Final = "model.safetensors.index.json"
_DRAFT_NAME: Final = "mtp.safetensors"


@dataclass(frozen=True, kw_only=True)
class TensorHeader:
    """One tensor as its file's header declares it.

    Attributes:
        name: The tensor's name in the checkpoint.
        dtype: Its safetensors type name, for example ``"BF16"``.
        shape: Its dimensions.
        size_bytes: Its length in the file.
        file: The file that holds it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    file: Path

    @property
    def elements(self) -> int:
        """The number of stored elements."""
        return self.size_bytes // DTYPE_BYTES[self.dtype]


def read_checkpoint_headers(directory: Path) -> list[TensorHeader]:
    """Return every tensor of a checkpoint directory.

    The shards are those the index names, or every ``*.safetensors`` file when there is no index; the
    draft head's own file is added when it is present.

    Raises:
        GeometryError: A file is missing, truncated, unreadable or malformed.
    """
    files = _shard_files(directory)
    draft = directory / _DRAFT_NAME
    if draft.is_file() and draft not in files:
        files.append(draft)
    tensors: list[TensorHeader] = []
    seen: dict[str, Path] = {}
    for file in files:
        for tensor in read_headers(file):
            if tensor.name in seen:
                raise GeometryError(
                    f"{tensor.name} is in both {seen[tensor.name].name} and {file.name} of {directory}; "
                    "remove the file that does not belong to this checkpoint"
                )
            seen[tensor.name] = file
            tensors.append(tensor)
    return tensors


def _shard_files(directory: Path) -> list[Path]:
    index = directory / _INDEX_NAME
    if not index.is_file():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise GeometryError(f"{directory} holds no .safetensors file; give the directory of a converted checkpoint")
        return files
    document = read_json(index)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise GeometryError(f"{index} has no usable weight_map; download that file again")
    files = [directory / name for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise GeometryError(
                f"{index.name} names {file.name}, which is not in {directory}; download that shard again"
            )
    return files


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object file.

    Raises:
        GeometryError: The file is missing, unreadable or not a JSON object.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise GeometryError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise GeometryError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise GeometryError(f"{path} holds {type(document).__name__} where a JSON object belongs")
    return document


def read_headers(file: Path) -> list[TensorHeader]:
    """Return the tensors one safetensors file declares, checked against the file's length.

    Raises:
        GeometryError: The file is truncated or its header is malformed.
    """
    try:
        total_bytes = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            header_bytes = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or header_bytes > min(total_bytes - 8, _MAX_HEADER_BYTES):
                raise GeometryError(
                    f"{file} is truncated or not a safetensors file: it is {total_bytes} bytes long and "
                    f"announces a header of {header_bytes} bytes; download it again"
                )
            raw = stream.read(header_bytes)
    except OSError as error:
        raise GeometryError(f"cannot read {file}: {error.strerror}") from error
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise GeometryError(f"the header of {file} is not valid JSON: {error}; download it again") from error
    if not isinstance(header, dict):
        raise GeometryError(f"the header of {file} is not a JSON object; download it again")
    data_bytes = total_bytes - 8 - header_bytes
    return [_tensor(file, name, entry, data_bytes) for name, entry in header.items() if name != "__metadata__"]


def _tensor(file: Path, name: str, entry: object, data_bytes: int) -> TensorHeader:
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape, offsets = _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise GeometryError(f"{name} in {file} has a malformed header entry; download the file again")
    if dtype not in DTYPE_BYTES:
        raise GeometryError(f"{name} in {file} has the unknown type {dtype}; known are {', '.join(DTYPE_BYTES)}")
    expected_bytes = DTYPE_BYTES[dtype]
    for size in shape:
        expected_bytes *= size
    begin, end = offsets
    if end - begin != expected_bytes:
        raise GeometryError(f"{name} in {file} spans {end - begin} bytes where {dtype} {shape} needs {expected_bytes}")
    if end > data_bytes:
        raise GeometryError(
            f"{file} is truncated: {name} ends at byte {end} of the tensor data but the file has "
            f"{data_bytes} bytes of it; download it again"
        )
    return TensorHeader(name=name, dtype=dtype, shape=tuple(shape), size_bytes=expected_bytes, file=file)


def _sizes(value: object) -> list[int] | None:
    """Return a list of non-negative 63-bit integers, or None when the value is anything else."""
    if not isinstance(value, list) or not all(type(v) is int and 0 <= v < 2**63 for v in value):
        return None
    return value
