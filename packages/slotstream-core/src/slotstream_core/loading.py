"""Putting a checkpoint into memory under a plan: files, readers, slots, model."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.claiming import in_use
from slotstream_core.checkpoint.corrections import Correction, correction_path, read_correction
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.drafting import DraftExperts, choose_depths, open_draft_experts
from slotstream_core.errors import CorrectionUnusable, PlanError, RecordsUnusable
from slotstream_core.experts import (
    ExpertLayout,
    StreamedExperts,
    choose_ahead_lanes,
    choose_lanes,
)
from slotstream_core.experts.cuda_memory import cuda_memory
from slotstream_core.experts.lookahead import Lookahead
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.experts.reader import asked_lanes
from slotstream_core.experts.reading import ExpertReading, ReadingOptions, open_reading, trunk_layout
from slotstream_core.experts.slot_memory import HostMemory, SlotMemory
from slotstream_core.experts.stats import ExpertStats, Waited
from slotstream_core.experts.uses import RecordUses, read_uses, uses_path, write_uses
from slotstream_core.generation.draft_depth import DepthPolicy
from slotstream_core.memory import cap_buffer_cache, machine_here
from slotstream_core.models.qwen4_exp.forecasting import Forecaster
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_core.options import EngineOptions
from slotstream_planner import MemoryPlan, ModelGeometry, PlanRequest, plan

logger = logging.getLogger("slotstream.core")


class LoadedModel:
    """A checkpoint in memory.  A context manager; closing it closes the files and lets the memory go.

    Attributes:
        checkpoint: The open checkpoint.
        experts: Its routed experts, streamed through a pool of slots.
        model: The model that uses both.
        plan: The plan it was loaded under.
        forecaster: What reads experts ahead in decode; None where the plan or the options leave it out.
        draft_experts: The draft head's experts; None without a draft head.
        depths: How many tokens to draft; learns from one reply to the next.
        reading: How the experts are read.
        pinned: Files of theirs that a device fetches from.
    """

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        experts: StreamedExperts,
        model: Qwen4ExpModel,
        plan: MemoryPlan,
        forecaster: Forecaster | None,
        draft_experts: DraftExperts | None,
        depths: DepthPolicy,
        reading: ExpertReading,
        pinned: PinnedFiles,
        resources: ExitStack,
    ) -> None:
        self.pinned = pinned
        self.checkpoint = checkpoint
        self.forecaster = forecaster
        self.draft_experts = draft_experts
        self.depths = depths
        self.reading = reading
        self.experts = experts
        self.model = model
        self.plan = plan
        self._resources = resources

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def draft_stats(self) -> ExpertStats:
        """What was read for the draft head so far."""
        return ExpertStats() if self.draft_experts is None else self.draft_experts.stats

    def waited(self) -> Waited:
        """How long was waited for the experts of the model and its draft head so far, and their bytes."""
        own = self.experts.pool.waited
        head = Waited() if self.draft_experts is None else self.draft_experts.waited
        return Waited(own.wait_s + head.wait_s, own.bytes_read + head.bytes_read)

    def close(self) -> None:
        """Stop the readers and close the files.  A second call does nothing."""
        self._resources.close()


def load_model(
    directory: Path,
    memory_plan: MemoryPlan | None = None,
    *,
    request: PlanRequest | None = None,
    options: EngineOptions | None = None,
    warm_directory: Path | None = None,
    mirrors: Sequence[Path] = (),
) -> LoadedModel:
    """Load a checkpoint.

    Args:
        directory: The checkpoint directory.
        memory_plan: The plan to load under; made here for this machine when not given.
        request: What a plan made here should achieve.
        options: What may be used; the environment's when not given.
        warm_directory: Where to keep, from one run to the next, which experts were used most, and to start with those;
            None keeps nothing.
        mirrors: Other directories with the same checkpoint, on other disks; each read goes where it is expected to
            arrive first.

    Raises:
        MirrorMismatch: A mirror does not hold the same checkpoint.
        CheckpointError: The directory cannot be used as a model.
        SettingError: An environment variable has a value that cannot be used.
        PlanError: The plan is simulated or was made for another model.
        BackendError: MLX cannot run here as installed.
        DeviceHung: The device does not answer.
        slotstream_planner.PlannerError: No plan fits, or the request contradicts itself.
    """
    options = options or EngineOptions.from_environment(os.environ)
    with ExitStack() as resources:
        resources.enter_context(in_use(directory.expanduser()))
        checkpoint = resources.enter_context(Checkpoint.open(directory))
        backend = Backend.detect()
        memory_plan = memory_plan or _planned(directory, backend, request or PlanRequest(), options)
        memory = slot_memory(backend)
        reads_ahead = memory_plan.lookahead and options.lookahead == "plan"
        cap_buffer_cache(memory_plan.buffer_cache_limit_bytes)
        stacked = trunk_layout(checkpoint, float_name=backend.float_name)
        reading = _open_trunk(checkpoint, stacked, memory_plan, options.reading(mirrors), resources)
        lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1, source=reading.source, memory=memory)
        streamed = StreamedExperts(
            reading.source,
            slot_count=memory_plan.pool_slots,
            lane_count=lanes,
            ahead_lane_count=choose_ahead_lanes(lanes, memory) if reads_ahead else 0,
            memory=memory,
            sweeping=options.sweep,
        )
        experts = resources.enter_context(streamed)
        draft_experts = open_draft_experts(
            checkpoint,
            backend,
            memory_plan,
            lane_count=lanes,
            reading=options.reading(mirrors).like(reading),
            memory=memory,
            resources=resources,
        )
        drafting = None if draft_experts is None else draft_experts.experts
        model = resources.enter_context(build_model(checkpoint, experts, backend, draft_experts=drafting))
        forecaster = _look_ahead(checkpoint, model, experts, backend, memory_plan, options) if reads_ahead else None
        _start_warm(warm_directory, stacked, experts, options, resources)
        pinned = PinnedFiles([part for part in (draft_experts and draft_experts.mapped, experts.mapped) if part])
        begin_pinning(pinned, memory_plan)
        return LoadedModel(
            checkpoint=checkpoint,
            experts=experts,
            model=model,
            plan=memory_plan,
            forecaster=forecaster,
            draft_experts=draft_experts,
            depths=choose_depths(memory_plan, options),
            reading=reading,
            pinned=pinned,
            resources=resources.pop_all(),
        )


def _planned(directory: Path, backend: Backend, request: PlanRequest, options: EngineOptions) -> MemoryPlan:
    """Return a plan for this machine with the parts that may be used."""
    wanted = replace(request, lookahead="off") if options.lookahead == "off" else request
    return plan_here(directory, backend, wanted)


def _open_trunk(
    checkpoint: Checkpoint,
    stacked: ExpertLayout,
    memory_plan: MemoryPlan,
    options: ReadingOptions,
    resources: ExitStack,
) -> ExpertReading:
    """Open the experts of the model's layers where they are read fastest, and say so in the log.

    Raises:
        MirrorMismatch: A mirror does not hold the same checkpoint.
        PlanError: The plan is simulated or was made for another model.
    """
    _check_plan(memory_plan, stacked)
    reading = open_reading(
        checkpoint.directory,
        stacked,
        "trunk",
        options=options,
        available_bytes=memory_plan.page_cache_bytes,
        resources=resources,
    )
    logger.info("%s", reading.describe())
    return reading


def begin_pinning(pinned: PinnedFiles, memory_plan: MemoryPlan) -> None:
    """Begin to pin what the plan charges of the experts' files; say so where that cannot be."""
    wanted = memory_plan.ledger.pinned_file_bytes
    pinned.pin(wanted)
    if wanted and not pinned.most_bytes:
        asked = memory_plan.request.pinned_gb != "auto"
        logger.log(
            logging.WARNING if asked else logging.INFO,
            "files of experts are not pinned: that takes compiled lanes, the copy kernel, one directory and reads "
            "through the page cache",
        )


