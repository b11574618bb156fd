"""The application over ASGI: routes, replies, refusals."""

import json
import threading

import pytest

from slotstream_core.errors import ExpertReadError, TemplateError
from slotstream_serve.errors import Refused
from slotstream_serve.limits import MOST_SURROGATES, parse_json_object
from slotstream_serve.serving import ServableEngine
from slotstream_serve.settings import Limits
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, tool_call
from tests.serve.conftest import PATIENCE_S, ask, plain_app, service_of, sse_events

WEATHER = {"weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}


def kinds(events: list[dict[str, object]]) -> list[object]:
    return [event["type"] for event in events]


def test_a_whole_reply_holds_every_event(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "hi"})
    assert response.status_code == 200
    events = response.json()["events"]
    assert kinds(events) == ["Admitted", "TextDelta", "TextDelta", "TextDelta", "ReplyFinished"]
    assert "".join(event["text"] for event in events[1:-1]) == "Hello there"
    assert events[-1]["reason"] == "stop"
    assert events[-1]["usage"]["completion_tokens"] == 3


def test_a_streamed_reply_has_the_same_events_as_a_whole_one(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    whole = ask(app, "POST", "/plain", json={"text": "hi"}).json()["events"]
    streamed = ask(app, "POST", "/plain", json={"text": "hi", "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert [event["type"] for event in sse_events(streamed.text)] == kinds(whole)
    assert "event: ReplyFinished\n" in streamed.text


def test_lines_of_json_end_with_newlines(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain-lines", json={"text": "hi", "stream": True})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    assert kinds([json.loads(line) for line in response.text.splitlines()])[-1] == "ReplyFinished"


def test_an_immediate_answer_needs_no_generation(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    assert ask(app, "POST", "/plain", json={"load": True}).json() == {"loaded": True}
    line = ask(app, "POST", "/plain-lines", json={"load": True, "stream": True})
    assert line.text.endswith("}\n")
    assert json.loads(line.text) == {"loaded": True}
    assert hello.requests == []


def test_the_server_answers_for_itself(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    assert ask(app, "GET", "/").json() == {"status": "ok", "engine": "slotstream"}
    status = ask(app, "GET", "/slotstream/status").json()
    assert status["model"] == "tiny:4bit"
    assert status["context_window"] == 4096
    assert status["active_requests"] == 0
    assert status["idle_exit_minutes"] is None
    assert status["memory_limit_gb"] is None
    assert status["memory_pinned_gb"] is None


def test_info_routes_answer_get_head_post_and_delete(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    models = ask(app, "GET", "/plain/models").json()
    assert models["models"] == ["tiny:4bit"]
    assert models["resident_bytes"] > 10_000_000
    head = ask(app, "HEAD", "/plain/models")
    assert (head.status_code, head.content) == (200, b"")
    shown = ask(app, "POST", "/plain/show", json={"model": "tiny"})
    assert (shown.json(), shown.headers["x-shown"]) == ({"window": 4096}, "yes")
    assert ask(app, "POST", "/plain/show", json={"model": "other"}).status_code == 400
    missing = ask(app, "DELETE", "/plain/things/one")
    assert (missing.status_code, missing.json()) == (404, {"missing": "/plain/things/one"})


def test_tokens_are_counted_without_generating(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    counted = ask(app, "POST", "/plain/count", json={"text": "hi"}).json()["count"]
    used = ask(app, "POST", "/plain", json={"text": "hi"}).json()["events"][0]["prompt_tokens"]
    assert counted == used
    assert len(hello.requests) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nothing"), ("POST", "/nothing"), ("GET", "/plain"), ("DELETE", "/"), ("HEAD", "/slotstream/status")],
)
def test_an_unknown_route_is_named(hello: ScriptedEngine, method: str, path: str) -> None:
    response = ask(plain_app(hello), method, path)
    assert response.status_code == 404
    if method != "HEAD":
        assert response.json() == {"error": f"not found: {method} {path}"}


def test_query_and_trailing_slash_do_not_matter(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    assert ask(app, "POST", "/plain/?beta=true", json={"text": "hi"}).status_code == 200
    assert ask(app, "GET", "/plain/models/").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"text": NaN}', b"[" * 100_000, b'{"text": ' + b"9" * 5000 + b"}"],
)
def test_a_body_that_is_no_json_object_is_refused_in_the_dialects_shape(hello: ScriptedEngine, body: bytes) -> None:
    response = ask(plain_app(hello), "POST", "/plain", content=body)
    assert response.status_code == 400
    assert "plain_error" in response.json()


def test_lone_surrogates_become_replacement_characters(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", content=b'{"text": "a\\ud800b \\ud83d\\ude00"}')
    assert response.status_code == 200
    assert "a\ufffdb \U0001f600" in hello.requests[0].prompt


def test_more_lone_surrogates_than_any_text_has_are_refused_before_they_cost_anything(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    most = b"\\ud800" * (MOST_SURROGATES // 2)
    body = b'{"text": "%s", "more": ["\\ud83d\\ude00%s"]%s}'
    names = b', "\\udc00": 1'
    assert parse_json_object(body % (most, most, b""), Limits())["more"][0].startswith("\U0001f600\ufffd")
    refused = ask(app, "POST", "/plain", content=body % (most, most, names))
    assert refused.status_code == 400
    assert refused.json()["plain_error"]["message"] == (
        "request body has more than 65,536 lone surrogates; send text as UTF-8"
    )


def test_lone_surrogates_inside_the_text_of_arguments_count_for_the_body() -> None:
    half = MOST_SURROGATES // 2
    pairs = r"\ud83d\ude00" * MOST_SURROGATES
    arguments = json.dumps({"a": "\ud800" * half, "b": "\ude00" * half})[:-1] + f', "c": "{pairs}"}}'
    held = json.dumps({"calls": [{"arguments": arguments}]}).encode()
    assert parse_json_object(held, Limits()) == json.loads(held)
    more = json.dumps({"calls": [{"arguments": arguments}], "text": "\udfff"}).encode()
    with pytest.raises(Refused, match="more than 65,536 lone surrogates"):
        parse_json_object(more, Limits())


def test_values_inside_the_texts_of_arguments_count_for_the_body() -> None:
    limits = Limits(body_values=2_000)
    arguments = json.dumps({"a": [[]] * 450})
    prose = "one, two, [three], " * 2_000
    held = json.dumps({"calls": [arguments, " " + arguments], "text": prose}).encode()
    assert parse_json_object(held, limits) == json.loads(held)
    with pytest.raises(Refused, match="more than 2,000 values and names"):
        parse_json_object(json.dumps({"calls": [arguments] * 3}).encode(), limits)
    with pytest.raises(Refused, match="more than 2,000 values and names"):
        parse_json_object(json.dumps({"calls": [" " + json.dumps([{}] * 2_100)]}).encode(), limits)


def test_a_wrong_field_is_refused_and_the_next_request_answered(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    refused = ask(app, "POST", "/plain", json={"text": 5})
    assert refused.json()["plain_error"]["code"] == "invalid_request"
    assert ask(app, "POST", "/plain", json={"text": "hi"}).status_code == 200


def test_a_bug_in_a_dialect_is_a_500_in_its_shape(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "hi", "crash": True})
    assert response.status_code == 500
    assert response.json()["plain_error"]["code"] == "inference_error"


def test_ignored_fields_are_named_in_a_header(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "hi", "x_b": 1, "x_a": 2, "x_\u00e4": 3})
    assert response.headers["x-slotstream-ignored-fields"] == "x_a, x_b, x_\\xe4"


def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "x" * 5000, "stream": True})
    assert response.status_code == 400
    error = response.json()["plain_error"]
    assert error["code"] == "context_length_exceeded"
    prompt = error["details"]["prompt_tokens"]
    assert prompt > 5000
    assert error["message"] == f"prompt is too long: {prompt} tokens > 4095 maximum"


def test_a_failure_before_the_first_event_has_a_status_and_after_it_a_last_frame() -> None:
    failing = ScriptedEngine([["some ", Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))]])
    app = plain_app(failing)
    whole = ask(app, "POST", "/plain", json={"text": "hi"})
    assert whole.status_code == 500
    assert "3 of 9 bytes" in whole.json()["plain_error"]["message"]
    streamed = ask(app, "POST", "/plain", json={"text": "hi", "stream": True})
    assert streamed.status_code == 200
    events = sse_events(streamed.text)
    assert kinds(events) == ["Admitted", "TextDelta", "ReplyFailed"]


def test_an_internal_error_of_the_engine_fails_one_request_and_names_only_its_kind() -> None:
    engine = ScriptedEngine([[Fault(KeyError("secret detail"))], ["fine"]])
    app = plain_app(engine)
    failed = ask(app, "POST", "/plain", json={"text": "hi"})
    assert failed.status_code == 500
    assert "KeyError" in failed.text
    assert "secret detail" not in failed.text
    assert ask(app, "POST", "/plain", json={"text": "hi"}).status_code == 200


def test_a_template_that_refuses_is_the_clients_error(monkeypatch: pytest.MonkeyPatch, hello: ScriptedEngine) -> None:
    def refuse(*_arguments: object, **_options: object) -> list[int]:
        raise TemplateError("no user query found")

    monkeypatch.setattr(hello, "chat_ids", refuse)
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "hi"})
    assert response.status_code == 400
    assert response.json()["plain_error"]["details"] == {"reason": "template_error"}


def test_tool_calls_arrive_as_calls() -> None:
    engine = ScriptedEngine([["I look. \n", tool_call("weather", {"city": "Bern", "days": 2})]])
    response = ask(plain_app(engine), "POST", "/plain", json={"text": "hi", "tools": WEATHER})
    events = response.json()["events"]
    finished = [event for event in events if event["type"] == "ToolCallFinished"]
    assert [json.loads(event["arguments"]) for event in finished] == [{"city": "Bern", "days": 2}]
    assert "".join(event["text"] for event in events if event["type"] == "TextDelta") == "I look."
    assert events[-1]["reason"] == "tool_calls"
    assert "weather" in engine.requests[0].prompt


def test_metadata_answers_while_the_engine_is_busy() -> None:
    release, reached = threading.Event(), threading.Event()
    app = plain_app(ScriptedEngine([[Hold(release, reached), "done"]]))
    answers: list[int] = []
    asking = threading.Thread(
        target=lambda: answers.append(ask(app, "POST", "/plain", json={"text": "hi"}).status_code)
    )
    asking.start()
    assert reached.wait(PATIENCE_S)
    assert ask(app, "GET", "/slotstream/status").json()["active_requests"] == 1
    assert ask(app, "GET", "/plain/models").status_code == 200
    assert ask(app, "POST", "/plain/count", json={"text": "hi"}).status_code == 200
    assert "slotstream_running_requests 1.0" in ask(app, "GET", "/metrics").text
    release.set()
    asking.join(PATIENCE_S)
    assert answers == [200]


def test_the_scripted_engine_is_a_servable_engine(hello: ScriptedEngine) -> None:
    engine: ServableEngine = hello
    assert service_of(plain_app(hello)).engine is engine


def test_the_openapi_document_lists_every_route(hello: ScriptedEngine) -> None:
    paths = ask(plain_app(hello), "GET", "/openapi.json").json()["paths"]
    assert {"/", "/plain", "/plain/count", "/plain/models", "/slotstream/status", "/metrics"} <= set(paths)
    assert ask(plain_app(hello), "GET", "/docs").status_code == 404
