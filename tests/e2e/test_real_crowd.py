"""Clients that come and leave at a real engine: its pool stays sound and its next reply is what it was."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from slotstream_core.engine import load
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.facts import describe_checkpoint
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig
from tests.serve.conftest import PATIENCE_S, wait_until

CLIENTS = 30
TOKENS = 4


def visit(url: str, number: int) -> str | None:
    """Stream one reply; return its text, or None when the client left after its first lines."""
    patience = random.Random(number).choice([1, 2, 1000])
    options = {"temperature": 0, "num_predict": TOKENS}
    body = {"model": "demo", "messages": [{"role": "user", "content": f"Hello, {number}"}], "options": options}
    words = []
    with (
        httpx.Client(base_url=url, timeout=PATIENCE_S * 2, trust_env=False) as client,
        client.stream("POST", "/api/chat", json=body) as response,
    ):
        assert response.status_code == 200
        for line in response.iter_lines():
            words.append(json.loads(line)["message"]["content"])
            if len(words) == patience:
                return None
    return "".join(words)


def test_thirty_clients_at_once_leave_the_engine_sound(demo_model: Path) -> None:
    with load(demo_model) as engine:
        config = ServeConfig(model=describe_checkpoint(demo_model, name="demo"), port=0)
        runner = Runner(lambda: engine, closes_engine=False)
        service = Service(runner, config, all_dialects())
        server = SlotstreamServer(service)
        with bind(config) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                wait_until(lambda: server.started)
                stays = next(number for number in range(CLIENTS) if random.Random(number).choice([1, 2, 1000]) == 1000)
                before = visit(url, stays)
                with ThreadPoolExecutor(CLIENTS) as crowd:
                    replies = list(crowd.map(lambda number: visit(url, number), range(CLIENTS)))
                wait_until(lambda: runner.running is None and runner.queued == 0)
                after = visit(url, stays)
            finally:
                server.should_exit = True
                thread.join(PATIENCE_S)
        engine._loaded.experts.pool.check_integrity()
    assert before
    assert before == after == replies[stays]
    assert 5 < replies.count(None) < CLIENTS
