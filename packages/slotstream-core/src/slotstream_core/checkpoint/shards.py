"""Writing safetensors files whose sizes are known beforehand, piece by piece and atomically."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.headers import DTYPE_BYTES, INDEX_NAME
from slotstream_core.errors import CheckpointError

PARTIAL_SUFFIX: Final = ".partial"
DEFAULT_SHARD_BYTES: Final = 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class OutputTensor:
    """A tensor that will be written.

    Attributes:
        name: Its name in the checkpoint.
        dtype: Its safetensors type.
        shape: Its stored shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def byte_count(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file that will be written.

    Attributes:
        file_name: Its name in the directory.
        tensors: Its tensors in the order of their data.
    """

    file_name: str
    tensors: tuple[OutputTensor, ...]

    def header(self) -> bytes:
        """Return the file's first bytes: length, JSON, and spaces up to a multiple of 8."""
        entries: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        position = 0
        for tensor in self.tensors:
            end = position + tensor.byte_count
            entries[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [position, end],
            }
            position = end
        raw = json.dumps(entries, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw

    @property
    def file_bytes(self) -> int:
        """Length of the finished file."""
        return len(self.header()) + sum(tensor.byte_count for tensor in self.tensors)


def plan_shards(modules: Iterable[Sequence[OutputTensor]], limit_bytes: int) -> list[Shard]:
    """Fill files up to `limit_bytes`, keeping the tensors of a module together and modules in order.

    Inside a file the widest types come first, so that every tensor is aligned to its element.
    """
    groups: list[list[OutputTensor]] = [[]]
    filled = 0
    for tensors in modules:
        size = sum(tensor.byte_count for tensor in tensors)
        if filled and filled + size > limit_bytes:
            groups.append([])
            filled = 0
        groups[-1].extend(tensors)
        filled += size
    return [
        Shard(
            file_name=f"model-{number:05d}-of-{len(groups):05d}.safetensors",
            tensors=tuple(sorted(group, key=lambda tensor: -DTYPE_BYTES[tensor.dtype])),
        )
        for number, group in enumerate(groups, start=1)
    ]


def index_document(shards: Sequence[Shard]) -> dict[str, Any]:
    """Return the contents of `model.safetensors.index.json`."""
    placed = {tensor.name: shard.file_name for shard in shards for tensor in shard.tensors}
    total = sum(tensor.byte_count for shard in shards for tensor in shard.tensors)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}


def write_index(directory: Path, shards: Sequence[Shard]) -> None:
    """Write the index of all files that are not named after the draft head."""
    write_json(directory / INDEX_NAME, index_document(shards))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old contents or the new, never a part.

    Raises:
        CheckpointError: The directory cannot be written to.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL_SUFFIX)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                os.fchmod(descriptor, 0o644)
                stream.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error


class ShardWriter:
    """Writes one `Shard`: any tensor's bytes in any order, then `finish` gives the file its name.

    Until then the bytes lie in `<name>.partial`, which leaving the context without `finish` removes.
    """

    def __init__(self, directory: Path, shard: Shard) -> None:
        self._shard = shard
        self._path = directory / shard.file_name
        self._partial = directory / (shard.file_name + PARTIAL_SUFFIX)
        header = shard.header()
        self._offsets: dict[str, int] = {}
        position = len(header)
        for tensor in shard.tensors:
            self._offsets[tensor.name] = position
            position += tensor.byte_count
        self._remaining_bytes = position - len(header)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._fd = os.open(self._partial, flags, 0o644)
            self._write(header, 0)
        except OSError as error:
            raise CheckpointError(f"{self._partial} cannot be written: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._partial.unlink(missing_ok=True)

    def write(self, name: str, data: npt.NDArray[np.generic], start_byte: int = 0) -> None:
        """Write contiguous `data` into the tensor `name`, `start_byte` bytes into it.

        Raises:
            CheckpointError: The disk refused the bytes.
        """
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        try:
            self._write(flat, self._offsets[name] + start_byte)
        except OSError as error:
            raise CheckpointError(
                f"{self._partial} cannot be written: {error.strerror}; it needs {self._shard.file_bytes:,} bytes"
            ) from error
        self._remaining_bytes -= len(flat)

    def finish(self) -> None:
        """Bring the complete file to the disk and give it its name.

        Raises:
            CheckpointError: Some tensor was not written completely, or the disk refused.
        """
        if self._remaining_bytes:
            raise CheckpointError(f"{self._path}: {self._remaining_bytes:,} bytes of its tensors were never written")
        try:
            os.fsync(self._fd)
            self._partial.replace(self._path)
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be written: {error.strerror}") from error
        os.close(self._fd)
        self._fd = -1

    def _write(self, data: bytes | memoryview, position: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view[: 1 << 28], position)
            view, position = view[done:], position + done


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def blocks(rows: int, row_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) row ranges of at most `block_bytes` each, at least one row at a time."""
    step = max(1, block_bytes // max(1, row_bytes))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
