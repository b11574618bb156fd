"""The forecast correction beside a checkpoint: reading it with every check, and writing it.

One safetensors file, `lookahead/tap-correction-attention-rank128-v1.safetensors`. For each target layer t, from the row
m that its experts would read if the layer before it had no experts, and the logits z its router gives for m:

    u  = float16(m - mu[t])
    z' = z + (u a[t]) b[t] + delta[t]      (products accumulated in float32)

    a        F16 [targets, hidden, rank]       b      F16 [targets, rank, experts]
    mu       F32 [targets, hidden]             delta  F32 [targets, experts]
    targets  I32 [targets] = 1, 2, ...

The rank is what the shapes say; the published model's file has 128.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.shards import write_atomically
from slotstream_core.errors import CorrectionUnusable

CORRECTION_PATH: Final = Path("lookahead") / "tap-correction-attention-rank128-v1.safetensors"
METADATA: Final = {"schema": "slotstream-tap-correction-v1", "tap": "attention", "first_target": "1"}
HEADER_LIMIT_BYTES: Final = 16 * 2**20
FIRST_TARGET: Final = 1
DTYPES: Final[dict[str, tuple[str, str]]] = {
    "a": ("F16", "<f2"),
    "b": ("F16", "<f2"),
    "delta": ("F32", "<f4"),
    "mu": ("F32", "<f4"),
    "targets": ("I32", "<i4"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Correction:
    """The factors of every target; row i of each array belongs to layer i + 1.

    Attributes:
        a: float16 [targets, hidden, rank].
        b: float16 [targets, rank, experts].
        mu: float32 [targets, hidden].
        delta: float32 [targets, experts].
    """

    a: npt.NDArray[np.float16]
    b: npt.NDArray[np.float16]
    mu: npt.NDArray[np.float32]
    delta: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        """Inner width of the correction."""
        return int(self.a.shape[2])


def read_correction(path: Path, *, layers: int, hidden: int, experts: int) -> Correction:
    """Read and check a correction file for a model of these sizes.

    Raises:
        CorrectionUnusable: It is not there, or anything about it is not as documented.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorrectionUnusable(f"no correction at {path} ({error.strerror or error})") from error
    try:
        header, start = _header(data)
        arrays = {name: _array(name, header, memoryview(data)[start:]) for name in DTYPES}
        _check(header, arrays, layers=layers, hidden=hidden, experts=experts)
    except CorrectionUnusable as error:
        raise CorrectionUnusable(f"{path}: {error}; fit it again with `slotstream lookahead-fit`") from error
    return Correction(a=arrays["a"], b=arrays["b"], mu=arrays["mu"], delta=arrays["delta"])


def write_correction(path: Path, correction: Correction) -> None:
    """Write the file in one step, making its directory if needed.

    Raises:
        CorrectionUnusable: Its directory cannot be made.
        CheckpointError: It cannot be written.
    """
    targets = np.arange(FIRST_TARGET, FIRST_TARGET + correction.a.shape[0], dtype="<i4")
    arrays: dict[str, npt.NDArray[Any]] = {
        "a": correction.a.astype("<f2"),
        "b": correction.b.astype("<f2"),
        "delta": correction.delta.astype("<f4"),
        "mu": correction.mu.astype("<f4"),
        "targets": targets,
    }
    header: dict[str, Any] = {"__metadata__": METADATA}
    position = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": DTYPES[name][0],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CorrectionUnusable(f"{path.parent} cannot be made ({error.strerror or error})") from error
    write_atomically(path, len(text).to_bytes(8, "little") + text + body)


def correction_path(directory: Path) -> Path:
    """Return where a checkpoint's correction lies."""
    return Path(os.fspath(directory)) / CORRECTION_PATH


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 0 < size < HEADER_LIMIT_BYTES or 8 + size > len(data):
        raise CorrectionUnusable(
            f"its header claims {size:,} bytes of a file of {len(data):,}; under {HEADER_LIMIT_BYTES:,} are allowed"
        )
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise CorrectionUnusable(f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise CorrectionUnusable("its header is not a JSON object")
    return header, 8 + size


def _array(name: str, header: dict[str, Any], body: memoryview) -> npt.NDArray[Any]:
    dtype, numpy_dtype = DTYPES[name]
    entry = header.get(name)
    if not isinstance(entry, dict):
        raise CorrectionUnusable(f"the tensor {name} is missing")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if entry.get("dtype") != dtype or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise CorrectionUnusable(f"the tensor {name} is described as {entry}; expected {dtype} with shape and offsets")
    wanted = math.prod(shape) * np.dtype(numpy_dtype).itemsize
    begin, end = offsets
    if end - begin != wanted or end > len(body):
        raise CorrectionUnusable(
            f"the tensor {name} of shape {shape} needs {wanted:,} bytes and has offsets {begin:,} to {end:,} "
            f"of {len(body):,}"
        )
    return np.frombuffer(body[begin:end], numpy_dtype).reshape(shape)


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check(
    header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], *, layers: int, hidden: int, experts: int
) -> None:
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or any(metadata.get(name) != value for name, value in METADATA.items()):
        raise CorrectionUnusable(f"its metadata is {metadata}; expected {METADATA}")
    count = layers - FIRST_TARGET
    rank = arrays["a"].shape[-1] if arrays["a"].ndim == 3 else 0
    shapes = {
        "a": (count, hidden, rank),
        "b": (count, rank, experts),
        "delta": (count, experts),
        "mu": (count, hidden),
        "targets": (count,),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape or rank < 1:
            raise CorrectionUnusable(f"the tensor {name} has shape {arrays[name].shape}; this model needs {shape}")
        if not np.isfinite(arrays[name]).all():
            raise CorrectionUnusable(f"the tensor {name} holds values that are not finite")
    if arrays["targets"].tolist() != list(range(FIRST_TARGET, layers)):
        raise CorrectionUnusable(f"its targets are not the layers {FIRST_TARGET} to {layers - 1}")
