"""What fits, how large each part is and how fast it will be: the memory planner of Slotstream.

    from slotstream_planner import Machine, PlanRequest, plan, published_geometry

    print(plan(published_geometry(), Machine.simulated(ram_gb=48), PlanRequest()).pool_slots)

Standard library and psutil only; nothing here imports mlx or reads tensor data.
"""

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
