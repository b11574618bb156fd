"""Who answers on a port, and what is hidden from whom."""

import pytest

from slotstream_cli.launching.asking import ServerPort
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.testing import ScriptedEngine
from tests.cli.launching.situations import answering
from tests.serve.conftest import live_server

CARD = {"id": "m:4bit", "owned_by": "slotstream", "context_window": 100, "max_output_tokens": 50}


def test_a_real_server_says_its_model_window_and_paths() -> None:
    with live_server(ScriptedEngine([["x"]]), dialects=all_dialects()) as live:
        port = ServerPort(port=live.port)
        probe = port.probe()
        assert probe.kind == "served"
        assert probe.served is not None
        assert (probe.served.model, probe.served.window_tokens, probe.served.port) == ("tiny:4bit", 4096, live.port)
        status = port.status()
        assert status is not None
        assert port.register(status["pid"])
        assert not port.register(-1)
        assert port.answers("/v1/messages/count_tokens")
        assert not port.answers("/v1/telepathy")


def test_a_server_with_a_key_wants_it_and_it_becomes_the_agents_token() -> None:
    with live_server(ScriptedEngine([["x"]]), dialects=all_dialects(), api_key="k3y") as live:
        assert ServerPort(port=live.port).probe().kind == "locked"
        probe = ServerPort(port=live.port, api_key="k3y").probe()
        assert probe.served is not None
        assert probe.served.token == "k3y"
        assert "k3y" not in repr(probe)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, {"error": "the server is stopping; start it again"}, "stopping"),
        (503, {"error": "too many connections"}, "busy"),
        (200, {"data": [{**CARD, "owned_by": "library"}]}, "foreign"),
        (200, {"data": [{**CARD, "id": "a b"}]}, "foreign"),
        (200, {"data": [{**CARD, "id": "x" * 129}]}, "foreign"),
        (200, {"data": [{**CARD, "context_window": "big"}]}, "foreign"),
        (200, {"data": []}, "foreign"),
        (200, [], "foreign"),
        (200, b"<html>", "foreign"),
        (200, b"[" * 100_000, "foreign"),
        (404, {}, "foreign"),
        (200, {"data": [CARD]}, "served"),
    ],
)
def test_only_a_slotstream_server_is_taken_for_one(status: int, body: object, kind: str) -> None:
    with answering(status, body) as port:
        assert port.probe().kind == kind


@pytest.mark.parametrize(("said", "used"), [(0, 1), (50, 50), (1_000, 99), (None, 25)])
def test_the_reply_limit_lies_inside_the_window(said: int | None, used: int) -> None:
    with answering(200, {"data": [{**CARD, "max_output_tokens": said}]}) as port:
        served = port.probe().served
    assert served is not None
    assert served.max_output_tokens == used


def test_nothing_on_the_port_is_absent() -> None:
    with answering(200, {}) as port:
        pass
    assert port.probe().kind == "absent"
    assert port.status() is None
