"""This machine and a model's sizes, for commands that plan without loading anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotstream_planner import Machine, ModelGeometry
    from slotstream_planner.geometry import Compute

__all__ = ["geometry_of", "this_machine"]


def this_machine() -> Machine:
    """Read this machine; with an NVIDIA device and MLX's CUDA backend installed, the device is what counts."""
    import importlib.metadata

    from slotstream_planner import Machine
    from slotstream_planner.sensors import read_nvidia_memory

    packages = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    if packages & {"mlx-cuda-12", "mlx-cuda-13"}:
        device = read_nvidia_memory()
        if device is not None:
            return Machine.current(accelerator_bytes=device.total_bytes, accelerator_available_bytes=device.free_bytes)
    return Machine.current()


def geometry_of(model: str | None, machine: Machine) -> tuple[str, Path, ModelGeometry]:
    """Return the model's name, where it is or will be, and its geometry; the built-in one when it is not installed.

    Raises:
        click.ClickException: The value names no model.
        PlannerError: The checkpoint's sizes cannot be read.
    """
    from slotstream_cli.models import PUBLISHED_NAME, PUBLISHED_NAMES, choose_model, published_directory
    from slotstream_planner import ModelGeometry, published_geometry

    compute: Compute = "bf16" if machine.kind in ("macos", "cuda") or sys.platform == "darwin" else "float32"
    installed = published_directory()
    if (model is None or model in PUBLISHED_NAMES) and not (installed / "config.json").is_file():
        return PUBLISHED_NAME, installed, published_geometry(compute=compute)
    choice = choose_model(model)
    return choice.name, choice.directory, ModelGeometry.from_checkpoint(choice.directory, compute=compute)