def _start_warm(
    directory: Path | None, layout: ExpertLayout, experts: StreamedExperts, options: EngineOptions, resources: ExitStack
) -> None:
    """Fill the pool with what earlier runs used most, in the background, and keep the uses of this one at its end.

    Without a directory, or with the warm start off, nothing is filled or kept.
    """
    if directory is None or options.warm_start == "off":
        return
    pool = experts.pool
    try:
        path = uses_path(directory, layout)
    except RecordsUnusable as error:
        logger.info("the pool starts cold: %s", error)
        return
    earlier = read_uses(path, layout) or RecordUses(counts=(0,) * layout.record_count)

    def keep() -> None:
        later = pool.uses
        if any(later):
            write_uses(path, earlier.plus(later))

    resources.callback(keep)
    # In a smaller pool the prompt evicts most of what was brought before a reply could use it.
    worthwhile = 2 * pool.slot_count >= layout.record_count or options.warm_start == "on"
    if worthwhile and (records := earlier.most_used(layout.expert_count)):
        experts.warm(records, budget_s=options.warm_budget_s)


def _look_ahead(
    checkpoint: Checkpoint,
    model: Qwen4ExpModel,
    experts: StreamedExperts,
    backend: Backend,
    memory_plan: MemoryPlan,
    options: EngineOptions,
) -> Forecaster:
    """Let the model read experts ahead.

    Raises:
        PlanError: That needs more memory than the plan reserved for it.
    """
    mode = memory_plan.request.lookahead
    lookahead = Lookahead(experts.pool, top=checkpoint.config.num_experts_per_tok, mode=mode)
    correction = None if options.tap == "boundary" else find_correction(checkpoint)
    forecaster = Forecaster(
        model.layers, lookahead, backend, correction=correction, tap=options.tap, renewed=model.renewed_layers
    )
    needed, reserved = experts.ahead_bytes + forecaster.byte_count, memory_plan.ledger.lookahead_reserve_bytes
    if needed > reserved:
        raise PlanError(
            f"the lookahead needs {needed:,} bytes and the plan reserves {reserved:,}; plan again for this checkpoint, "
            "or leave it out with --lookahead off"
        )
    model.look_ahead(forecaster)
    return forecaster


