"""LiteLLM as a library against the demo model, through its OpenAI and its Ollama provider."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.e2e.conftest import DemoServer

WITHIN_S = 420.0


def test_both_providers_chat_stream_and_call_a_tool(demo_server: DemoServer) -> None:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.e2e.litellm_session", demo_server.url, "demo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environment)
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert set(seen) == {"openai", "ollama_chat"}
    for reply in seen.values():
        assert reply["whole"]
        assert reply["streamed"] == reply["whole"]
        assert reply["call"] == ["weather", {"city": "Bern"}]
        assert reply["answer"]
