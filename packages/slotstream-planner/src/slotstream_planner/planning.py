"""Plan a model's memory on a machine: the one function everything else in this package serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from slotstream_planner.arranging import Arrangement, DraftState
from slotstream_planner.calibration import MEASURED_EXPERTS_LIMIT, decode_tok_s, prefill_tok_s
from slotstream_planner.errors import InsufficientMemory
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.ledger import MemoryLedger
from slotstream_planner.machine import Machine
from slotstream_planner.pinning import check_pinning
from slotstream_planner.prefill import estimate_prefill_seconds
from slotstream_planner.remedies import with_remedy
from slotstream_planner.request import PlanRequest, PlanSource, validate_request
from slotstream_planner.splitting import scaled_experts
from slotstream_planner.units import GB, MIB
from slotstream_planner.windows import WindowChoice, arrange_window, choose_window

__all__ = ["MemoryPlan", "plan", "resolve_plan"]

_SMALL_PEAK_BYTES: Final = 12 * GB
_SMALL_CACHE_BYTES: Final = 512 * MIB
_LARGE_CACHE_BYTES: Final = 2 * GB


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """What will be loaded, how large each part is, and how it was decided.

    Attributes:
        geometry: The model planned for.
        machine: The machine planned for.
        request: The options it answers.
        source: The option that decided the size.
        arrangement: The division of memory.
        window_choice: How an automatic window was found; None for an explicit one.
        notes: What a person should know, in order.
    """

    geometry: ModelGeometry
    machine: Machine
    request: PlanRequest
    source: PlanSource
    arrangement: Arrangement
    window_choice: WindowChoice | None
    notes: tuple[str, ...]

    @property
    def pool_slots(self) -> int:
        """Expert slots over all layers."""
        return self.arrangement.split.slots

    @property
    def pool_bytes(self) -> int:
        """Memory of the slots."""
        return self.ledger.pool_bytes

    @property
    def experts_per_layer(self) -> float:
        """The pool as experts per layer. A display figure: the pool is shared by all layers."""
        return self.pool_slots / self.geometry.layers

    @property
    def scaled_experts_per_layer(self) -> float:
        """The pool as experts per layer out of 512, the unit of the reference curves."""
        return scaled_experts(self.geometry, self.pool_slots)

    @property
    def fully_resident(self) -> bool:
        """Whether every expert has a slot."""
        return self.pool_slots == self.geometry.total_experts

    @property
    def window_tokens(self) -> int:
        """Context window: prompt and reply together."""
        return self.arrangement.window

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens per pass before the window's bound makes passes smaller."""
        return self.arrangement.split.pass_tokens

    @property
    def retained_tokens(self) -> int:
        """Tokens of past conversations kept in memory; 0 turns the prefix cache off."""
        return self.arrangement.split.retained_tokens

    @property
    def draft(self) -> DraftState:
        """The draft head's state."""
        return self.arrangement.draft

    @property
    def lookahead(self) -> bool:
        """Whether likely experts are read ahead."""
        return self.arrangement.lookahead

    @property
    def vision_reserved(self) -> bool:
        """Whether the vision tower's memory is reserved from the start."""
        return self.ledger.vision_resident_bytes > 0

    @property
    def ledger(self) -> MemoryLedger:
        """Where the bytes go."""
        return self.arrangement.ledger

    @property
    def target_bytes(self) -> int | None:
        """Budget of the whole process; None when the pool's size was given directly."""
        return self.arrangement.target_bytes

    @property
    def expected_peak_bytes(self) -> int:
        """The most the process is planned to hold at once."""
        return self.ledger.expected_peak_bytes

    @property
    def page_cache_bytes(self) -> int:
        """What it leaves to the page cache, of which pinned files are a part; negative where it takes too much.

        Beside a device's own memory that is the host's; 0 where that cannot be read.
        """
        machine, ledger = self.machine, self.ledger
        if machine.kind == "cuda":
            host = machine.host_available_bytes
            taken = ledger.all_host_bytes - ledger.pinned_file_bytes + ledger.host_process_bytes
            return 0 if host is None else host - taken
        available = machine.available_bytes if machine.available_bytes is not None else machine.ram_bytes
        return available - ledger.expected_peak_bytes

    @property
    def planned_headroom_bytes(self) -> int:
        """What the target leaves above the expected peak."""
        return 0 if self.target_bytes is None else max(0, self.target_bytes - self.expected_peak_bytes)

    @property
    def buffer_cache_limit_bytes(self) -> int:
        """Most bytes MLX may keep in its cache of freed buffers."""
        if self.ledger.planning_margin_bytes < GB:
            return min(_SMALL_CACHE_BYTES, self.ledger.planning_margin_bytes)
        return _SMALL_CACHE_BYTES if self.expected_peak_bytes <= _SMALL_PEAK_BYTES else _LARGE_CACHE_BYTES

    @property
    def simulated(self) -> bool:
        """Whether the machine was invented. Such a plan can be shown, never loaded."""
        return self.machine.is_simulated

    @property
    def reference_decode_tok_s(self) -> float:
        """Decode speed of this pool on the reference machine."""
        return decode_tok_s(self.scaled_experts_per_layer)

    @property
    def reference_prefill_tok_s(self) -> float:
        """Prompt speed of this pass size on the reference machine."""
        return prefill_tok_s(self.prefill_chunk)

    @property
    def decode_in_measured_range(self) -> bool:
        """Whether the reference curve was measured for a pool of this size."""
        return self.scaled_experts_per_layer <= MEASURED_EXPERTS_LIMIT

    def prefill_seconds(self, tokens: int) -> float | None:
        """Return the reference time to read a prompt of this many tokens; None when unmeasured."""
        return estimate_prefill_seconds(tokens, self.prefill_chunk)

    def to_json(self) -> dict[str, Any]:
        """Return the plan with its documented keys, ready for ``json.dumps``."""
        from slotstream_planner.report import plan_to_json

        return plan_to_json(self)


