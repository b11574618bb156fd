"""How much of the experts' files is pinned in the host's memory, from where an NVIDIA GPU fetches records itself.

The system may not take pinned memory back. So it gets what everything else in the plan leaves of the host's available
memory, and of that a quarter, 4 GB at least, stays to the system and to other programs; and what others pinned, which
the system counts as available, is not available here. While an engine runs `pinned_governor` says how much it pins.
"""

from __future__ import annotations

from typing import Final

from slotstream_planner.errors import InvalidRequest
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.machine import Machine
from slotstream_planner.request import PlanRequest
from slotstream_planner.units import GB, gb_to_bytes

__all__ = ["check_pinning", "host_margin_bytes", "most_pinned_bytes", "pinned_file_bytes"]

_LEFT_SHARE: Final = 4
_LEFT_BYTES: Final = 4 * GB
_BLOCK_BYTES: Final = 4096


def host_margin_bytes(host_bytes: int) -> int:
    """Return what an automatic size leaves of a host's available memory."""
    return max(_LEFT_BYTES, host_bytes // _LEFT_SHARE)


def most_pinned_bytes(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, *, slots: int, head: bool
) -> int:
    """Return how many bytes of files would be pinned at most, however much memory there is.

    That is what was asked for, or all files of experts that are read; 0 where there are none or no device that fetches.

    Args:
        geometry: The model.
        machine: Where it runs.
        request: What was asked for.
        slots: Expert slots: nothing is read of the model's layers where every expert has one.
        head: Whether the draft head's experts are streamed.
    """
    if machine.kind != "cuda" or request.pinned_gb == "off":
        return 0
    records = (geometry.total_experts if slots < geometry.total_experts else 0) + (geometry.experts if head else 0)
    whole = records * -(-geometry.record_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
    return whole if request.pinned_gb == "auto" else min(whole, gb_to_bytes(request.pinned_gb, what="--pinned-gb"))


def pinned_file_bytes(
    geometry: ModelGeometry, machine: Machine, request: PlanRequest, *, slots: int, head: bool, other_bytes: int
) -> int:
    """Return how many bytes of files to pin: what was asked for, or what can be spared; see `most_pinned_bytes`.

    Args:
        geometry: The model.
        machine: Where it runs; what others pinned of it.
        request: What was asked for.
        slots: As for `most_pinned_bytes`.
        head: As for `most_pinned_bytes`.
        other_bytes: What else the plan takes of the host's memory.
    """
    most = most_pinned_bytes(geometry, machine, request, slots=slots, head=head)
    if request.pinned_gb != "auto":
        return most
    if machine.host_available_bytes is None:
        return 0
    host = max(0, machine.host_available_bytes - machine.host_pinned_bytes)
    return max(0, min(most, host - host_margin_bytes(host) - other_bytes))


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
