"""Files on disk: hashing in pieces, and writing so that no reader ever sees half a file."""

import contextlib
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Callable

PIECE_BYTES = 4 * 2**20


def hash_file(path: pathlib.Path, *, before_piece: Callable[[], None] | None = None) -> str:
    """Return the SHA-256 of a file as lower-case hexadecimal.

    Args:
        path: The file; links are followed.
        before_piece: Called before every 4 MiB; it may raise to stop.
    """
    digest = hashlib.sha256()
    buffer = bytearray(PIECE_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while True:
            if before_piece is not None:
                before_piece()
            count = file.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(view[:count])


def sync_directory(path: pathlib.Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Replace a file by `data`: written beside it, synced, renamed, and the directory synced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        pathlib.Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path(name).unlink()
        raise
    sync_directory(path.parent)
