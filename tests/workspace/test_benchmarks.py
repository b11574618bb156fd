"""Every benchmark is listed with the command that records it, and has a result that says what was run."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
REPORTS = r"from benchmarks\.recording import .*\breport\b"


def programs() -> list[str]:
    """Return the benchmarks, as paths below their folder: what reports a result."""
    paths = sorted(path for path in FOLDER.rglob("*.py") if path.parent != FOLDER)
    return [str(path.relative_to(FOLDER)) for path in paths if re.search(REPORTS, path.read_text(encoding="utf-8"))]


def module(program: str) -> str:
    return "benchmarks." + program.removesuffix(".py").replace("/", ".")


@cache
def listed() -> dict[str, str]:
    """Return the rows of the README's table of programs, each by its program."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return {match[1]: match[2] for match in re.finditer(r"^\| `(\w+/\w+\.py)` \|(.*)$", text, re.MULTILINE)}


@cache
def recorded() -> str:
    """Return the commands of all results, a line each."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "results").rglob("*.json")]
    return "".join(f"{entry['command']} \n" for result in results for entry in result.values())


def test_the_list_names_the_benchmarks_and_nothing_else() -> None:
    assert sorted(listed()) == programs()
    assert len(programs()) > 10


@pytest.mark.parametrize("program", programs())
def test_a_listed_benchmark_says_how_it_is_recorded(program: str) -> None:
    assert re.search(rf"`\.venv/bin/python -m {re.escape(module(program))} ([^`]* )?--record`", listed()[program])


@pytest.mark.parametrize("program", programs())
def test_a_benchmark_has_a_result_or_says_why_not(program: str) -> None:
    assert f" {module(program)} " in recorded() or "No result:" in listed()[program]
