"""`slotstream launch` and `slotstream stop` as processes: a background server, stand-in agents, and what goes wrong."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from slotstream_cli.launching.asking import ServerPort
from slotstream_cli.launching.records import LaunchState, running
from slotstream_cli.launching.stopping import stop_server
from slotstream_planner import Machine
from tests.cli.conftest import Invoke
from tests.cli.launching.situations import answering
from tests.serve.conftest import wait_until

WITHIN_S = 280.0
AGENT = """#!/bin/sh
echo "pid=$$ $0 $*"
[ "$1" = "--wait" ] || read -r line
"""


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A user's machine: an empty home, stand-in agents on PATH, and a port."""

    home: Path
    root: Path
    port: int
    model: Path

    @property
    def state(self) -> LaunchState:
        return LaunchState(root=self.root, port=self.port)

    def environment(self) -> dict[str, str]:
        path = f"{self.home / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.home), "SLOTSTREAM_ROOT_DIR": str(self.root)}

    def launch(self, *words: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "slotstream_cli",
            "launch",
            "--port",
            str(self.port),
            "--model",
            str(self.model),
        ]
        return subprocess.Popen(
            [*command, "--allow-small-window", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    def stop(self) -> str:
        return stop_server(ServerPort(port=self.port), self.state)


@pytest.fixture
def desk(tmp_path: Path, tiny_model: Path) -> Iterator[Desk]:
    """A desk whose server, if a launch left one, is stopped afterwards."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    agent = home / "bin" / "pi"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    desk = Desk(home=home, root=tmp_path / "root", port=unused_port(), model=tiny_model)
    yield desk
    desk.stop()
    assert desk.state.record() is None


def unused_port() -> int:
    """Return a free port that is given to nobody who does not ask for it, as tests beside this one do all the time."""
    for port in range(10_000 + os.getpid() % 10_000, 30_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("every port is in use")


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def test_two_launches_start_one_server_that_knows_both_agents(desk: Desk) -> None:
    both = [desk.launch("pi", "-p", "one"), desk.launch("pi", "-p", "two")]
    lines = [first_line(process) for process in both]
    assert [f"pid={process.pid} " in line for process, line in zip(both, lines, strict=True)] == [True, True]
    assert [line.split()[-1] for line in lines] == ["one", "two"]
    wait_until(lambda: ServerPort(port=desk.port).status() is not None)
    status = ServerPort(port=desk.port).status()
    record = desk.state.record()
    assert status is not None
    assert record is not None
    assert (status["pid"], status["clients"], status["idle_exit_minutes"]) == (record.pid, 2, 30)
    said = [process.communicate("\n", timeout=WITHIN_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("starting a server" in text for text in said) == 1
    provider = json.loads((desk.home / ".pi" / "agent" / "models.json").read_text())["providers"]["slotstream"]
    assert provider["baseUrl"] == f"http://127.0.0.1:{desk.port}/v1"
    assert desk.stop() == f"stopped the server on port {desk.port} (process {record.pid})"
    assert running(record.pid) is None
    assert desk.stop() == f"no Slotstream server runs on port {desk.port}"
    assert "slotstream listening on" in record.log.read_text()


def test_interrupting_a_start_stops_that_server(desk: Desk) -> None:
    with desk.launch("pi") as process:
        line_with(process, "starting a server")
        record = desk.state.record()
        process.send_signal(signal.SIGINT)
        _out, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert record is not None
    assert running(record.pid) is None
    assert not desk.state.record_file.exists()


def test_stopping_a_server_that_is_still_starting_ends_the_launch(desk: Desk) -> None:
    with desk.launch("pi") as process:
        line_with(process, "starting a server")
        assert "stopped the server" in desk.stop()
        out, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert "stopped while starting" in said
    assert out == ""


def test_a_server_that_cannot_start_says_why_and_the_agent_does_not_run(desk: Desk, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(desk.model, broken)
    (broken / "tokenizer.json").write_text("{}")
    with Desk(home=desk.home, root=desk.root, port=desk.port, model=broken).launch("pi") as process:
        out, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert re.search(r"stopped while starting, with exit code 1.*serve-\d+\.log", said)
    assert "tokenizer" in said
    assert (out, desk.state.record_file.exists()) == ("", False)


def invoke_launch(invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    for name, value in desk.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLOTSTREAM_API_KEY", raising=False)
    result = invoke("launch", "--port", desk.port, "--model", desk.model, *words)
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def test_a_dry_run_writes_and_starts_nothing(invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(desk.home.rglob("*"))
    code, said = invoke_launch(invoke, desk, monkeypatch, "--allow-small-window", "--dry-run", "pi", "--api-key", "abc")
    assert code == 0
    assert f"server: slotstream serve --port {desk.port} --model {desk.model} --idle-exit 30" in said
    assert f"write: {desk.home}/.pi/agent/models.json" in said
    assert "--api-key '(hidden)'" in said
    assert sorted(desk.home.rglob("*")) == before
    assert not desk.root.exists()


def test_conversations_are_kept_under_a_relative_root_as_seen_from_here(
    invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server in the background runs in another directory."""
    monkeypatch.chdir(desk.home)
    here = replace(desk, root=Path("kept here"))
    code, said = invoke_launch(invoke, here, monkeypatch, "--allow-small-window", "--dry-run", "pi")
    assert code == 0
    assert f"--prefix-cache-dir '{desk.home}/kept here/prefix-cache'" in said


def test_copies_of_the_model_are_named_to_the_server_as_seen_from_here(
    invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.home)
    copies = ("--mirror", "a copy", "--mirror", "~/another")
    code, said = invoke_launch(invoke, desk, monkeypatch, "--allow-small-window", "--dry-run", *copies, "pi")
    assert code == 0
    assert f"--mirror '{desk.home}/a copy' --mirror {desk.home}/another" in said


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["pi"], 1, "needs a context window of at least 16,384 tokens; "),
        (["vi"], 1, "agents are claude, codex, pi, opencode, hermes"),
        ([], 1, "without a terminal"),
        (["hermes"], 1, "`hermes` is not on your PATH; install Hermes with"),
        (["--no-start", "pi"], 1, "no Slotstream server answered on port"),
        (["--memory-gb", "9", "--memory-limit-gb", "9", "pi"], 2, "give one of them"),
        (["--idle-exit", "10081", "pi"], 2, "10080"),
        (["--port", "0", "pi"], 2, "65535"),
        (["pi", "--provider", "openai"], 1, "only together with `--model`"),
    ],
)
def test_what_is_in_the_way_is_said_before_anything_starts(
    invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, expected: str
) -> None:
    exit_code, said = invoke_launch(invoke, desk, monkeypatch, *words)
    assert exit_code == code, said
    assert expected in said
    assert not desk.root.exists()


def test_another_server_on_the_port_is_left_alone(invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", desk.environment()["PATH"])
    with answering(200, {"data": [{"id": "x", "owned_by": "library"}]}) as other:
        stop = invoke("stop", "--port", other.port)
        launch = invoke("launch", "--port", other.port, "pi")
    assert (stop.exit_code, launch.exit_code) == (1, 1)
    assert "nothing was stopped" in stop.stderr
    assert f"the server on port {other.port} is not Slotstream" in launch.stderr


def test_a_server_that_names_somebody_elses_process_is_not_believed(invoke: Invoke) -> None:
    with answering(200, {"server": "slotstream", "pid": os.getpid()}) as liar:
        result = invoke("stop", "--port", liar.port)
    assert result.exit_code == 1
    assert "nothing was stopped" in result.stderr


def test_without_the_model_a_launch_names_the_command_that_gets_it(
    invoke: Invoke, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", desk.environment()["PATH"])
    monkeypatch.setattr("slotstream_cli.machines.this_machine", lambda: Machine.simulated(ram_gb=48))
    result = invoke("launch", "--port", desk.port, "pi")
    assert result.exit_code == 1
    assert "run `slotstream pull qwen3.8-flash-next:4bit` first" in result.stderr
