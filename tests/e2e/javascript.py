"""The JavaScript clients: installed once from their lock file, then run one scene list a process."""

import fcntl
import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "js"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
INSTALL_WITHIN_S = 420.0
RUN_WITHIN_S = 280.0
OLDEST_NODE = 20


class CannotInstall(Exception):
    """The clients cannot be installed here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class JavaScriptClients:
    """Installed packages with the scripts that use them.

    Attributes:
        node: The interpreter.
        directory: Scripts beside their `node_modules`.
    """

    node: str
    directory: Path

    def run(self, client: str, url: str, model: str, *scenes: str) -> dict[str, Any]:
        """Play scenes with one client and return what it saw of each."""
        command = [self.node, str(self.directory / f"{client}.mjs"), url, model, *scenes]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.directory), "NO_PROXY": "127.0.0.1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_WITHIN_S, env=environment)
        assert ended.returncode == 0, ended.stderr
        seen: dict[str, Any] = json.loads(ended.stdout)
        return seen


def install_clients(scripts: Path) -> JavaScriptClients:
    """Install what the lock file says into the cache, unless it is there, and put the scripts beside it.

    Raises:
        CannotInstall: Node or npm is missing or too old, or the registry cannot be reached.
    """
    node, npm = _program("node"), _program("npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        raise CannotInstall(f"node is {version}; the clients need {OLDEST_NODE} or newer")
    lock = (SOURCES / "package-lock.json").read_bytes()
    installed = CACHE / f"js-clients-{hashlib.sha256(lock).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with installed.with_suffix(".lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # another worker of the same tests may be installing
        if not installed.exists():
            _install(npm, installed)
    for script in SOURCES.glob("*.mjs"):
        shutil.copy(script, scripts)
    (scripts / "node_modules").symlink_to(installed / "node_modules", target_is_directory=True)
    return JavaScriptClients(node=node, directory=scripts)


def _install(npm: str, installed: Path) -> None:
    """Install beside the final place and rename, so that a broken installation is never taken for one."""
    partial = installed.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCES / name, partial)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    try:
        ended = subprocess.run(command, cwd=partial, capture_output=True, text=True, timeout=INSTALL_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"npm ci did not end within {INSTALL_WITHIN_S:.0f} s") from error
    if ended.returncode:
        raise CannotInstall(f"npm ci failed: {ended.stderr.strip()[:300]}")
    partial.replace(installed)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise CannotInstall(f"{name} is not installed")
    return found


def clients_or_skip(scripts: Path) -> JavaScriptClients:
    """Install the clients, or skip the tests that need them with the reason."""
    try:
        return install_clients(scripts)
    except CannotInstall as reason:
        pytest.skip(f"JavaScript clients: {reason}")
