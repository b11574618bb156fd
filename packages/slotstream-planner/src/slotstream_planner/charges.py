"""What each part of a running model costs in bytes, derived from its geometry.

Every rule reproduces the published model's documented constant when given the published geometry, and
gives a smaller model a proportionate one. Amounts that stand for measured overhead are rounded up to two
significant digits, as the documented constants are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.lanes import AHEAD_LANES, DEMAND_LANES, ahead_scratch_bytes, demand_scratch_bytes
from slotstream_planner.units import GB, MB, MIB, two_digit_ceiling

__all__ = [
    "BASE_WINDOW_TOKENS",
    "SEQUENCE_STEP_TOKENS",
    "FixedCost",
    "active_sequence_bytes",
    "additional_active_bytes",
    "base_window",
    "buffer_cache_bytes",
    "draft_bytes",
    "draft_surcharge_bytes",
    "driver_bytes",
    "extra_context_bytes",
    "fixed_cost",
    "floor_slots",
    "lookahead_bytes",
    "minimum_target_bytes",
    "planning_margin_bytes",
    "retention_bytes",
    "retention_fixed_bytes",
    "sequence_step_bytes",
    "streamed_draft_slots",
    "transient_bytes",
    "vision_bytes",
]

BASE_WINDOW_TOKENS: Final = 32_768
"""The window every fixed cost already includes."""

SEQUENCE_STEP_TOKENS: Final = 1024
"""The sequence cache grows by this many tokens."""

_NGRAM_CACHE_BYTES: Final = 256 * MB
_BUFFER_CACHE_BYTES: Final = 512 * MIB
_PROCESS_BYTES: Final = 128 * MIB
"""Interpreter and libraries. A process with MLX's CPU backend and a tiny model peaks at 70 to 111 MB."""

_DRIVER_BYTES: Final = 580 * MB
"""On an NVIDIA GPU beside MLX's arrays: kernels and libraries 270 MB, and 310 that the driver's pool keeps of freed
memory once a model is loaded (an NVIDIA H200 with MLX 0.32.4, docs/log.md, 2026-11-30)."""

_VOCABULARY_ENTRY_BYTES: Final = 1024
_RETAINED_ENTRIES: Final = 3
_STREAMED_DRAFT_SLOTS: Final = 64
_LOOKAHEAD_RECORDS: Final = 48
_MARGIN_BYTES: Final = 1 * GB
_SMALLEST_MARGIN_BYTES: Final = 64 * MB


@dataclass(frozen=True, kw_only=True)
class FixedCost:
    """What a loaded model costs before its first slot.

    Attributes:
        shared_bytes: Always-resident tensors in the compute type.
        ngram_cache_bytes: Payload of the n-gram row cache.
        recurrent_bytes: Recurrent state of the active sequence.
        active_sequence_bytes: Sequence cache of the active sequence up to the base window.
        buffer_cache_bytes: MLX's cache of freed buffers.
        process_bytes: Interpreter, libraries, tokenizer tables and logits.
        scratch_bytes: What the most reading lanes read into, in bf16, where the documented constant includes it; a
            plan for a processor charges the lanes of its machine (`slotstream_planner.engine_memory`).
        rounding_bytes: What rounding the sum up to two digits adds.
    """

    shared_bytes: int
    ngram_cache_bytes: int
    recurrent_bytes: int
    active_sequence_bytes: int
    buffer_cache_bytes: int
    process_bytes: int
    scratch_bytes: int
    rounding_bytes: int

    @property
    def total_bytes(self) -> int:
        """The fixed cost."""
        return (
            self.shared_bytes
            + self.ngram_cache_bytes
            + self.recurrent_bytes
            + self.active_sequence_bytes
            + self.buffer_cache_bytes
            + self.process_bytes
            + self.scratch_bytes
            + self.rounding_bytes
        )


def base_window(geometry: ModelGeometry) -> int:
    """Return the default window: 32,768 tokens, or the model's limit when that is smaller."""
    return min(BASE_WINDOW_TOKENS, geometry.context_limit)


