"""Ollama's API through the application, with an engine that plays scripts."""

import json
import threading
from typing import Any

import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.testing import Fault, Hold, ScriptedEngine, Step, tool_call, write_in_pieces
from tests.serve.conftest import PATIENCE_S, ask, served_app

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GENERATE: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
BODIES = {"/api/chat": CHAT, "/api/generate": GENERATE}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


def engine_of(*script: Step) -> ScriptedEngine:
    return ScriptedEngine([list(script)])


def lines(engine: ScriptedEngine, path: str, **fields: Any) -> list[dict[str, Any]]:
    response = ask(served_app(engine), "POST", path, json={**BODIES[path], **fields})
    assert response.headers["content-type"] == "application/x-ndjson", response.text
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


def whole(engine: ScriptedEngine, path: str, **fields: Any) -> dict[str, Any]:
    response = ask(served_app(engine), "POST", path, json={**BODIES[path], **fields, "stream": False})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    return body


def words(line: dict[str, Any]) -> tuple[str, str]:
    """Return a line's answer and reasoning."""
    if "message" in line:
        return line["message"]["content"], line["message"].get("thinking", "")
    return line["response"], line.get("thinking", "")


@pytest.mark.parametrize("path", BODIES)
def test_it_streams_by_default_and_the_lines_join_to_the_whole(path: str) -> None:
    script = ["I wonder", "</think>", "\n\n", "Good", " day \U0001f600"]
    streamed = lines(engine_of(*script), path, think=True)
    body = whole(engine_of(*script), path, think=True)
    assert words(body) == ("Good day \U0001f600", "I wonder")
    for part in (0, 1):
        assert "".join(words(line)[part] for line in streamed) == words(body)[part]
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    for last in (streamed[-1], body):
        assert (last["done_reason"], last["eval_count"]) == ("stop", 5)
        assert last["total_duration"] >= last["prompt_eval_duration"] >= 0
        assert last["prompt_eval_count"] > 0


@pytest.mark.parametrize("path", BODIES)
def test_a_budget_that_ends_inside_the_reasoning_leaves_the_answer_empty(path: str) -> None:
    body = whole(engine_of("hm", "hm", "</think>", "x"), path, think=True, options={"num_predict": 2})
    assert words(body) == ("", "hmhm")
    assert body["done_reason"] == "length"


@pytest.mark.parametrize("path", BODIES)
def test_the_default_budget_is_512_and_nonpositive_takes_what_is_left(path: str) -> None:
    engine = ScriptedEngine([["x"]])
    app = served_app(engine)
    for options in (None, {"num_predict": -1}, {"num_predict": 0}, {"num_predict": 7}):
        assert ask(app, "POST", path, json={**BODIES[path], "options": options}).status_code == 200
    default, rest, zero, own = (request.max_tokens for request in engine.requests)
    room = 4096 - len(engine.requests[0].prompt.encode())
    assert (default, rest, zero, own) == (512, room, room, 7)


def test_a_raw_prompt_reaches_the_model_as_it_is() -> None:
    engine = engine_of("x")
    whole(engine, "/api/generate", raw=True, prompt="Once upon")
    assert engine.requests[0].prompt == "Once upon"


