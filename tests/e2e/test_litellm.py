"""LiteLLM as a library against the demo model, through its OpenAI and its Ollama provider."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.conftest import DemoServer

WITHIN_S = 120.0
pytestmark = pytest.mark.slow  # 20 s with the machine to itself, 11 of them for importing LiteLLM


@pytest.fixture(scope="module")
def seen(demo_server: DemoServer) -> dict[str, Any]:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.e2e.litellm_session", demo_server.url, "demo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environment)
    assert ended.returncode == 0, ended.stderr
    providers: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return providers


@pytest.mark.parametrize("provider", ["openai", "ollama_chat"])
def test_a_provider_chats_streams_and_calls_a_tool(provider: str, seen: dict[str, Any]) -> None:
    reply = seen[provider]
    assert reply["whole"]
    assert reply["streamed"] == reply["whole"]
    assert reply["call"] == ["weather", {"city": "Bern"}]
    assert reply["answer"]
