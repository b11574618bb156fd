"""Whose states they are: build, model and settings, in one digest."""

import hashlib
import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO, Final

from slotstream_core.checkpoint.headers import TensorInfo, read_directory
from slotstream_core.persistence.records import FORMAT

SAMPLE_BYTES: Final = 4096
"""Of each tensor the beginning and the end are read; that takes milliseconds and tells every conversion apart."""


def build_name() -> str:
    """Return what to call this build in a listing; code that runs without being installed has no version."""
    try:
        return f"slotstream-core {version('slotstream-core')}"
    except PackageNotFoundError:
        return "slotstream-core, not installed"


def code_digest() -> str:
    """Return a digest of this package's own code, interpreted and compiled."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.so")]):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def model_digest(directory: Path) -> str:
    """Return a digest of a checkpoint's settings and of samples of its tensors, in whichever files these lie.

    Raises:
        CheckpointError: Its headers cannot be read.
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted([*directory.glob("*.json"), *directory.glob("*.jinja")]):
        digest.update(path.name.encode() + path.read_bytes())
    with ExitStack() as opened:
        files: dict[Path, BinaryIO] = {}
        for name, tensor in sorted(read_directory(directory).items()):
            if tensor.path not in files:
                files[tensor.path] = opened.enter_context(tensor.path.open("rb", buffering=0))
            digest.update(f"{name}:{tensor.dtype}:{tensor.shape};".encode())
            for offset, length in _samples(tensor):
                digest.update(os.pread(files[tensor.path].fileno(), length, offset))
    return digest.hexdigest()


def _samples(tensor: TensorInfo) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return offset and length of two stretches that are in one piece wherever experts lie, stacked or in records."""
    entries = tensor.shape[0] if len(tensor.shape) == 3 and tensor.byte_count else 1
    entry_bytes = tensor.byte_count // entries
    last = tensor.offset + (entries - 1) * (tensor.stride_bytes or entry_bytes)
    length = min(SAMPLE_BYTES, entry_bytes)
    return (tensor.offset, length), (last + entry_bytes - length, length)


def identity_digest(directory: Path, settings: Mapping[str, str]) -> str:
    """Return the identity of states computed here with a checkpoint.

    Args:
        directory: The checkpoint.
        settings: What else the arithmetic depends on: backend, element type, which kernels.

    Raises:
        CheckpointError: The checkpoint's headers cannot be read.
        OSError: A file cannot be read.
    """
    values = {
        "format": str(FORMAT),
        "version": build_name(),
        "code": code_digest(),
        "model": model_digest(directory),
        "machine": platform.machine(),
        "libraries": ",".join(f"{name} {version(name)}" for name in ("mlx", "numpy")),
        **settings,
    }
    lines = "\n".join(f"{key}={values[key]}" for key in sorted(values))
    return hashlib.sha256(lines.encode()).hexdigest()
