"""The checks that a person runs: do kept conversations leave what is computed alone?"""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_core.diagnostics.reuse import check_exact_reuse, check_reuse
from slotstream_core.state.sequence import SequenceState
from slotstream_planner import PlanRequest


def test_reuse_is_exact_from_memory_and_after_a_restart(tiny_model: Path) -> None:
    report = check_exact_reuse(tiny_model, max_tokens=4)
    assert report.passed, report.to_text()
    assert [item.detail.split()[0] for item in report.items] == ["0", "477", "694", "0", "512", "477"]


def test_a_conversation_has_the_same_replies_and_stays_inside_its_budget(tiny_model: Path) -> None:
    report = check_reuse(tiny_model, max_tokens=4)
    assert report.passed, report.to_text()
    assert report.facts["reused_tokens"] == [0, 477, 613]
    assert 0 < report.facts["held_bytes"] <= report.facts["capacity_bytes"]


def test_a_state_that_comes_back_different_fails_the_checks(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = SequenceState.restore

    def restored_wrongly(state: SequenceState, snapshot: object) -> None:
        restore(state, snapshot)  # type: ignore[arg-type]
        for layer in state.layers:
            for name, array in vars(layer).items():
                if getattr(array, "ndim", 0) and name in ("keys", "values"):
                    setattr(layer, name, array + 1.0)

    monkeypatch.setattr(SequenceState, "restore", restored_wrongly)
    report = check_exact_reuse(tiny_model, max_tokens=4)
    failed = [item.name for item in report.items if not item.passed]
    assert "the next turn goes on from the last one" in failed
    assert "a restart goes on from the disk" in failed
    assert "the first turn" not in failed


def test_without_memory_for_conversations_there_is_nothing_to_check(tiny_model: Path) -> None:
    for check in (check_reuse, check_exact_reuse):
        assert not check(tiny_model, PlanRequest(prefix_cache="off"), max_tokens=1).passed


@pytest.mark.parametrize("name", ["prefix-check", "prefix-exact-check"])
def test_the_checks_are_commands(tiny_model: Path, name: str) -> None:
    result = CliRunner().invoke(main, [name, "--model", str(tiny_model), "--max-tokens", "2", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert (document["name"], document["passed"]) == (name, True)
    assert np.all([item["passed"] for item in document["items"]])
