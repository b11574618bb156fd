"""One connection against a server that misbehaves: retries, waits, redirects, exact lengths, cancellation."""

import pathlib
import threading
from collections.abc import Iterator

import pytest

from slotpack.cancellation import Cancellation
from slotpack.errors import ObjectUnavailable, PullCancelled, TransferError
from slotpack.transport import Connection, ConnectionCounter, RedirectCache, Request
from tests.slotpack.clocks import FakeClock
from tests.slotpack.server import WITHIN_S, Fault, FileServer, serving

BODY = bytes(range(256)) * 40


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[FileServer]:
    (tmp_path / "object").write_bytes(BODY)
    yield from serving(tmp_path)


class Client:
    """A connection with everything that it shares."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cancel = Cancellation()
        self.counter = ConnectionCounter()
        self.redirects = RedirectCache()
        self.connection = Connection(
            cancel=self.cancel, clock=self.clock, counter=self.counter, redirects=self.redirects
        )

    def fetch(self, server: FileServer, size: int = len(BODY)) -> bytes:
        return bytes(self.connection.fetch(Request(url=f"{server.base}/object", size_bytes=size)))

    def fetch_range(self, server: FileServer, offset: int, size: int) -> bytes:
        request = Request(url=f"{server.base}/object", size_bytes=size, offset_bytes=offset, whole_bytes=len(BODY))
        return bytes(self.connection.fetch(request))


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.connection.close()


def test_requests_share_one_connection_and_ask_for_plain_bytes(server: FileServer, client: Client) -> None:
    assert client.fetch(server) == BODY
    assert client.fetch_range(server, 100, 50) == BODY[100:150]
    assert client.fetch_range(server, 0, len(BODY)) == BODY
    assert len(server.ports()) == 1
    assert {item.headers["accept-encoding"] for item in server.seen} == {"identity"}
    assert client.counter.peak == 1
    assert client.counter.in_use == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(path="object", kind="status", status=500),
        Fault(path="object", kind="status", status=503),
        Fault(path="object", kind="status", status=408),
        Fault(path="object", kind="drop", after_bytes=1000),
        Fault(path="object", kind="drop"),
        Fault(path="object", kind="short"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}-{fault.after_bytes}",
)
def test_a_passing_failure_is_retried_with_growing_waits(server: FileServer, client: Client, fault: Fault) -> None:
    server.fail(fault)
    server.fail(fault)
    assert client.fetch(server) == BODY
    assert client.clock.sleeps == [1.0, 2.0]
    assert client.counter.retries == 2


def test_the_fourth_failure_is_the_last(server: FileServer, client: Client) -> None:
    server.fail(Fault(path="object", kind="status", status=503, times=99))
    with pytest.raises(TransferError, match=r"4 times.*HTTP 503"):
        client.fetch(server)
    assert len(server.seen) == 4
    assert client.clock.sleeps == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 416])
def test_a_refusal_is_final(server: FileServer, client: Client, status: int) -> None:
    server.fail(Fault(path="object", kind="status", status=status))
    with pytest.raises(ObjectUnavailable, match=str(status)) as caught:
        client.fetch(server)
    assert caught.value.status == status
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["long", "encoded"])
def test_an_answer_of_another_shape_is_final(server: FileServer, client: Client, kind: str) -> None:
    assert kind in ("long", "encoded")
    server.fail(Fault(path="object", kind="long" if kind == "long" else "encoded"))
    with pytest.raises(TransferError):
        client.fetch(server)
    assert len(server.seen) == 1


def test_a_declared_length_that_differs_is_final(server: FileServer, client: Client) -> None:
    with pytest.raises(TransferError, match="10240 bytes"):
        client.fetch(server, size=len(BODY) - 1)
    assert len(server.seen) == 1


@pytest.mark.parametrize("kind", ["whole", "other range"])
def test_a_range_must_be_exactly_the_one_asked_for(server: FileServer, client: Client, kind: str) -> None:
    server.fail(Fault(path="object", kind="whole" if kind == "whole" else "other range"))
    with pytest.raises(TransferError, match="range"):
        client.fetch_range(server, 5, 10)


def test_a_plain_answer_is_fine_for_a_range_of_everything(server: FileServer, client: Client) -> None:
    server.fail(Fault(path="object", kind="whole"))
    assert client.fetch_range(server, 0, len(BODY)) == BODY


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"api";r=0;t=20'}, 21.0),
        ({"Retry-After": "Fri, 15 Jan 2027 08:00:30 GMT"}, 30.0),
        ({"Retry-After": "nonsense"}, 300.0),
        ({"Retry-After": "90000"}, 600.0),
        ({}, 300.0),
    ],
)
def test_a_rate_limit_waits_as_long_as_asked(
    server: FileServer, client: Client, headers: dict[str, str], wait: float
) -> None:
    server.fail(Fault(path="object", kind="status", status=429, headers=headers))
    assert client.fetch(server) == BODY
    assert client.clock.sleeps == [wait]


def test_a_rate_limit_wait_ends_at_once_on_cancellation(server: FileServer, client: Client) -> None:
    server.fail(Fault(path="object", kind="status", status=429))
    client.clock.cancel_on_sleep = True
    with pytest.raises(PullCancelled):
        client.fetch(server)
    assert len(server.seen) == 1


def test_a_signed_redirect_is_remembered_and_renewed_when_it_expires(server: FileServer, client: Client) -> None:
    server.sign = 2
    for _ in range(5):
        assert client.fetch_range(server, 10, 20) == BODY[10:30]
    asked = [item.path for item in server.seen]
    assert asked.count("/object") == 3
    assert client.clock.sleeps == []


def test_a_403_without_a_remembered_redirect_is_final(server: FileServer, client: Client) -> None:
    server.sign = 0
    with pytest.raises(ObjectUnavailable, match="403"):
        client.fetch(server)


def test_messages_do_not_show_signatures(server: FileServer, client: Client) -> None:
    request = Request(url=f"{server.base}/gone?Signature=secret", size_bytes=1)
    with pytest.raises(ObjectUnavailable) as caught:
        client.connection.fetch(request)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "/object", "http://[", ""])
def test_a_redirect_that_cannot_be_followed_is_refused(server: FileServer, client: Client, location: str) -> None:
    server.fail(Fault(path="object", kind="status", status=302, headers={"Location": location}, times=9))
    with pytest.raises(TransferError):
        client.fetch(server)


def test_a_redirect_with_an_endless_body_is_not_read(
    server: FileServer, client: Client, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(BODY)
    endless = {"Location": "/elsewhere", "Transfer-Encoding": "chunked"}
    server.fail(Fault(path="object", kind="status", status=302, headers=endless))
    assert client.fetch(server) == BODY
    assert server.endless_mib < 32


def test_the_redirecting_host_stays_connected_beside_the_one_with_the_bytes(
    server: FileServer, client: Client, tmp_path: pathlib.Path
) -> None:
    with FileServer(tmp_path) as store:
        location = {"Location": f"{store.base}/object"}
        server.fail(Fault(path="object", kind="status", status=302, headers=location, times=3))
        for _ in range(3):
            assert client.fetch(server) == BODY
            client.redirects.drop(f"{server.base}/object")
        assert (len(server.ports()), len(store.ports())) == (1, 1)
    assert client.counter.peak == 1


def test_a_redirect_loop_ends(server: FileServer, client: Client) -> None:
    server.fail(Fault(path="object", kind="status", status=302, headers={"Location": "/b"}, times=99))
    server.fail(Fault(path="/b", kind="status", status=302, headers={"Location": "/object"}, times=99))
    with pytest.raises(TransferError, match="redirects more than"):
        client.fetch(server)


def test_a_refused_port_is_retried_then_reported(client: Client) -> None:
    with pytest.raises(TransferError, match="4 times"):
        client.connection.fetch(Request(url="http://127.0.0.1:9/x", size_bytes=1))
    assert client.clock.sleeps == [1.0, 2.0, 4.0]


def test_cancellation_ends_a_blocked_read(server: FileServer, client: Client) -> None:
    server.fail(Fault(path="object", kind="hold", after_bytes=10))
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            client.fetch(server)
        except PullCancelled as error:
            failures.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert server.held.wait(WITHIN_S)
    client.cancel.cancel()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert len(failures) == 1
    assert not server.release.is_set()


def test_a_stream_slower_than_the_limit_is_given_up(server: FileServer, client: Client) -> None:
    """The limit is the larger of 120 s and 20 times the expected time."""
    reads = iter([0.0])
    client.clock.monotonic = lambda: next(reads, 121.0)  # type: ignore[method-assign]
    assert client.fetch(server) == BODY
    assert client.clock.sleeps == [1.0]
    assert len(server.seen) == 2


def test_a_document_of_unknown_length_is_bounded(server: FileServer, client: Client) -> None:
    url = f"{server.base}/object"
    assert client.connection.fetch_document(url, len(BODY)) == BODY
    with pytest.raises(TransferError, match="more than"):
        client.connection.fetch_document(url, len(BODY) - 1)
