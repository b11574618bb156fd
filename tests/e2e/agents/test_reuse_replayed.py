"""What five coding agents ask for, as recorded but without their words, at the real engine: is their prompt kept?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.agents.installing import AGENTS
from tests.e2e.agents.stand_ins import MARK, filled, read_request
from tests.e2e.agents.wide_model import write_wide_model
from tests.e2e.agents.workplaces import generations, running_server

ANSWER_WITHIN_S = 300.0
SHORT_OF_MEMORY = 503
SIZES = {"claude": 75_000, "codex": 25_000, "pi": 5_700, "opencode": 30_000, "hermes": 55_000}
"""Least bytes of each agent's first request, with the recorded versions."""
NAMES = tuple(agent.name for agent in AGENTS)


@pytest.mark.parametrize("agent", NAMES)
def test_a_stand_in_has_the_size_of_what_it_stands_for_and_none_of_its_words(agent: str) -> None:
    recorded = read_request(agent)
    body = json.dumps(filled(recorded["body"], session=0))
    assert len(body) > SIZES[agent]
    assert "\\u0001" not in body
    texts = [text for text in _texts(recorded["body"]) if " " in text and not MARK.fullmatch(text)]
    assert texts == []
    assert body == json.dumps(filled(recorded["body"], session=0))
    assert body != json.dumps(filled(recorded["body"], session=1))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.slow
@pytest.mark.parametrize("agent", NAMES)
def test_a_second_session_in_a_directory_finds_its_prompt_kept_and_those_elsewhere_the_common_part(
    agent: str, tmp_path: Path, demo_root: Path
) -> None:
    demo = next((demo_root / "models").glob("demo-*"))
    model = write_wide_model(tmp_path / "wide", demo)
    recorded = read_request(agent)
    log = tmp_path / "serve.log"
    serve: list[str | Path] = ["-m", "slotstream_cli", "serve", "--no-elastic", "--model", model, "--port", "0"]
    with running_server(serve, log, {"HOME": str(tmp_path)}) as port:
        seen = [_ask(port, recorded, session=session) for session in (0, 0, 1, 2)]
    cold, again, elsewhere, third = seen
    assert cold[0] == 0
    assert again[0] > again[1] / 2
    assert elsewhere[0] > elsewhere[1] / 2
    assert third[0] >= elsewhere[0]
    assert [(entry["cached_tokens"], entry["prompt_tokens"]) for entry in generations(log)] == seen


def _ask(port: int, recorded: dict[str, Any], *, session: int) -> tuple[int, int]:
    """Return what a reply's own usage says of kept and of all prompt tokens."""
    body = filled(recorded["body"], session=session)
    body |= {"model": "wide", "stream": False, "temperature": 0}  # drawn tokens of random weights may begin a tool call
    body.pop("stream_options", None)
    answer = httpx.post(
        f"http://127.0.0.1:{port}{recorded['path']}",
        json=body,
        headers=recorded["headers"],
        timeout=ANSWER_WITHIN_S,
        trust_env=False,
    )
    if answer.status_code == SHORT_OF_MEMORY:
        pytest.skip(f"this machine is short of memory now: {answer.text}")
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    if "cache_read_input_tokens" in usage:  # Messages counts what was read apart from what was kept
        kept = int(usage["cache_read_input_tokens"])
        return kept, kept + int(usage["input_tokens"])
    if "input_tokens" in usage:
        return int(usage["input_tokens_details"]["cached_tokens"]), int(usage["input_tokens"])
    return int(usage["prompt_tokens_details"]["cached_tokens"]), int(usage["prompt_tokens"])
