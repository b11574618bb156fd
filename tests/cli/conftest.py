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


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that never ends a reply by itself: 40,000 tokens are more than a pipe or a terminal holds unread."""
    # Imported here because most tests need no MLX.
    import mlx.core as mx

    directory = write_tiny_model(tmp_path_factory.mktemp("endless") / "model", {"max_position_embeddings": 50_000})
    (shard,) = directory.glob("*.safetensors")
    loaded = mx.load(str(shard))
    assert isinstance(loaded, dict)
    characters = (mx.arange(512) < 256)[
        :, None
    ]  # the others are special, and their logits far below the best from now on
    for part in ("scales", "biases"):
        name = f"language_model.lm_head.{part}"
        loaded[name] = mx.where(characters, 30 * loaded[name], 0).astype(mx.bfloat16)
    mx.eval(loaded)
    mx.save_safetensors(str(shard), loaded, {"format": "mlx"})
    return directory


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Run the command in this process with an empty root directory."""
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path / "root"))

    def run(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [str(item) for item in arguments], input=stdin)

    return run
