"""`slotstream doctor`: what fits on this machine, before anything is loaded or downloaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from slotstream_cli.planning_options import make_request, memory_options, planner_failure
from slotstream_planner import (
    PUBLISHED_MODEL,
    InsufficientMemory,
    InvalidRequest,
    Machine,
    ModelGeometry,
    PlannerError,
    plan,
    published_geometry,
)
from slotstream_planner.geometry import Compute
from slotstream_planner.report import machine_to_json, plan_to_text

_PUBLISHED_DIRECTORY = "qwen38-flash-next-mlx-4bit"


@click.command("doctor")
@click.option("--model", help=f"Model name or checkpoint directory [default: {PUBLISHED_MODEL}].")
@click.option("--sim-ram", type=float, metavar="GB", help="Plan for a machine with this much memory instead.")
@click.option("--sim-working-set", type=float, metavar="GB", help="Its working-set limit [default: 75% of --sim-ram].")
@click.option("--sim-available", type=float, metavar="GB", help="Its available memory [default: nothing else runs].")
@memory_options
@click.option("--max-prefill-wait", type=float, default=30.0, show_default=True, metavar="MINUTES", help="0: no limit.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    *,
    model: str | None,
    sim_ram: float | None,
    sim_working_set: float | None,
    sim_available: float | None,
    max_prefill_wait: float,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Show the memory plan of this machine or a simulated one.

    Nothing is loaded and nothing is downloaded; it can run beside a server.
    """
    try:
        machine = _machine(sim_ram, sim_working_set, sim_available)
        geometry = _geometry(model, machine)
        request = make_request(**sizes, max_prefill_wait_minutes=max_prefill_wait)
        result = plan(geometry, machine, request)
    except InsufficientMemory as error:
        if as_json:
            click.echo(json.dumps(_refusal(error), indent=2))
            raise click.exceptions.Exit(1) from error
        raise planner_failure(error) from error
    except PlannerError as error:
        raise planner_failure(error) from error
    if as_json:
        click.echo(json.dumps({**result.to_json(), "machine": machine_to_json(machine)}, indent=2))
    else:
        click.echo(plan_to_text(result))


def _refusal(error: InsufficientMemory) -> dict[str, Any]:
    return {
        "error": {
            "code": error.code,
            "message": str(error),
            "required_bytes": error.required_bytes,
            "available_bytes": error.available_bytes,
        }
    }


def _machine(ram: float | None, working_set: float | None, available: float | None) -> Machine:
    if ram is not None:
        return Machine.simulated(ram_gb=ram, working_set_gb=working_set, available_gb=available)
    if working_set is not None or available is not None:
        raise InvalidRequest("--sim-working-set and --sim-available describe a simulated machine; give --sim-ram too")
    return Machine.current()


def _geometry(model: str | None, machine: Machine) -> ModelGeometry:
    bf16 = machine.is_simulated or sys.platform == "darwin"
    compute: Compute = "bf16" if bf16 else "float32"
    if model is not None and model != PUBLISHED_MODEL:
        return ModelGeometry.from_checkpoint(model, compute=compute)
    root = Path(os.environ.get("SLOTSTREAM_ROOT_DIR") or Path.home() / ".slotstream")
    installed = root / "models" / _PUBLISHED_DIRECTORY
    if (installed / "config.json").is_file():
        return ModelGeometry.from_checkpoint(installed, compute=compute)
    return published_geometry(compute=compute)
