"""Servers for the tests: in this process over ASGI, and real ones on a loopback port."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI

from slotstream_serve import protocol
from slotstream_serve.app import create_app
from slotstream_serve.dialects.base import Dialect, ModelFacts
from slotstream_serve.protocol import GuardedProtocol
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import Limits, ServeConfig
from slotstream_serve.testing import ScriptedEngine
from tests.serve.clocks import ShiftedLoop
from tests.serve.plain_dialect import PlainDialect

PATIENCE_S = 240.0
"""How long tests wait for what must happen: only a test that fails waits so long."""
Loop = Literal["auto", "asyncio"]
LOOPS: tuple[Loop, ...] = ("auto", "asyncio")


def model_facts(**changes: Any) -> ModelFacts:
    values: dict[str, Any] = {
        "name": "tiny:4bit",
        "names": frozenset({"tiny:4bit", "tiny"}),
        "window_tokens": 4096,
        "max_output_tokens": 1024,
        "parameters": 1000,
        "parameter_size": "1K",
        "size_bytes": 500,
        "resident_bytes": 0,
        "modified_at": 1_700_000_000.0,
        "vision": False,
        "memory_plan": {},
        "context_policy": {},
        "digest": "tiny-1",
        "family": "qwen4_exp",
        "quantization": "4bit",
    }
    return ModelFacts(**{**values, **changes})


def serve_config(**changes: Any) -> ServeConfig:
    return ServeConfig(**{"model": model_facts(), "port": 0, **changes})


def plain_dialects() -> list[Dialect]:
    return [PlainDialect(), PlainDialect("ndjson", "/plain-lines")]


def plain_app(engine: ScriptedEngine, **changes: Any) -> FastAPI:
    return create_app(engine, serve_config(**changes), dialects=plain_dialects())


def served_app(engine: ScriptedEngine, **changes: Any) -> FastAPI:
    """Return an application that speaks every dialect."""
    return create_app(engine, serve_config(**changes))


def service_of(app: FastAPI) -> Service:
    service: Service = app.state.service
    return service


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """Make one request to an application, in an event loop of its own."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:11434") as client:
            return await client.request(method, path, **options)

    return asyncio.run(request())


def sse_events(text: str) -> list[dict[str, Any]]:
    """Return the payloads of server-sent events, without comments."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


@dataclass
class LiveServer:
    """A real server on a loopback port."""

    server: SlotstreamServer
    service: Service
    engine: ScriptedEngine
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def pass_time(self, seconds: float) -> None:
        """Move the clock of a server that runs on `SHIFTED`."""
        loop = self.server.servers[0].get_loop()
        assert isinstance(loop, ShiftedLoop)
        loop.pass_time(seconds)

    def protocol_of(self, connection: socket.socket) -> GuardedProtocol | None:
        """Return the server's side of a connection, once it is there."""
        for peer in list(self.server.server_state.connections):
            if isinstance(peer, GuardedProtocol) and peer.client == connection.getsockname():
                return peer
        return None

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def live_server(
    engine: ScriptedEngine,
    *,
    limits: Limits | None = None,
    dialects: Sequence[Dialect] | None = None,
    loop: str = "auto",
    **changes: Any,
) -> Iterator[LiveServer]:
    """Serve an engine; `auto` is the event loop that `slotstream serve` finds, uvloop's where it is installed.

    With `SHIFTED` the test moves the server's clock.
    """
    config = serve_config(limits=limits or Limits(), **changes)
    patch = pytest.MonkeyPatch()
    patch.setattr(protocol, "LINGER_S", PATIENCE_S)  # a client that is slow to send still gets to read its refusal
    service = Service(Runner(lambda: engine), config, plain_dialects() if dialects is None else dialects)
    server = SlotstreamServer(service)
    server.config.loop = loop
    sock = bind(config)
    port = sock.getsockname()[1]
    thread = threading.Thread(target=server.run, args=([sock],), name="test-server")
    thread.start()
    live = LiveServer(server=server, service=service, engine=engine, port=port, thread=thread)
    try:
        wait_until(lambda: server.started)
        yield live
    finally:
        live.stop()
        patch.undo()


def wait_until(condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
    """Wait for something that another thread brings about."""
    paused = threading.Event()
    for _ in range(round(within_s / 0.005)):
        if condition():
            return
        paused.wait(0.005)
    raise AssertionError("it did not happen in time")


def read_response(connection: socket.socket) -> bytes:
    """Return one response with a content length."""
    raw = b""
    while (end := raw.find(b"\r\n\r\n")) < 0:
        raw += received(connection)
    length = next(
        int(line.split(b":")[1]) for line in raw[:end].split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    while len(raw) < end + 4 + length:
        raw += received(connection)
    return raw


def received(connection: socket.socket) -> bytes:
    piece = connection.recv(65_536)
    assert piece, "the connection closed too early"
    return piece


def read_all(connection: socket.socket) -> bytes:
    """Return what a connection still sends until it closes."""
    pieces: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def hello() -> ScriptedEngine:
    """An engine that says hello in three pieces."""
    return ScriptedEngine([["He", "llo ", "there"]])
