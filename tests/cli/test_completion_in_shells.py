"""The completion scripts in the shells they are for, typed at as a person would."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).with_name("slotstream")
WITHIN_S = 60.0


def environment(home: Path) -> dict[str, str]:
    return {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


def script_for(name: str, home: Path) -> Path:
    script = home / f"completion.{name}"
    script.write_text(subprocess.check_output([str(COMMAND), "completion", name], text=True), encoding="utf-8")
    return script


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._descriptor, text.encode())

    def shows(self, text: str) -> None:
        """Wait until the text has appeared, and forget what came before it."""
        ends = time.monotonic() + WITHIN_S
        while text not in self._seen:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"{text!r} did not appear; the terminal shows {self._seen!r}"
            self._seen += os.read(self._descriptor, 4096).decode(errors="replace")
        self._seen = self._seen[self._seen.index(text) + len(text) :]


@contextmanager
def at_a_terminal(command: list[str], home: Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(home), start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_bash_completes_a_command_and_an_option(tmp_path: Path) -> None:
    script = script_for("bash", tmp_path)
    with at_a_terminal([shell("bash"), "--norc", "--noprofile", "-i"], tmp_path) as terminal:
        terminal.type(f"PS1=; source {script}; echo lo''aded\n")
        terminal.shows("loaded")
        terminal.type("slotstream context-c\t")
        terminal.shows("slotstream context-check ")
        terminal.type("--max-c\t")
        terminal.shows("--max-context")


def test_zsh_completes_a_command_and_an_option(tmp_path: Path) -> None:
    script = script_for("zsh", tmp_path)
    with at_a_terminal([shell("zsh"), "-f", "-i"], tmp_path) as terminal:
        terminal.type(f"PS1=; autoload -U compinit; compinit -u -D; source {script}; echo lo''aded\n")
        terminal.shows("loaded")
        terminal.type("slotstream context-c\t")
        terminal.shows("heck ")  # it writes what it adds
        terminal.type("--max-c\t")
        terminal.shows("text")


def test_fish_completes_a_command_and_an_option(tmp_path: Path) -> None:
    script = script_for("fish", tmp_path)
    for typed, expected in (("context-c", "context-check"), ("context-check --max-c", "--max-context")):
        command = [shell("fish"), "--no-config", "-c", f"source {script}; complete --do-complete 'slotstream {typed}'"]
        shown = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=WITHIN_S)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert expected in [line.split("\t")[0] for line in shown.stdout.splitlines()]
