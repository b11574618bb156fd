"""What does the server add to the engine, and what do status requests cost a running generation?

Two processes besides this one hold the demo model: an engine on its own, and `slotstream serve`.  They make the same
greedy reply in turn, so that a busy neighbour slows all ways alike:

- alone: the engine's process times its own events; nothing leaves it.
- piped: the same engine writes each text to a socket in the bytes of the server's protocol, with nothing else around
  it; this process reads them with the client that it also uses for the server.  On few cores a client takes time from
  the engine, so this is what any server would cost.
- served: the client reads from `slotstream serve`.

The whole price of the server is served against alone; served against piped is the server's own part of it.  Then the
server makes the reply with and without a client that asks for the status at a steady rate over four kept connections,
again in turn.

    .venv/bin/python -m benchmarks.online.overhead [--rounds N] [--tokens N] [--record]
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.engine import Engine, load
from slotstream_core.events import TextDelta
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.text.messages import ChatMessage

PROMPT = "Tell me a short story about a fox who lost its hat."
LANES = 4
CLIENT: dict[str, Any] = {"timeout": 120, "trust_env": False, "limits": httpx.Limits(keepalive_expiry=None)}
LINE = (
    '{"model":"demo","created_at":"2026-01-01T00:00:00.000000Z",'
    '"message":{"role":"assistant","content":%s},"done":%s}\n'
)
ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


@dataclass
class Times:
    """Seconds to the first text, and from it to the last, of each round."""

    first_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)

    def add(self, started: float, first: float, last: float) -> None:
        self.first_s.append(first - started)
        self.decode_s.append(last - first)


def host_engine() -> None:
    """Hold an engine and obey lines of standard input: `alone TOKENS` or `piped TOKENS`; answer each with its times.

    Piped replies go to the one client of a listening socket, whose port is the first line of the output; it has to
    connect before anything else is done.
    """
    with load(demo_directory()) as engine, socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            for line in sys.stdin:
                way, tokens = line.split()
                if way == "piped":
                    pipe_reply(engine, int(tokens), connection)
                else:
                    print(*time_reply(engine, int(tokens)), flush=True)


def reply_texts(engine: Engine, tokens: int) -> Iterator[str]:
    ids = engine.chat_ids([ChatMessage(role="user", content=PROMPT)])
    for event in engine.generate(ids, sampling=SamplingParams(temperature=0), max_tokens=tokens):
        if isinstance(event, TextDelta):
            yield event.text


def time_reply(engine: Engine, tokens: int) -> tuple[float, float, float]:
    """Return when a reply was asked for, and when its first and its last text were there."""
    started = time.perf_counter()
    at = [time.perf_counter() for _text in reply_texts(engine, tokens)]
    return started, at[0], at[-1]


def pipe_reply(engine: Engine, tokens: int, connection: socket.socket) -> None:
    """Answer a request with a reply in Ollama's lines."""
    request = b""
    while (head := request.find(b"\r\n\r\n")) < 0 or len(request) < head + 4 + content_length(request[:head]):
        if not (piece := connection.recv(65_536)):
            raise SystemExit("the client closed the connection")
        request += piece
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n")
    for text in reply_texts(engine, tokens):
        connection.sendall(chunk(LINE % (json.dumps(text, ensure_ascii=False), "false")))
    connection.sendall(chunk(LINE % ('""', "true")) + b"0\r\n\r\n")


def chunk(text: str) -> bytes:
    body = text.encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def through_client(client: httpx.Client, tokens: int, times: Times) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "options": {"temperature": 0, "num_predict": tokens},
    }
    at = []
    started = time.perf_counter()
    with client.stream("POST", "/api/chat", json=body) as response:
        for line in response.iter_lines():
            if json.loads(line)["message"]["content"]:
                at.append(time.perf_counter())
    times.add(started, at[0], at[-1])


class HostedEngine:
    """The process of an engine on its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._commands, self._answers = process.stdin, process.stdout
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{int(self._answers.readline())}", **CLIENT)

    def alone(self, tokens: int, times: Times) -> None:
        self._say(f"alone {tokens}")
        started, first, last = map(float, self._answers.readline().split())
        times.add(started, first, last)

    def piped(self, tokens: int, times: Times) -> None:
        self._say(f"piped {tokens}")
        through_client(self.client, tokens, times)

    def _say(self, command: str) -> None:
        self._commands.write(f"{command}\n")
        self._commands.flush()


@contextmanager
def hosted_engine() -> Iterator[HostedEngine]:
    """Start an engine in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.online.overhead", "--host-engine"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        hosted = HostedEngine(process)
        with hosted.client:
            yield hosted


