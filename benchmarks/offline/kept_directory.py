"""Does a directory of kept conversations stay inside its quota, and how long do writing, listing and opening take?

Invented conversations of the size that the demo model's have are written one after another. Every fourth one goes on
for a second turn, which adds rows, and every tenth begins with a head that the others of its kind share. After each
write the sizes of the files are added up as the system sees them.

    .venv/bin/python -m benchmarks.offline.kept_directory [--conversations N] [--quota-mb MB] [--tokens N] [--record]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.persistence.directory import NewHead, PersistentOptions, PrefixDirectory
from slotstream_core.persistence.records import SEGMENT_SUFFIX
from slotstream_core.persistence.scanning import scan_directory
from slotstream_core.state.rows import HostArray, RowForm, RowSegment, StateSnapshot

ROW_WIDTH = 707
"""Numbers a token: 2,828 bytes, as in the demo model."""
FIXED_NUMBERS = 68_742
FORMS = {"0/keys": RowForm(axis=0, tokens_per_row=1, step_rows=256)}
SHARED_TOKENS = 256
PASS_TOKENS = 256
REPEATED = 5


@dataclass
class Measured:
    """What was seen after each write."""

    write_s: list[float] = field(default_factory=list)
    largest_bytes: int = 0
    offered_bytes: int = 0


class Conversations:
    """Writes invented conversations into a directory."""

    def __init__(self, kept: PrefixDirectory, tokens: int) -> None:
        self._kept = kept
        self._tokens = tokens
        self._random = np.random.default_rng(0)
        self._number = 0
        self.measured = Measured()
        self._shared = self._state((), SHARED_TOKENS)
        self._shared_name = self._write(self._shared, shared=True)

    def one(self, number: int) -> None:
        """Write one conversation."""
        shares = number % 10 == 0
        first = self._state(self._shared.segments if shares else (), self._tokens)
        beginnings = [self._shared_name] if shares else []
        name = self._write(first, *beginnings, continued=shares)
        if number % 4 == 0:
            self._write(self._state(first.segments, self._tokens + PASS_TOKENS), *beginnings, name, continued=True)

    def _state(self, before: tuple[RowSegment, ...], tokens: int) -> StateSnapshot:
        start = before[-1].end if before else 0
        rows = HostArray(dtype="float32", values=self._random.random((tokens - start, ROW_WIDTH), np.float32))
        segment = RowSegment(start=start, end=tokens, rows={"0/keys": rows}, forms=FORMS)
        fixed = HostArray(dtype="float32", values=self._random.random(FIXED_NUMBERS, np.float32))
        return StateSnapshot(length=tokens, model_key="m", fixed={"1/memory": fixed}, segments=(*before, segment))

    def _write(self, state: StateSnapshot, *beginnings: str, continued: bool = False, shared: bool = False) -> str:
        self._number += 1
        name = f"{self._number:040x}"
        new = NewHead(
            name=name,
            snapshot=state,
            pass_tokens=PASS_TOKENS,
            shared=shared,
            continued=continued,
            beginnings=beginnings,
        )
        started = time.perf_counter()
        self._kept.save(new)
        self.measured.write_s.append(time.perf_counter() - started)
        held = sum(entry.stat().st_size for entry in os.scandir(self._kept.options.directory))
        self.measured.largest_bytes = max(self.measured.largest_bytes, held)
        self.measured.offered_bytes += state.fixed_bytes + state.segments[-1].byte_size
        return name


def unused_files(directory: Path) -> int:
    """Return how many row files no state uses."""
    content = scan_directory(directory)
    used = {extent.segment for head in content.heads.values() for extent in head.extents}
    return sum(path.name.removesuffix(SEGMENT_SUFFIX) not in used for path in directory.glob(f"*{SEGMENT_SUFFIX}"))


def median_s(run: Callable[[], object]) -> float:
    """Return how long something takes that can be repeated."""
    taken = []
    for _ in range(REPEATED):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def list_with_the_command(directory: Path) -> None:
    """List a directory as a person does."""
    command = [sys.executable, "-m", "slotstream_cli", "prefix-cache", "--dir", str(directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--quota-mb", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        options = PersistentOptions(
            directory=directory, quota_bytes=arguments.quota_mb * 10**6, minimum_tokens=1, free_bytes=0
        )
        kept = PrefixDirectory(options, identity="benchmark", build="benchmark")
        conversations = Conversations(kept, arguments.tokens)
        for number in range(arguments.conversations):
            conversations.one(number)
        kept.close()
        content = scan_directory(directory)
        listing_s = median_s(lambda: scan_directory(directory))
        opening_s = median_s(lambda: PrefixDirectory(options, identity="benchmark", build="benchmark").close())
        command_s = median_s(lambda: list_with_the_command(directory))
        unused = unused_files(directory)
    measured = conversations.measured
    values = {
        "write_median_s": statistics.median(measured.write_s),
        "write_worst_s": max(measured.write_s),
        "offered_bytes": measured.offered_bytes,
        "largest_bytes": measured.largest_bytes,
        "states": len(content.heads),
        "unused_files": unused,
        "listing_s": listing_s,
        "command_s": command_s,
        "opening_s": opening_s,
    }
    rows = [
        ("offered", f"{measured.offered_bytes / 1e6:,.0f} MB in {len(measured.write_s):,} writes"),
        ("most in the directory", f"{measured.largest_bytes / 1e6:,.1f} MB of {arguments.quota_mb:,} MB"),
        ("states at the end", f"{len(content.heads):,}, {unused} files that none of them uses"),
        ("a write", f"{values['write_median_s'] * 1e3:.1f} ms median, {values['write_worst_s'] * 1e3:.1f} ms worst"),
        ("listing", f"{listing_s * 1e3:.1f} ms; with the program's start {command_s * 1e3:.0f} ms"),
        ("opening", f"{opening_s * 1e3:.1f} ms"),
    ]
    settings = {name: getattr(arguments, name) for name in ("conversations", "quota_mb", "tokens")}
    report(
        BenchmarkResult(benchmark="kept_directory", settings=settings, values=values),
        table=format_table(("of the directory", "value"), rows),
        record=arguments.record,
    )


if __name__ == "__main__":
    main()
