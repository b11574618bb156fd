"""Print and keep benchmark results; the format is in benchmarks/README.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkMachine:
    """Where a result was taken; holds nothing that names a person or a host."""

    name: str
    cores: int
    memory_bytes: int
    python: str
    system: str

    @staticmethod
    def current() -> BenchmarkMachine:
        """Describe this machine."""
        cores = os.cpu_count() or 1
        words = f"{platform.system()} {platform.machine()} {_processor()} {cores}c"
        return BenchmarkMachine(
            name=re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-"),
            cores=cores,
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkResult:
    """One run of one benchmark: what was chosen and what was measured, unit at the end of each name."""

    benchmark: str
    settings: Mapping[str, int | float | str]
    values: Mapping[str, int | float]


def report(result: BenchmarkResult, *, table: str, record: bool, results: Path = RESULTS) -> Path | None:
    """Print the table and the JSON line; keep the result when asked.

    Returns:
        The file the result was kept in, if it was.
    """
    commit, machine = _commit(), BenchmarkMachine.current()
    entry = {
        "benchmark": result.benchmark,
        "commit": commit,
        "machine": asdict(machine),
        "taken_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", _module_name(), *sys.argv[1:]]),
        "settings": dict(result.settings),
        "values": dict(result.values),
    }
    print(table)
    kept = keep(entry, results / machine.name / f"{commit}.json") if record else None
    print(json.dumps(entry, sort_keys=True))
    return kept


def keep(entry: Mapping[str, object], path: Path) -> Path:
    """Put one entry into a results file under its benchmark's name, leaving the others; written in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entries[entry["benchmark"]] = entry
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns: the first to the left, the others to the right."""
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    lines = []
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _processor() -> str:
    """Name the processor model: what the kernel calls it, without the maker's marks and clock speed."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    model = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "unknown")
    return re.sub(r"\((r|tm)\)|processor|cpu|@.*", "", model.lower()).strip()


def _commit() -> str:
    commands = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        commit, changes = (
            subprocess.run(["git", *words], cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout
            for words in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("-dirty" if changes.strip() else "")


def _module_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).name
