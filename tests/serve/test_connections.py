"""A real server on a loopback port: clients that leave, are slow, are many, or are no clients."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from slotstream_serve.settings import Limits
from slotstream_serve.testing import Hold, ScriptedEngine, Step
from tests.serve.clocks import SHIFTED
from tests.serve.conftest import (
    PATIENCE_S,
    LiveServer,
    live_server,
    read_all,
    read_response,
    received,
    sse_events,
    wait_until,
)

BODY = json.dumps({"text": "hi", "stream": True}).encode()


def post(path: str = "/plain", body: bytes = BODY) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def whole() -> bytes:
    return post(body=json.dumps({"text": "hi"}).encode())


def holding(*, reading: bool = False) -> tuple[ScriptedEngine, threading.Event, threading.Event]:
    release, reached = threading.Event(), threading.Event()
    hold = Hold(release, reached)
    script: list[Step] = ["a "] if reading else ["a ", hold, "b"]
    return ScriptedEngine([script], reading=[hold] if reading else []), release, reached


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


def json_of(raw: bytes) -> dict[str, object]:
    body: dict[str, object] = json.loads(raw.partition(b"\r\n\r\n")[2])
    return body


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    """A server with ordinary limits, shared by the tests that leave nothing behind."""
    with live_server(ScriptedEngine([["He", "llo ", "there"]])) as server:
        yield server


def between_requests(live: LiveServer, connection: socket.socket) -> bool:
    protocol = live.protocol_of(connection)
    return protocol is not None and protocol.waits_for_a_request


def head_begins(live: LiveServer, connection: socket.socket, beginning: bytes) -> bool:
    protocol = live.protocol_of(connection)  # it may still be on its way to having a head
    return protocol is not None and vars(protocol).get("_head_start") == beginning


def answers(live: LiveServer) -> bool:
    with live.client() as client:
        return client.post("/plain", json={"text": "hi"}).status_code == 200


@pytest.mark.parametrize("request_bytes", [post(), post("/plain-lines"), whole()], ids=["events", "lines", "whole"])
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_a_client_that_leaves_stops_its_generation(where: str, request_bytes: bytes) -> None:
    engine, release, reached = holding(reading=where == "prefill")
    with live_server(engine) as live:
        connection = live.connect()
        connection.sendall(request_bytes)
        assert reached.wait(PATIENCE_S)
        connection.close()
        wait_until(lambda: engine.cancelled == 1)
        release.set()
        assert answers(live)
        wait_until(lambda: live.service.activity.active_requests == 0)


def test_a_client_that_leaves_the_queue_is_forgotten() -> None:
    engine, release, reached = holding()
    with live_server(engine) as live:
        first, second = live.connect(), live.connect()
        first.sendall(post())
        assert reached.wait(PATIENCE_S)
        second.sendall(post())
        wait_until(lambda: live.service.runner.queued == 1)
        second.close()
        wait_until(lambda: live.service.runner.queued == 0)
        release.set()
        text = b""
        while b"ReplyFinished" not in text:
            text += received(first)
        first.close()
        assert len(engine.requests) == 1


def test_a_silent_stream_is_kept_alive_with_the_dialects_frames() -> None:
    engine, release, reached = holding()
    with live_server(engine, keepalive_s=0.05) as live:
        with live.client() as client, client.stream("POST", "/plain", json={"text": "hi", "stream": True}) as response:
            seen = ""
            for line in response.iter_lines():
                seen += line + "\n"
                if seen.count(": keepalive") == 2:
                    assert reached.wait(PATIENCE_S)
                    release.set()
        assert [event["type"] for event in sse_events(seen)][-1] == "ReplyFinished"


def test_connections_stay_open_between_requests(live: LiveServer) -> None:
    with contextlib.closing(live.connect()) as connection:
        for _ in range(3):
            connection.sendall(whole())
            raw = read_response(connection)
            assert status_of(raw) == 200
            assert b"connection: close" not in raw.lower()


def test_a_chunked_body_is_accepted(live: LiveServer) -> None:
    with live.client() as client:
        response = client.post("/plain", content=iter([b'{"te', b'xt": "hi"}']))
        assert response.status_code == 200
        assert "transfer-encoding" in response.request.headers


def test_an_absolute_target_is_understood(live: LiveServer) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(b"GET http://localhost:1/slotstream/status/?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status = json_of(read_response(connection))
        assert status["port"] == live.port


def test_one_connection_too_many_is_told_to_come_back() -> None:
    engine, release, reached = holding()
    with live_server(engine, limits=Limits(connections=2)) as live:
        kept = [live.connect(), live.connect()]
        kept[0].sendall(post())
        kept[1].sendall(post())
        assert reached.wait(PATIENCE_S)
        wait_until(lambda: live.service.runner.queued == 1)
        with contextlib.closing(live.connect()) as extra:
            extra.sendall(post())
            raw = read_all(extra)
        assert status_of(raw) == 503
        assert b"retry-after: 1" in raw.lower()
        assert b"server busy: too many open connections" in raw
        assert b"plain_error" in raw
        release.set()
        for connection in kept:
            connection.close()
        wait_until(lambda: not live.server.server_state.connections)
        assert answers(live)


def test_a_connection_that_only_waits_makes_room(hello: ScriptedEngine) -> None:
    with live_server(hello, limits=Limits(connections=2)) as live:
        idle = [live.connect(), live.connect()]
        for connection in idle:
            connection.sendall(whole())
            assert status_of(read_response(connection)) == 200
            wait_until(partial(between_requests, live, connection))
        assert answers(live)
        for connection in idle:
            connection.close()


@pytest.mark.parametrize("size", [65_000, 70_000, 500_000])
def test_headers_are_limited_to_64_kib(live: LiveServer, size: int) -> None:
    with contextlib.closing(live.connect()) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /plain/models HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * size + b"\r\n\r\n")
        raw = read_response(connection)
        assert status_of(raw) == (200 if size < 65_536 else 431)
        if size > 65_536:
            assert b"plain_error" in raw
            assert b"64 KiB" in raw


def test_a_body_over_the_limit_is_drained_and_refused(hello: ScriptedEngine) -> None:
    limits = Limits(body_bytes=2**20)
    with live_server(hello, limits=limits) as live, live.client() as client:
        for content in (b"x" * 3_000_000, iter([b"x" * 500_000] * 6)):
            response = client.post("/plain", content=content)
            assert response.status_code == 413
            assert response.json()["plain_error"]["code"] == "payload_too_large"
        assert answers(live)


def test_a_large_body_that_never_comes_is_refused_after_a_while(hello: ScriptedEngine) -> None:
    limits = Limits(body_bytes=1000, drain_s=0.1)
    with live_server(hello, limits=limits) as live, contextlib.closing(live.connect()) as connection:
        connection.sendall(b"POST /plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nxx")
        raw = read_all(connection)
        assert status_of(raw) == 413


def test_a_body_that_stalls_is_given_up(hello: ScriptedEngine) -> None:
    limits = Limits(receive_s=0.1)
    with live_server(hello, limits=limits) as live, contextlib.closing(live.connect()) as connection:
        connection.sendall(b'POST /plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"te')
        assert status_of(read_all(connection)) == 408


@pytest.mark.parametrize("beginning", [b"", b"GET /pl", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends_is_given_up(hello: ScriptedEngine, beginning: bytes) -> None:
    with live_server(hello, loop=SHIFTED) as live, contextlib.closing(live.connect()) as connection:
        connection.sendall(beginning)
        wait_until(lambda: head_begins(live, connection, beginning))
        live.pass_time(Limits().head_s)
        raw = read_all(connection)
        assert (status_of(raw) if raw else None) == (408 if beginning else None)


def test_a_second_request_on_a_connection_is_watched_too(hello: ScriptedEngine) -> None:
    with live_server(hello, loop=SHIFTED) as live, contextlib.closing(live.connect()) as connection:
        connection.sendall(whole())
        assert status_of(read_response(connection)) == 200
        connection.sendall(b"GET ")
        wait_until(lambda: head_begins(live, connection, b"GET "))
        live.pass_time(Limits().head_s)
        assert status_of(read_all(connection)) == 408


def test_a_client_that_does_not_read_is_cut_off() -> None:
    engine = ScriptedEngine([["x" * 100_000] * 200])
    with live_server(engine, limits=Limits(send_s=0.2)) as live:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", live.port))
        connection.sendall(post())
        wait_until(lambda: len(engine.requests) == 1 and not live.server.server_state.connections)
        wait_until(lambda: live.service.activity.active_requests == 0)
        connection.close()


@pytest.mark.parametrize(
    "junk",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"HELLO\r\n\r\n",
        b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_json(live: LiveServer, junk: bytes) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(junk)
        raw = read_all(connection)
        assert status_of(raw) == 400
        assert b"application/json" in raw
        assert "invalid HTTP request" in str(json_of(raw))


def test_a_broken_chunk_ends_only_its_connection(live: LiveServer) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(
            b'POST /plain HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"tex\r\nnonsense\r\n'
        )
        assert status_of(read_all(connection)) == 400
    assert answers(live)
    wait_until(lambda: live.service.activity.active_requests == 0)


def test_stopping_ends_streams_with_a_failure_frame() -> None:
    engine, _release, reached = holding()
    texts: list[str] = []
    with live_server(engine) as live:
        stopped = threading.Event()

        def read() -> None:
            body = {"text": "hi", "stream": True}
            with live.client() as client, client.stream("POST", "/plain", json=body) as response:
                texts.append("".join(response.iter_text()))
            stopped.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert reached.wait(PATIENCE_S)
        live.server.should_exit = True
        assert stopped.wait(PATIENCE_S)
        reader.join()
    last = sse_events(texts[0])[-1]
    assert (last["type"], last["failure"]["code"]) == ("ReplyFailed", "server_stopping")
    assert engine.closed


def test_a_server_that_has_been_idle_stops_and_answers_only_its_status(hello: ScriptedEngine) -> None:
    with live_server(hello, idle_exit_s=3600.0) as live, live.client() as client:
        assert client.get("/slotstream/status").json()["idle_exit_minutes"] == 60
        live.service.activity.stopping = True
        refused = client.post("/plain", json={"text": "hi"})
        assert refused.status_code == 503
        assert "the server is stopping" in refused.json()["plain_error"]["message"]
        assert client.get("/slotstream/status").status_code == 200
    with live_server(ScriptedEngine([["x"]]), idle_exit_s=0.01) as live:
        live.thread.join(PATIENCE_S)
        assert not live.thread.is_alive()


def test_pipelined_requests_are_answered_in_order(live: LiveServer) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(
            b"GET /plain/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
            b"GET /slotstream/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        raw = read_all(connection)
        assert raw.index(b"models") < raw.index(b"context_window")


def test_a_websocket_upgrade_is_answered_as_plain_http(live: LiveServer) -> None:
    with live.client() as client:
        response = client.get("/", headers={"connection": "upgrade", "upgrade": "websocket"})
        assert response.status_code == 200
        assert isinstance(response, httpx.Response)


def test_small_pieces_leave_at_once(live: LiveServer) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(b"GET /slotstream/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_response(connection)
        protocol = live.protocol_of(connection)
        assert protocol is not None
        served: socket.socket = protocol.transport.get_extra_info("socket")
        assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
