"""Real coding agents, started by `slotstream launch`, do a task at a real server whose engine is scripted.

The engine answers as a capable model would; everything between the agent's window and the engine is what users run.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slotstream_core.testing import write_tiny_model
from tests.e2e.agents.installing import AGENTS, CannotInstall, RealAgent
from tests.e2e.agents.workplaces import AGENT_WITHIN_S, Workplace, open_workplace

pytestmark = pytest.mark.agents

SERVE = Path(__file__).parent / "scripted_serve.py"
LINE = "SLOTSTREAM OK"
TASK = (
    "Create the file {path} whose entire content is the single line: {line}. "
    "Then read the file back and tell me exactly what it contains."
)


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def workplace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workplace]:
    """A workplace whose engine is scripted."""
    agent: RealAgent = request.param
    model = write_tiny_model(tmp_path / "scripted-model")
    try:
        with open_workplace(agent, tmp_path, [SERVE, "--model", model, "--port", "0"]) as opened:
            yield opened
    except CannotInstall as reason:
        pytest.skip(f"{agent.package} {agent.version}: {reason}")


def work(workplace: Workplace, directory: Path) -> subprocess.CompletedProcess[str]:
    """Let the agent write `hello.txt` in a new directory and read it back."""
    return workplace.work(directory, TASK.format(path=directory / "hello.txt", line=LINE))


def test_an_agent_writes_a_file_reads_it_back_and_a_second_session_reuses_its_instructions(
    workplace: Workplace, tmp_path: Path
) -> None:
    first = work(workplace, tmp_path / "first")
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "first" / "hello.txt").read_text() == f"{LINE}\n"
    assert f"The file holds exactly: {LINE}" in first.stdout
    before = len(workplace.generations())
    assert before >= 3

    second = work(workplace, tmp_path / "second")
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
