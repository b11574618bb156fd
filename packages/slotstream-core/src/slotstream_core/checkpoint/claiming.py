"""Taking a directory to write into: one writer at a time, only where there is room, and not while its model is used."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from slotstream_core.checkpoint.headers import CONFIG_NAME
from slotstream_core.errors import CheckpointError, DirectoryClaimed

SPARE_DISK_BYTES: Final = 64 * 2**20


@contextmanager
def claimed(directory: Path, *, doing: str) -> Iterator[bool]:
    """Create the directory if need be and keep other writers out of it; yield whether it was created.

    A directory that was created goes again when what follows fails before anything was put in it.

    Args:
        directory: Where to write.
        doing: What is done there, such as "conversion", for messages.

    Raises:
        CheckpointError: It cannot be created or opened.
        DirectoryClaimed: Another process writes there.
    """
    created = False
    try:
        try:
            directory.mkdir(parents=True)
            created = True
        except FileExistsError:
            pass
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be written to: {error.strerror}; give a directory that does not exist yet"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DirectoryClaimed(f"another {doing} is writing to {directory}; wait for it to end") from error
    try:
        if not _leads_to(directory, descriptor):
            raise DirectoryClaimed(f"another {doing} has just ended and removed {directory}; run this again")
        yield created
    except BaseException:
        if created:
            with suppress(OSError):  # it is not empty
                directory.rmdir()
        raise
    finally:
        os.close(descriptor)


def in_use(model: Path) -> AbstractContextManager[None]:
    """Keep a checkpoint's files from being written anew while they are read; any number of readers may at a time.

    Raises:
        CheckpointError: They are being written anew.
    """
    return _locked(model, fcntl.LOCK_SH, f"the experts of {model} are being moved; wait for that to end")


def not_in_use(model: Path) -> AbstractContextManager[None]:
    """Keep a checkpoint from being loaded while its files are written anew.

    Raises:
        CheckpointError: It is loaded, or its files are being written anew.
    """
    return _locked(model, fcntl.LOCK_EX, f"{model} is in use; end what runs it first (`slotstream stop` ends a server)")


@contextmanager
def _locked(model: Path, kind: int, taken: str) -> Iterator[None]:
    """Lock the one file that every form of a checkpoint has and nothing writes anew.

    Nothing is locked where the file system has no locks, or there is no such file: what opens the checkpoint says so.
    """
    with ExitStack() as held:
        with suppress(OSError):
            descriptor = os.open(model / CONFIG_NAME, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(taken) from error
        yield


def _leads_to(directory: Path, descriptor: int) -> bool:
    """Whether a directory is still the one that was opened."""
    try:
        return os.path.samestat(directory.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def check_free_space(directory: Path, needed_bytes: int) -> None:
    """Check that a disk has room, with a little to spare.

    Raises:
        CheckpointError: It has not.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes + SPARE_DISK_BYTES:
        raise CheckpointError(
            f"{directory} needs {(needed_bytes + SPARE_DISK_BYTES) / 1e9:.2f} GB and its disk has "
            f"{free_bytes / 1e9:.2f} GB free; free some space or give a directory on another disk"
        )
