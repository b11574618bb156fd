"""What does the server add to the engine, and what do status requests cost a running generation?

Two processes hold the demo model: this one calls the engine, the other is `slotstream serve`.  They make the same
greedy reply in turn, so that a busy neighbour slows both.  Then the server makes it with and without a client that
asks for the status at a steady rate over four kept connections, again in turn.

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

import httpx

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.engine import Engine, load
from slotstream_core.events import TextDelta
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.text.messages import ChatMessage

PROMPT = "Tell me a short story about a fox who lost its hat."
LANES = 4
ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


@dataclass
class Times:
    """Seconds to the first text, and from it to the last, of each round."""

    first_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)

    def add(self, started: float, first: float, last: float) -> None:
        self.first_s.append(first - started)
        self.decode_s.append(last - first)


def engine_alone(engine: Engine, tokens: int, times: Times) -> None:
    started = time.perf_counter()
    ids = engine.chat_ids([ChatMessage(role="user", content=PROMPT)])
    at = [
        time.perf_counter()
        for event in engine.generate(ids, sampling=SamplingParams(temperature=0), max_tokens=tokens)
        if isinstance(event, TextDelta)
    ]
    times.add(started, at[0], at[-1])


def through_server(client: httpx.Client, tokens: int, times: Times) -> None:
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
    length = int(answer[:head].lower().split(b"content-length:")[1].split(b"\r\n")[0])
    missing = head + 4 + length - len(answer)
    while missing > 0:
        missing -= len(connection.recv(missing))


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


def excess(pairs: list[float], base: list[float]) -> float:
    """Return the median of the ratios of paired rounds, less one."""
    return statistics.median(more / less for more, less in zip(pairs, base, strict=True)) - 1


def measure(rounds: int, tokens: int, per_s: float) -> dict[str, float]:
    alone, served, calm, asked = Times(), Times(), Times(), Times()
    rates: list[float] = []
    with ExitStack() as opened:
        engine, port = opened.enter_context(load(demo_directory())), opened.enter_context(demo_server())
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False)
        opened.enter_context(client)
        engine_alone(engine, tokens, Times())
        through_server(client, tokens, Times())
        for _ in range(rounds):
            engine_alone(engine, tokens, alone)
            through_server(client, tokens, served)
        for _ in range(rounds):
            through_server(client, tokens, calm)
            with asked_for_status(port, per_s, rates):
                through_server(client, tokens, asked)
    pairs = zip(served.first_s, alone.first_s, strict=True)
    return {
        "engine_first_s": statistics.median(alone.first_s),
        "engine_decode_s": statistics.median(alone.decode_s),
        "server_first_s": statistics.median(served.first_s),
        "server_decode_s": statistics.median(served.decode_s),
        "server_added_to_first_s": statistics.median(more - less for more, less in pairs),
        "server_decode_excess_ratio": excess(served.decode_s, alone.decode_s),
        "status_requests_per_s": statistics.median(rates),
        "status_decode_excess_ratio": excess(asked.decode_s, calm.decode_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--status-per-s", type=float, default=1000.0)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    values = measure(options.rounds, options.tokens, options.status_per_s)
    rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in values.items()]
    settings = {"rounds": options.rounds, "tokens": options.tokens, "status_per_s": options.status_per_s}
    result = BenchmarkResult(benchmark="server_overhead", settings=settings, values=values)
    report(result, table=format_table(("server overhead", "median"), rows), record=options.record)


if __name__ == "__main__":
    main()
