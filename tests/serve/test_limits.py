"""Who may ask: hosts, origins, keys, and what the configuration allows."""

import contextlib
import tracemalloc

import pytest

from slotstream_serve.errors import ConfigurationError, Refused
from slotstream_serve.limits import check_host, check_origin, has_more_values, parse_json_object
from slotstream_serve.server import bind
from slotstream_serve.settings import Limits, is_loopback
from slotstream_serve.shapes import canonical_path
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import ask, plain_app, serve_config

KEY = "s3cret-k\u20ac".encode("ascii", "ignore").decode()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:11434",
        "127.0.0.1:1",
        "[::1]:11434",
        "192.168.1.5:11434",
        "app.localhost",
        "host.docker.internal:11434",
        "my-mac.local",
        "allowed.example:80",
        "LOCALHOST.",
        None,
    ],
)
def test_local_names_and_addresses_pass(host: str | None) -> None:
    check_host(host, serve_config(allowed_hosts=("Allowed.example",)))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:11434", "localhost.evil.example", "", "a b", "127.0.0.1.nip.io", "x@localhost"],
)
def test_public_names_are_refused_unless_a_key_protects_the_server(host: str) -> None:
    with pytest.raises(Refused, match="not allowed"):
        check_host(host, serve_config())
    check_host(host, serve_config(api_key=KEY))


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080", "http://0.0.0.0:1", "http://pc:11434"]
)
def test_pages_of_this_machine_may_ask(origin: str) -> None:
    assert check_origin(origin, "pc:11434") == origin


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "file://localhost",
        "http://localhost.evil.example",
        "http://[bad",
        "//localhost",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    with pytest.raises(Refused, match="browser origin is not allowed"):
        check_origin(origin, "pc:11434")


def test_an_allowed_origin_is_echoed_and_another_refused(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    allowed = ask(app, "GET", "/plain/models", headers={"origin": "http://localhost:3000"})
    assert allowed.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert allowed.headers["vary"] == "Origin"
    refused = ask(app, "POST", "/plain", json={"text": "hi"}, headers={"origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    assert refused.json()["plain_error"]["message"] == "browser origin is not allowed"
    assert hello.requests == []
    assert "access-control-allow-origin" not in ask(app, "GET", "/plain/models").headers


def test_a_browsers_question_is_answered_without_a_key(hello: ScriptedEngine) -> None:
    asked = {"origin": "http://localhost:3000", "access-control-request-headers": "x-stainless-os, authorization"}
    response = ask(plain_app(hello, api_key=KEY), "OPTIONS", "/anything", headers=asked)
    assert response.status_code == 204
    assert response.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert response.headers["access-control-allow-headers"] == "x-stainless-os, authorization"
    assert response.headers["access-control-allow-private-network"] == "true"
    assert response.headers["access-control-max-age"] == "86400"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer  {KEY}"}, 200),
        ({"x-api-key": KEY}, 200),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": "Bearer unused", "x-api-key": KEY}, 401),
        ({"x-api-key": "\u00e4".encode("latin-1").decode("latin-1")}, 401),
    ],
)
def test_a_key_opens_the_server(hello: ScriptedEngine, headers: dict[str, str], status: int) -> None:
    app = plain_app(hello, api_key=KEY)
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    response = ask(app, "POST", "/plain", json={"text": "hi"}, headers=raw)
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["plain_error"]["code"] == "unauthorized"
        assert KEY not in response.text


def test_without_a_key_any_placeholder_passes(hello: ScriptedEngine) -> None:
    response = ask(plain_app(hello), "POST", "/plain", json={"text": "hi"}, headers={"authorization": "Bearer unused"})
    assert response.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "my-host"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigurationError, match="SLOTSTREAM_API_KEY"):
        serve_config(host=host)
    assert serve_config(host=host, api_key=KEY).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    assert serve_config(host=host).api_key is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 65_536},
        {"api_key": ""},
        {"api_key": "\u00e4"},
        {"max_prefill_wait_s": -1.0},
        {"max_prefill_wait_s": float("nan")},
        {"max_prefill_wait_s": float("inf")},
        {"idle_exit_s": 0.0},
        {"idle_exit_s": 10_081 * 60.0},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        serve_config(**wrong)


def test_the_key_is_not_in_the_configurations_text() -> None:
    assert KEY not in repr(serve_config(api_key=KEY))


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with bind(serve_config()) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is in use.*slotstream stop"):
            bind(serve_config(port=port))
    with pytest.raises(ConfigurationError, match="cannot listen on 203.0.113.7"):
        bind(serve_config(host="203.0.113.7", api_key=KEY))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/a/", "/a"),
        ("/a?b=/c/", "/a"),
        ("http://host:1/a/b/?q", "/a/b"),
        ("HTTPS://host", "/"),
        ("", "/"),
        ("//a", "//a"),
        ("*", "*"),
    ],
)
def test_a_target_has_one_path(target: str, path: str) -> None:
    assert canonical_path(target) == path


def test_json_keeps_its_types_and_its_text() -> None:
    body = '\ufeff{"a": true, "b": 1, "c": 1.0, "d": null, "e": "\\ud83d\\ude00 \\udc00", "\\udfff": [["\\ud800x"]]}'
    value = parse_json_object(body.encode(), Limits())
    assert value == {"a": True, "b": 1, "c": 1.0, "d": None, "e": "\U0001f600 \ufffd", "\ufffd": [["\ufffdx"]]}
    assert type(value["b"]) is int
    assert type(value["c"]) is float


@pytest.mark.parametrize("depth", [600, 950])
def test_a_deep_body_with_a_lone_surrogate_is_refused_and_no_fault(depth: int) -> None:
    body = b'{"a": "\\ud800", "b": ' + b"[" * depth + b"]" * depth + b"}"
    with contextlib.suppress(Refused):
        assert parse_json_object(body, Limits())["a"] == "\ufffd"
    deepest = b'{"a": "\\ud800", "b": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    with pytest.raises(Refused, match="invalid JSON body"):
        parse_json_object(deepest, Limits())


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b"[]", 1),
        (b'{"a": [1, 2.5, {"b": null}]}', 7),
        (b'{"a,:[{": "\\",,,\\\\", "b": "\\\\\\",,"}', 4),
        (b'["' + b",[{:" * 100_000 + b'", "\\u005c"]', 2),
        (b'["' + b"x" * (2**16 - 4) + b'", "[[[[[[[["]', 2),
        (b"[" + b'"",' * 100_000 + b'""]', 100_001),
    ],
)
def test_the_values_of_a_body_are_counted_without_what_stands_in_strings(body: bytes, values: int) -> None:
    assert has_more_values(body, values - 1)
    assert not has_more_values(body, values)


@pytest.mark.parametrize(
    "item", [b"[]", b"{}", b'{"a":0}', b"[" * 50 + b"]" * 50, b"[" * 1900, b'"ab"', b"1.5", b'"\\ud800"']
)
def test_a_body_of_small_values_costs_little_more_memory_than_it_has_bytes(item: bytes) -> None:
    limits = Limits(body_values=2_000)
    body = b'{"x":[' + b",".join([item] * (2_000_000 // len(item))) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="more than 2,000 values and names") as refusal:
            parse_json_object(body, limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refusal.value.failure.http_status == 413
    assert peak < 2.5 * len(body) + 4 * 2**20
