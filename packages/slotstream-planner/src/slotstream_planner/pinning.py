"""How much of the experts' files is pinned in the host's memory, from where an NVIDIA GPU fetches records itself.

Pinned memory is lost to everybody else until the engine ends. So it gets what everything else in the plan leaves of the
host's available memory, and of that a quarter, 4 GB at least, stays to the system and to other programs.
"""

from __future__ import annotations

from typing import Final

from slotstream_planner.errors import InvalidRequest
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.request import PlanRequest
from slotstream_planner.units import GB, gb_to_bytes

__all__ = ["check_pinning", "host_margin_bytes", "pinned_file_bytes"]

_LEFT_SHARE: Final = 4
_LEFT_BYTES: Final = 4 * GB
_BLOCK_BYTES: Final = 4096


def host_margin_bytes(host_bytes: int) -> int:
    """Return what an automatic size leaves of a host's available memory."""
    return max(_LEFT_BYTES, host_bytes // _LEFT_SHARE)


def pinned_file_bytes(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, *, slots: int, other_bytes: int
) -> int:
    """Return how many bytes of files to pin; 0 where nothing is streamed or there is no device that fetches.

    Args:
        geometry: The model.
        machine: Where it runs.
        request: What was asked for.
        slots: Expert slots: nothing is read where every expert has one.
        other_bytes: What else the plan takes of the host's memory.
    """
    if machine.kind != "cuda" or request.pinned_gb == "off" or slots >= geometry.total_experts:
        return 0
    blocks = -(-geometry.record_bytes // _BLOCK_BYTES)
    whole = geometry.total_experts * blocks * _BLOCK_BYTES
    if request.pinned_gb != "auto":
        return min(whole, gb_to_bytes(request.pinned_gb, what="--pinned-gb"))
    host = machine.host_available_bytes
    return 0 if host is None else max(0, min(whole, host - host_margin_bytes(host) - other_bytes))


def check_pinning(request: PlanRequest, machine: Machine) -> None:
    """Refuse a size where nothing can be pinned.

    Raises:
        InvalidRequest: It is given, and the machine has no NVIDIA GPU.
    """
    if isinstance(request.pinned_gb, str):
        return
    if machine.kind != "cuda":
        raise InvalidRequest(
            f"--pinned-gb {request.pinned_gb:g} is for files from which an NVIDIA GPU fetches experts, and there is "
            "none here; leave it out"
        )
