"""Requests in the shapes that Ollama and OpenAI document, with values of our own, sent as they would be with curl."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import live_server

MODEL = "tiny:4bit"
TRAINS: dict[str, Any] = {
    "name": "next_train",
    "description": "Finds the next train between two towns",
    "parameters": {
        "type": "object",
        "properties": {
            "origin": {"type": "string", "description": "Town to leave from"},
            "class": {"type": "string", "enum": ["first", "second"]},
        },
        "required": ["origin", "class"],
    },
}
ASKED = {"role": "user", "content": "When does the next train leave Olten?"}
CALL = {"name": "next_train", "arguments": {"origin": "Olten", "class": "second"}}
OPENAI_CALL = {"id": "call_7", "type": "function", "function": {**CALL, "arguments": json.dumps(CALL["arguments"])}}
FUNCTION = {"type": "function", "function": TRAINS}

DOCUMENTED: dict[str, tuple[str, dict[str, Any]]] = {
    "generate, streamed": ("/api/generate", {"prompt": "Why do cats purr?"}),
    "generate, whole": ("/api/generate", {"prompt": "Why do cats purr?", "stream": False}),
    "generate with a suffix left empty": ("/api/generate", {"prompt": "def area(r):", "suffix": "", "stream": False}),
    "generate raw": ("/api/generate", {"prompt": "<s>hello", "raw": True, "stream": False}),
    "generate with a seed": ("/api/generate", {"prompt": "Cats", "options": {"seed": 9, "temperature": 0}}),
    "generate with options": (
        "/api/generate",
        {"prompt": "Cats", "stream": False, "options": {"num_predict": 9, "top_k": 30, "top_p": 0.8, "stop": ["\n"]}},
    ),
    "load a model": ("/api/generate", {}),
    "unload a model": ("/api/generate", {"keep_alive": 0}),
    "chat, streamed": ("/api/chat", {"messages": [ASKED]}),
    "chat, whole": ("/api/chat", {"messages": [ASKED], "stream": False}),
    "chat with history": (
        "/api/chat",
        {"messages": [ASKED, {"role": "assistant", "content": "At noon."}, {"role": "user", "content": "And then?"}]},
    ),
    "chat with tools": ("/api/chat", {"messages": [ASKED], "stream": False, "tools": [FUNCTION]}),
    "chat with a tool's result": (
        "/api/chat",
        {
            "messages": [
                ASKED,
                {"role": "assistant", "tool_calls": [{"function": CALL}]},
                {"role": "tool", "tool_name": "next_train", "content": "12:04"},
            ],
            "tools": [FUNCTION],
            "stream": False,
        },
    ),
    "chat that thinks": ("/api/chat", {"messages": [ASKED], "think": True, "stream": False}),
    "load for chat": ("/api/chat", {"messages": []}),
    "show": ("/api/show", {}),
    "completion": (
        "/v1/chat/completions",
        {"messages": [{"role": "developer", "content": "Answer in one line."}, ASKED]},
    ),
    "completion, streamed": (
        "/v1/chat/completions",
        {"messages": [ASKED], "stream": True, "stream_options": {"include_usage": True}},
    ),
    "completion with functions": (
        "/v1/chat/completions",
        {"messages": [ASKED], "tools": [FUNCTION], "tool_choice": "auto"},
    ),
    "completion with a result": (
        "/v1/chat/completions",
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": None, "tool_calls": [OPENAI_CALL]},
                {"role": "tool", "tool_call_id": "call_7", "content": "12:04"},
            ]
        },
    ),
    "completion of text parts": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Which train?"}]}], "max_tokens": 30},
    ),
    "response": ("/v1/responses", {"input": "Name a lake in three words."}),
    "response, streamed": (
        "/v1/responses",
        {"instructions": "You are a guide.", "input": "Name a lake.", "stream": True},
    ),
    "response with functions": (
        "/v1/responses",
        {"input": "Which train?", "tools": [{"type": "function", **TRAINS}], "tool_choice": "auto"},
    ),
    "response that reasons": ("/v1/responses", {"input": "How many lakes?", "reasoning": {"effort": "high"}}),
    "response to items": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Which train?"}]}]},
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    engine = ScriptedEngine([["At ", "noon."]])
    with live_server(engine, dialects=all_dialects()) as live, live.client() as client:
        yield client


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_request_is_answered(name: str, client: httpx.Client) -> None:
    path, body = DOCUMENTED[name]
    response = client.post(path, content=json.dumps({"model": MODEL, **body}))
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text.replace(" ", "")


@pytest.mark.parametrize("path", ["/api/tags", "/api/ps", "/api/version", "/v1/models"])
def test_a_documented_listing_is_answered(path: str, client: httpx.Client) -> None:
    assert client.get(path).status_code == 200


def test_a_web_interface_finds_the_model_and_chats_with_the_name_it_found(client: httpx.Client) -> None:
    """The routes that Open WebUI asks for when it starts, and its two kinds of chat."""
    assert client.get("/api/version").json()["version"]
    (card,) = client.get("/api/tags").json()["models"]
    assert [running["model"] for running in client.get("/api/ps").json()["models"]] == [card["model"]]
    assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == [card["model"]]
    chat = {"model": card["model"], "messages": [ASKED]}
    with client.stream("POST", "/api/chat", json={**chat, "stream": True, "options": {}}) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    assert "".join(line["message"]["content"] for line in lines) == "At noon."
    assert [line["done"] for line in lines][-2:] == [False, True]
    title = client.post("/api/chat", json={**chat, "stream": False, "options": {"num_predict": 1000}}).json()
    assert (title["message"]["content"], title["done"]) == ("At noon.", True)
    documents = client.post("/api/embed", json={"model": card["model"], "input": ["text"], "truncate": True})
    assert documents.status_code >= 400
    assert "embed" in documents.json()["error"]
