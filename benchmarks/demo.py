"""The demo model, unpacked where the command line unpacks it, and copies of it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from slotpack.catalog import DEMO_MODEL, find_model
from slotpack.store import WeightStore
from slotstream_core.experts.moving import move_experts
from slotstream_core.experts.repacking import repack_checkpoint

Records = Literal["none", "beside", "instead"]
"""Whether a checkpoint has its experts as records, too: beside the stacked tensors, or in their place."""


def demo_directory() -> Path:
    """Return the demo checkpoint's directory."""
    return WeightStore(find_model(DEMO_MODEL)).download().directory


def demo_copy(opened: ExitStack, parent: Path | None, *, records: Records) -> Path:
    """Copy the demo as it was published, with records or without, to where it stays until `opened` closes."""
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=parent))) / DEMO_MODEL
    installed = demo_directory()
    for file in find_model(DEMO_MODEL).files:
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(installed / file.path, target)
    write_records(directory, records)
    return directory


def write_records(directory: Path, records: Records) -> None:
    """Write a checkpoint's experts as records, if that is wanted."""
    if records == "beside":
        repack_checkpoint(directory)
    elif records == "instead":
        move_experts(directory)