def test_tools_are_called_in_ollamas_shape_and_the_loop_goes_on() -> None:
    engine = ScriptedEngine(
        [
            write_in_pieces("Look.\n" + tool_call("weather", {"city": "00123", "days": 2}), 4),
            ["Sunny."],
        ]
    )
    app = served_app(engine)
    first = ask(app, "POST", "/api/chat", json={**CHAT, "tools": [WEATHER], "stream": False}).json()
    (call,) = first["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"city": "00123", "days": 2}
    assert first["message"]["content"] == "Look."
    assert first["done_reason"] == "stop"
    messages = [*CHAT["messages"], first["message"], {"role": "tool", "tool_name": "weather", "content": "sun"}]
    second = ask(app, "POST", "/api/chat", json={**CHAT, "messages": messages, "tools": [WEATHER], "stream": False})
    assert second.json()["message"] == {"role": "assistant", "content": "Sunny."}
    assert '"content": "sun"' in engine.requests[1].prompt
    assert engine.requests[1].sampling.temperature == 0.2


@pytest.mark.parametrize("stream", [True, False])
def test_arguments_keep_their_declared_types(*, stream: bool) -> None:
    declared = {
        "type": "object",
        "properties": {
            "ref": {"$ref": "#/$defs/name"},
            "nullable": {"type": ["string", "null"]},
            "big": {"type": "integer"},
            "infinite": {"type": "number", "default": None},
        },
        "$defs": {"name": {"type": "string"}},
    }
    tools = [{"type": "function", "function": {"name": "write", "parameters": declared}}]
    given = {"ref": "00123", "nullable": "2024", "big": "1e20", "infinite": "inf"}
    app = served_app(ScriptedEngine([write_in_pieces(tool_call("write", given), 5)]))
    reply = ask(app, "POST", "/api/chat", json={**CHAT, "tools": tools, "stream": stream})
    messages = [json.loads(line)["message"] for line in reply.text.splitlines()]
    (call,) = [call for message in messages for call in message.get("tool_calls", [])]
    assert call["function"]["arguments"] == {**given, "big": 1e20}


def test_a_streamed_call_comes_whole_in_one_line() -> None:
    text = tool_call("weather", {"city": "a"}) + "\n" + tool_call("weather", {"city": "b"})
    streamed = lines(engine_of(*write_in_pieces(text, 3)), "/api/chat", tools=[WEATHER])
    calls = [call for line in streamed for call in line["message"].get("tool_calls", [])]
    assert [call["function"]["arguments"] for call in calls] == [{"city": "a"}, {"city": "b"}]
    assert all(line["message"]["content"] == "" for line in streamed)


@pytest.mark.parametrize("path", BODIES)
def test_a_failure_has_a_status_before_the_stream_and_is_the_last_line_after_it_began(path: str) -> None:
    fault = Fault(ExpertReadError("experts.bin: read 3 of 9 bytes"))
    app = served_app(engine_of("half", fault))
    response = ask(app, "POST", path, json={**BODIES[path], "stream": False})
    assert response.status_code == 500
    assert response.json()["code"] == "inference_error"
    streamed = lines(engine_of("half", fault), path)
    assert streamed[-1] == {"error": response.json()["error"], "code": "inference_error"}
    assert not any(line.get("done") for line in streamed)


@pytest.mark.parametrize("path", BODIES)
def test_a_load_request_is_answered_at_once_in_the_streams_own_form(path: str) -> None:
    engine = engine_of("x")
    empty: dict[str, Any] = {"messages": []} if path == "/api/chat" else {"prompt": ""}
    (line,) = lines(engine, path, **empty)
    assert (line["done"], line["done_reason"]) == (True, "load")
    assert whole(engine, path, **empty)["done_reason"] == "load"
    assert engine.requests == []


@pytest.mark.parametrize("path", BODIES)
def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(path: str) -> None:
    long = "x" * 5000
    fields = {"messages": [{"role": "user", "content": long}]} if path == "/api/chat" else {"prompt": long}
    response = ask(served_app(engine_of("x")), "POST", path, json={**BODIES[path], **fields})
    assert response.status_code == 400
    body = response.json()
    assert body["code"] == "context_length_exceeded"
    assert f"the prompt has {body['details']['prompt_tokens']} tokens" in body["error"]
    assert "4096" in body["error"]


@pytest.mark.parametrize("path", [*BODIES, "/api/show", "/api/embed", "/api/pull"])
def test_a_body_that_is_no_json_is_a_plain_error(path: str) -> None:
    response = ask(served_app(engine_of("x")), "POST", path, content=b"{")
    assert (response.status_code, response.json()) == (400, {"error": "invalid JSON body"})


@pytest.mark.parametrize(
    ("path", "status"), [("/api/embed", 400), ("/api/embeddings", 400), ("/api/pull", 501), ("/api/create", 501)]
)
def test_what_is_not_served_says_so(path: str, status: int) -> None:
    response = ask(served_app(engine_of("x")), "POST", path, json={"model": "tiny"})
    assert response.status_code == status
    assert set(response.json()) <= {"error", "code"}


def test_another_models_name_is_400_but_404_where_it_is_looked_up() -> None:
    app = served_app(engine_of("x"))
    assert ask(app, "POST", "/api/chat", json={**CHAT, "model": "llama3"}).status_code == 400
    assert ask(app, "POST", "/api/show", json={"model": "llama3"}).status_code == 404


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version"])
def test_descriptions_answer_get_and_head_while_a_reply_is_written(path: str) -> None:
    release, reached = threading.Event(), threading.Event()
    app = served_app(ScriptedEngine([[Hold(release, reached), "done"]]))
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(ask(app, "POST", "/api/chat", json=CHAT).status_code))
    asking.start()
    assert reached.wait(PATIENCE_S)
    assert ask(app, "GET", path).status_code == 200
    assert (ask(app, "HEAD", path).status_code, ask(app, "HEAD", path).content) == (200, b"")
    assert ask(app, "POST", "/api/show", json={"model": "tiny"}).status_code == 200
    release.set()
    asking.join(PATIENCE_S)
    assert answers == [200]


def test_the_loaded_size_is_the_processs_memory() -> None:
    (card,) = ask(served_app(engine_of("x")), "GET", "/api/ps").json()["models"]
    assert card["size"] == card["size_vram"] > 10_000_000
