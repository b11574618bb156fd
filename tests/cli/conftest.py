"""Tiny checkpoints and a command runner for the CLI tests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slotstream_cli.main import main
from slotstream_core.testing import write_tiny_model

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny quantised model, read-only."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run the command in this process with an empty root directory."""
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path / "root"))

    def run(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [str(item) for item in arguments], input=stdin)

    return run
