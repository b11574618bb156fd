"""The server over a real engine with a tiny random model."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from slotstream_core.engine import load
from slotstream_core.testing import write_tiny_model
from slotstream_serve.app import build_app
from slotstream_serve.facts import describe_checkpoint, short_count, with_plan
from slotstream_serve.runner import Runner
from slotstream_serve.service import STOPPED, Service
from slotstream_serve.serving import ServableEngine
from slotstream_serve.settings import ServeConfig
from tests.serve.conftest import PATIENCE_S, ask, plain_dialects, service_of, sse_events


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("served") / "tiny-moe")


@pytest.fixture(scope="module")
def app(tiny_model: Path) -> Iterator[FastAPI]:
    def open_engine() -> ServableEngine:
        assert threading.current_thread().name == "slotstream-engine"
        return load(tiny_model)

    runner = Runner(open_engine)
    plan = runner.start().plan
    assert plan is not None
    facts = with_plan(describe_checkpoint(tiny_model, name="tiny-moe"), plan, max_prefill_wait_s=60)
    yield build_app(Service(runner, ServeConfig(model=facts), plain_dialects()))
    runner.stop(STOPPED)
    assert runner.join(PATIENCE_S)


def test_a_real_model_answers_whole_and_streamed_alike(app: FastAPI) -> None:
    body = {"text": "Hello", "max_output_tokens": 6}
    whole = ask(app, "POST", "/plain", json=body).json()["events"]
    streamed = sse_events(ask(app, "POST", "/plain", json={**body, "stream": True}).text)
    for events in (whole, streamed):
        assert events[0]["type"] == "Admitted"
        assert events[-1]["type"] == "ReplyFinished"
        assert 1 <= events[-1]["usage"]["completion_tokens"] <= 6
    assert ask(app, "POST", "/plain/count", json=body).json()["count"] == whole[0]["prompt_tokens"]


def test_a_prompt_far_too_long_is_refused_without_being_tokenized_and_still_counted(app: FastAPI) -> None:
    body = {"text": "word " * 20_000}
    response = ask(app, "POST", "/plain", json=body)
    assert response.status_code == 400
    error = response.json()["plain_error"]
    assert error["message"].startswith("prompt is too long: at least ")
    assert error["details"]["prompt_tokens_at_least"]
    assert ask(app, "POST", "/plain/count", json=body).json()["count"] >= error["details"]["prompt_tokens"]


def test_its_traffic_and_ledger_are_in_the_metrics(app: FastAPI) -> None:
    ask(app, "POST", "/plain", json={"text": "Hello", "max_output_tokens": 2})
    text = ask(app, "GET", "/metrics").text
    values = dict(row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    assert float(values["slotstream_expert_misses_total"]) > 0
    assert float(values["slotstream_expert_read_bytes_total"]) > 0
    plan = service_of(app).engine.plan
    assert plan is not None
    assert float(values["slotstream_expert_slots"]) == plan.pool_slots
    assert float(values['slotstream_planned_bytes{amount="expected_peak"}']) == plan.expected_peak_bytes


def test_its_status_says_how_it_was_planned(app: FastAPI) -> None:
    status = ask(app, "GET", "/slotstream/status").json()
    assert status["memory_source"] == "auto"
    assert status["memory_target_gb"] > 0
    assert status["context_window"] == service_of(app).engine.window_tokens


def test_facts_come_from_the_files(app: FastAPI, tiny_model: Path) -> None:
    facts = service_of(app).facts()
    assert facts.size_bytes == sum(path.stat().st_size for path in tiny_model.glob("*.safetensors"))
    assert facts.quantization == "4bit"
    assert facts.experts_per_layer == json.loads((tiny_model / "config.json").read_text())["text_config"]["num_experts"]
    assert facts.parameters > facts.size_bytes  # most weights take half a byte
    assert facts.max_output_tokens == 1024
    assert facts.context_policy["configured_window"] == facts.window_tokens == 4096
    assert facts.digest == describe_checkpoint(tiny_model, name="other").digest


@pytest.mark.parametrize(
    ("count", "text"), [(176e9, "176B"), (5.96e9, "6B"), (43.2e6, "43M"), (1_500, "1.5K"), (950, "950"), (1e9, "1B")]
)
def test_counts_are_short(count: float, text: str) -> None:
    assert short_count(count) == text
