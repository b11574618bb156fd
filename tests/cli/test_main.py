"""The command group itself: what its help costs, and how errors of our packages are shown."""

import subprocess
import sys

import pytest

from slotstream_cli.main import COMMANDS

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
