"""Tiny checkpoints shared by the core tests."""

import os
from pathlib import Path

import pytest

from slotstream_core.testing import write_tiny_model

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # exact float32 products where the device offers shorter ones


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny quantised model, read-only."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
