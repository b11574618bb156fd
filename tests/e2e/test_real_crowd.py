"""Clients that come and leave at a real engine: its pool stays sound and its next reply is what it was."""

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from slotstream_core.engine import Engine, load
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.facts import describe_checkpoint
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import Limits, ServeConfig
from tests.serve.conftest import PATIENCE_S, wait_until

CLIENTS = 200
CONNECTED = 30
TOKENS = 4
GROWTH_BYTES = 48 * 2**20
STAYS = next(number for number in range(CONNECTED) if random.Random(number).choice([1, 2, 1000]) == 1000)


@dataclass(frozen=True, kw_only=True)
class RealServer:
    """A server in this process around a real engine."""

    engine: Engine
    runner: Runner
    url: str

    def settle(self) -> None:
        """Wait until nothing runs or waits."""
        wait_until(lambda: self.runner.running is None and self.runner.queued == 0)


@contextlib.contextmanager
def real_server(model: Path) -> Iterator[RealServer]:
    with load(model) as engine:
        # those who left a moment ago still count as connected: nobody shall be turned away for them
        config = ServeConfig(model=describe_checkpoint(model, name="demo"), port=0, limits=Limits(connections=10_000))
        runner = Runner(lambda: engine, closes_engine=False)
        server = SlotstreamServer(Service(runner, config, all_dialects()))
        with bind(config) as listener:
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                wait_until(lambda: server.started)
                yield RealServer(engine=engine, runner=runner, url=f"http://127.0.0.1:{listener.getsockname()[1]}")
            finally:
                server.should_exit = True
                thread.join(PATIENCE_S)
        engine._loaded.experts.pool.check_integrity()


def visit(url: str, number: int, patience: int | None = None) -> str | None:
    """Stream one reply; return its text, or None when the client left after its first lines."""
    patience = patience or random.Random(number).choice([1, 2, 1000])
    options = {"temperature": 0, "num_predict": TOKENS}
    body = {"model": "demo", "messages": [{"role": "user", "content": f"Hello, {number}"}], "options": options}
    words = []
    with (
        httpx.Client(base_url=url, timeout=PATIENCE_S * 4, trust_env=False) as client,
        client.stream("POST", "/api/chat", json=body) as response,
    ):
        assert response.status_code == 200
        for line in response.iter_lines():
            words.append(json.loads(line)["message"]["content"])
            if len(words) == patience:
                return None
    return "".join(words)


def test_thirty_clients_at_once_leave_the_engine_sound(demo_model: Path) -> None:
    with real_server(demo_model) as server:
        before = visit(server.url, STAYS)
        with ThreadPoolExecutor(CONNECTED) as crowd:
            replies = list(crowd.map(lambda number: visit(server.url, number), range(CONNECTED)))
        server.settle()
        after = visit(server.url, STAYS)
    assert before
    assert before == after == replies[STAYS]
    assert 5 < replies.count(None) < CONNECTED


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_minutes_of_visitors_leave_no_trace_in_a_real_engine(demo_model: Path) -> None:
    def visits(url: str, seconds: float, seed: int) -> list[str | None]:
        ends = time.monotonic() + seconds
        numbers = random.Random(seed)

        def client(number: int) -> list[str | None]:
            seen: list[str | None] = []
            while time.monotonic() < ends:
                with doors:
                    if time.monotonic() < ends:
                        seen.append(visit(url, number, numbers.choice([1, 2, 1000])))
            return seen

        with ThreadPoolExecutor(CLIENTS) as crowd:
            return [reply for replies in crowd.map(client, range(CLIENTS)) for reply in replies]

    doors = threading.Semaphore(CONNECTED)
    with real_server(demo_model) as server:
        before = visit(server.url, STAYS, 1000)
        visits(server.url, 20, seed=1)
        server.settle()
        process = psutil.Process()
        threads, files, memory = threading.active_count(), process.num_fds(), process.memory_info().rss
        replies = visits(server.url, 120, seed=2)
        server.settle()
        after = visit(server.url, STAYS, 1000)
        wait_until(lambda: threading.active_count() <= threads and process.num_fds() <= files)
        grown = process.memory_info().rss - memory
    assert before
    assert before == after
    assert replies.count(None) > 20
    assert len(replies) - replies.count(None) > 20
    assert grown < GROWTH_BYTES
