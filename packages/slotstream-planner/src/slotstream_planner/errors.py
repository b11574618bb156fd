"""Errors of the planner.

::

    PlannerError
    ├── InvalidRequest      a size, window or switch that cannot be meant, or two that conflict
    ├── GeometryError       a checkpoint directory that is missing, damaged or of an unknown kind
    │   └── CheckpointUnreadable  a directory or file of it that does not exist or cannot be opened
    ├── MachineError        a sensor that cannot be read, or readings that contradict each other
    ├── ForecastError       a disk that cannot be measured
    └── InsufficientMemory  a valid request that does not fit; carries the numbers that would

Every message says what happened, the numbers, and what to change.
"""

from __future__ import annotations

__all__ = [
    "CheckpointUnreadable",
    "ForecastError",
    "GeometryError",
    "InsufficientMemory",
    "InvalidRequest",
    "MachineError",
    "PlannerError",
]


class PlannerError(Exception):
    """Base of everything the planner raises on purpose.

    Attributes:
        code: A stable identifier for programs, for example ``"invalid_request"``.
    """

    code = "planner_error"


class InvalidRequest(PlannerError):
    """A request that no machine could satisfy as written."""

    code = "invalid_request"


class GeometryError(PlannerError):
    """A checkpoint whose layout cannot be read or is not understood."""

    code = "geometry_error"


class CheckpointUnreadable(GeometryError):
    """A checkpoint's directory, or a file that should be in it, does not exist or cannot be opened."""

    code = "checkpoint_unreadable"


class MachineError(PlannerError):
    """A reading of this machine that is missing or impossible."""

    code = "machine_error"


class ForecastError(PlannerError):
    """A disk measurement that could not be made."""

    code = "forecast_error"


class InsufficientMemory(PlannerError):
    """A request that is well formed but needs more memory than it may use.

    Attributes:
        required_bytes: What the smallest arrangement of this request needs.
        available_bytes: What the machine or the request allows; None when it could not be read.
        of_host: Whether the host's memory beside a device's own is what falls short.
    """

    code = "insufficient_memory"

    def __init__(
        self, message: str, *, required_bytes: int, available_bytes: int | None, of_host: bool = False
    ) -> None:
        super().__init__(message)
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes
        self.of_host = of_host
