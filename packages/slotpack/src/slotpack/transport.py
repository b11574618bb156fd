"""HTTP for one worker: one client, one HTTP/1.1 transfer at a time, retries, rate limits, signed redirects.

Each worker owns a `Connection`.  HTTP/2 would carry every request of a client over one TCP connection, so it stays
off, and no two workers share a client: as many connections are open as are claimed, and `ConnectionCounter` counts
the ones that really carry a transfer.
"""

import collections
import contextlib
import dataclasses
import functools
import re
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import httpx

from slotpack.cancellation import Cancellation, Clock
from slotpack.errors import ObjectUnavailable, TransferError
from slotpack.throttling import ATTEMPTS, backoff_s, throttle_wait_s

REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 20.0
MIN_TRANSFER_S = 120.0
EXPECTED_BYTES_PER_S = 10**6
MAX_REDIRECTS = 5
MAX_REDIRECT_BODY_BYTES = 65536
SOCKETS_A_CLIENT = 2
_REDIRECTS = (301, 302, 303, 307, 308)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to fetch.

    Attributes:
        url: Absolute http or https URL.
        size_bytes: Exact length of the bytes asked for.
        offset_bytes: Start of the range, or None for the whole resource.
        whole_bytes: Length of the whole resource; needed for a range.
        is_limit: Whether `size_bytes` is only an upper limit, for documents of unknown length.
    """

    url: str
    size_bytes: int
    offset_bytes: int | None = None
    whole_bytes: int = 0
    is_limit: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a plain 200 answer holds exactly what was asked for."""
        return self.offset_bytes is None or (self.offset_bytes == 0 and self.size_bytes == self.whole_bytes)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the certificates to trust, read once for all connections: it takes tens of milliseconds."""
    return httpx.create_ssl_context()


class RedirectCache:
    """Signed redirect targets by original URL, in memory only; shared by all workers."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        self._lock = threading.Lock()

    def get(self, url: str) -> str | None:
        """Return the remembered target."""
        with self._lock:
            return self._targets.get(url)

    def put(self, url: str, target: str) -> None:
        """Remember a target."""
        with self._lock:
            self._targets[url] = target

    def drop(self, url: str) -> None:
        """Forget a target that stopped working."""
        with self._lock:
            self._targets.pop(url, None)


class ConnectionCounter:
    """Counts transfers and the sockets that carry them.

    Attributes:
        received_bytes: Bytes of bodies received, failed attempts included.
        retries: Attempts after the first of any request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[object, int] = {}
        self.received_bytes = 0
        self.retries = 0
        self.peak = 0

    @property
    def in_use(self) -> int:
        """Sockets that carry a transfer right now."""
        with self._lock:
            return len(self._sockets)

    @contextlib.contextmanager
    def using(self, address: object) -> Iterator[None]:
        """Count the socket of that local address while the block runs."""
        with self._lock:
            self._sockets[address] = self._sockets.get(address, 0) + 1
            self.peak = max(self.peak, len(self._sockets))
        try:
            yield
        finally:
            with self._lock:
                self._sockets[address] -= 1
                if not self._sockets[address]:
                    del self._sockets[address]

    def add_bytes(self, count: int) -> None:
        """Add received bytes."""
        with self._lock:
            self.received_bytes += count

    def add_retry(self) -> None:
        """Count a repeated attempt."""
        with self._lock:
            self.retries += 1


class _Retryable(Exception):
    """An attempt failed in a way that another may not; carries the wait before it."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _ExpiredRedirect(Exception):
    """A remembered redirect target refused; ask the original URL again."""