def fixed_cost(geometry: ModelGeometry) -> FixedCost:
    """Return the fixed cost; 5,300,000,000 bytes for the published model in bf16."""
    ngram = min(_NGRAM_CACHE_BYTES, geometry.ngram_bytes)
    active = active_sequence_bytes(geometry, base_window(geometry))
    cache = buffer_cache_bytes(geometry)
    process = _PROCESS_BYTES + geometry.vocabulary * _VOCABULARY_ENTRY_BYTES
    scratch = demand_scratch_bytes(geometry.record_bytes, DEMAND_LANES, copies=False)
    scratch = scratch if geometry.compute == "bf16" else 0
    total = geometry.shared_resident_bytes + ngram + geometry.recurrent_bytes + active + cache + process + scratch
    return FixedCost(
        shared_bytes=geometry.shared_resident_bytes,
        ngram_cache_bytes=ngram,
        recurrent_bytes=geometry.recurrent_bytes,
        active_sequence_bytes=active,
        buffer_cache_bytes=cache,
        process_bytes=process,
        scratch_bytes=scratch,
        rounding_bytes=two_digit_ceiling(total) - total,
    )


def driver_bytes(geometry: ModelGeometry) -> int:
    """Return what an NVIDIA GPU's driver holds on the device beyond the share of the fixed cost that lies elsewhere.

    Rows of n-grams, the process and what lanes read into are in the host's memory there: 737 MB for the published
    model, which cover the driver's 580, so nothing is added. What its pool keeps after long prompts, up to 0.8 GB more,
    is less than the workspace of a pass charges beyond what is used.
    """
    fixed = fixed_cost(geometry)
    return max(0, _DRIVER_BYTES - fixed.ngram_cache_bytes - fixed.process_bytes - fixed.scratch_bytes)


