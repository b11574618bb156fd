"""Half a surrogate pair in the arguments of a call, which JSON can name and UTF-8 cannot hold, in every dialect."""

import json
from typing import Any

import pytest

from slotstream_serve.testing import ScriptedEngine, tool_call, write_in_pieces
from tests.serve.conftest import ask, served_app
from tests.serve.test_streaming import REQUESTS

GIVEN = r'{"city": "B\ud800n"}'
CHAT_CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": GIVEN}}
GATEWAY_CALL = {"type": "tool-call", "toolCallId": "1", "toolName": "weather", "input": GIVEN}
GATEWAY_RESULT = {
    "type": "tool-result",
    "toolCallId": "1",
    "toolName": "weather",
    "output": {"type": "text", "value": "rain"},
}
HISTORIES: dict[str, dict[str, Any]] = {
    "ollama": {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [CHAT_CALL]},
            {"role": "tool", "content": "rain"},
        ]
    },
    "openai_chat": {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
        ]
    },
    "openai_responses": {
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "1", "name": "weather", "arguments": GIVEN},
            {"type": "function_call_output", "call_id": "1", "output": "rain"},
        ]
    },
    "anthropic_messages": {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "B\ud800n"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
        ]
    },
    "ai_gateway": {
        "prompt": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [GATEWAY_CALL]},
            {"role": "tool", "content": [GATEWAY_RESULT]},
        ]
    },
}


@pytest.mark.parametrize("name", REQUESTS)
def test_one_that_a_model_names_reaches_the_client_as_a_replacement_character(name: str) -> None:
    path, body, headers = REQUESTS[name]
    call = tool_call("weather", {"days": r'{"some": "x\ud800\udc00\udfff"}'})  # of no declared type
    engine = ScriptedEngine([["</think>", *write_in_pieces(call, 5)]])
    response = ask(served_app(engine), "POST", path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    assert "x\U00010000\ufffd" in response.text
    assert "\\ud" not in response.text.lower()


@pytest.mark.parametrize("name", REQUESTS)
def test_one_in_a_clients_history_reaches_the_model_as_a_replacement_character(name: str) -> None:
    path, body, headers = REQUESTS[name]
    engine = ScriptedEngine([["</think>", "Rain."]])
    content = json.dumps({**body, **HISTORIES[name]})
    sent = {**headers, "content-type": "application/json"}
    response = ask(served_app(engine), "POST", path, content=content, headers=sent)
    assert response.status_code == 200, response.text
    assert "B\ufffdn" in engine.requests[0].prompt
    assert "Rain." in response.text
