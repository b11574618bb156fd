"""The real agents, each installed once from its registry into `.cache/agents/`."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "agents"
INSTALL_WITHIN_S = 900.0


class CannotInstall(Exception):
    """The agent cannot be installed here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class RealAgent:
    """An agent as its registry delivers it.

    Attributes:
        name: What `slotstream launch` calls it.
        package: Its package.
        version: Its version.
        registry: `npm` or `pip`.
        words: Its arguments before a task, so that it runs once without asking.
    """

    name: str
    package: str
    version: str
    registry: str
    words: tuple[str, ...]

    def programs(self) -> Path:
        """Return the directory of its executable, installing it when it is not there.

        Raises:
            CannotInstall: A tool is missing, or the registry cannot be reached.
        """
        place = CACHE / f"{self.name}-{self.version}"
        if not place.exists():
            partial = place.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            if self.registry == "npm":
                self._npm(partial)
                partial.replace(place)
            else:
                shutil.rmtree(partial)
                self._pip(place)  # a virtual environment cannot be moved
        return place / ("node_modules/.bin" if self.registry == "npm" else "bin")

    def _npm(self, place: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise CannotInstall("npm is not installed")
        package = f"{self.package}@{self.version}"
        _run([npm, "install", "--no-audit", "--no-fund", "--prefer-offline", "--prefix", str(place), package], place)

    def _pip(self, place: Path) -> None:
        try:
            _run([sys.executable, "-m", "venv", str(place)], place.parent)
            pip = [str(place / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
            _run([*pip, f"{self.package}=={self.version}"], place)
        except CannotInstall:
            shutil.rmtree(place, ignore_errors=True)
            raise


AGENTS = (
    RealAgent(
        name="claude",
        package="@anthropic-ai/claude-code",
        version="2.1.197",
        registry="npm",
        words=("--permission-mode", "acceptEdits", "-p"),
    ),
    RealAgent(
        name="codex",
        package="@openai/codex",
        version="0.171.0",
        registry="npm",
        words=("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    ),
    RealAgent(name="pi", package="@earendil-works/pi-coding-agent", version="0.74.2", registry="npm", words=("-p",)),
    RealAgent(name="opencode", package="opencode-ai", version="1.18.33", registry="npm", words=("run",)),
    RealAgent(name="hermes", package="hermes-agent", version="0.19.0", registry="pip", words=("chat", "-Q", "-q")),
)


def _run(command: list[str], directory: Path) -> None:
    try:
        ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"{command[0]} did not end within {INSTALL_WITHIN_S:.0f} s") from error
    if ended.returncode:
        raise CannotInstall(f"{' '.join(command[:3])} failed: {ended.stderr.strip()[-300:]}")
