"""A small trained mixture-of-experts checkpoint, shipped as data.  What it is: `model/README.md`."""

from pathlib import Path

__all__ = ["checkpoint_directory"]


def checkpoint_directory() -> Path:
    """Return the directory of the demo checkpoint; read-only, valid while the package is installed."""
    return Path(__file__).parent / "model"