def ask_status(port: int, per_s: float, stop: threading.Event) -> int:
    """Ask at a steady rate until told to stop; return how many answers came.

    Blocking sockets in one thread cost this machine the least, and what the client takes is the generation's loss too.
    """
    request = f"GET /slotstream/status HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    answers = 0
    with ExitStack() as opened:
        lanes = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(LANES)]
        began = time.perf_counter()
        while not stop.is_set():
            if (early := began + answers / per_s - time.perf_counter()) > 0:
                time.sleep(early)
            for lane in lanes:
                lane.sendall(request)
            for lane in lanes:
                read_answer(lane)
            answers += LANES
    return answers


def read_answer(connection: socket.socket) -> None:
    """Read one whole answer."""
    answer = connection.recv(65_536)
    head = answer.find(b"\r\n\r\n")
    missing = head + 4 + content_length(answer[:head]) - len(answer)
    while missing > 0:
        missing -= len(connection.recv(missing))


def content_length(head: bytes) -> int:
    """Return how long the body is that follows the head of a request or an answer."""
    return int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])


@contextmanager
def asked_for_status(port: int, per_s: float, rates: list[float]) -> Iterator[None]:
    """Let a client ask meanwhile, and note the rate it reached."""
    stop = threading.Event()
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(ask_status(port, per_s, stop)))
    started = time.perf_counter()
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    rates.append(answers[0] / (time.perf_counter() - started))


@contextmanager
def demo_server() -> Iterator[int]:
    """Start `slotstream serve` on the demo model and yield its port."""
    command = [sys.executable, "-m", "slotstream_cli", "serve", "--model", "demo", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        port = next(int(found[1]) for line in process.stderr if (found := ADDRESS.search(line)))
        drain = threading.Thread(target=process.stderr.read)
        drain.start()
        try:
            yield port
        finally:
            process.terminate()
            drain.join()


def later(pairs: list[float], base: list[float]) -> float:
    """Return the median of the differences of paired rounds, in seconds."""
    return statistics.median(more - less for more, less in zip(pairs, base, strict=True))


def excess(pairs: list[float], base: list[float]) -> float:
    """Return the median of the ratios of paired rounds, less one."""
    return statistics.median(more / less for more, less in zip(pairs, base, strict=True)) - 1


def measure(rounds: int, tokens: int, per_s: float) -> dict[str, float]:
    alone, piped, served, calm, asked = Times(), Times(), Times(), Times(), Times()
    rates: list[float] = []
    with ExitStack() as opened:
        hosted, port = opened.enter_context(hosted_engine()), opened.enter_context(demo_server())
        client = opened.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", **CLIENT))
        hosted.piped(tokens, Times())
        hosted.alone(tokens, Times())
        through_client(client, tokens, Times())
        for _ in range(rounds):
            hosted.alone(tokens, alone)
            hosted.piped(tokens, piped)
            through_client(client, tokens, served)
        for _ in range(rounds):
            through_client(client, tokens, calm)
            with asked_for_status(port, per_s, rates):
                through_client(client, tokens, asked)
    return {
        "engine_first_s": statistics.median(alone.first_s),
        "engine_decode_s": statistics.median(alone.decode_s),
        "piped_first_s": statistics.median(piped.first_s),
        "piped_decode_s": statistics.median(piped.decode_s),
        "server_first_s": statistics.median(served.first_s),
        "server_decode_s": statistics.median(served.decode_s),
        "server_added_to_first_s": later(served.first_s, alone.first_s),
        "server_decode_excess_ratio": excess(served.decode_s, alone.decode_s),
        "client_added_to_first_s": later(piped.first_s, alone.first_s),
        "client_decode_excess_ratio": excess(piped.decode_s, alone.decode_s),
        "server_own_added_to_first_s": later(served.first_s, piped.first_s),
        "server_own_decode_excess_ratio": excess(served.decode_s, piped.decode_s),
        "status_requests_per_s": statistics.median(rates),
        "status_decode_excess_ratio": excess(asked.decode_s, calm.decode_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--status-per-s", type=float, default=1000.0)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--host-engine", action="store_true", help="be the engine's process")
    options = parser.parse_args()
    if options.host_engine:
        host_engine()
        return
    values = measure(options.rounds, options.tokens, options.status_per_s)
    rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in values.items()]
    settings = {"rounds": options.rounds, "tokens": options.tokens, "status_per_s": options.status_per_s}
    result = BenchmarkResult(benchmark="server_overhead", settings=settings, values=values)
    report(result, table=format_table(("server overhead", "median"), rows), record=options.record)


if __name__ == "__main__":
    main()