def buffer_cache_bytes(geometry: ModelGeometry) -> int:
    """Return the buffer cache the fixed cost includes: a quarter of the shared weights, 32 to 512 MiB."""
    return min(_BUFFER_CACHE_BYTES, max(32 * MIB, geometry.shared_resident_bytes // 4))


def planning_margin_bytes(geometry: ModelGeometry) -> int:
    """Return the share of a target never given to the pool: 1 GB, less for a model smaller than 64 GB."""
    return min(_MARGIN_BYTES, max(_SMALLEST_MARGIN_BYTES, geometry.expert_set_bytes // 64))


def floor_slots(geometry: ModelGeometry) -> int:
    """Return the smallest pool: a slot for every expert one token visits and a third more; 640 slots as published.

    A pass whose layers route to more experts than fit is computed in groups, so nothing larger is needed.
    """
    visited = geometry.layers * geometry.experts_per_token
    return min(geometry.total_experts, max(2 * geometry.experts_per_token, -(-4 * visited // 3)))


def minimum_target_bytes(geometry: ModelGeometry) -> int:
    """Return the smallest process target at the base window: 8.1 GB for the published model."""
    pool = floor_slots(geometry) * geometry.slot_bytes
    return two_digit_ceiling(pool + fixed_cost(geometry).total_bytes + planning_margin_bytes(geometry))


def active_sequence_bytes(geometry: ModelGeometry, tokens: int, *, extra_layers: int = 0) -> int:
    """Return the sequence cache of a window, allocated in steps of 1,024 tokens.

    Args:
        geometry: The model.
        tokens: The window.
        extra_layers: Attention layers beyond the model's own; 1 with a draft head.
    """
    steps = -(-tokens // SEQUENCE_STEP_TOKENS)
    per_token = geometry.kv_bytes_per_token + extra_layers * geometry.kv_layer_bytes_per_token
    return steps * SEQUENCE_STEP_TOKENS * per_token


def sequence_step_bytes(geometry: ModelGeometry, tokens: int) -> int:
    """Return what a sequence cache that is full with ``tokens`` takes to grow by a step.

    The rows of the step in every layer, and the copy that one layer's rows are in while they move.
    """
    return SEQUENCE_STEP_TOKENS * geometry.kv_bytes_per_token + tokens * geometry.kv_layer_bytes_per_token


def additional_active_bytes(geometry: ModelGeometry, window: int, *, extra_layers: int = 0) -> int:
    """Return the sequence cache beyond what the fixed cost includes."""
    base = active_sequence_bytes(geometry, base_window(geometry), extra_layers=extra_layers)
    return max(0, active_sequence_bytes(geometry, window, extra_layers=extra_layers) - base)


def transient_bytes(geometry: ModelGeometry, window: int, *, extra_layers: int = 0) -> int:
    """Return the copy a growing cache makes: nothing at the base window, at least one base cache beyond it."""
    if window <= base_window(geometry):
        return 0
    least = BASE_WINDOW_TOKENS * geometry.kv_bytes_per_token
    return max(least, additional_active_bytes(geometry, window, extra_layers=extra_layers))


def extra_context_bytes(geometry: ModelGeometry, window: int, *, extra_layers: int = 0) -> int:
    """Return the whole charge of a window beyond the base: cache growth and its transient copy."""
    return additional_active_bytes(geometry, window, extra_layers=extra_layers) + transient_bytes(
        geometry, window, extra_layers=extra_layers
    )


def draft_surcharge_bytes(geometry: ModelGeometry, window: int) -> int:
    """Return what the draft head's own attention layer adds to a window's charge."""
    return extra_context_bytes(geometry, window, extra_layers=1) - extra_context_bytes(geometry, window)


def draft_bytes(geometry: ModelGeometry, *, streamed: bool) -> int:
    """Return the draft head's charge at the base window.

    Resident: its tensors and its cache, rounded up; 1,600,000,000 for the published model. Streamed: the
    same without its experts, but with a 64-slot cache and scratch for one token's experts.
    """
    if geometry.draft_bytes == 0:
        return 0
    cache = base_window(geometry) * geometry.kv_layer_bytes_per_token
    resident = two_digit_ceiling(geometry.draft_resident_bytes + cache)
    if not streamed:
        return resident
    kept = streamed_draft_slots(geometry) + geometry.experts_per_token
    return resident - max(0, geometry.experts - kept) * geometry.slot_bytes


def streamed_draft_slots(geometry: ModelGeometry) -> int:
    """Return the slots that a draft head has whose experts stream: 64, or all of its experts when they are fewer."""
    return min(_STREAMED_DRAFT_SLOTS, geometry.experts)


def vision_bytes(geometry: ModelGeometry) -> int:
    """Return the vision tower's charge: 900,000,000 for the published model, 0 when there is none."""
    return two_digit_ceiling(geometry.vision_resident_bytes)


def lookahead_bytes(geometry: ModelGeometry, *, lanes: int = AHEAD_LANES, separate: bool = False) -> int:
    """Return the lookahead's reserve: staging, router copies and the correction file.

    373 MiB for the published model in bf16 without its correction file, 409 MiB with it: 48 records, float32 routers.
    Where float32 is computed in, lanes read into a record each, forecasts use copies of the routers with 8 bits
    (`slotstream_core.models.qwen4_exp.eager.forecast`), and the correction takes twice the bytes of its file. A device
    with memory of its own holds the correction alone: lanes read into the host's memory, and forecasts use the layers'
    own routers, float32 as they are (`slotstream_planner.engine_memory` charges both).

    Args:
        geometry: The model.
        lanes: Lanes that read ahead, where float32 is computed in.
        separate: Whether the plan divides a device's own memory.
    """
    if separate:
        return -(-geometry.correction_bytes // MIB) * MIB
    values = (geometry.layers + 1) * geometry.experts * geometry.hidden
    if geometry.compute == "float32":
        staging, routers = ahead_scratch_bytes(geometry.record_bytes, lanes, copies=False), values + values // 8
    else:
        staging, routers = 1 << (_LOOKAHEAD_RECORDS * geometry.record_bytes - 1).bit_length(), values * 4
    held = geometry.correction_bytes * (2 if geometry.compute == "float32" else 1)
    return staging + routers + -(-held // MIB) * MIB


def retention_fixed_bytes(geometry: ModelGeometry) -> int:
    """Return the recurrent states of retained conversations: three beside the active one."""
    return _RETAINED_ENTRIES * geometry.recurrent_bytes


def retention_bytes(geometry: ModelGeometry, tokens: int) -> int:
    """Return the cost of keeping this many tokens of past conversations; nothing for none."""
    return 0 if tokens <= 0 else tokens * geometry.kv_bytes_per_token + retention_fixed_bytes(geometry)