class Connection:
    """One worker's connection.  Use it from one thread; only cancellation may come from another.

    Args:
        cancel: Stops waits and blocked reads.
        clock: Time source.
        counter: Shared counts.
        redirects: Shared cache of signed targets.
    """

    def __init__(
        self, *, cancel: Cancellation, clock: Clock, counter: ConnectionCounter, redirects: RedirectCache
    ) -> None:
        self._cancel = cancel
        self._clock = clock
        self._counter = counter
        self._redirects = redirects
        self._streams: collections.deque[Any] = collections.deque(maxlen=2 * SOCKETS_A_CLIENT)
        self._client: httpx.Client | None = None

    def _open_client(self) -> httpx.Client:
        """Return the client, made at first use: a pull from local files needs none."""
        if self._client is None:
            self._client = httpx.Client(
                http1=True,
                http2=False,
                verify=_tls_context(),
                # One transfer at a time; the second socket keeps the host that hands out redirects connected.
                limits=httpx.Limits(max_connections=SOCKETS_A_CLIENT, max_keepalive_connections=SOCKETS_A_CLIENT),
                timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                follow_redirects=False,
                headers={"User-Agent": "slotpack", "Accept-Encoding": "identity"},
            )
        return self._client

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def fetch(self, request: Request) -> bytes | bytearray:
        """Return exactly the bytes asked for, after at most four attempts.

        Raises:
            ObjectUnavailable: On a 4xx status other than 408 and 429.
            TransferError: When the server's answer cannot be used or every attempt failed.
            PullCancelled: On cancellation, at once.
        """
        reason = "no attempt was made"
        for attempt in range(ATTEMPTS):
            self._cancel.raise_if_cancelled()
            if attempt:
                self._counter.add_retry()
            try:
                return self._attempt(request)
            except _Retryable as failure:
                reason = str(failure)
                wait_s = backoff_s(attempt) if failure.wait_s is None else failure.wait_s
            except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as failure:
                self._cancel.raise_if_cancelled()
                reason = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
                wait_s = backoff_s(attempt)
            if attempt + 1 < ATTEMPTS:
                self._clock.sleep(wait_s, self._cancel)
        raise TransferError(f"{_shown(request.url)} failed {ATTEMPTS} times, the last time with: {reason}")

    def fetch_document(self, url: str, limit_bytes: int) -> bytes:
        """Return a whole resource of unknown length, refusing more than `limit_bytes`.

        Raises:
            TransferError: As `fetch`.
        """
        return bytes(self.fetch(Request(url=url, size_bytes=limit_bytes, is_limit=True)))

    def _attempt(self, request: Request) -> bytearray:
        remembered = self._redirects.get(request.url)
        if remembered is not None:
            try:
                return self._exchange(request, remembered, through_redirect=True)
            except _ExpiredRedirect:
                self._redirects.drop(request.url)
                self._counter.add_retry()
        return self._exchange(request, request.url, through_redirect=False)

    def _exchange(self, request: Request, url: str, *, through_redirect: bool) -> bytearray:
        for _hop in range(MAX_REDIRECTS + 1):
            headers = {}
            if request.offset_bytes is not None:
                last = request.offset_bytes + request.size_bytes - 1
                headers["Range"] = f"bytes={request.offset_bytes}-{last}"
            with (
                self._cancel.calling(self._abort),
                self._open_client().stream("GET", url, headers=headers, extensions={"trace": self._trace}) as response,
            ):
                if response.status_code not in _REDIRECTS:
                    self._check_status(request, response, through_redirect=through_redirect)
                    return self._read(request, response)
                url = _redirect_target(request, url, response)
                self._redirects.put(request.url, url)
                if _is_short(response):
                    response.read()  # keeps the connection; a longer body is left behind with it
        raise TransferError(f"{_shown(request.url)} redirects more than {MAX_REDIRECTS} times")

    def _check_status(self, request: Request, response: httpx.Response, *, through_redirect: bool) -> None:
        status = response.status_code
        if status == 206 or (status == 200 and request.is_whole):
            return
        if through_redirect and status in (401, 403):
            raise _ExpiredRedirect
        if status == 429:
            raise _Retryable("HTTP 429", throttle_wait_s(response.headers, self._clock.wall()))
        if status == 408 or status >= 500:
            raise _Retryable(f"HTTP {status}")
        if status == 200:
            raise TransferError(f"{_shown(request.url)} ignored the requested range and answered with the whole file")
        raise ObjectUnavailable(f"{_shown(request.url)} answered HTTP {status}", status=status)

    def _read(self, request: Request, response: httpx.Response) -> bytearray:
        _check_headers(request, response)
        deadline = self._clock.monotonic() + max(MIN_TRANSFER_S, 20 * request.size_bytes / EXPECTED_BYTES_PER_S)
        # Filled in place: growing it piece by piece and copying it at the end would cost more than receiving it.
        body = bytearray(0 if request.is_limit else request.size_bytes)
        count = 0
        with self._counter.using(self._local_address(response)):
            for piece in response.iter_raw():
                self._cancel.raise_if_cancelled()
                self._counter.add_bytes(len(piece))
                if count + len(piece) > request.size_bytes:
                    raise TransferError(
                        f"{_shown(request.url)} sent more than the expected {request.size_bytes:,} bytes"
                    )
                body[count : count + len(piece)] = piece
                count += len(piece)
                if self._clock.monotonic() > deadline:
                    raise _Retryable(f"only {count:,} of {request.size_bytes:,} bytes came in time")
        self._cancel.raise_if_cancelled()
        if count != request.size_bytes and not request.is_limit:
            raise _Retryable(f"the connection ended after {count:,} of {request.size_bytes:,} bytes")
        return body

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams.append(info.get("return_value"))

    def _local_address(self, response: httpx.Response) -> object:
        stream = response.extensions.get("network_stream")
        return stream.get_extra_info("client_addr") if stream is not None else id(self)

    def _abort(self) -> None:
        """End a blocked read from the cancelling thread: the reader then sees the end of the stream."""
        for stream in list(self._streams):
            raw = stream.get_extra_info("socket")
            if raw is not None:
                with contextlib.suppress(OSError, ValueError):
                    # The base class's method: an SSL socket's own would also drop the state that the reader is using.
                    socket.socket.shutdown(raw, socket.SHUT_RDWR)


def _check_headers(request: Request, response: httpx.Response) -> None:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise TransferError(
            f"{_shown(request.url)} answered with content encoding {encoding!r}, which was not asked for"
        )
    length = response.headers.get("content-length")
    if length is not None and length != str(request.size_bytes) and not request.is_limit:
        raise TransferError(f"{_shown(request.url)} holds {length} bytes, not the expected {request.size_bytes:,}")
    if response.status_code == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        begin = request.offset_bytes or 0
        expected = (begin, begin + request.size_bytes - 1, request.whole_bytes or request.size_bytes)
        if found is None or tuple(int(number) for number in found.groups()) != expected:
            raise TransferError(f"{_shown(request.url)} answered with another range than the one asked for")


def _is_short(response: httpx.Response) -> bool:
    """Tell whether a redirect's body is declared, and short enough to read only to keep the connection."""
    length = response.headers.get("content-length", "")
    return "transfer-encoding" not in response.headers and length.isdigit() and int(length) <= MAX_REDIRECT_BODY_BYTES


def _redirect_target(request: Request, url: str, response: httpx.Response) -> str:
    refusal = TransferError(f"{_shown(request.url)} redirects to an address that cannot be followed")
    try:
        target = urllib.parse.urljoin(url, str(response.headers.get("location", "")))
        old, new = urllib.parse.urlsplit(url), urllib.parse.urlsplit(target)
    except ValueError as error:
        raise refusal from error
    if target == url or new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme != "https"):
        raise refusal
    return target


def _shown(url: str) -> str:
    """Return a URL without query and credentials, fit for a message: signed queries are secrets."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
