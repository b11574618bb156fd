"""One large model a user at a time: two that were each planned for the whole machine would not fit in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from slotstream_planner.moved import MOVED_NAME, MOVED_SUFFIX

__all__ = ["held_alone", "lock_file", "lock_holder", "needs_lock"]

LARGE_MODEL_BYTES = 2_000_000_000
"""Checkpoints below this many bytes, such as the demo, load beside each other."""


def lock_file() -> Path:
    """Return the file whose lock a process with a large model holds."""
    return Path("/tmp") / f"slotstream-model-{os.getuid()}.lock"


def needs_lock(directory: Path, *, large_bytes: int = LARGE_MODEL_BYTES) -> bool:
    """Whether a checkpoint is so large that only one process should hold such a model."""
    files = [*directory.glob("*.safetensors"), *(directory / MOVED_NAME).glob(f"*{MOVED_SUFFIX}")]
    return sum(file.stat().st_size for file in files) >= large_bytes


@contextmanager
def held_alone(directory: Path, *, path: Path | None = None, large_bytes: int = LARGE_MODEL_BYTES) -> Iterator[None]:
    """Hold the user's model lock while a large model is loaded; smaller ones need none.

    Args:
        directory: The checkpoint.
        path: The lock file, when not the user's own.
        large_bytes: From which size on a checkpoint needs the lock.

    Raises:
        click.ClickException: Another process holds it, or the file is not this user's.
    """
    if not needs_lock(directory, large_bytes=large_bytes):
        yield
        return
    place = path or lock_file()
    descriptor = _opened(place)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(already_running(_noted(descriptor))) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_holder(path: Path | None = None) -> int | None:
    """Return the process that holds the lock, 0 when it did not note itself, or None when it is free."""
    place = path or lock_file()
    if not place.exists():
        return None
    descriptor = _opened(place)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _noted(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def already_running(pid: int) -> str:
    """Return the sentence for a lock that another process holds."""
    which = f" (process {pid})" if pid else ""
    return (
        f"another Slotstream model process{which} is running, and only one model of this size fits in memory; end it "
        "first: `slotstream stop` stops a server, `slotstream stop --port N` one on another port"
    )


def _opened(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise click.ClickException(f"the model lock {path} cannot be opened: {error.strerror or error}") from error
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        raise click.ClickException(f"the model lock {path} belongs to another user; remove it, or ask them to")
    return descriptor


def _noted(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
