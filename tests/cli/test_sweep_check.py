"""`slotstream sweep-check` over a tiny model."""

import json
from pathlib import Path

import pytest

from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.generation import decoding
from tests.cli.conftest import Invoke


def test_a_prompt_read_expert_by_expert_leaves_the_reply_alone(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("sweep-check", "--model", tiny_model, "--prompt-tokens", "300", "--max-tokens", "4", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["passed"]
    assert report["facts"]["same_bits_without_sweeps"]
    assert len(report["facts"]["ids"]) == 4


def test_a_check_that_swept_nothing_fails_and_says_why(
    invoke: Invoke, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamedExperts, "open_sweep", lambda _experts, **_call: None)
    result = invoke("sweep-check", "--model", tiny_model, "--prompt-tokens", "256", "--max-tokens", "1")
    assert result.exit_code == 1
    assert "FAIL  the prompt was read expert by expert: 0 and 0 layers" in result.stdout


def test_a_reply_that_differs_is_a_failure(invoke: Invoke, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signs, next_logits = iter((1.0, 1.0, -1.0)), decoding.next_logits
    monkeypatch.setattr(decoding, "next_logits", lambda *call: next_logits(*call) * next(signs))
    result = invoke("sweep-check", "--model", tiny_model, "--prompt-tokens", "256", "--max-tokens", "2")
    assert result.exit_code == 1
    assert "FAIL  the reply is the same without sweeps" in result.stdout
    assert "pass  the reply is the same after a filled pool" in result.stdout
