"""A real server process on the demo model, one for all tests that talk to it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.serve.conftest import wait_until

START_WITHIN_S = 240.0
STOP_WITHIN_S = 240.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class DemoServer:
    """`slotstream serve` on the demo model.

    Attributes:
        url: Where it listens.
        pid: Its process.
        log: What it wrote to stderr.
    """

    url: str
    pid: int
    log: Path


@pytest.fixture(scope="session")
def demo_server(demo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoServer]:
    """A running server; it must survive every test, and end at SIGTERM without a traceback."""
    log = tmp_path_factory.mktemp("server") / "stderr.log"
    environment = {key: value for key, value in os.environ.items() if key != "SLOTSTREAM_API_KEY"}
    environment["SLOTSTREAM_ROOT_DIR"] = str(demo_root)
    command = [sys.executable, "-m", "slotstream_cli", "serve", "--model", "demo", "--port", "0"]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=environment) as process:
        try:
            wait_until(lambda: address_in(log) is not None or process.poll() is not None, within_s=START_WITHIN_S)
            url = address_in(log)
            assert url is not None, log.read_text(encoding="utf-8")
            yield DemoServer(url=url, pid=process.pid, log=log)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_WITHIN_S)
    assert code == TERMINATED
    assert "Traceback" not in log.read_text(encoding="utf-8")


def address_in(log: Path) -> str | None:
    """Return the address that a server's log states, once it does."""
    found = ADDRESS.search(log.read_text(encoding="utf-8"))
    return found[0] if found else None
