"""A real memory control group around a child process; available to root on Linux and where groups are delegated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
ENTER = """
import os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Cage:
    """One group with a hard limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run Python inside, from its first instruction on."""
        command = [sys.executable, "-c", ENTER, str(self.folder / "cgroup.procs"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@contextmanager
def memory_cage(limit_bytes: int) -> Iterator[Cage]:
    """Make a group limited to this many bytes and remove it afterwards; skip the test where that is not allowed."""
    v1 = (ROOT / "memory" / "memory.limit_in_bytes").exists()
    parent = ROOT / "memory" if v1 else ROOT
    folder = parent / f"slotstream-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made here: {error}")
    try:
        try:
            name = "memory.limit_in_bytes" if v1 else "memory.max"
            (folder / name).write_text(str(limit_bytes))
            _forbid_swap(folder, limit_bytes, v1=v1)
        except OSError as error:
            pytest.skip(f"a memory group cannot be limited here: {error}")
        yield Cage(folder)
    finally:
        folder.rmdir()


def _forbid_swap(folder: Path, limit_bytes: int, *, v1: bool) -> None:
    """Count swap against the limit, where the kernel keeps count of it."""
    path = folder / ("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max")
    if path.exists():
        path.write_text(str(limit_bytes) if v1 else "0")
