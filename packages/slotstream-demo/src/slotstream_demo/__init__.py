"""A small trained mixture-of-experts model, shipped as a Slotpack package.  What it is: `MODEL_CARD.md`."""

from pathlib import Path

__all__ = ["package_directory"]


def package_directory() -> Path:
    """Return the directory of the model's Slotpack package; read-only, valid while this package is installed."""
    return Path(__file__).parent / "package"