def plan(geometry: ModelGeometry, machine: Machine, request: PlanRequest | None = None) -> MemoryPlan:
    """Divide a machine's memory for a model.

    Args:
        geometry: The model, read from a checkpoint or built in.
        machine: Real or simulated readings.
        request: Options; everything automatic when omitted.

    Returns:
        A plan whose expected peak is within its target, the working set and what is available now.

    Raises:
        InvalidRequest: The options make no sense for this model.
        InsufficientMemory: What was asked for does not fit; the message names what would, planned and verified.
        MachineError: Available memory could not be read.
    """
    request = request or PlanRequest()
    try:
        return resolve_plan(geometry, machine, request)
    except InsufficientMemory as error:
        if error.of_host:  # it says itself what helps; another budget or window of the device does not
            raise
        raise with_remedy(error, geometry, machine, request) from error


def resolve_plan(geometry: ModelGeometry, machine: Machine, request: PlanRequest) -> MemoryPlan:
    """Return the same as `plan`, but leave a refusal without advice, which takes up to a second to find.

    Raises:
        InvalidRequest: The options make no sense for this model.
        InsufficientMemory: What was asked for does not fit.
        MachineError: Available memory could not be read.
    """
    validate_request(request, geometry)
    check_pinning(request, machine)
    choice: WindowChoice | None = None
    if request.max_context == "auto":
        choice = choose_window(geometry, machine, request)
        arrangement, notes = choice.arrangement, choice.arrangement.notes + choice.notes
    else:
        arrangement = arrange_window(geometry, machine, request, request.max_context)
        notes = arrangement.notes
    return MemoryPlan(
        geometry=geometry,
        machine=machine,
        request=request,
        source=request.source,
        arrangement=arrangement,
        window_choice=choice,
        notes=notes,
    )
