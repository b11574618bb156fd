"""A prompt of a given length is run, sampled, and held against its plan."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from slotstream_cli.main import main
from slotstream_core.diagnostics.context import ContextCheck, check_context, context_rungs
from slotstream_core.diagnostics.footprints import FootprintSampler
from slotstream_core.errors import RequestError
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("context") / "tiny")


def command(model: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["context-check", "--model", str(model), *arguments])


def test_a_complete_reply_is_reported_with_its_memory(model: Path) -> None:
    report = check_context(model, ContextCheck(tokens=60, reply_tokens=3), PlanRequest())
    judged = {item.name: item.passed for item in report.items}
    assert judged["the reply is complete"]
    assert judged["memory was sampled"]
    assert len(report.facts["reply_ids"]) == 3
    assert report.facts["sampled_peak_bytes"] > 0
    assert report.facts["window_tokens"] == 63
    assert report.facts["mlx_peak_bytes"] >= report.facts["mlx_active_bytes"]
    assert report.facts["mlx_cache_bytes"] <= report.facts["buffer_cache_limit_bytes"]


def test_the_same_length_gives_the_same_reply(model: Path) -> None:
    check = ContextCheck(tokens=40, reply_tokens=3)
    first, second = (check_context(model, check, PlanRequest()) for _ in range(2))
    assert first.facts["reply_ids"] == second.facts["reply_ids"]


def test_warm_conversations_are_run_and_revisited(model: Path) -> None:
    check = ContextCheck(tokens=60, reply_tokens=2, warm_conversations=2, warm_tokens=10)
    report = check_context(model, check, PlanRequest())
    assert next(item for item in report.items if "warm" in item.name).detail == "4 of 4 replies"


def test_warm_conversations_that_do_not_fit_are_refused(model: Path) -> None:
    check = ContextCheck(tokens=20, reply_tokens=2, warm_conversations=1, warm_tokens=500)
    with pytest.raises(RequestError, match="each warm conversation takes"):
        check_context(model, check, PlanRequest())


def test_a_wall_that_is_reached_stops_the_check_and_fails_it(model: Path) -> None:
    report = check_context(model, ContextCheck(tokens=40, reply_tokens=20, wall_s=1e-9), PlanRequest())
    assert not report.passed
    assert "--wall-seconds" in report.items[0].detail


def test_too_little_free_memory_stops_the_check(model: Path) -> None:
    check = ContextCheck(tokens=40, reply_tokens=20, min_free_bytes=10**18)
    report = check_context(model, check, PlanRequest())
    assert "GB of memory available" in report.items[0].detail


def test_rungs_double_up_to_the_length() -> None:
    assert context_rungs(10_000) == [2_048, 4_096, 8_192, 10_000]
    assert context_rungs(4_096) == [2_048, 4_096]
    assert context_rungs(100) == [100]


def test_a_plan_is_printed_without_loading(model: Path) -> None:
    result = command(model, "--tokens", "100", "--plan-only", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["max_context_tokens"] == 116


def test_every_sample_can_be_reported(model: Path) -> None:
    result = command(model, "--tokens", "30", "--reply-tokens", "2", "--sample-footprint", "--json")
    facts = json.loads(result.output)["facts"]
    assert len(facts["footprint_bytes"]) == facts["samples"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ladder", "--warm-conversations", "1", "--warm-tokens", "5"],
        ["--warm-conversations", "1"],
        ["--tokens", "0"],
        ["--tokens", "999999"],
    ],
)
def test_bad_combinations_are_refused_in_a_sentence(model: Path, arguments: list[str]) -> None:
    result = command(model, *arguments)
    assert result.exit_code == 2, result.output
    assert "Error:" in result.output
    assert "Traceback" not in result.output


def test_a_sampler_sees_memory_that_is_taken_meanwhile() -> None:
    with FootprintSampler(interval_s=0.001) as sampler:
        held = mmap.mmap(-1, 50_000_000)  # memory of its own, which nothing freed before can stand for
        np.frombuffer(held, np.uint8)[:] = 1
    samples = sampler.samples
    assert samples.peak_bytes >= samples.first_bytes + 0.8 * len(held)
    assert samples.lifetime_peak_bytes >= samples.peak_bytes * 0.9
