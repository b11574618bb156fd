"""Everything a launch must look at before it can be planned: programs, files, versions, texts from the network."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slotstream_cli.launching.catalog import AGENTS
from slotstream_cli.launching.codex import is_prompt
from slotstream_cli.launching.errors import AgentRefused
from slotstream_cli.launching.plans import Agent, Download, LaunchPlan, Situation
from slotstream_cli.launching.private_files import read_text, write_text

__all__ = ["fetch_text", "find_program", "installed_agents", "look_around", "with_downloads", "write_files"]

VERSION_WITHIN_S = 15.0
FETCH_WITHIN_S = 30.0
MOST_BYTES = 2**20


def find_program(agent: Agent, environment: Mapping[str, str]) -> str:
    """Return the agent's executable.

    Raises:
        AgentRefused: It is not on PATH.
    """
    found = shutil.which(agent.program, path=environment.get("PATH"))
    if found is None:
        raise AgentRefused(
            f"`{agent.program}` is not on your PATH; install {agent.title} with `{agent.install}`, or add the "
            "directory that holds it to PATH"
        )
    return str(Path(found).absolute())


def installed_agents(environment: Mapping[str, str]) -> tuple[Agent, ...]:
    """Return the agents that are on PATH, in the fixed order."""
    return tuple(agent for agent in AGENTS if shutil.which(agent.program, path=environment.get("PATH")))


def look_around(agent: Agent, arguments: Sequence[str], program: str, *, root: Path) -> Situation:
    """Return what the agent's plan depends on, with the files it reads.

    Raises:
        AgentRefused: A file cannot be read, or the agent does not say its version.
    """
    situation = Situation(
        arguments=tuple(arguments),
        environment=dict(os.environ),
        home=Path.home(),
        directory=Path.cwd(),
        state=root / "launch",
        version=_version_of(program) if agent.asks_version else "",
    )
    return with_files(agent, situation)


def with_files(agent: Agent, situation: Situation) -> Situation:
    """Return the situation with the files the agent reads, as they are now."""
    return replace(situation, files={path: read_text(path) for path in agent.reads(situation)})


def with_downloads(
    agent: Agent, situation: Situation, *, say: Callable[[str], None], fetch: Callable[[Download], str] | None = None
) -> Situation:
    """Fetch what the agent needs once, and return the situation with it.

    Raises:
        AgentRefused: It cannot be had.
    """
    wanted = agent.downloads(situation)
    for download in wanted:
        say(f"fetching {download.what} from {download.url}")
        write_text(download.path, (fetch or fetch_text)(download))
    return with_files(agent, situation) if wanted else situation


def fetch_text(download: Download) -> str:
    """Return a text from the network.

    Raises:
        AgentRefused: It cannot be had, or is something else.
    """
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(download.url, timeout=FETCH_WITHIN_S) as response:
            text: str = response.read(MOST_BYTES).decode("utf-8")
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise AgentRefused(
            f"could not download {download.what} from {download.url}: {error}; try again when online, or put the file "
            f"at {download.path}"
        ) from error
    if not is_prompt(text):
        raise AgentRefused(f"what {download.url} holds is not {download.what}; put the file at {download.path}")
    return text


def write_files(plan: LaunchPlan) -> None:
    """Write a plan's files where their content differs.

    Raises:
        LaunchError: One cannot be written.
    """
    for write in plan.files:
        if read_text(write.path) != write.text:
            write_text(write.path, write.text)


def _version_of(program: str) -> str:
    try:
        ended = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=VERSION_WITHIN_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise AgentRefused(f"`{program} --version` did not end within {VERSION_WITHIN_S:.0f} s") from error
    except (OSError, ValueError) as error:
        raise AgentRefused(f"{program} cannot be run: {error}") from error
    if ended.returncode:
        raise AgentRefused(f"`{program} --version` failed: {ended.stderr.strip()[:200]}")
    return ended.stdout.strip()
