"""A plan is a promise: inside a group limited to its planned peak, a generation survives."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from slotstream_core.backend import Backend
from slotstream_core.loading import plan_here
from slotstream_core.testing import write_tiny_model
from slotstream_planner import Machine, PlanRequest
from tests.core.memory_cage import memory_cage

MB = 10**6
EAT = "import sys; data = b'x' * (int(sys.argv[1]) * 10**6); print(len(data))"
GENERATE = """
import json, pickle, sys
from pathlib import Path
from slotstream_core import load
from slotstream_core.events import Finished
from slotstream_core.memory import footprint
plan = pickle.loads(Path(sys.argv[2]).read_bytes())
with load(sys.argv[1], plan) as engine:
    *_, last = engine.generate(list(range(1, 200)), max_tokens=32)
    assert isinstance(last, Finished)
    print(json.dumps({"tokens": last.usage.completion_tokens, "peak_bytes": footprint().peak_bytes}))
"""
SEE = "from slotstream_planner import Machine; print(Machine.current().ram_bytes)"


def test_the_cage_is_real() -> None:
    with memory_cage(64 * MB) as cage:
        assert cage.run(["-c", EAT, "20"]).returncode == 0
        assert cage.run(["-c", EAT, "400"]).returncode != 0


def test_a_limit_around_this_process_is_what_the_planner_sees() -> None:
    with memory_cage(512 * 2**20) as cage:
        done = cage.run(["-c", SEE])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 512 * 2**20 < Machine.current().ram_bytes


@pytest.mark.skipif(
    Backend.detect().kind == "cuda", reason="a plan is about the device; in host memory a process is mostly the driver"
)
@pytest.mark.parametrize("experts_per_layer", [None, 8])
def test_a_generation_survives_inside_its_planned_peak(tmp_path: Path, experts_per_layer: int | None) -> None:
    directory = write_tiny_model(tmp_path / "tiny")
    plan = plan_here(directory, Backend.detect(), PlanRequest(experts_per_layer=experts_per_layer))
    saved = tmp_path / "plan"
    saved.write_bytes(pickle.dumps(plan))
    with memory_cage(plan.expected_peak_bytes) as cage:
        done = cage.run(["-c", GENERATE, str(directory), str(saved)])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] > 0
    assert result["peak_bytes"] <= plan.expected_peak_bytes
