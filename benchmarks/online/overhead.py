"""What does the server add to the engine, and what do status requests cost a running generation?

One process holds the demo model and serves it as `slotstream serve` does; in it, blocks of a few tokens of the same
reply leave the engine in different ways in turn (`benchmarks.online.alternating`):

- alone: nothing leaves the process.
- piped: the engine's thread writes each text to a bare socket in the bytes of the server's protocol, with nothing
  around it.  On few cores a client takes time from the engine, so this is what any server would cost.
- served: the text goes through the server.

A client in this process reads both.  The whole price of the server is served against alone; served against piped is
the server's own part.  Then blocks of replies through the server alternate between

- calm: nobody else asks anything.
- questioned: a process asks the server for its status at a steady rate over four kept connections.
- trivial: the same process asks a third one that answers with the same number of bytes and nothing else; so what
  asking costs on the same cores is known, too.

Each figure is the median of the ratios within single replies, with its 95% bootstrap interval.

    .venv/bin/python -m benchmarks.online.overhead [--replies N] [--first N] [--record]
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.online.alternating import Alternating, Plan, host
from benchmarks.online.status_asking import PER_S, receive
from benchmarks.pairing import Estimate, difference, excess
from benchmarks.recording import BenchmarkResult, format_table, report

PROMPT = "Tell me a long story about a fox who lost its hat."
REPLY, STATUS, ORDINARY = 2, 3, 4
PLANS = {
    REPLY: Plan(ways=("alone", "piped", "served"), block_tokens=24),
    STATUS: Plan(ways=("calm", "questioned", "trivial"), block_tokens=24),
}
FIRST_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The processes of a run.

    Attributes:
        served: The process with the engine and the server.
        port: Of the server.
        asker: The process that asks for the status.
    """

    served: subprocess.Popen[str]
    port: int
    asker: subprocess.Popen[str]

    def reply(self, seed: int, tokens: int) -> float:
        """Ask for a reply, read all of it, and return after how long its first text was there."""
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": PROMPT}],
            "stream": True,
            "options": {"temperature": 0, "num_predict": tokens, "seed": seed},
        }
        text = json.dumps(body).encode()
        head = f"POST /api/chat HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Length: {len(text)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            started = time.perf_counter()
            connection.sendall(head.encode() + text)
            heard = receive(connection)
            while b"\r\n\r\n" not in heard:
                heard += receive(connection)
            if not heard.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the server refused: {heard!r}")
            while b'"content"' not in heard:
                heard += receive(connection)
            first_s = time.perf_counter() - started
            while not heard.endswith(b"0\r\n\r\n"):
                heard = (heard + receive(connection))[-4096:]
        if b'"done":true' not in heard:
            raise SystemExit(f"the reply failed: {heard!r}")
        return first_s

    def said(self) -> dict[str, float]:
        """Return what the served process says next."""
        assert self.served.stdout is not None
        values: dict[str, float] = json.loads(self.served.stdout.readline())
        return values


