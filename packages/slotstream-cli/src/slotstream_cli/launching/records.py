"""What launches remember of the servers they start: a record and a log for each port, and a lock while starting."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from slotstream_cli.launching.errors import LaunchError
from slotstream_cli.launching.private_files import make_private_directory, read_text, write_text
from slotstream_serve.defaults import DEFAULT_PORT

__all__ = ["LaunchState", "Record", "is_slotstream", "running"]

CLOCK_SLACK_S = 2.0
"""How far two readings of one process's start may lie apart after the clock was set."""
PROGRAM_WORDS = 5


@dataclass(frozen=True, kw_only=True)
class Record:
    """A server that a launch started.

    Attributes:
        pid: Its process.
        started_s: When that process began, in seconds since the epoch.
        port: Where it listens.
        log: Where it writes.
    """

    pid: int
    started_s: float
    port: int
    log: Path

    def is_running(self) -> bool:
        """Whether this very process still runs."""
        process = running(self.pid)
        return process is not None and abs(process.create_time() - self.started_s) <= CLOCK_SLACK_S


@dataclass(frozen=True, kw_only=True)
class LaunchState:
    """Where the files of launches on one port are.

    Attributes:
        root: The root directory, `~/.slotstream`.
        port: The port.
    """

    root: Path
    port: int

    @property
    def directory(self) -> Path:
        """Where launches keep their files."""
        return self.root / "launch"

    @property
    def log(self) -> Path:
        """Where a server started in the background writes."""
        name = "serve.log" if self.port == DEFAULT_PORT else f"serve-{self.port}.log"
        return self.root / "logs" / name

    @property
    def record_file(self) -> Path:
        """Where the server's process is noted."""
        return self.directory / f"server-{self.port}.json"

    def record(self) -> Record | None:
        """Return the server a launch started here, if its process still runs."""
        try:
            document = json.loads(read_text(self.record_file) or "")
            record = Record(
                pid=int(document["pid"]),
                started_s=int(document["started_seconds"]) + int(document["started_microseconds"]) / 1e6,
                port=int(document["port"]),
                log=Path(document["log"]),
            )
        except (ValueError, KeyError, TypeError, LaunchError):
            return None
        return record if record.port == self.port and record.is_running() else None

    def write_record(self, pid: int) -> None:
        """Note a server that was started.

        Raises:
            LaunchError: The note cannot be written.
        """
        process = running(pid)
        started = 0.0 if process is None else process.create_time()
        document = {
            "pid": pid,
            "started_seconds": int(started),
            "started_microseconds": round(started % 1 * 1e6),
            "port": self.port,
            "log": str(self.log),
        }
        write_text(self.record_file, json.dumps(document, indent=2) + "\n")

    def forget(self) -> None:
        """Remove the note."""
        self.record_file.unlink(missing_ok=True)

    def open_log(self) -> int:
        """Begin a new log, keep the previous one as `.1`, and return its file descriptor.

        Raises:
            LaunchError: It cannot be opened.
        """
        make_private_directory(self.log.parent)
        try:
            if self.log.exists():
                self.log.replace(self.log.with_name(f"{self.log.name}.1"))
            return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as error:
            raise LaunchError(f"{self.log} cannot be written: {error.strerror or error}") from error

    @contextmanager
    def starting(self, *, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the port's lock, so that two launches start one server; `waiting` is called before a wait.

        Raises:
            LaunchError: The lock file cannot be made.
        """
        make_private_directory(self.directory)
        path = self.directory / f"start-{self.port}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LaunchError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def running(pid: int) -> psutil.Process | None:
    """Return a process that runs and has not ended, or None."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (psutil.Error, ValueError, OverflowError):
        return None


def is_slotstream(command_line: Sequence[str]) -> bool:
    """Whether a process's command line is a Slotstream server's."""
    words = list(command_line[:PROGRAM_WORDS])
    for at, word in enumerate(words[:-1]):
        parts = Path(word).parts
        names_us = parts[-1:] == ("slotstream",) or parts[-1:] == ("slotstream_cli",)
        is_package = parts[-2:] == ("slotstream_cli", "__main__.py")
        if (names_us or is_package) and words[at + 1] == "serve":
            return True
    return False
