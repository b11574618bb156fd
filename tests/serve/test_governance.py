"""The memory governor inside a running server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slotstream_core.engine import load
from slotstream_core.testing import write_tiny_model
from slotstream_serve.app import build_app
from slotstream_serve.facts import describe_checkpoint, with_plan
from slotstream_serve.governance import UNAVAILABLE, governed
from slotstream_serve.runner import Runner
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import PATIENCE_S, ask, plain_app, plain_dialects, service_of

BODY = {"text": "Hello", "max_output_tokens": 4}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service of a tiny real engine."""
    directory = write_tiny_model(tmp_path / "model")
    runner = Runner(lambda: load(directory))
    plan = runner.start().plan
    assert plan is not None
    facts = with_plan(describe_checkpoint(directory, name="tiny"), plan, max_prefill_wait_s=1800)
    made = Service(runner, ServeConfig(model=facts, port=0), plain_dialects())
    yield made
    made.stop_generations()
    assert runner.join(PATIENCE_S)


def test_pressure_shrinks_a_served_pool_and_the_facts_follow(service: Service) -> None:
    app = build_app(service)
    assert ask(app, "POST", "/plain", json=BODY).json()["events"][-1]["type"] == "ReplyFinished"
    slots = service.facts().memory_plan["pool_slots"]
    with governed(service, elastic=True) as governor:
        assert governor is not None
        governor.on_pressure("critical")
        assert service.facts().memory_plan["pool_slots"] < slots
        after = ask(app, "POST", "/plain", json=BODY).json()["events"]
    assert after[-1]["type"] == "ReplyFinished"


def test_without_memory_for_any_plan_requests_are_refused(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    service_of(app).unavailable = lambda: UNAVAILABLE
    answer = ask(app, "POST", "/plain", json=BODY)
    assert answer.status_code == 503
    assert "too little memory" in answer.text
    service_of(app).unavailable = lambda: None
    assert ask(app, "POST", "/plain", json=BODY).status_code == 200


def test_an_engine_without_a_pool_needs_no_governor(hello: ScriptedEngine) -> None:
    with governed(service_of(plain_app(hello)), elastic=True) as governor:
        assert governor is None
