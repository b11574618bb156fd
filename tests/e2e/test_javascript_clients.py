"""JavaScript clients from their registry: against an engine that plays scripts, and against the demo model."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from slotstream_core.errors import ExpertReadError
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import Fault, Script, ScriptedEngine, Silence, tool_call, write_in_pieces
from tests.e2e.conftest import DemoServer
from tests.e2e.javascript import JavaScriptClients, clients_or_skip
from tests.serve.conftest import LiveServer, live_server

SCENES = ["text", "loop", "refusal", "fault", "broken", "silence"]
MORE_SCENES = {
    "openai_chat": ["thinking", "models"],
    "openai_responses": ["thinking"],
    "anthropic_messages": ["thinking", "count"],
    "ollama": ["thinking", "models", "generate"],
    "ai_gateway": ["models"],
    "ai_gateway4": ["thinking", "models"],
    "ai_openai_compatible": ["thinking"],
}
CLIENTS = list(MORE_SCENES)
LISTING = [client for client, scenes in MORE_SCENES.items() if "models" in scenes]
THINKING = [client for client, scenes in MORE_SCENES.items() if "thinking" in scenes]
ODD = ["a\u2028b", "\x85", "\r\n", "\U0001f600", " \x1c", "end"]
PROBLEM = "3 of 9 bytes"
FIRST_CALLS = tool_call("weather", {"city": "007"}) + "\n" + tool_call("weather", {"city": "Bern", "days": 2})


def play(prompt: str) -> Script:
    """Return what the model writes for a scene, or for a turn of the tool loop."""
    if "Scene: fault" in prompt:
        return ["half ", Fault(ExpertReadError(f"experts.bin: read {PROBLEM}"))]
    if "Scene: silence" in prompt:
        return ["a", Silence(seconds=0.3), "b"]
    if "Scene: thinking" in prompt:
        return ["h", "m", "</think", ">\n\n", "Yes"]
    results = prompt.count("Sunny, 21 C")
    if '"tools"' not in prompt or results == 3:
        return ODD
    if results == 2:
        return write_in_pieces("One more.\n" + tool_call("weather", {"city": "Zürich"}), 5)
    return write_in_pieces("I look.\n" + FIRST_CALLS, 7)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> JavaScriptClients:
    return clients_or_skip(tmp_path_factory.mktemp("js"))


@pytest.fixture(scope="module")
def scripted() -> Iterator[LiveServer]:
    with live_server(ScriptedEngine(play), dialects=all_dialects(), keepalive_s=0.05) as live:
        yield live


@pytest.fixture(scope="module")
def watch(clients: JavaScriptClients, scripted: LiveServer) -> Callable[[str], dict[str, Any]]:
    """Return what a client saw of every scene; each client runs once."""

    @cache
    def seen(client: str) -> dict[str, Any]:
        return clients.run(client, scripted.url, "tiny:4bit", *SCENES, *MORE_SCENES[client])

    return seen


@pytest.fixture(params=CLIENTS)
def seen(request: pytest.FixtureRequest, watch: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return watch(request.param)


def test_a_reply_is_the_same_whole_and_streamed_whatever_its_characters(seen: dict[str, Any]) -> None:
    assert seen["text"] == {"whole": "".join(ODD), "streamed": "".join(ODD), "tokens": len(ODD)}


@pytest.mark.parametrize("client", THINKING)
def test_thinking_comes_apart_from_the_answer(client: str, watch: Callable[[str], dict[str, Any]]) -> None:
    assert watch(client)["thinking"] == {"thinking": "hm", "answer": "Yes"}


def test_a_tool_loop_of_parallel_and_single_calls_reaches_its_answer(seen: dict[str, Any]) -> None:
    calls = [["weather", {"city": "007"}], ["weather", {"city": "Bern", "days": 2}], ["weather", {"city": "Zürich"}]]
    assert seen["loop"] == {"calls": calls, "answer": "".join(ODD)}


def test_a_refused_request_is_the_clients_own_error(seen: dict[str, Any]) -> None:
    assert seen["refusal"]["status"] in (400, 404)
    assert seen["refusal"]["name"] not in ("SyntaxError", "TypeError")


def test_a_failed_generation_is_the_clients_own_error(seen: dict[str, Any]) -> None:
    assert seen["fault"]["status"] == 500
    assert PROBLEM in seen["fault"]["message"]


def test_a_stream_that_breaks_is_never_taken_for_success(seen: dict[str, Any]) -> None:
    assert seen["broken"].get("name") not in (None, "completed")
    assert PROBLEM in seen["broken"]["message"]
    assert seen["broken"]["before"] == "half "


def test_keepalives_in_a_long_silence_are_not_seen(seen: dict[str, Any]) -> None:
    assert seen["silence"] == "ab"


@pytest.mark.parametrize("client", LISTING)
def test_the_model_is_listed(client: str, watch: Callable[[str], dict[str, Any]]) -> None:
    assert "tiny:4bit" in str(watch(client)["models"])


def test_tokens_are_counted_and_prompts_completed(watch: Callable[[str], dict[str, Any]]) -> None:
    assert watch("anthropic_messages")["count"] > 10
    assert watch("ollama")["generate"] == {"whole": "".join(ODD), "streamed": "".join(ODD)}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_demo_model_uses_a_tool_and_answers(
    client: str, clients: JavaScriptClients, demo_server: DemoServer
) -> None:
    seen = clients.run(client, demo_server.url, "demo", "loop")
    assert seen["loop"]["calls"] == [["weather", {"city": "Bern"}]]
    assert seen["loop"]["answer"]
