"""``python -m slotstream_planner``: one plan, or a sweep of simulated machines, as JSON on standard output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from slotstream_planner.errors import GeometryError, InvalidRequest, PlannerError
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.planning import plan
from slotstream_planner.published import PUBLISHED_MODEL, published_geometry
from slotstream_planner.request import PlanRequest
from slotstream_planner.speeds import forecast_plan
from slotstream_planner.sweeping import given_disk, sweep_machines

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a plan or a sweep; return 0, 1 for a refusal, or 2 for a request that cannot be meant."""
    options = _parser().parse_args(arguments)
    try:
        document = _answer(options)
    except PlannerError as error:
        print(json.dumps({"error": {"code": error.code, "message": str(error)}}, indent=2))
        return 2 if error.code == "invalid_request" else 1
    print(json.dumps(document, indent=2, allow_nan=False))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slotstream_planner", description=__doc__)
    parser.add_argument("--model", default=PUBLISHED_MODEL, help="built-in name or checkpoint directory")
    parser.add_argument("--compute", choices=["bf16", "float32"], default="bf16", help="type the backend computes in")
    parser.add_argument(
        "--sim-ram", type=float, action="append", metavar="GB", help="simulated RAM; repeat for a sweep"
    )
    parser.add_argument("--sim-working-set", type=float, metavar="GB")
    parser.add_argument("--sim-available", type=float, metavar="GB")
    parser.add_argument("--memory-gb", type=float)
    parser.add_argument("--memory-limit-gb", type=float)
    parser.add_argument("--pool-gb", type=float)
    parser.add_argument("--experts-per-layer", type=int)
    parser.add_argument("--max-context", default="auto", help="auto or tokens")
    parser.add_argument("--mtp", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--vision", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--disk-gb-s", type=float, metavar="GB/S", help="forecast speed for a disk of this rate")
    return parser


def _answer(options: argparse.Namespace) -> Any:
    geometry = _geometry(options.model, options.compute)
    request = PlanRequest(
        experts_per_layer=options.experts_per_layer,
        pool_gb=options.pool_gb,
        memory_gb=options.memory_gb,
        memory_limit_gb=options.memory_limit_gb,
        max_context=_window(options.max_context),
        mtp=options.mtp,
        vision=options.vision,
    )
    machines = options.sim_ram or []
    details = (options.sim_working_set, options.sim_available)
    if len(machines) != 1 and details != (None, None):
        raise InvalidRequest("--sim-working-set and --sim-available describe one simulated machine; give one --sim-ram")
    if len(machines) > 1:
        return [point.to_json() for point in sweep_machines(geometry, machines, request, disk_gb_s=options.disk_gb_s)]
    machine = Machine.current()
    if machines:
        machine = Machine.simulated(ram_gb=machines[0], working_set_gb=details[0], available_gb=details[1])
    disk = given_disk(options.disk_gb_s)
    result = plan(geometry, machine, request)
    speed = forecast_plan(result, disk)
    return {**result.to_json(), "speed_forecast": None if speed is None else speed.to_json()}


def _window(text: str) -> Any:
    return text if text == "auto" else int(text) if text.isdigit() else 0


def _geometry(model: str, compute: Any) -> ModelGeometry:
    if model == PUBLISHED_MODEL:
        return published_geometry(compute=compute)
    try:
        return ModelGeometry.from_checkpoint(model, compute=compute)
    except GeometryError as error:
        raise GeometryError(f"{error} (or use the built-in {PUBLISHED_MODEL})") from error


def _run() -> int:
    try:
        return main()
    except BrokenPipeError:
        # the reader, such as `head`, has seen enough; nothing may be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(_run())
