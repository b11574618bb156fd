"""What fits, how large each part is and how fast it will be: the memory planner of Slotstream.

    from slotstream_planner import Machine, PlanRequest, plan, published_geometry

    print(plan(published_geometry(), Machine.simulated(ram_gb=48), PlanRequest()).pool_slots)

Standard library and psutil only; nothing here imports mlx or reads tensor data.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotstream_planner.errors import (
        ForecastError,
        GeometryError,
        InsufficientMemory,
        InvalidRequest,
        MachineError,
        PlannerError,
    )
    from slotstream_planner.geometry import ModelGeometry
    from slotstream_planner.ledger import MemoryLedger
    from slotstream_planner.machine import Machine
    from slotstream_planner.planning import MemoryPlan, plan
    from slotstream_planner.published import PUBLISHED_MODEL, published_geometry
    from slotstream_planner.request import PlanRequest

__all__ = [
    "PUBLISHED_MODEL",
    "ForecastError",
    "GeometryError",
    "InsufficientMemory",
    "InvalidRequest",
    "Machine",
    "MachineError",
    "MemoryLedger",
    "MemoryPlan",
    "ModelGeometry",
    "PlanRequest",
    "PlannerError",
    "plan",
    "published_geometry",
]

_HOMES = {
    "PUBLISHED_MODEL": "published",
    "published_geometry": "published",
    "ModelGeometry": "geometry",
    "MemoryLedger": "ledger",
    "Machine": "machine",
    "MemoryPlan": "planning",
    "plan": "planning",
    "PlanRequest": "request",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that a command's ``--help`` need not load the planner."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    value = getattr(module, name)
    globals()[name] = value
    return value
