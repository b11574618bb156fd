"""Status requests that repeat: answered at once, and never with anything the application would not have said."""

import json
import re
import socket
from collections.abc import Iterator

import pytest

from slotstream_serve.quick_status import LONGEST_S, MAX_HEADS, QuickStatus, repeatable_head
from slotstream_serve.runner import Runner
from slotstream_serve.service import STOPPED, Service
from slotstream_serve.settings import Limits
from slotstream_serve.testing import ScriptedEngine
from tests.serve.clocks import SHIFTED
from tests.serve.conftest import (
    LiveServer,
    live_server,
    plain_dialects,
    read_response,
    received,
    serve_config,
    wait_until,
)

HEAD = b"GET /slotstream/status HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"


class Renders:
    """Counts how often the whole application describes the server."""

    def __init__(self, service: Service, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        describe = service.status

        def counted(port: int) -> dict[str, object]:
            self.count += 1
            return describe(port)

        patch.setattr(service, "status", counted)


@pytest.fixture
def live() -> Iterator[LiveServer]:
    with live_server(ScriptedEngine([["hi"]])) as server:
        yield server


def asked(connection: socket.socket, head: bytes = HEAD) -> bytes:
    connection.sendall(head)
    return read_response(connection)


def undated(answer: bytes) -> bytes:
    return re.sub(rb'date: [^\r]*|"idle_seconds":\d+', b"", answer)


def test_a_repeated_status_request_gets_the_same_bytes(live: LiveServer) -> None:
    with live.connect() as connection:
        first, second, third = (undated(asked(connection)) for _ in range(3))
    assert first.startswith(b"HTTP/1.1 200 OK")
    assert first.lower() == second.lower()
    assert second == third


def test_repeated_requests_do_not_describe_the_server_again(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = QuickStatus(live.service, clock=lambda: 5.0)
    renders = Renders(live.service, monkeypatch)
    quick.admit(HEAD)
    answers = {quick.answer(HEAD, port=1, headers=[]) for _ in range(20)}
    assert len(answers) == renders.count == 1
    assert quick.answer(HEAD + b"x", port=1, headers=[]) is None


def test_a_change_of_activity_shows_at_once(live: LiveServer) -> None:
    with live.connect() as connection:
        before = [json.loads(asked(connection).partition(b"\r\n\r\n")[2])["active_requests"] for _ in range(2)]
        changed = live.service.activity.request()
        with changed:
            during = json.loads(asked(connection).partition(b"\r\n\r\n")[2])["active_requests"]
        after = json.loads(asked(connection).partition(b"\r\n\r\n")[2])["active_requests"]
    assert (before, during, after) == ([0, 0], 1, 0)


def test_an_answer_grows_no_older_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    service = Service(Runner(lambda: ScriptedEngine([]), closes_engine=False), serve_config(), plain_dialects())
    quick = QuickStatus(service, clock=lambda: now[0])
    renders = Renders(service, monkeypatch)
    quick.admit(HEAD)
    for now[0] in (0.0, LONGEST_S * 0.9, LONGEST_S, LONGEST_S * 1.5, LONGEST_S * 2):
        quick.answer(HEAD, port=1, headers=[])
    service.runner.stop(STOPPED)
    assert renders.count == 3


@pytest.mark.parametrize(
    "data",
    [
        HEAD + HEAD,
        HEAD[:-2],
        HEAD.replace(b"GET", b"HEAD"),
        HEAD.replace(b"status", b"status?x=1"),
        HEAD.replace(b"1.1", b"1.0"),
        HEAD[:-2] + b"X: " + b"a" * 4096 + b"\r\n\r\n",
        b"",
    ],
)
def test_only_one_small_whole_status_head_may_repeat(data: bytes) -> None:
    assert repeatable_head(data) == b""


def test_what_the_application_refuses_is_never_answered_quickly() -> None:
    with live_server(ScriptedEngine([["hi"]]), api_key="secret") as live, live.connect() as connection:
        good = HEAD[:-2] + b"Authorization: Bearer secret\r\n\r\n"
        statuses = [asked(connection, head)[9:12] for head in (good, HEAD, good, HEAD, good)]
    assert statuses == [b"200", b"401", b"200", b"401", b"200"]


def test_answers_that_depend_on_the_sender_are_not_repeated(live: LiveServer) -> None:
    head = HEAD[:-2] + b"Origin: http://localhost:3000\r\n\r\n"
    with live.connect() as connection:
        answers = [asked(connection, head) for _ in range(3)]
    assert all(b"access-control-allow-origin: http://localhost:3000" in answer for answer in answers)


def test_heads_that_differ_do_not_fill_the_memory() -> None:
    service = Service(Runner(lambda: ScriptedEngine([]), closes_engine=False), serve_config(), plain_dialects())
    quick = QuickStatus(service)
    heads = [b"%d" % number for number in range(MAX_HEADS + 5)]
    for head in heads:
        quick.admit(head)
    answered = [head for head in heads if quick.answer(head, port=1, headers=[]) is not None]
    service.runner.stop(STOPPED)
    assert len(answered) == MAX_HEADS


def test_pipelined_requests_are_answered_in_order(live: LiveServer) -> None:
    with live.connect() as connection:
        asked(connection)
        connection.sendall(HEAD + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        both = b""
        while b'"engine":"slotstream"' not in both:
            both += received(connection)
        assert both.index(b'"server":"slotstream"') < both.index(b'"engine":"slotstream"')
        assert b'"server":"slotstream"' in asked(connection)


def test_quick_answers_count_and_keep_the_connection(live: LiveServer) -> None:
    with live.connect() as connection:
        for _ in range(5):
            asked(connection)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        metrics = read_response(connection)
    assert b'slotstream_http_requests_total{route="/slotstream/status",status="200"} 5.0' in metrics


def test_a_connection_that_asked_and_fell_silent_is_closed() -> None:
    with live_server(ScriptedEngine([["hi"]]), loop=SHIFTED) as live, live.connect() as connection:
        for _ in range(3):
            asked(connection)
        protocol = live.protocol_of(connection)
        assert protocol is not None
        wait_until(lambda: protocol.waits_for_a_request)
        live.pass_time(Limits().idle_connection_s)
        assert connection.recv(1) == b""
        wait_until(lambda: not live.server.server_state.connections)
