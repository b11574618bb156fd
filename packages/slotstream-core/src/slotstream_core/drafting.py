"""Loading the draft head's experts as a plan says, and choosing how deep it drafts."""

from __future__ import annotations

from contextlib import ExitStack

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import PlanError
from slotstream_core.experts import ExpertLayout, ResidentExperts, StoredExperts, StreamedExperts, draft_modules
from slotstream_core.experts.mapped_files import MappedFiles
from slotstream_core.experts.reading import ReadingOptions, choose_layout, open_reading
from slotstream_core.experts.slot_memory import SlotMemory
from slotstream_core.experts.stats import ExpertStats, Waited
from slotstream_core.generation.draft_depth import (
    DEFAULT_DEPTH,
    GATED_LIMIT,
    DepthPolicy,
    FixedDepth,
    GatedDepth,
)
from slotstream_core.models.qwen4_exp.text import ROW_INVARIANT_ROWS
from slotstream_core.options import EngineOptions
from slotstream_planner import MemoryPlan
from slotstream_planner.charges import streamed_draft_slots

DRAFT_LANES = 8
"""Lanes of a streamed head: a row asks for about ten records and half of them are there already."""


class DraftExperts:
    """The routed experts of the draft head, all in memory or in a small pool of their own.

    Attributes:
        experts: What the head computes with.
    """

    def __init__(self, experts: ResidentExperts | StreamedExperts) -> None:
        self.experts = experts

    @property
    def stats(self) -> ExpertStats:
        """What was read for it so far."""
        return self.experts.stats if isinstance(self.experts, StreamedExperts) else ExpertStats()

    @property
    def mapped(self) -> MappedFiles | None:
        """What a device may fetch from their files; None where it cannot, or all are in memory."""
        return self.experts.mapped if isinstance(self.experts, StreamedExperts) else None

    @property
    def waited(self) -> Waited:
        """How long was waited for it, and the bytes."""
        return self.experts.pool.waited if isinstance(self.experts, StreamedExperts) else Waited()


def open_draft_experts(
    checkpoint: Checkpoint,
    backend: Backend,
    plan: MemoryPlan,
    *,
    lane_count: int,
    reading: ReadingOptions,
    memory: SlotMemory,
    resources: ExitStack,
) -> DraftExperts | None:
    """Load or open the head's experts; None when the plan has no draft head.

    Args:
        checkpoint: Open for as long as the experts are used.
        backend: What runs here.
        plan: Says where the experts live.
        lane_count: Threads that read them, at most; a streamed head uses fewer.
        reading: What may be used to read them.
        memory: How bytes reach the places of experts.
        resources: Closes what was opened.

    Raises:
        PlanError: The plan has a draft head and the checkpoint none.
        CheckpointError: The head's tensors cannot be used.
        ExpertReadError: A record could not be read.
    """
    if plan.draft == "off":
        return None
    if not checkpoint.draft:
        raise PlanError("the plan has a draft head and this checkpoint has none; plan again for this checkpoint")
    layout = ExpertLayout.from_checkpoint(checkpoint, draft_modules(), float_name=backend.float_name)
    if plan.draft == "resident":
        layout = choose_layout(checkpoint.directory, layout, "draft", reading)
        with StoredExperts(layout, native=reading.native) as stored:
            return DraftExperts(ResidentExperts(stored, lane_count=lane_count, memory=memory))
    source = open_reading(
        checkpoint.directory, layout, "draft", options=reading, available_bytes=0, resources=resources
    ).source
    slots = streamed_draft_slots(plan.geometry)
    streamed = StreamedExperts(source, slot_count=slots, lane_count=min(DRAFT_LANES, lane_count), memory=memory)
    return DraftExperts(resources.enter_context(streamed))


def choose_depths(plan: MemoryPlan, options: EngineOptions) -> DepthPolicy:
    """Return what decides how many tokens to draft.

    With ``--mtp on`` that is always `SLOTSTREAM_DRAFT_DEPTH`, 2 unless set; with ``auto`` as many as are worth it,
    up to that number or 4.
    """
    exact_limit = ROW_INVARIANT_ROWS - 1 if options.row_invariant else None

    def limited(depth: int) -> int:
        return depth if exact_limit is None else min(depth, exact_limit)

    if plan.request.mtp == "on":
        return FixedDepth(limited(options.draft_depth or DEFAULT_DEPTH))
    return GatedDepth(limited(options.draft_depth or GATED_LIMIT))
