"""What the engine holds for experts beside their slots, by kind of machine; each amount with its source.

Where the accelerator shares the host's memory, all of it is charged to the plan. An NVIDIA GPU has memory of its own: a
plan is for that, and what lies in the host's memory instead is told apart.

    lanes      parts of scratch that records are read into (`slotstream_core.experts.reader`); on an NVIDIA GPU pinned
               memory of the host, eight parts of 272 KiB a lane. In bf16 on a Mac the fixed cost includes them.
    copies     descriptors of the copy kernel (`csrc/copies.h`): one for each of two threads that lead
    routers    held as float32 (`slotstream_core.models.qwen4_exp.moe`), quantised ones unpacked once more for the
               kernels of one row (`device.experts`)
    states     recurrent states beside the present one: the next one, and with drafts one for each row of a pass that
               may be taken back (`gated_delta`), up to five
    batches    experts that many rows of a long pass chose, unpacked 16 at a time, with 8,192 rows of activations
               (`gathering`), from 16 rows an expert on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.lanes import ahead_lanes, ahead_scratch_bytes, demand_lanes, demand_scratch_bytes
from slotstream_planner.machine import Machine
from slotstream_planner.units import MB

__all__ = [
    "DENSE_BATCH_ROWS",
    "DENSE_EXPERTS",
    "DENSE_MEAN_ROWS",
    "HOST_PROCESS_BYTES",
    "RECORDED_ROWS",
    "EngineMemory",
    "engine_memory",
]

DENSE_EXPERTS: Final = 16
DENSE_BATCH_ROWS: Final = 8192
DENSE_MEAN_ROWS: Final = 16
_LEADERS: Final = 2
_DESCRIPTOR_BYTES: Final = 8 + 128 * 24
HOST_PROCESS_BYTES: Final = 1_900 * MB
"""Beside an NVIDIA GPU: interpreter, libraries and compiled kernels, resident once a model is loaded, without what is
pinned (an NVIDIA H200 with MLX 0.32.4, docs/log.md, 2026-11-30). Much of it is files that the system can read again."""

RECORDED_ROWS: Final = 5
"""Rows of a pass with as many drafts as `slotstream_core.generation.draft_depth` makes without being asked for more."""


@dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """Bytes beside the slots.

    Attributes:
        lane_bytes: Scratch of the lanes that a computation waits for.
        ahead_bytes: Scratch of the lanes that read ahead, where there are such.
        copy_bytes: Descriptors of the copy kernel.
        router_bytes: Routers beyond what the shared weights count.
        state_bytes: Recurrent states of rows that may be taken back.
        batch_bytes: Experts unpacked for a long pass, and their activations.
        separate: Whether lanes and copies lie in the host's memory and the rest in a device's own.
        included: Whether the fixed cost includes the lanes.
    """

    lane_bytes: int
    ahead_bytes: int
    copy_bytes: int
    router_bytes: int
    state_bytes: int
    batch_bytes: int
    separate: bool
    included: bool

    @property
    def charged_bytes(self) -> int:
        """In the memory that the plan divides; what the lookahead's line holds is not counted again."""
        device = self.router_bytes + self.state_bytes + self.batch_bytes
        return device if self.separate or self.included else device + self.lane_bytes

    @property
    def host_bytes(self) -> int:
        """Pinned memory of the host beside a device with memory of its own; else 0."""
        return self.lane_bytes + self.ahead_bytes + self.copy_bytes if self.separate else 0


def engine_memory(
    geometry: ModelGeometry,
    machine: Machine,
    *,
    pass_tokens: int,
    drafts: bool,
    lookahead: bool,
    lanes: int | None = None,
) -> EngineMemory:
    """Return what the engine will hold beside the slots.

    Args:
        geometry: The model.
        machine: Where it runs.
        pass_tokens: Most tokens of a prompt pass.
        drafts: Whether tokens are drafted.
        lookahead: Whether lanes read ahead.
        lanes: Lanes for requests; None for what the machine's cores suggest.
    """
    separate = machine.kind == "cuda"
    lanes = demand_lanes(machine.cores, copies=separate) if lanes is None else lanes
    ahead = ahead_lanes(lanes, copies=separate) if lookahead else 0
    record_bytes = geometry.record_bytes
    return EngineMemory(
        lane_bytes=demand_scratch_bytes(record_bytes, lanes, copies=separate),
        ahead_bytes=ahead_scratch_bytes(record_bytes, ahead, copies=separate) if ahead else 0,
        copy_bytes=_LEADERS * _DESCRIPTOR_BYTES if separate else 0,
        router_bytes=_router_bytes(geometry) if separate else 0,
        state_bytes=geometry.recurrent_bytes * (RECORDED_ROWS if drafts else 1) if separate else 0,
        batch_bytes=dense_batch_bytes(geometry, pass_tokens) if separate else 0,
        separate=separate,
        included=geometry.compute == "bf16",
    )


def _router_bytes(geometry: ModelGeometry) -> int:
    """Return what float32 routers take beyond the share of the shared weights that is theirs."""
    return geometry.layers * geometry.experts * geometry.hidden * 4 - geometry.float_router_bytes


def dense_batch_bytes(geometry: ModelGeometry, pass_tokens: int) -> int:
    """Return what a batch of unpacked experts takes; 0 for passes in which none is unpacked.

    16 experts as they lie in slots, their three matrices in bf16, and of 8,192 rows the input, three inner vectors
    and the output: 317 MB for the published model.
    """
    if pass_tokens * geometry.experts_per_token < DENSE_MEAN_ROWS * geometry.experts:
        return 0
    width = geometry.expert_width
    weights = DENSE_EXPERTS * (geometry.slot_bytes + 3 * width * geometry.hidden * 2)
    return weights + DENSE_BATCH_ROWS * (2 * geometry.hidden + 3 * width) * 2
