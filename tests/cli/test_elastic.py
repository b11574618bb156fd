"""`slotstream elastic-check` and `elastic-drill` over a tiny model.

A drill compares the memory of its whole process with the plan, so it needs a process without other tests in it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Invoke


def drill(tiny_model: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "slotstream_cli", "elastic-drill", "--model", str(tiny_model), *options]
    root = {"SLOTSTREAM_ROOT_DIR": str(tiny_model.parent / "root")}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **root})


def drilled(tiny_model: Path, *options: str) -> dict[str, Any]:
    done = drill(tiny_model, "--max-tokens", "4", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_drill_goes_through_pressure_cooldown_and_recovery(tiny_model: Path) -> None:
    report = drilled(tiny_model)
    assert report["passed"]
    assert report["facts"]["low_slots"] < report["facts"]["full_slots"]
    assert [item["name"] for item in report["items"]][-2:] == [
        "the ids are the same after the recovery",
        "the process stayed inside its plan",
    ]


def test_a_quick_drill_ends_after_the_shrink(tiny_model: Path) -> None:
    names = [item["name"] for item in drilled(tiny_model, "--quick")["items"]]
    assert "the ids are the same after the shrink" in names
    assert not any("recover" in name or "cooldown" in name for name in names)


def test_a_drill_begins_with_the_slots_asked_for_and_grows_back_to_them_at_least(tiny_model: Path) -> None:
    report = drilled(tiny_model, "--slots", "48")
    assert report["facts"]["full_slots"] == 48
    detail = next(item["detail"] for item in report["items"] if item["name"] == "the pool recovers")
    low, high = (int(word) for word in detail.split() if word.isdigit())
    assert low < 48 <= high


@pytest.mark.parametrize("slots", ["1", "99999999"])
def test_any_number_of_slots_can_be_asked_for(tiny_model: Path, slots: str) -> None:
    done = drill(tiny_model, "--max-tokens", "2", "--slots", slots, "--quick")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_drill_over_its_ceiling_loads_nothing(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("elastic-drill", "--model", tiny_model, "--max-memory-gb", "0.01")
    assert result.exit_code == 1
    assert "is allowed 0.01 GB; nothing was loaded" in result.stderr


def test_growing_and_shrinking_is_checked(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("elastic-check", "--model", tiny_model, "--max-tokens", "4", "--big-slots", "60")
    assert result.exit_code == 0, result.output
    assert "elastic-check: passed" in result.stdout
