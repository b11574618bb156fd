"""The command group itself: what its help costs, and how errors of our packages are shown."""

import os
import subprocess
import sys

import pytest

from slotstream_cli.main import COMMANDS
from tests.cli.conftest import Invoke

HEAVY = ("mlx", "fastapi", "numpy", "httpx", "rich", "psutil", "jinja2", "slotstream_core")
SHOW_ALL_HELP = f"""
import sys
from slotstream_cli.main import COMMANDS, main
for words in [["--help"], *([name, "--help"] for name in COMMANDS)]:
    try:
        main(words)
    except SystemExit as ended:
        assert ended.code == 0, words
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, f"{{words}} loads {{loaded}}"
"""


def test_no_commands_help_imports_the_engine_or_the_server() -> None:
    result = subprocess.run([sys.executable, "-c", SHOW_ALL_HELP], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for name in COMMANDS:
        assert f"Usage: main {name}" in result.stdout or f"Usage: -c {name}" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary(name: str) -> None:
    assert COMMANDS[name][1].endswith(".")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(shell: str, invoke: Invoke) -> None:
    result = invoke("completion", shell)
    assert result.exit_code == 0
    assert "_SLOTSTREAM_COMPLETE" in result.stdout


def test_commands_and_options_are_completed() -> None:
    asked = {**os.environ, "_SLOTSTREAM_COMPLETE": "bash_complete", "COMP_WORDS": "slotstream la", "COMP_CWORD": "1"}
    code = "from slotstream_cli.starting import run_command_line; run_command_line()"
    result = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=False)
    assert result.stdout == "plain,launch\n"
