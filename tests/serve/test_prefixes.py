"""What clients and operators see of conversations that were kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from slotstream_core.engine import load
from slotstream_core.testing import write_tiny_model
from slotstream_serve.app import build_app
from slotstream_serve.facts import describe_checkpoint, with_plan
from slotstream_serve.runner import Runner
from slotstream_serve.service import STOPPED, Service
from slotstream_serve.settings import ServeConfig
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import PATIENCE_S, ask, plain_dialects, served_app, sse_events
from tests.serve.test_runner import STOP, outcome, read, run_async, ticket_for

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
RESPONSES = {"model": "tiny", "input": "hello"}
MESSAGES = {**CHAT, "max_tokens": 9}


def usage_of(path: str, body: dict[str, Any]) -> dict[str, Any]:
    engine = ScriptedEngine([["hi"]])
    engine.cached_tokens = 7
    answer = ask(served_app(engine), "POST", path, json=body).json()
    usage: dict[str, Any] = answer["usage"]
    return usage


def test_every_usage_says_how_much_of_the_prompt_was_reused() -> None:
    chat = usage_of("/v1/chat/completions", CHAT)
    assert chat["prompt_tokens_details"]["cached_tokens"] == 7
    responses = usage_of("/v1/responses", RESPONSES)
    assert responses["input_tokens_details"]["cached_tokens"] == 7
    messages = usage_of("/v1/messages", MESSAGES)
    assert messages["cache_read_input_tokens"] == 7
    assert messages["input_tokens"] == chat["prompt_tokens"] - 7


def test_a_streamed_message_says_so_from_its_start() -> None:
    engine = ScriptedEngine([["hi"]])
    engine.cached_tokens = 7
    events = sse_events(ask(served_app(engine), "POST", "/v1/messages", json={**MESSAGES, "stream": True}).text)
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 7


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSES)])
def test_a_client_may_keep_its_conversation_off_the_disk(path: str, body: dict[str, Any]) -> None:
    engine = ScriptedEngine([["hi"]])
    app = served_app(engine)
    for retention in ({}, {"prompt_cache_retention": "24h"}, {"prompt_cache_retention": "in_memory"}):
        assert ask(app, "POST", path, json={**body, **retention}).status_code == 200
    assert [request.persist for request in engine.requests] == [True, True, False]


def test_what_is_reused_does_not_count_towards_the_wait() -> None:
    engine = ScriptedEngine([["x"]])
    runner = Runner(lambda: engine)
    runner._pace.note(1000, 1000.0)

    async def work() -> None:
        refused = ticket_for(engine, "x" * 3000, limit_s=2000)
        runner.submit(refused)
        assert outcome(await read(refused)) == "prefill_wait_exceeded"
        engine.cached_tokens = 2900
        admitted = ticket_for(engine, "x" * 3000, limit_s=2000)
        runner.submit(admitted)
        assert outcome(await read(admitted)) == "finished"

    run_async(work())
    runner.stop(STOP)


@pytest.fixture(scope="module")
def real_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    directory: Path = write_tiny_model(tmp_path_factory.mktemp("served") / "tiny-moe")
    runner = Runner(lambda: load(directory))
    plan = runner.start().plan
    assert plan is not None
    facts = with_plan(describe_checkpoint(directory, name="tiny-moe"), plan, max_prefill_wait_s=60)
    yield build_app(Service(runner, ServeConfig(model=facts), plain_dialects()))
    runner.stop(STOPPED)
    assert runner.join(PATIENCE_S)


def test_a_real_engine_reuses_a_prompt_and_its_server_says_so(real_app: FastAPI) -> None:
    body = {"text": "Tell me about slots. " * 30, "max_output_tokens": 2}
    first, second = (ask(real_app, "POST", "/plain", json=body).json()["events"] for _ in range(2))
    assert first[0]["cached_tokens"] == 0
    assert second[0]["cached_tokens"] == second[-1]["usage"]["cached_tokens"] == second[0]["prompt_tokens"]
    kept = ask(real_app, "GET", "/slotstream/status").json()["prefix_cache"]
    assert (kept["enabled"], kept["hits"], kept["misses"]) == (True, 1, 1)
    text = ask(real_app, "GET", "/metrics").text
    values = dict(row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    assert values["slotstream_prefix_hits"] == "1.0"
    assert float(values["slotstream_prefix_allocated_sequence_bytes"]) == kept["allocated_sequence_bytes"] > 0
    assert values['slotstream_tokens_total{kind="cached"}'] == f"{second[0]['prompt_tokens']}.0"
