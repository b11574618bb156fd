"""Real coding agents at the real engine: what a second session's prompt finds kept is counted by the engine itself."""

from pathlib import Path

import pytest

from tests.e2e.agents.installing import AGENTS, CannotInstall, RealAgent
from tests.e2e.agents.wide_model import write_wide_model
from tests.e2e.agents.workplaces import Workplace, open_workplace

pytestmark = pytest.mark.agents

SHORT = tuple(agent for agent in AGENTS if agent.name in ("pi", "codex"))
"""Those whose instructions a processor reads in seconds; the others' are replayed, see `test_reuse_replayed.py`."""
TASK = "Tell me a short story about a fox."


def served(model: str | Path) -> list[str | Path]:
    return ["-m", "slotstream_cli", "serve", "--no-elastic", "--model", model, "--port", "0"]


def second_session_reuses_the_first(workplace: Workplace, project: Path, *options: str) -> None:
    """Work twice in a directory; the agent's own request is the longest of a session."""
    first = workplace.work(project, TASK, *options)
    assert first.returncode == 0, first.stderr
    before = len(workplace.generations())
    assert before
    second = workplace.work(project, TASK, *options)
    assert second.returncode == 0, second.stderr
    assert {entry["status"] for entry in workplace.generations()} == {200}
    longest = max(workplace.generations()[before:], key=lambda entry: int(entry["prompt_tokens"]))
    assert longest["cached_tokens"] > longest["prompt_tokens"] / 2, longest


def test_pi_on_the_demo_model_finds_its_instructions_kept(tmp_path: Path) -> None:
    """Pi's instructions fit the demo's window of 8,192 tokens; those of the others do not, beside a reply."""
    pi = next(agent for agent in AGENTS if agent.name == "pi")
    try:
        with open_workplace(pi, tmp_path, served("demo")) as workplace:
            second_session_reuses_the_first(workplace, tmp_path / "project", "--allow-small-window")
    except CannotInstall as reason:
        pytest.skip(f"{pi.package} {pi.version}: {reason}")


@pytest.mark.parametrize("agent", SHORT, ids=lambda agent: agent.name)
def test_an_agent_finds_its_instructions_kept_by_a_model_whose_window_holds_them(
    agent: RealAgent, tmp_path: Path, demo_root: Path
) -> None:
    model = write_wide_model(tmp_path / "wide", next((demo_root / "models").glob("demo-*")))
    try:
        with open_workplace(agent, tmp_path, served(model)) as workplace:
            second_session_reuses_the_first(workplace, tmp_path / "project", "--allow-small-window")
    except CannotInstall as reason:
        pytest.skip(f"{agent.package} {agent.version}: {reason}")