def find_correction(checkpoint: Checkpoint) -> Correction | None:
    """Return the checkpoint's forecast correction; None, after a line in the log, when it cannot be used."""
    config = checkpoint.config
    try:
        return read_correction(
            correction_path(checkpoint.directory),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            experts=config.num_experts,
        )
    except CorrectionUnusable as error:
        logger.info("%s; experts are forecast without it, at the layer boundary", error)
        return None


def plan_here(directory: Path, backend: Backend, request: PlanRequest) -> MemoryPlan:
    """Return a plan for a checkpoint on this machine, without the parts that this engine does not run yet.

    Raises:
        slotstream_planner.PlannerError: The geometry cannot be read, no plan fits, or the request is wrong.
        SettingError: SLOTSTREAM_IO_QUEUE_DEPTH is not a number of lanes.
    """
    geometry = ModelGeometry.from_checkpoint(directory, compute="float32" if backend.kind == "cpu" else "bf16")
    lanes = request.reading_lanes or asked_lanes(os.environ)
    wanted = replace(request.with_parts_that_run(), reading_lanes=lanes)
    return plan(geometry, machine_here(backend), wanted)


def slot_memory(backend: Backend) -> SlotMemory:
    """Return how bytes reach the slots of this backend."""
    return cuda_memory() if backend.kind == "cuda" else HostMemory()


def _check_plan(memory_plan: MemoryPlan, layout: ExpertLayout) -> None:
    if memory_plan.simulated:
        raise PlanError("the plan was made for a simulated machine; make one with Machine.current() to load a model")
    planned, found = memory_plan.geometry.slot_bytes, layout.slot_bytes
    if planned != found or memory_plan.geometry.total_experts != layout.record_count:
        raise PlanError(
            f"the plan is for {memory_plan.geometry.total_experts:,} experts of {planned:,} bytes in a slot, this "
            f"checkpoint has {layout.record_count:,} of {found:,} bytes; plan again for this checkpoint"
        )
