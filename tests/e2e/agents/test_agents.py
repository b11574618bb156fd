"""Real coding agents, started by `slotstream launch`, do a task at a real server whose engine is scripted.

The engine answers as a capable model would; everything between the agent's window and the engine is what users run.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotstream_core.testing import write_tiny_model
from tests.e2e.agents.installing import AGENTS, CannotInstall, RealAgent
from tests.e2e.conftest import START_WITHIN_S, STOP_WITHIN_S, address_in
from tests.serve.conftest import wait_until

pytestmark = pytest.mark.agents

SERVE = Path(__file__).parent / "scripted_serve.py"
LINE = "SLOTSTREAM OK"
TASK = (
    "Create the file {path} whose entire content is the single line: {line}. "
    "Then read the file back and tell me exactly what it contains."
)
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

    def work(self, directory: Path) -> subprocess.CompletedProcess[str]:
        """Let the agent do the task in a new directory."""
        directory.mkdir()
        task = TASK.format(path=directory / "hello.txt", line=LINE)
        command = [sys.executable, "-m", "slotstream_cli", "launch", "--port", str(self.port), "--no-start"]
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
        lines = self.log.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line[line.index("{") :]) for line in lines if '"prompt_tokens"' in line]
        return [entry for entry in entries if entry["event"] == "request"]


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def workplace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workplace]:
    """A workplace; its server must end at SIGTERM without a traceback."""
    agent: RealAgent = request.param
    try:
        programs = agent.programs()
    except CannotInstall as reason:
        pytest.skip(f"{agent.package} {agent.version}: {reason}")
    home, log = tmp_path / "home", tmp_path / "serve.log"
    state = home / ".slotstream" / "launch" / "codex"
    state.mkdir(parents=True)
    (state / f"instructions-{agent.version}.md").write_text(INSTRUCTIONS)
    model = write_tiny_model(tmp_path / "scripted-model")
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", **QUIET}
    command = [sys.executable, str(SERVE), "--model", str(model), "--port", "0"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server:
        try:
            wait_until(lambda: address_in(log) is not None or server.poll() is not None, within_s=START_WITHIN_S)
            url = address_in(log)
            assert url is not None, log.read_text(encoding="utf-8")
            port = int(url.rpartition(":")[2])
            yield Workplace(agent=agent, home=home, environment=environment, port=port, log=log)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(STOP_WITHIN_S)
    assert "Traceback" not in log.read_text(encoding="utf-8")


def test_an_agent_writes_a_file_reads_it_back_and_a_second_session_reuses_its_instructions(
    workplace: Workplace, tmp_path: Path
) -> None:
    first = workplace.work(tmp_path / "first")
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "first" / "hello.txt").read_text() == f"{LINE}\n"
    assert f"The file holds exactly: {LINE}" in first.stdout
    before = len(workplace.generations())
    assert before >= 3

    second = workplace.work(tmp_path / "second")
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "second" / "hello.txt").read_text() == f"{LINE}\n"
    calls = [entry for entry in workplace.generations()[before:] if entry["finish"] == "tool_calls"]
    assert calls[0]["cached_tokens"] > calls[0]["prompt_tokens"] / 2, calls[0]
    assert {entry["status"] for entry in workplace.generations()} == {200}


@pytest.mark.parametrize(
    "workplace", [agent for agent in AGENTS if agent.name == "codex"], indirect=True, ids=["codex"]
)
def test_codex_takes_the_server_for_its_local_ollama(workplace: Workplace, tmp_path: Path) -> None:
    """`codex --oss` asks for the version and the list of models before it uses one; nothing is launched for it."""
    directory = tmp_path / "oss"
    directory.mkdir()
    served = httpx.get(f"http://127.0.0.1:{workplace.port}/api/tags", trust_env=False).json()["models"][0]["name"]
    command = ["codex", *workplace.agent.words, "--oss", "--local-provider", "ollama", "-m", served]
    done = subprocess.run(
        [*command, TASK.format(path=directory / "hello.txt", line=LINE)],
        cwd=directory,
        env={**workplace.environment, "CODEX_OSS_BASE_URL": f"http://127.0.0.1:{workplace.port}/v1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=AGENT_WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert (directory / "hello.txt").read_text() == f"{LINE}\n"
    assert f"The file holds exactly: {LINE}" in done.stdout
