"""The planner's header reader, with its refusals in this package's error tree."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slotstream_core.errors import CheckpointDamaged, CheckpointMissing
from slotstream_planner import headers
from slotstream_planner.errors import CheckpointUnreadable, GeometryError
from slotstream_planner.headers import DRAFT_NAME, DTYPE_BYTES, INDEX_NAME
from slotstream_planner.headers import TensorHeader as TensorInfo
from slotstream_planner.moved import MovedExperts

__all__ = [
    "CONFIG_NAME",
    "DRAFT_NAME",
    "DTYPE_BYTES",
    "INDEX_NAME",
    "STATE_NAME",
    "TensorInfo",
    "list_directory",
    "read_directory",
    "read_json_object",
    "read_moved",
]

CONFIG_NAME = "config.json"
STATE_NAME = ".slotstream-convert.json"
"""Present in a directory while a conversion into it is unfinished."""


def read_directory(directory: Path) -> dict[str, TensorInfo]:
    """Return every tensor of a checkpoint directory by name; see `slotstream_planner.headers`.

    Raises:
        CheckpointMissing: No such directory, no safetensors file in it, or a file that cannot be opened.
        CheckpointDamaged: A file is truncated or malformed, or the index and the files disagree.
    """
    with _translated():
        return headers.read_checkpoint_headers(directory)


def list_directory(directory: Path) -> frozenset[str]:
    """Return the names in a checkpoint directory.

    Raises:
        CheckpointMissing: No such directory, or it may not be read.
    """
    with _translated():
        return headers.list_directory(directory)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return a JSON file that holds an object.

    Raises:
        CheckpointMissing: No such file, or it cannot be opened.
        CheckpointDamaged: Not JSON, or not an object.
    """
    with _translated():
        return headers.read_json(path)


def read_moved(directory: Path) -> MovedExperts | None:
    """Return which experts of a checkpoint were moved into records; None where none were.

    Raises:
        CheckpointMissing: The index cannot be opened.
        CheckpointDamaged: It is damaged, or of another format.
    """
    with _translated():
        return headers.read_moved(directory)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CheckpointUnreadable as error:
        raise CheckpointMissing(str(error)) from error
    except GeometryError as error:
        raise CheckpointDamaged(str(error)) from error
