"""A launch from its options to the agent: the picker, refusals on the way, restarts, and what stops it."""

import io
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import click
import pytest

from slotstream_cli.launching.asking import Probe, ServerPort
from slotstream_cli.launching.background import Background, Wishes
from slotstream_cli.launching.codex import Codex
from slotstream_cli.launching.driving import pick_agent
from slotstream_cli.launching.errors import AgentRefused, ServerRefused
from slotstream_cli.launching.hermes import Hermes
from slotstream_cli.launching.plans import Download
from slotstream_cli.launching.preparing import fetch_text, find_program, look_around, with_downloads
from slotstream_cli.launching.records import LaunchState
from slotstream_planner import Machine
from tests.cli.conftest import Invoke
from tests.cli.launching.situations import answering, served

CODEX = '#!/bin/sh\n[ "$1" = "--version" ] && echo "codex-cli 9.9.9"\n'
CARD = {"id": "m:4bit", "owned_by": "slotstream", "context_window": 40_000, "max_output_tokens": 50}
PROMPT = "You are Codex. " * 100


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Return true."""
        return True


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with stand-ins for codex and hermes that is all of PATH, and an empty home."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("codex", "hermes"):
        (directory / name).write_text(CODEX)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SLOTSTREAM_API_KEY", raising=False)
    monkeypatch.setattr("slotstream_cli.machines.this_machine", lambda: Machine.simulated(ram_gb=48))
    return directory


@pytest.mark.parametrize(
    ("answer", "picked"),
    [("", "codex"), ("1", "codex"), ("2", "hermes"), ("hermes-agent", "hermes"), ("Codex", "codex")],
)
def test_the_picker_takes_a_number_or_a_name_and_lists_what_is_installed(
    programs: Path, monkeypatch: pytest.MonkeyPatch, answer: str, picked: str
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    monkeypatch.setattr(sys, "stderr", screen)
    assert pick_agent({"PATH": str(programs)}) == picked
    assert [line.split()[-1] for line in screen.getvalue().splitlines()[:2]] == ["Codex", "Hermes"]


@pytest.mark.parametrize("answer", ["3", "0", "vi", "²"])
def test_the_picker_refuses_what_it_did_not_list(programs: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(AgentRefused, match="number from 1 to 2"):
        pick_agent({"PATH": str(programs)})


def test_without_agents_the_picker_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(AgentRefused, match="npm install"):
        pick_agent({"PATH": "/none"})


def test_an_interrupted_download_ends_the_launch_with_130(
    programs: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_name: str) -> Path:
        raise click.exceptions.Exit(130)

    monkeypatch.setattr("slotstream_cli.models.ready", interrupted)
    with answering(200, {}) as port:
        pass
    assert invoke("launch", "--port", port.port, "hermes").exit_code == 130


def test_a_held_model_lock_is_refused_before_anything_starts(
    programs: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("slotstream_cli.models.ready", lambda _name: tmp_path)
    monkeypatch.setattr("slotstream_cli.launching.driving.needs_lock", lambda _directory: True)
    monkeypatch.setattr("slotstream_cli.launching.driving.lock_holder", lambda: 4242)
    with answering(200, {}) as port:
        pass
    result = invoke("launch", "--port", port.port, "hermes")
    assert result.exit_code == 1
    assert "process 4242" in result.stderr
    assert "slotstream stop" in result.stderr


def test_a_dry_run_downloads_nothing(programs: Path, invoke: Invoke, tmp_path: Path) -> None:
    with answering(200, {}) as port:
        pass
    result = invoke("launch", "--port", port.port, "--dry-run", "codex", "exec", "x")
    assert result.exit_code == 0, result.stderr
    assert "download: https://raw.githubusercontent.com/openai/codex/rust-v9.9.9/" in result.stdout
    assert "catalog-9.9.9-" in result.stdout
    assert not (tmp_path / "root").exists()


def test_a_server_without_the_agents_api_is_too_old(programs: Path, invoke: Invoke, tmp_path: Path) -> None:
    state = tmp_path / "root" / "launch" / "codex"
    state.mkdir(parents=True)
    (state / "instructions-9.9.9.md").write_text(PROMPT)
    with answering(200, {"data": [CARD], "paths": {}}) as port:
        result = invoke("launch", "--port", port.port, "codex")
    assert result.exit_code == 1
    assert "does not have /v1/responses, which Codex needs" in result.stderr


def test_texts_are_fetched_once_and_only_when_they_can_be_right(programs: Path, tmp_path: Path) -> None:
    agent = Codex()
    said: list[str] = []
    fetched: list[str] = []

    def fetch(download: Download) -> str:
        fetched.append(download.url)
        return PROMPT

    for _ in range(2):
        situation = look_around(agent, ["x"], find_program(agent, {"PATH": str(programs)}), root=tmp_path / "state")
        situation = with_downloads(agent, situation, say=said.append, fetch=fetch)
        assert agent.downloads(situation) == ()
    assert (len(fetched), len(said)) == (1, 1)


def test_a_text_that_cannot_be_fetched_says_where_to_put_it(tmp_path: Path) -> None:
    place = tmp_path / "instructions.md"
    with answering(200, b"<html>not it</html>") as port:
        download = Download(url=f"{port.base_url}/x", path=place, what="Codex 1's instructions")
        with pytest.raises(AgentRefused, match="is not Codex 1's instructions"):
            fetch_text(download)
    with pytest.raises(AgentRefused, match=f"could not download Codex 1's instructions .*{place}"):
        fetch_text(download)


@pytest.mark.parametrize(("script", "words"), [("exit 3", "failed"), ("echo codex", "no version number")])
def test_a_codex_that_does_not_say_its_version_is_refused(
    programs: Path, invoke: Invoke, script: str, words: str
) -> None:
    (programs / "codex").write_text(f"#!/bin/sh\n{script}\n")
    result = invoke("launch", "--dry-run", "codex")
    assert result.exit_code == 1
    assert words in result.stderr


class Port(ServerPort):
    """A port that answers with prepared probes, the last one for ever."""

    probes: list[Probe]
    state: dict[str, Any]

    def probe(self) -> Probe:
        """Return the next prepared probe."""
        return self.probes.pop(0) if len(self.probes) > 1 else self.probes[0]

    def status(self) -> dict[str, Any] | None:
        """Return the prepared status."""
        return self.state


def breathe(seconds: float) -> None:
    """Wait as the command does, since other processes may need the time."""
    Event().wait(seconds)


def prepared(state: LaunchState, probes: list[Probe], status: dict[str, Any]) -> Background:
    port = Port(port=state.port)
    object.__setattr__(port, "probes", probes)
    object.__setattr__(port, "state", status)
    program = (sys.executable, "-c", "import signal; print('loading', flush=True); signal.pause()")
    return Background(port, state, say=lambda _line: None, program=program, pause=breathe)


def window(tokens: int) -> Probe:
    return Probe(kind="served", served=served(window_tokens=tokens))


def test_an_idle_server_of_ours_gives_way_to_one_with_a_larger_window(tmp_path: Path) -> None:
    state = LaunchState(root=tmp_path, port=11434)
    small = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    state.write_record(small.pid)
    status = {"pid": small.pid, "active_requests": 0, "clients": 0}
    background = prepared(state, [window(32_768), window(32_768), window(65_536)], status)
    facts, notes = background.ensure(Wishes(agent=Hermes()))
    record = state.record()
    assert background.server is not None
    try:
        assert record is not None
        assert small.wait(0) != 0
        assert (facts.window_tokens, record.pid) == (65_536, background.server.pid)
        assert "started again" in notes[0]
    finally:
        background.server.kill()
        background.server.wait()


def test_a_new_server_whose_window_is_still_too_small_is_refused_and_ended(tmp_path: Path) -> None:
    state = LaunchState(root=tmp_path, port=11434)
    background = prepared(state, [Probe(kind="absent"), Probe(kind="absent"), window(8_192)], {})
    with pytest.raises(ServerRefused, match=r"65,536 tokens.*8,192"):
        background.ensure(Wishes(agent=Hermes()))
    assert state.record() is None
