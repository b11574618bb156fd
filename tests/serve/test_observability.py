"""The log line and the metrics of a request."""

import json
import logging
import threading
from typing import Any

import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.testing import Fault, Hold, ScriptedEngine
from tests.serve.conftest import PATIENCE_S, ask, plain_app, service_of

SECRET = "my password is swordfish"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.message) for record in caplog.records if record.message.startswith("{")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_is_one_line_without_its_text(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO, "slotstream.serve")
    engine = ScriptedEngine([["the fish ", "is safe"]])
    ask(plain_app(engine), "POST", "/plain", json={"text": SECRET, "stream": stream})
    [line] = lines(caplog)
    assert line["dialect"] == "plain-sse"
    assert line["stream"] is stream
    assert (line["status"], line["outcome"], line["finish"]) == (200, "finished", "stop")
    assert line["completion_tokens"] == 2
    assert line["prompt_tokens"] > len(SECRET)
    assert (line["expert_hits"], line["expert_misses"], line["expert_bytes"]) == (6, 2, 2000)
    assert (line["drafted"], line["drafts_accepted"]) == (4, 2)
    for phase in ("queue_s", "prefill_s", "decode_s", "first_s", "duration_s"):
        assert 0 <= line[phase] < 60
    assert "swordfish" not in caplog.text
    assert "fish is safe" not in caplog.text


def test_failures_and_refusals_say_what_became_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotstream.serve")
    app = plain_app(ScriptedEngine([[Fault(ExpertReadError("short read"))]]))
    ask(app, "POST", "/plain", json={"text": "hi"})
    ask(app, "POST", "/plain", json={"text": 1})
    ask(app, "POST", "/plain", json={"text": "hi"}, headers={"origin": "http://evil.example"})
    ask(app, "GET", "/slotstream/status")
    assert [(line["status"], line.get("outcome")) for line in lines(caplog)] == [
        (500, "inference_error"),
        (400, "invalid_request"),
        (403, None),
    ]


def test_a_reply_whose_tool_call_cannot_be_used_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotstream.serve")
    app = plain_app(ScriptedEngine([["<tool_call>\n<function=unknown>\n</function>\n</tool_call>"]]))
    ask(app, "POST", "/plain", json={"text": "hi", "tools": {"city": {"type": "object"}}})
    [line] = lines(caplog)
    assert (line["outcome"], line["reason"]) == ("inference_error", "undeclared_function")


def test_ignored_fields_are_named_once(caplog: pytest.LogCaptureFixture, hello: ScriptedEngine) -> None:
    caplog.set_level(logging.INFO, "slotstream.serve")
    app = plain_app(hello)
    for _ in range(2):
        ask(app, "POST", "/plain", json={"text": "hi", "x_new": SECRET})
    named = [record.message for record in caplog.records if "x_new" in record.message]
    assert len(named) == 1
    assert "swordfish" not in caplog.text


def test_metrics_count_requests_tokens_and_experts() -> None:
    app = plain_app(ScriptedEngine([["a", "b"], [Fault(ExpertReadError("short"))]]))
    for _ in range(2):
        ask(app, "POST", "/plain", json={"text": "hi"})
    ask(app, "GET", "/unknown/one")
    ask(app, "GET", "/unknown/two")
    response = ask(app, "GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = dict(row.rsplit(" ", 1) for row in response.text.splitlines() if not row.startswith("#"))
    assert values['slotstream_http_requests_total{route="/plain",status="200"}'] == "1.0"
    assert values['slotstream_http_requests_total{route="/plain",status="500"}'] == "1.0"
    assert values['slotstream_http_requests_total{route="other",status="404"}'] == "2.0"
    assert values['slotstream_replies_total{outcome="finished"}'] == "1.0"
    assert values['slotstream_replies_total{outcome="inference_error"}'] == "1.0"
    assert values['slotstream_tokens_total{kind="completion"}'] == "2.0"
    assert values["slotstream_expert_hits_total"] == "6.0"
    assert values["slotstream_expert_misses_total"] == "2.0"
    assert values["slotstream_expert_read_bytes_total"] == "2000.0"
    assert values['slotstream_draft_tokens_total{outcome="accepted"}'] == "2.0"
    assert values['slotstream_draft_tokens_total{outcome="refused"}'] == "2.0"
    assert values['slotstream_decode_passes_total{drafts="2"}'] == "2.0"
    assert values["slotstream_queued_requests"] == "0.0"
    assert values["slotstream_prefill_seconds_count"] == "1.0"
    assert float(values["slotstream_resident_bytes"]) > 1e7


def test_two_servers_count_for_themselves() -> None:
    first, second = (plain_app(ScriptedEngine([["x"]])) for _ in range(2))
    ask(first, "POST", "/plain", json={"text": "hi"})
    assert 'outcome="finished"' in ask(first, "GET", "/metrics").text
    assert 'outcome="finished"' not in ask(second, "GET", "/metrics").text


def test_a_long_generation_reports_its_phase(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotstream.serve")
    release, reached = threading.Event(), threading.Event()
    app = plain_app(ScriptedEngine([["x"]], reading=[Hold(release, reached)]))
    service_of(app).log_progress()
    assert lines(caplog) == []
    asking = threading.Thread(target=lambda: ask(app, "POST", "/plain", json={"text": SECRET}))
    asking.start()
    assert reached.wait(PATIENCE_S)
    service_of(app).log_progress()
    release.set()
    asking.join(PATIENCE_S)
    progress, request = lines(caplog)
    assert (progress["event"], progress["phase"], progress["read_tokens"]) == ("progress", "prefill", 0)
    assert progress["id"] == request["id"]
    assert "swordfish" not in caplog.text