@contextmanager
def running(*words: str, output: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Run a module of this folder until the block ends."""
    pipe = subprocess.PIPE if output else None
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdout=pipe, stderr=None, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def bench() -> Iterator[Bench]:
    """Start every process."""
    with ExitStack() as opened:
        served = opened.enter_context(running("benchmarks.online.overhead", "--host"))
        responder = opened.enter_context(running("benchmarks.online.status_asking", "respond"))
        assert served.stdout is not None
        assert responder.stdout is not None
        ports: dict[str, int] = json.loads(served.stdout.readline())
        bare = opened.enter_context(socket.create_connection(("127.0.0.1", ports["bare"])))
        threading.Thread(target=read_all, args=(bare,), daemon=True).start()
        targets = {"questioned": ports["port"], "trivial": json.loads(responder.stdout.readline())["port"]}
        words = ("ask", str(ports["control"]), json.dumps(targets))
        asker = opened.enter_context(running("benchmarks.online.status_asking", *words))
        wait_for(ports["port"])
        yield Bench(served=served, port=ports["port"], asker=asker)


def read_all(connection: socket.socket) -> None:
    """Read as the client of a reply does, until the other side or this program ends."""
    while connection.recv(65_536):
        pass


def wait_for(port: int) -> None:
    """Wait until something listens on a port."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return


def alternated(opened: Bench, seed: int, replies: int) -> dict[str, list[float]]:
    """Return seconds a token of each way, one entry a reply; the first reply warms up."""
    seconds: dict[str, list[float]] = {way: [] for way in PLANS[seed].ways}
    for turn in range(replies + 1):
        opened.reply(seed, PLANS[seed].tokens)
        said = opened.said()
        for way, interval_s in said.items():
            if turn:
                seconds[way].append(interval_s)
    return seconds


def firsts(opened: Bench, pairs: int) -> tuple[list[float], list[float]]:
    """Return seconds to the first text, of the engine alone and through the server, in turn."""
    alone, served = [], []
    for pair in range(pairs + 1):
        ways = [Alternating.FIRST, ORDINARY] if pair % 2 else [ORDINARY, Alternating.FIRST]
        for way in ways:
            first_s = opened.reply(way, FIRST_TOKENS)
            if way == ORDINARY:
                served.append(first_s)
            else:
                alone.append(opened.said()["first_s"])
    return alone[1:], served[1:]


def measure(replies: int, pairs: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Return the values to record, and the rows to print."""
    with bench() as opened:
        alone, served = firsts(opened, pairs)
        ways = alternated(opened, REPLY, replies)
        asked = alternated(opened, STATUS, max(1, replies // 2))
        opened.served.terminate()
        rates, _ = opened.asker.communicate(timeout=30)
    values = {"engine_token_s": statistics.median(ways["alone"]), "engine_first_s": statistics.median(alone)}
    rows = [
        ("engine alone: a token", f"{1e3 * values['engine_token_s']:.3f} ms"),
        ("engine alone: the first", f"{1e3 * values['engine_first_s']:.1f} ms"),
    ]
    first = difference(served, alone)
    values |= first.values("server_added_to_first_s")
    rows.append(("server: added to the first", shown(first, 1e3, " ms")))
    figures = {
        "server_decode_excess_ratio": ("server: added to a token", excess(ways["served"], ways["alone"])),
        "client_decode_excess_ratio": ("of that, a bare sender and its client", excess(ways["piped"], ways["alone"])),
        "server_own_decode_excess_ratio": ("of that, the server's own", excess(ways["served"], ways["piped"])),
        "status_decode_excess_ratio": ("status requests: added to a token", excess(asked["questioned"], asked["calm"])),
        "asking_decode_excess_ratio": ("the same requests to another process", excess(asked["trivial"], asked["calm"])),
    }
    for name, (words, figure) in figures.items():
        values |= figure.values(name)
        rows.append((words, shown(figure, 100, "%")))
    for name, rate in json.loads(rates).items():
        values[f"{name}_requests_per_s"] = rate
        rows.append((f"requests a second ({name})", f"{rate:.0f}"))
    return values, rows


def shown(figure: Estimate, factor: float, unit: str) -> str:
    return f"{factor * figure.median:+.2f}{unit} ({factor * figure.low:+.2f} to {factor * figure.high:+.2f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replies", type=int, default=120, help="replies whose tokens go three ways")
    parser.add_argument("--first", type=int, default=40, help="pairs of first texts")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.host:
        host(PLANS)
        return
    values, rows = measure(options.replies, options.first)
    settings: dict[str, Any] = {"replies": options.replies, "first": options.first, "status_per_s": PER_S}
    settings |= {f"{way}_block_tokens": plan.block_tokens for plan in PLANS.values() for way in plan.ways}
    table = format_table(("server overhead", "median (95% interval)"), rows)
    report(
        BenchmarkResult(benchmark="server_overhead", settings=settings, values=values),
        table=table,
        record=options.record,
    )


if __name__ == "__main__":
    main()
