"""What an adversary sends is refused or answered; nothing fails, nothing is logged as a fault, the next is served."""

import contextlib
import json
import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.errors import Failure
from slotstream_serve.exchange import header_text
from slotstream_serve.limits import VALUE_MARKS, headers_too_large
from slotstream_serve.settings import Limits
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import LiveServer, live_server, read_response, wait_until
from tests.serve.test_streaming import REQUESTS

HOST = b"Host: localhost\r\n"
CHUNKED = b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "a byte that no target has": b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab in the target": b"GET /\t HTTP/1.1\r\n" + HOST + b"\r\n",
    "no target": b"GET  HTTP/1.1\r\n" + HOST + b"\r\n",
    "an old version": b"GET /\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + b"Host: example.com\r\n\r\n",
    "a zero byte in a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n",
    "a return inside a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rContent-Length: 5\r\n\r\n",
    "a signed length": b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\n{}{}{",
    "a hexadecimal length": b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Content-Length: 0x5\r\n\r\n{}{}{",
    "two lengths in one": b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Content-Length: 5, 6\r\n\r\n{}{}{",
    "another coding": b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "nearly the right coding": b"POST /api/chat HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\n{}\r\n0\r\n\r\n",
    "a prefixed chunk": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"2\r\n{}{}\r\n0\r\n\r\n",
}


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with live_server(ScriptedEngine([["He", "llo"]]), dialects=all_dialects()) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_fails(live: LiveServer, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    with live.client() as client:
        assert client.get("/").status_code == 200


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_quite_http_is_refused_in_words_without_what_was_sent(live: LiveServer, what: str) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(REFUSED[what])
        raw = read_response(connection)
    assert status_of(raw) == 400
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["error"].startswith("invalid HTTP request: ")
    assert b"bytearray" not in raw


@pytest.mark.parametrize(
    ("target", "status"), [("/%00", 404), ("/%ed%a0%80", 404), ("http://[::1", 200), ("//[", 404), ("*", 404)]
)
def test_a_strange_target_is_only_unknown(live: LiveServer, target: str, status: int) -> None:
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (target.encode(), HOST))
        assert status_of(read_response(connection)) == status


def test_a_head_that_was_refused_ends_the_connection_before_what_follows_it(live: LiveServer) -> None:
    """A second request hidden behind two lengths is never understood."""
    hidden = b"GET /slotstream/status HTTP/1.1\r\n" + HOST + b"\r\n"
    with contextlib.closing(live.connect()) as connection:
        connection.sendall(REFUSED["two lengths in one"] + hidden)
        raw = b""
        while piece := connection.recv(65_536):
            raw += piece
    assert raw.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("name", REQUESTS)
def test_headers_that_are_too_large_are_refused_in_the_dialects_shape(live: LiveServer, name: str) -> None:
    (dialect,) = [known for known in all_dialects() if known.name == name]
    path = REQUESTS[name][0]
    with contextlib.closing(live.connect()) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"POST %b HTTP/1.1\r\n%bX: %b\r\n\r\n" % (path.encode(), HOST, b"x" * 70_000))
        raw = read_response(connection)
    assert status_of(raw) == 431
    assert json.loads(raw.partition(b"\r\n\r\n")[2]) == dialect.error_body(headers_too_large(Limits()))


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_may_break_off_after_any_byte(live: LiveServer, name: str, *, reset: bool) -> None:
    path, body, headers = REQUESTS[name]
    content = json.dumps(body).encode()
    lines = [f"{key}: {value}\r\n" for key, value in {**headers, "Content-Length": str(len(content))}.items()]
    request = b"POST %b HTTP/1.1\r\n%b%b\r\n%b" % (path.encode(), HOST, "".join(lines).encode(), content)
    for sent in [*range(1, len(request), len(request) // 20), len(request)]:
        connection = live.connect()
        if reset:  # closing now discards what is on its way
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(request[:sent])
        connection.close()
    wait_until(lambda: not live.server.server_state.connections and not live.service.activity.active_requests)
    wait_until(lambda: live.service.runner.running is None and not live.service.runner.queued)


def placed(name: str, field: bytes) -> bytes:
    """Return a dialect's request, not streamed, with one more field in bytes that no encoder writes."""
    body = {**REQUESTS[name][1], "stream": False, "@": "@"}
    return json.dumps(body).encode().replace(b'"@": "@"', field)


HOSTILE_FIELDS = {
    "a header in a name": rb'"a\r\nX-Evil: 1": 1',
    "a zero byte in a name": rb'"a\u0000b": 1',
    "half a character in a name": rb'"a\ud800": 1',
    "a name of spaces": rb'"  ": 1',
    "a name that no header holds": b'"' + b"k" * 100_000 + b'": 1',
    "the same name twice": b'"x": 1, "x": 2',
    "a number beyond all": b'"temperature": 1e400',
    "a number that is none": b'"temperature": NaN',
    "a whole number beyond all": b'"temperature": 1' + b"0" * 400,
    "more digits than are read": b'"seed": ' + b"9" * 5000,
    "nesting without end": b'"x": ' + b"[" * 100_000 + b"]" * 100_000,
    "bytes that are no text": b'"x": "\xff\xfe"',
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("what", HOSTILE_FIELDS)
def test_a_hostile_field_is_ignored_or_refused_in_every_dialect(live: LiveServer, name: str, what: str) -> None:
    path, _, headers = REQUESTS[name]
    content = placed(name, HOSTILE_FIELDS[what])
    with live.client() as client:
        response = client.post(path, content=content, headers=headers)
    assert response.status_code in (200, 400)
    assert "x-evil" not in response.headers


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("field", [b'"temperature": 1e999', b'"x": {"a": [-1e999]}', b'"options": {"top_p": 1e999}'])
def test_a_number_that_no_float_holds_is_refused_in_every_dialects_shape(
    live: LiveServer, name: str, field: bytes
) -> None:
    (dialect,) = [known for known in all_dialects() if known.name == name]
    path, _, headers = REQUESTS[name]
    with live.client() as client:
        response = client.post(path, content=placed(name, field), headers=headers)
    sign = "-" if b"-" in field else ""
    message = f"invalid JSON body: {sign}1e999 is too large a number; the largest is 1.8e308"
    assert response.status_code == 400
    assert response.json() == dialect.error_body(Failure(code="invalid_request", message=message))


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("item", [b"[]", b'{"a":0}', b'"ab"', b"0", b"[" * 100 + b"]" * 100])
def test_more_values_than_a_body_may_have_are_refused_in_every_dialects_shape(
    live: LiveServer, name: str, item: bytes
) -> None:
    (dialect,) = [known for known in all_dialects() if known.name == name]
    path, _, headers = REQUESTS[name]
    marks = 1 + sum(map(item.count, VALUE_MARKS))
    content = placed(name, b'"x": [' + b",".join([item] * (510_000 // marks)) + b"]")
    with live.client() as client:
        response = client.post(path, content=content, headers=headers)
    message = "request body has more than 500,000 values and names; send less input"
    assert response.status_code == 413
    assert response.json() == dialect.error_body(Failure(code="payload_too_large", message=message))


@pytest.mark.parametrize("name", REQUESTS)
def test_text_may_hold_as_many_marks_as_it_likes(live: LiveServer, name: str) -> None:
    path, _, headers = REQUESTS[name]
    content = placed(name, b'"x": "' + b",[{:" * 200_000 + b'"')
    with live.client() as client:
        assert client.post(path, content=content, headers=headers).status_code in (200, 400)


SCHEMAS: dict[str, Any] = {
    "of itself": {"$ref": "#"},
    "in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "properties": {"city": {"$ref": "#/$defs/a"}},
    },
    "through a union": {"properties": {"city": {"anyOf": [{"$ref": "#/properties/city"}]}}},
    "elsewhere": {"properties": {"city": {"$ref": "http://127.0.0.1:9/schema"}}},
    "by a number": {"properties": {"city": {"$ref": 5}}},
    "by numbers": {"properties": 5},
    "of odd types": {"type": ["string", 5, None]},
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("what", SCHEMAS)
def test_a_schema_that_refers_is_followed_to_no_end_and_to_no_other_place(
    live: LiveServer, name: str, what: str
) -> None:
    path, body, headers = REQUESTS[name]
    city = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}})
    content = json.dumps(body).replace(city, json.dumps(SCHEMAS[what]))
    assert content != json.dumps(body)
    with live.client() as client:
        assert client.post(path, content=content, headers=headers).status_code in (200, 400)


@pytest.mark.parametrize("pid", [10**30, 2**63, -1, 0, True, "1", None, 1.5, [1]])
def test_a_process_id_that_is_none_registers_nobody(live: LiveServer, pid: Any) -> None:
    with live.client() as client:
        assert client.post("/slotstream/clients", json={"pid": pid}).status_code == 400
        assert client.get("/slotstream/status").json()["clients"] == 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain, x_1", "plain, x_1"), ("a\r\nB: 1", r"a\r\nB: 1"), ("\x7f\0\xe4", r"\x7f\x00\xe4"), (" \t ", r"\t")],
)
def test_a_header_carries_any_text(text: str, shown: str) -> None:
    assert header_text(text) == shown
