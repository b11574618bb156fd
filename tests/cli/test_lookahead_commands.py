"""`lookahead-fit` and `lookahead-report` from the outside, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core.checkpoint.corrections import correction_path, read_correction
from slotstream_core.testing import write_tiny_model

PROMPTS = "".join(f"prompt number {number}, a little longer\n" for number in range(8))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("lookahead") / "model")


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_a_fit_writes_the_file_that_the_report_then_measures(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(PROMPTS)
    common = ("--model", str(model), "--prompts", str(prompts), "--reply-tokens", "2", "--experts-per-layer", "1")
    code, out, err = run("lookahead-fit", *common, "--rank", "4")
    assert code == 0, err
    assert "rank 4" in out
    assert read_correction(correction_path(model), layers=4, hidden=64, experts=16).rank == 4
    code, out, err = run("lookahead-report", *common, "--tokens", "3", "--timed-prompts", "1", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["same_ids"] is True
    assert set(report["recall"]) == {"boundary", "attention", "corrected"}


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"\xff\xfe\n", None])
def test_prompts_that_cannot_be_used_are_one_sentence(model: Path, tmp_path: Path, content: bytes | None) -> None:
    prompts = tmp_path / "prompts.txt"
    if content is not None:
        prompts.write_bytes(content)
    code, _, err = run("lookahead-fit", "--model", str(model), "--prompts", str(prompts))
    assert code == 1
    assert err.startswith("Error: ")
    assert "Traceback" not in err
