"""What a person asks for: a size, a window, and which optional parts to use."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from slotstream_planner.errors import InvalidRequest
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.lanes import LANES_MAX
from slotstream_planner.units import gb_to_bytes

__all__ = [
    "IMPLEMENTATION_CONTEXT_LIMIT",
    "DraftPlacement",
    "PlanRequest",
    "PlanSource",
    "Switch",
    "validate_request",
    "window_limit",
]

Switch = Literal["auto", "on", "off"]
DraftPlacement = Literal["automatic", "resident", "streamed"]
PlanSource = Literal["auto", "--memory-gb", "--pool-gb", "--experts-per-layer"]

IMPLEMENTATION_CONTEXT_LIMIT: Final = 262_144
"""The largest window the engine's position arithmetic and tests cover."""

_PASS_LIMITS: Final = (256, 4096)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The options of a plan. Everything unset is decided by the planner.

    Of the three sizes `experts_per_layer` beats `pool_gb`, which beats `memory_gb`; ignored ones are named
    in the plan's notes. `memory_limit_gb` is an adaptive ceiling and excludes all three.

    Attributes:
        experts_per_layer: Pool size as experts per layer.
        pool_gb: Pool size in GB.
        memory_gb: Fixed budget of the whole process in GB.
        memory_limit_gb: Ceiling of an automatic budget in GB.
        max_ram_percent: Largest share of RAM an automatic budget may take: 70 unless given, 100 under
            `memory_limit_gb`.
        max_context: Window in tokens, or ``"auto"``.
        mtp: Whether to use the draft head.
        mtp_experts: Where the draft head's experts live.
        lookahead: Whether to read likely experts ahead.
        vision: ``"on"`` reserves the vision tower at start; ``"auto"`` loads it with the first image.
        prefix_cache: ``"off"`` gives the memory of retained conversations to the pool.
        prefill_chunk: Forced prompt pass size, 256 to 4096.
        max_prefill_wait_minutes: Longest wait for a first token; 0 for no deadline.
        pinned_gb: Files of experts to pin in the host's memory for an NVIDIA GPU, in GB; ``"auto"`` for what is left.
        reading_lanes: Threads that read experts a request waits for; None for what the machine's cores suggest.
    """

    experts_per_layer: int | None = None
    pool_gb: float | None = None
    memory_gb: float | None = None
    memory_limit_gb: float | None = None
    max_ram_percent: float | None = None
    max_context: int | Literal["auto"] = "auto"
    mtp: Switch = "auto"
    mtp_experts: DraftPlacement = "automatic"
    lookahead: Switch = "auto"
    vision: Switch = "auto"
    prefix_cache: Literal["on", "off"] = "on"
    prefill_chunk: int | None = None
    max_prefill_wait_minutes: float = 30.0
    pinned_gb: float | Literal["auto", "off"] = "auto"
    reading_lanes: int | None = None

    def with_parts_that_run(self) -> PlanRequest:
        """Return the same request without what the engine does not run: images."""
        return replace(self, vision="off")

    @property
    def source(self) -> PlanSource:
        """The option that decides the size."""
        if self.experts_per_layer is not None:
            return "--experts-per-layer"
        if self.pool_gb is not None:
            return "--pool-gb"
        return "auto" if self.memory_gb is None else "--memory-gb"

    @property
    def fixes_pool(self) -> bool:
        """Whether the pool's size is given directly, so that there is no process target."""
        return self.experts_per_layer is not None or self.pool_gb is not None

    @property
    def ignored_sizes(self) -> list[str]:
        """The size options given but overruled by a stronger one."""
        given = [
            ("--experts-per-layer", self.experts_per_layer),
            ("--pool-gb", self.pool_gb),
            ("--memory-gb", self.memory_gb),
        ]
        return [name for name, value in given if value is not None and name != self.source]


def window_limit(geometry: ModelGeometry) -> int:
    """Return the largest window that may be asked for: the model's limit or the engine's."""
    return min(geometry.context_limit, IMPLEMENTATION_CONTEXT_LIMIT)


def validate_request(request: PlanRequest, geometry: ModelGeometry) -> None:
    """Refuse what no machine could satisfy for this model.

    Raises:
        InvalidRequest: A number is out of its range, or two options exclude each other.
    """
    experts = request.experts_per_layer
    if experts is not None and not 1 <= experts <= geometry.experts:
        raise InvalidRequest(
            f"--experts-per-layer is {experts}; {geometry.name} has {geometry.experts} experts per layer, "
            f"so give 1 to {geometry.experts}"
        )
    for name, value in (
        ("--pool-gb", request.pool_gb),
        ("--memory-gb", request.memory_gb),
        ("--memory-limit-gb", request.memory_limit_gb),
        ("--pinned-gb", None if isinstance(request.pinned_gb, str) else request.pinned_gb),
    ):
        if value is not None:
            gb_to_bytes(value, what=name)
    if request.memory_limit_gb is not None and request.source != "auto":
        raise InvalidRequest(
            f"--memory-limit-gb lets the size adapt and {request.source} fixes it; give one of the two"
        )
    percent = request.max_ram_percent
    if percent is not None and not 0 < percent <= 100:
        raise InvalidRequest(f"--max-ram-percent is {percent:g}; give a number above 0 and at most 100")
    window = request.max_context
    if window != "auto" and not 1 <= window <= window_limit(geometry):
        raise InvalidRequest(
            f"--max-context is {window}; {geometry.name} allows 1 to {window_limit(geometry)} tokens, or auto"
        )
    chunk = request.prefill_chunk
    if chunk is not None and not _PASS_LIMITS[0] <= chunk <= _PASS_LIMITS[1]:
        raise InvalidRequest(f"a prompt pass of {chunk} tokens is outside {_PASS_LIMITS[0]} to {_PASS_LIMITS[1]}")
    wait = request.max_prefill_wait_minutes
    if not math.isfinite(wait) or wait < 0:
        raise InvalidRequest(f"--max-prefill-wait is {wait:g}; give minutes, or 0 for no deadline")
    if request.reading_lanes is not None and not 1 <= request.reading_lanes <= LANES_MAX:
        raise InvalidRequest(f"{request.reading_lanes} reading lanes are outside 1 to {LANES_MAX}")
    _validate_parts(request, geometry)


def _validate_parts(request: PlanRequest, geometry: ModelGeometry) -> None:
    if request.mtp == "on" and geometry.draft_bytes == 0:
        raise InvalidRequest(
            f"--mtp on needs a draft head and {geometry.name} has none; add mtp.safetensors or use --mtp auto"
        )
    if request.vision == "on" and geometry.vision_bytes == 0:
        raise InvalidRequest(f"--vision on needs a vision tower and {geometry.name} has none; use --vision auto")
