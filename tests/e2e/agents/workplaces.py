"""An empty home, a server, and one real agent that `slotstream launch` starts there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.agents.installing import RealAgent
from tests.e2e.conftest import START_WITHIN_S, STOP_WITHIN_S, address_in
from tests.serve.conftest import wait_until

AGENT_WITHIN_S = 240.0
QUIET = {
    "NO_PROXY": "127.0.0.1",
    "PI_OFFLINE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
INSTRUCTIONS = "You are Codex, a coding agent that works on this machine.\n" * 40
"""In the place of the ones that a first launch of each Codex version fetches."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """An empty home, a running server, and one agent on PATH.

    Attributes:
        agent: Which.
        home: The user's home directory.
        environment: Everything the agent sees of this process's environment.
        port: Where the server listens.
        log: The server's log.
    """

    agent: RealAgent
    home: Path
    environment: dict[str, str]
    port: int
    log: Path

    def work(self, directory: Path, task: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Let the agent do a task in a directory, which is made if needed."""
        directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "slotstream_cli", "launch", "--port", str(self.port), "--no-start", *options]
        return subprocess.run(
            [*command, self.agent.name, *self.agent.words, task],
            cwd=directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=AGENT_WITHIN_S,
        )

    def generations(self) -> list[dict[str, Any]]:
        """Return the log lines of the generations so far."""
        return generations(self.log)


def generations(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a server's log that end a generation."""
    lines = log.read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line[line.index("{") :]) for line in lines if '"prompt_tokens"' in line]
    return [entry for entry in entries if entry["event"] == "request"]


@contextmanager
def open_workplace(agent: RealAgent, place: Path, serve: Sequence[str | Path]) -> Iterator[Workplace]:
    """Start a server and yield the agent's workplace; the server must end at SIGTERM without a traceback.

    Args:
        agent: The agent; it is installed if needed.
        place: An empty directory.
        serve: The words after `python` that start the server.

    Raises:
        CannotInstall: The agent cannot be had here.
    """
    programs = agent.programs()
    home = place / "home"
    state = home / ".slotstream" / "launch" / "codex"
    state.mkdir(parents=True)
    (state / f"instructions-{agent.version}.md").write_text(INSTRUCTIONS)
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", **QUIET}
    with running_server(serve, place / "serve.log", environment) as port:
        yield Workplace(agent=agent, home=home, environment=environment, port=port, log=place / "serve.log")


@contextmanager
def running_server(serve: Sequence[str | Path], log: Path, environment: dict[str, str]) -> Iterator[int]:
    """Start a server that logs to a file and yield its port; it must end at SIGTERM without a traceback."""
    command = [sys.executable, *(str(word) for word in serve)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server:
        try:
            wait_until(lambda: address_in(log) is not None or server.poll() is not None, within_s=START_WITHIN_S)
            url = address_in(log)
            assert url is not None, log.read_text(encoding="utf-8")
            yield int(url.rpartition(":")[2])
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(STOP_WITHIN_S)
    assert "Traceback" not in log.read_text(encoding="utf-8")
