"""An opened checkpoint: validated headers, open files, and reads of whole tensors or rows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.floats import STORAGE_TYPES, first_not_finite
from slotstream_core.checkpoint.headers import (
    CONFIG_NAME,
    STATE_NAME,
    TensorInfo,
    list_directory,
    read_directory,
    read_json_object,
)
from slotstream_core.checkpoint.quantization import ModuleQuantization, Quantization
from slotstream_core.checkpoint.schema import DRAFT
from slotstream_core.checkpoint.validation import check_tensors
from slotstream_core.errors import CheckpointDamaged, CheckpointError, CheckpointMissing, UnsupportedModel

_READ_BYTES: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Where bytes lie: `byte_count` bytes from `offset` of the open file `fd`.

    With `stride_bytes` they are not one stretch: the entries of the first axis begin so far from each other. The
    descriptor belongs to the checkpoint and is closed with it.
    """

    fd: int
    offset: int
    byte_count: int
    path: Path
    stride_bytes: int | None = None


class Checkpoint:
    """A checkpoint directory, checked and open for reading.

    Opening reads headers only.  Reads use `pread`, so any thread may make them.  Use it as a context manager, or call
    `close`.

    Attributes:
        directory: The directory.
        config: The model's settings.
        quantization: The quantisation block of `config.json`.
        tensors: Every stored tensor by name.
        draft: Whether the draft head is present.
    """

    def __init__(
        self,
        *,
        directory: Path,
        config: Qwen4ExpConfig,
        quantization: Quantization,
        tensors: Mapping[str, TensorInfo],
        settings: Mapping[str, ModuleQuantization | None],
    ) -> None:
        self.directory = directory
        self.config = config
        self.quantization = quantization
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))
        self.draft = any(name.startswith(f"{DRAFT}.") for name in tensors)
        self._settings = dict(settings)
        self._files: dict[Path, int] = {}
        try:
            for path in sorted({tensor.path for tensor in tensors.values()}):
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise CheckpointMissing(f"{error.filename} cannot be read: {error.strerror}") from error

    @classmethod
    def open(cls, directory: Path | str) -> "Checkpoint":
        """Open and validate a checkpoint directory from its configuration and headers.

        Raises:
            CheckpointMissing: The directory, a file, or a shard is missing or cannot be opened.
            CheckpointDamaged: A file is truncated or malformed, or a tensor is missing or of the wrong shape or type.
            UnsupportedModel: Another architecture, or a tensor or setting this version does not know.
        """
        root = Path(directory).expanduser()
        if STATE_NAME in list_directory(root):
            raise CheckpointMissing(
                f"{root} holds an unfinished conversion; run the same `slotstream convert` command again to finish it"
            )
        origin = root / CONFIG_NAME
        document = read_json_object(origin)
        config = Qwen4ExpConfig.from_document(document, origin=str(origin))
        quantization = Quantization.from_document(document, origin=str(origin))
        tensors = read_directory(root)
        settings = check_tensors(config, quantization, tensors)
        return cls(directory=root, config=config, quantization=quantization, tensors=tensors, settings=settings)

    def close(self) -> None:
        """Close the files; extents handed out become useless.  Safe to call twice."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def has(self, name: str) -> bool:
        """Whether a tensor of this name is stored."""
        return name in self.tensors

    def module_quantization(self, module: str) -> ModuleQuantization | None:
        """Return how a matrix (for example `language_model.lm_head`) is stored; None when it is unquantised.

        Raises:
            CheckpointDamaged: The checkpoint has no such matrix.
        """
        if module not in self._settings:
            raise CheckpointDamaged(f"{self.directory} has no matrix {module}")
        return self._settings[module]

    def info(self, name: str) -> TensorInfo:
        """Return what the header says about a tensor.

        Raises:
            CheckpointDamaged: There is no such tensor.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointDamaged(f"{self.directory} has no tensor {name}")
        return tensor

    def extent(self, name: str) -> Extent:
        """Return where a tensor's bytes lie, for positioned reads by others.

        Raises:
            CheckpointDamaged: There is no such tensor.
            CheckpointError: The checkpoint is closed.
        """
        tensor = self.info(name)
        descriptor = self._files.get(tensor.path)
        if descriptor is None:
            raise CheckpointError(f"{self.directory} was closed; open it again to read {name}")
        return Extent(
            fd=descriptor,
            offset=tensor.offset,
            byte_count=tensor.byte_count,
            path=tensor.path,
            stride_bytes=tensor.stride_bytes,
        )

    def read(self, name: str, dtype: mx.Dtype | None = None) -> mx.array:
        """Return a whole tensor, evaluated, in its stored type or converted to `dtype`.

        Raises:
            CheckpointDamaged: There is no such tensor, its file became shorter, or a float in it is not finite.
        """
        return self._as_array(name, self.read_numpy(name), dtype)

    def read_rows(self, name: str, start: int, stop: int, dtype: mx.Dtype | None = None) -> mx.array:
        """Return entries `start` to `stop` of a tensor's first axis, evaluated.

        Raises:
            CheckpointDamaged: As for `read`.
            CheckpointError: The range lies outside the tensor.
        """
        return self._as_array(name, self.read_numpy(name, start, stop), dtype)

    def read_numpy(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.generic]:
        """Return a tensor, or entries `start` to `stop` of its first axis, as a numpy array the caller owns.

        BF16 comes back as its bits in uint16.

        Raises:
            CheckpointDamaged: There is no such tensor, its file became shorter, or a float in it is not finite.
            CheckpointError: The range lies outside the tensor.
            UnsupportedModel: Its type is none that this version computes with.
        """
        tensor, extent = self.info(name), self.extent(name)
        rows = tensor.shape[0] if tensor.shape else 1
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise CheckpointError(f"{name} has {rows} rows; rows {start} to {stop} were asked for")
        shape = (stop - start, *tensor.shape[1:]) if tensor.shape else ()
        if tensor.dtype not in STORAGE_TYPES:
            raise UnsupportedModel(f"{name} in {tensor.path} is {tensor.dtype}, which this version cannot compute with")
        data = np.empty(shape, dtype=STORAGE_TYPES[tensor.dtype])
        row_bytes = tensor.byte_count // max(1, rows)
        target = data.reshape(-1).view(np.uint8).data
        if extent.stride_bytes is None:
            _read_exactly(extent, start * row_bytes, target, name)
        else:
            for index in range(stop - start):
                part = target[index * row_bytes : (index + 1) * row_bytes]
                _read_exactly(extent, (start + index) * extent.stride_bytes, part, name)
        _check_finite(tensor, data)
        return data

    def _as_array(self, name: str, data: npt.NDArray[np.generic], dtype: mx.Dtype | None) -> mx.array:
        array = mx.array(data)
        if self.info(name).dtype == "BF16":
            array = array.view(mx.bfloat16)
        if dtype is not None:
            array = array.astype(dtype)
        mx.eval(array)
        return array


def _read_exactly(extent: Extent, start: int, buffer: memoryview, name: str) -> None:
    done = 0
    while done < len(buffer):
        try:
            got = os.preadv(extent.fd, [buffer[done : done + _READ_BYTES]], extent.offset + start + done)
        except OSError as error:
            raise CheckpointDamaged(f"{name} in {extent.path} cannot be read: {error.strerror}") from error
        if got == 0:
            raise CheckpointDamaged(
                f"{extent.path} became shorter: {name} wanted {len(buffer):,} bytes from byte "
                f"{extent.offset + start:,} and got {done:,}"
            )
        done += got


def _check_finite(tensor: TensorInfo, data: npt.NDArray[np.generic]) -> None:
    bad = first_not_finite(data, tensor.dtype)
    if bad is not None:
        raise CheckpointDamaged(
            f"{tensor.name} in {tensor.path} holds a value that is not finite at element {bad:,} of {data.size:,}; "
            "download or convert it again"
        )
