"""Putting a checkpoint into memory under a plan: files, readers, slots, model."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import PlanError
from slotstream_core.experts import ExpertLayout, StoredExperts, StreamedExperts, choose_lanes, prefers_direct
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.memory import cap_buffer_cache
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_planner import Machine, MemoryPlan, ModelGeometry, PlanRequest, plan
from slotstream_planner.sensors import read_nvidia_memory


class LoadedModel:
    """A checkpoint in memory.  A context manager; closing it closes the files and lets the memory go.

    Attributes:
        checkpoint: The open checkpoint.
        experts: Its routed experts, streamed through a pool of slots.
        model: The model that uses both.
        plan: The plan it was loaded under.
    """

    def __init__(
        self,
        *,
        checkpoint: Checkpoint,
        experts: StreamedExperts,
        model: Qwen4ExpModel,
        plan: MemoryPlan,
        resources: ExitStack,
    ) -> None:
        self.checkpoint = checkpoint
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

    def close(self) -> None:
        """Stop the readers and close the files.  A second call does nothing."""
        self._resources.close()


def load_model(
    directory: Path, memory_plan: MemoryPlan | None = None, *, request: PlanRequest | None = None
) -> LoadedModel:
    """Load a checkpoint.

    Args:
        directory: The checkpoint directory.
        memory_plan: The plan to load under; made here for this machine when not given.
        request: What a plan made here should achieve.

    Raises:
        CheckpointError: The directory cannot be used as a model.
        PlanError: The plan is simulated or was made for another model.
        BackendError: MLX cannot run here as installed.
        slotstream_planner.PlannerError: No plan fits, or the request contradicts itself.
    """
    with ExitStack() as resources:
        checkpoint = resources.enter_context(Checkpoint.open(directory))
        backend = Backend.detect()
        if memory_plan is None:
            memory_plan = plan_here(directory, backend, request or PlanRequest())
        modules = trunk_modules(checkpoint.config.num_hidden_layers)
        layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        _check_plan(memory_plan, layout)
        cap_buffer_cache(memory_plan.buffer_cache_limit_bytes)
        lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1)
        source = resources.enter_context(StoredExperts(layout, direct=_reads_past_cache(memory_plan, layout)))
        experts = resources.enter_context(StreamedExperts(source, slot_count=memory_plan.pool_slots, lane_count=lanes))
        model = resources.enter_context(build_model(checkpoint, experts, backend))
        return LoadedModel(
            checkpoint=checkpoint, experts=experts, model=model, plan=memory_plan, resources=resources.pop_all()
        )


def plan_here(directory: Path, backend: Backend, request: PlanRequest) -> MemoryPlan:
    """Return a plan for a checkpoint on this machine, without the parts that this engine does not run.

    Raises:
        slotstream_planner.PlannerError: The geometry cannot be read, no plan fits, or the request is wrong.
    """
    geometry = ModelGeometry.from_checkpoint(directory, compute="float32" if backend.kind == "cpu" else "bf16")
    return plan(geometry, machine_here(backend), request.without_optional_parts())


def machine_here(backend: Backend) -> Machine:
    """Return this machine as the backend sees it: Metal's working set, or a CUDA device's memory.

    Raises:
        slotstream_planner.MachineError: The memory sensors cannot be read.
    """
    if backend.kind == "metal":
        return Machine.current(working_set_bytes=backend.working_set_bytes())
    if backend.kind == "cuda" and (device := read_nvidia_memory()) is not None:
        return Machine.current(accelerator_bytes=device.total_bytes, accelerator_available_bytes=device.free_bytes)
    return Machine.current()


def _reads_past_cache(memory_plan: MemoryPlan, layout: ExpertLayout) -> bool:
    """Whether expert reads should avoid the page cache: when what the plan leaves free cannot hold the experts."""
    machine = memory_plan.machine
    available = machine.available_bytes if machine.available_bytes is not None else machine.ram_bytes
    return prefers_direct(layout, available_bytes=available - memory_plan.expected_peak_bytes)


def _check_plan(memory_plan: MemoryPlan, layout: ExpertLayout) -> None:
    if memory_plan.simulated:
        raise PlanError("the plan was made for a simulated machine; make one with Machine.current() to load a model")
    planned, found = memory_plan.geometry.slot_bytes, layout.slot_bytes
    if planned != found or memory_plan.geometry.total_experts != layout.record_count:
        raise PlanError(
            f"the plan is for {memory_plan.geometry.total_experts:,} experts of {planned:,} bytes in a slot, this "
            f"checkpoint has {layout.record_count:,} of {found:,} bytes; plan again for this checkpoint"
        )
