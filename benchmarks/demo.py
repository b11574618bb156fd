"""The demo model, unpacked where the command line unpacks it."""

from __future__ import annotations

from pathlib import Path

from slotpack.catalog import DEMO_MODEL, find_model
from slotpack.store import WeightStore


def demo_directory() -> Path:
    """Return the demo checkpoint's directory."""
    return WeightStore(find_model(DEMO_MODEL)).download().directory
