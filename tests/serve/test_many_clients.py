"""Many clients at once, some of whom leave: order, leaks, and a server that still answers."""

import asyncio
import gc
import json
import random
import re
import threading
from array import array
from dataclasses import dataclass, field
from weakref import WeakSet

import psutil
import pytest

from slotstream_serve.runner import Ticket
from slotstream_serve.settings import Limits
from slotstream_serve.testing import Script, ScriptedEngine, Silence
from tests.serve.conftest import LiveServer, live_server, wait_until

CLIENTS = 200
CONNECTED = 30
GROWTH_BYTES = 24 * 2**20


@dataclass
class Crowd:
    """What the clients saw, and how many would stay to the end."""

    random: random.Random
    patient: int = 0
    finished: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)


def visitor(prompt: str) -> int:
    """Return the number in a prompt."""
    found = re.search(r"visitor (\d+)", prompt)
    assert found is not None
    return int(found[1])


async def visit(live: LiveServer, crowd: Crowd, number: int) -> None:
    """Make one request; leave at once, in the middle, or read it to its end."""
    stream = crowd.random.random() < 0.5
    patience = crowd.random.choice([0, 1, 1000, 1000])
    crowd.patient += patience == 1000
    body = json.dumps({"text": f"visitor {number}", "stream": stream}).encode()
    head = f"POST /plain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    writer.write(head.encode() + body)
    await writer.drain()
    received = b""
    while patience and (piece := await reader.read(4096)):
        received += piece
        patience -= 1
    writer.close()
    if patience == 0:
        crowd.left += 1
    elif received.startswith(b"HTTP/1.1 200 ") and b"ReplyFinished" in received:
        crowd.finished += 1
    else:
        crowd.wrong.append(received[:200].decode("latin-1"))


async def visits(live: LiveServer, crowd: Crowd, times: int) -> None:
    """Let every client come so many times, and so many of them at once."""
    doors = asyncio.Semaphore(CONNECTED)

    async def client(number: int) -> None:
        for _ in range(times):
            async with doors:
                await visit(live, crowd, number)

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))


def crowd_comes(live: LiveServer, times: int, seed: int) -> Crowd:
    crowd = Crowd(random=random.Random(seed))
    asyncio.run(visits(live, crowd, times))
    wait_until(lambda: live.service.activity.active_requests == 0 and live.service.runner.running is None)
    wait_until(lambda: not live.server.server_state.connections)
    return crowd


@pytest.mark.parametrize("times", [4, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_crowd_leaves_no_trace_and_is_served_in_order(times: int) -> None:
    alive: WeakSet[Ticket] = WeakSet()
    submitted, served = array("L"), array("L")  # visitor numbers: whatever else a request was must be gone

    def script(prompt: str) -> Script:
        engine.requests.clear()
        served.append(visitor(prompt))
        return ["some ", Silence(seconds=0.001), "words ", "for you"]

    engine = ScriptedEngine(script)
    # those who left a moment ago still count as connected: nobody shall be turned away for them
    with live_server(engine, limits=Limits(connections=CLIENTS * times)) as live:
        submit = live.service.runner.submit

        def noted(ticket: Ticket) -> None:
            alive.add(ticket)
            submitted.append(visitor(bytes(ticket.prepared.ids).decode()))
            submit(ticket)

        live.service.runner.submit = noted  # type: ignore[method-assign]
        crowd_comes(live, 1, seed=1)
        process = psutil.Process()
        threads, files, memory = threading.active_count(), process.num_fds(), process.memory_info().rss
        del submitted[:], served[:]

        crowd = crowd_comes(live, times, seed=2)

        assert crowd.wrong == []
        assert (crowd.finished, crowd.left) == (crowd.patient, CLIENTS * times - crowd.patient)
        assert min(crowd.finished, crowd.left) > 50
        in_order = iter(submitted)
        assert all(number in in_order for number in served), "the queue changed its order"
        assert (live.service.runner.queued, live.service.runner.running) == (0, None)
        wait_until(lambda: threading.active_count() <= threads and process.num_fds() <= files)
        assert process.memory_info().rss - memory < GROWTH_BYTES
        wait_until(lambda: gc.collect() >= 0 and not list(alive))
        with live.client() as client:
            assert client.post("/plain", json={"text": "visitor 0"}).status_code == 200
