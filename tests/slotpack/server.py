"""A file server on loopback that keeps alive, answers ranges, records requests and misbehaves on request."""

import dataclasses
import http.server
import pathlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Self

Misbehaviour = Literal["status", "drop", "wrong bytes", "short", "long", "encoded", "whole", "other range", "hold"]

WITHIN_S = 240.0
"""How long tests wait for what must happen: only a test that fails waits so long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """How to answer the next request for a matching path.

    Attributes:
        path: Regular expression searched in the request path.
        kind: The misbehaviour.
        times: How often, before the server behaves again.
        status: Status and headers of a `status` fault.
        headers: Headers of a `status` fault.
        after_bytes: Bytes sent before a `drop` or `hold`.
    """

    path: str
    kind: Misbehaviour
    times: int = 1
    status: int = 500
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    after_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as the server saw it."""

    path: str
    range: str | None
    client_port: int
    headers: Mapping[str, str]


class FileServer:
    """Serves a directory; use it as a context manager.

    Attributes:
        seen: Every request so far, in order.
        release: Set it to let answers with a `hold` fault go on.
        sign: When set, answers /signed paths and redirects all others to them; a token serves that many requests.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.seen: list[Seen] = []
        self.release = threading.Event()
        self.held = threading.Event()
        self.sign: int | None = None
        self.endless_mib = 0
        self.on_request: Callable[[Seen], None] | None = None
        self._tokens: dict[str, int] = {}
        self._faults: list[tuple[Fault, list[int]]] = []
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.files = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, fault: Fault) -> None:
        self._faults.append((fault, [fault.times]))

    def paths(self, pattern: str) -> list[str]:
        with self._lock:
            return [item.path for item in self.seen if re.search(pattern, item.path)]

    def ports(self) -> set[int]:
        with self._lock:
            return {item.client_port for item in self.seen}

    def record(self, seen: Seen) -> Fault | None:
        """Note a request and return the fault that applies to it."""
        with self._lock:
            self.seen.append(seen)
            for fault, left in self._faults:
                if left[0] > 0 and re.search(fault.path, seen.path):
                    left[0] -= 1
                    return fault
        return None

    def issue_token(self) -> str:
        with self._lock:
            token = f"t{len(self._tokens)}"
            self._tokens[token] = self.sign or 0
            return token

    def spend_token(self, token: str) -> bool:
        with self._lock:
            self._tokens[token] = self._tokens.get(token, 0) - 1
            return self._tokens[token] >= 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        files: FileServer = self.server.files  # type: ignore[attr-defined]
        seen = Seen(
            path=self.path,
            range=self.headers.get("Range"),
            client_port=self.client_address[1],
            headers={key.lower(): value for key, value in self.headers.items()},
        )
        fault = files.record(seen)
        if files.on_request is not None:
            files.on_request(seen)
        path = self.path
        if fault is None and files.sign is not None:
            signed = re.fullmatch(r"/signed/(t\d+)(/.*)", path)
            if signed is None:
                self._empty(302, {"Location": f"/signed/{files.issue_token()}{path}"})
                return
            if not files.spend_token(signed[1]):
                self._empty(403, {})
                return
            path = signed[2]
        if fault is not None and fault.kind == "status":
            self._empty(fault.status, fault.headers)
            return
        target = files.root / path.lstrip("/")
        if not target.is_file():
            self._empty(404, {})
            return
        try:
            self._send(files, target.read_bytes(), fault)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _empty(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Transfer-Encoding" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if "Transfer-Encoding" in headers:
            self._send_endless()

    def _send_endless(self) -> None:
        """Send chunks until the client has had enough, 256 MiB at most."""
        files: FileServer = self.server.files  # type: ignore[attr-defined]
        self.close_connection = True
        try:
            for _ in range(256):
                self.wfile.write(b"100000\r\n" + bytes(2**20) + b"\r\n")
                files.endless_mib += 1
        except OSError:
            pass

    def _send(self, files: FileServer, data: bytes, fault: Fault | None) -> None:
        kind = fault.kind if fault is not None else None
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        body, whole = data, len(data)
        if wanted is not None and kind != "whole":
            first, last = int(wanted[1]), int(wanted[2])
            body = data[first : last + 1]
            self.send_response(206)
            shift = 1 if kind == "other range" else 0
            self.send_header("Content-Range", f"bytes {first + shift}-{last + shift}/{whole}")
        else:
            self.send_response(200)
        if kind == "wrong bytes":
            body = bytes(byte ^ 0x55 for byte in body)
        if kind == "encoded":
            self.send_header("Content-Encoding", "gzip")
        if kind in ("long", "short"):
            # Without a length the client can only count: the connection's end is the body's end.
            body = body + b"x" if kind == "long" else body[:-1]
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault is None or kind not in ("drop", "hold"):
            self.wfile.write(body)
            return
        self.wfile.write(body[: fault.after_bytes])
        self.wfile.flush()
        if kind == "hold":
            files.held.set()
            files.release.wait(WITHIN_S)
            self.wfile.write(body[fault.after_bytes :])
        else:
            self.close_connection = True


def serving(root: pathlib.Path) -> Iterator[FileServer]:
    """Yield a running server; for fixtures."""
    with FileServer(root) as server:
        yield server
