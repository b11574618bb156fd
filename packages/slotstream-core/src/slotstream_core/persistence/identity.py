"""Whose states they are: build, model files and settings, in one digest."""

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from slotstream_core.persistence.records import FORMAT
from slotstream_planner.moved import MOVED_INDEX, MOVED_NAME

EDGE_BYTES: Final = 4 * 2**20
"""Of each weight file the beginning and the end are read; that takes milliseconds and tells converted files apart."""


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
    """Return a digest of a checkpoint's settings and of the edges of its weight files.

    Raises:
        OSError: A file cannot be read.
    """
    digest = hashlib.sha256()
    moved = directory / MOVED_NAME / MOVED_INDEX  # names the digests of experts that no shard holds
    for path in sorted([*directory.glob("*.json"), *directory.glob("*.jinja"), *([moved] if moved.exists() else [])]):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            digest.update(file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()


def identity_digest(directory: Path, settings: Mapping[str, str]) -> str:
    """Return the identity of states computed here with a checkpoint.

    Args:
        directory: The checkpoint.
        settings: What else the arithmetic depends on: backend, element type, which kernels.

    Raises:
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
