"""`slotstream context-check` without saying how long the prompt is."""

import json
from pathlib import Path

import pytest

from slotstream_planner import ModelGeometry
from slotstream_planner.request import window_limit
from tests.cli.conftest import Invoke


@pytest.mark.parametrize("reply_tokens", [16, 40])
def test_the_prompt_is_as_long_as_the_window_of_a_small_model_allows(
    invoke: Invoke, tiny_model: Path, reply_tokens: int
) -> None:
    limit = window_limit(ModelGeometry.from_checkpoint(tiny_model, compute="float32"))
    assert limit < 8192
    result = invoke("context-check", "--model", tiny_model, "--plan-only", "--json", "--reply-tokens", reply_tokens)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["max_context_tokens"] == limit
