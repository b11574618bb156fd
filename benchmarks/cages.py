"""A memory control group around one child process at a time: a hard limit on what it and its page cache may hold."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
ENTER = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
"""
INBLOCK_BYTES = 512
"""What `ru_inblock` counts in on Linux."""


class CageUnavailable(Exception):
    """No memory control group can be made or limited here."""


@dataclass(frozen=True, kw_only=True)
class Caged:
    """What became of a child.

    Attributes:
        output: What it wrote to its standard output.
        complaint: The end of what it wrote to its standard error.
        status: Its exit status; the negative number of a signal.
        peak_bytes: Most that the group held at once, page cache included.
        read_bytes: What the kernel read from disk for it.
        processor_s: Processor time, user and system.
        wall_s: From start to end.
    """

    output: str
    complaint: str
    status: int
    peak_bytes: int
    read_bytes: int
    processor_s: float
    wall_s: float

    @property
    def killed(self) -> bool:
        """Whether it was killed, as the kernel does with a process that outgrows the limit."""
        return self.status == -signal.SIGKILL


class MemoryCage:
    """One group; see `memory_cage`."""

    def __init__(self, folder: Path, *, version: int) -> None:
        self._folder = folder
        self._version = version

    def run(
        self, command: Sequence[str], limit_bytes: int, *, environment: Mapping[str, str], timeout_s: float
    ) -> Caged:
        """Run a program inside from its first instruction on, with nothing left of the one before.

        Raises:
            CageUnavailable: The limit cannot be set.
            subprocess.TimeoutExpired: It took too long and was killed.
        """
        self._limit(limit_bytes)
        enter = [sys.executable, "-c", ENTER, str(self._folder / "cgroup.procs"), *command]
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(enter, stdout=out, stderr=err, env=dict(environment))
            try:
                status, usage = _wait(process, timeout_s)
            except BaseException:  # an interrupt too leaves nobody in the group
                process.kill()
                process.wait()
                raise
            wall_s = time.perf_counter() - started
            out.seek(0)
            err.seek(0)
            output, complaint = out.read(), err.read()[-2000:]
        return Caged(
            output=output,
            complaint=complaint,
            status=status,
            peak_bytes=self._peak_bytes(),
            read_bytes=usage.ru_inblock * INBLOCK_BYTES,
            processor_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
        )

    def _limit(self, limit_bytes: int) -> None:
        """Empty the group and set its limit, swap included."""
        try:
            if self._version == 1:
                unlimited = str(-1)
                _write_if_there(self._folder / "memory.memsw.limit_in_bytes", unlimited)
                (self._folder / "memory.limit_in_bytes").write_text(unlimited)
                (self._folder / "memory.force_empty").write_text("0")
                (self._folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
                _write_if_there(self._folder / "memory.memsw.limit_in_bytes", str(limit_bytes))
                (self._folder / "memory.max_usage_in_bytes").write_text("0")
            else:
                (self._folder / "memory.max").write_text(str(limit_bytes))
                _write_if_there(self._folder / "memory.swap.max", "0")
        except OSError as error:
            raise CageUnavailable(f"the memory group {self._folder} cannot be limited: {error.strerror}") from error

    def _peak_bytes(self) -> int:
        name = "memory.max_usage_in_bytes" if self._version == 1 else "memory.peak"
        path = self._folder / name
        return int(path.read_text()) if path.exists() else 0


@contextmanager
def memory_cage(root: Path = ROOT) -> Iterator[MemoryCage]:
    """Make a group and remove it afterwards.

    Raises:
        CageUnavailable: This process may not make one; the message says where it was tried.
    """
    version = 1 if (root / "memory" / "memory.limit_in_bytes").exists() else 2
    parent = root / "memory" if version == 1 else root
    folder = parent / f"slotstream-benchmark-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise CageUnavailable(
            f"no memory control group can be made under {parent} ({error.strerror}); run as root on Linux, "
            "or where control groups are delegated"
        ) from error
    try:
        yield MemoryCage(folder, version=version)
    finally:
        folder.rmdir()


def forget_pages(paths: Sequence[Path]) -> None:
    """Drop files from the page cache, so that the next reader pays for them and they count as its own."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[int, resource.struct_rusage]:
    """Wait for a child and return its status and resource usage."""
    deadline = time.monotonic() + timeout_s
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, timeout_s)
        time.sleep(0.02)
