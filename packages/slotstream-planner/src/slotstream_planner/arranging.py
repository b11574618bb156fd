"""Arrange one window: the target, the draft head, the lookahead and the split, as one ledger."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from slotstream_planner.charges import (
    active_sequence_bytes,
    additional_active_bytes,
    base_window,
    draft_bytes,
    draft_surcharge_bytes,
    driver_bytes,
    extra_context_bytes,
    fixed_cost,
    floor_slots,
    lookahead_bytes,
    minimum_target_bytes,
    planning_margin_bytes,
    retention_bytes,
    retention_fixed_bytes,
    transient_bytes,
    vision_bytes,
)
from slotstream_planner.engine_memory import HOST_PROCESS_BYTES, EngineMemory, engine_memory
from slotstream_planner.errors import InsufficientMemory
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.lanes import ahead_lanes, demand_lanes
from slotstream_planner.ledger import MemoryLedger
from slotstream_planner.machine import Machine
from slotstream_planner.pinning import pinned_file_bytes
from slotstream_planner.prefill import LARGEST_PASS
from slotstream_planner.request import PlanRequest
from slotstream_planner.splitting import Split, scaled_experts, split_budget, split_pool
from slotstream_planner.targets import Target, process_target
from slotstream_planner.units import GB, format_bytes, gb_to_bytes

__all__ = ["Arrangement", "DraftState", "Retention", "arrange", "check_fit"]

DraftState = Literal["off", "resident", "streamed"]
Retention = Literal["share", "complete"]
"""Retain what a tenth of the budget pays for, or one whole window."""

_RESIDENT_DRAFT_EXPERTS: Final = 76.0
_STREAMED_DRAFT_EXPERTS: Final = 28.0
_PLAIN_LOOKAHEAD_EXPERTS: Final = 20.0
_HOST_SHARE: Final = 4
_RESOURCE_PROFILE: Final = "original-affine4-memory-v1"


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A complete division of memory for one window, not yet checked against the machine.

    Attributes:
        window: Context window in tokens.
        retention: How conversations are retained.
        target_bytes: Process budget; None when the pool's size is fixed directly.
        split: Slots, pass and retained tokens.
        draft: The draft head's state.
        lookahead: Whether likely experts are read ahead.
        ledger: Where the bytes go.
        availability_clamped: True when memory in use by others made the target smaller.
        notes: What a person should know.
    """

    window: int
    retention: Retention
    target_bytes: int | None
    split: Split
    draft: DraftState
    lookahead: bool
    ledger: MemoryLedger
    availability_clamped: bool
    notes: tuple[str, ...]


def arrange(
    geometry: ModelGeometry,
    machine: Machine,
    request: PlanRequest,
    *,
    window: int,
    retention: Retention,
    retained_floor: int | None = None,
) -> Arrangement:
    """Divide memory for a window, deciding draft head and lookahead in the documented order.

    The head is priced resident first and streamed when that leaves too few experts; the lookahead is
    admitted by the experts left after the head's charge and before its own.

    Args:
        geometry: The model.
        machine: Where it would run.
        request: Its options, already validated.
        window: The context window in tokens.
        retention: How conversations are retained.
        retained_floor: Tokens that must be retained; by default the window when `retention` is complete.

    Raises:
        InsufficientMemory: A budget or limit is below the smallest pool's need.
        MachineError: Available memory could not be read.
    """
    board = _Board(geometry, machine, request, window, retention, retained_floor)
    draft = board.choose_draft()
    lookahead = board.choose_lookahead(draft)
    return board.finish(draft, lookahead)


class _Board:
    """The figures one arrangement is worked out on."""

    def __init__(
        self,
        geometry: ModelGeometry,
        machine: Machine,
        request: PlanRequest,
        window: int,
        retention: Retention,
        retained_floor: int | None,
    ) -> None:
        self.geometry = geometry
        self.machine = machine
        self.request = request
        self.window = window
        self.retention = retention
        whole = window if retention == "complete" else 0
        self.retained_floor = whole if retained_floor is None else retained_floor
        self.driver_bytes = driver_bytes(geometry) if machine.kind == "cuda" else 0
        self.fixed_bytes = fixed_cost(geometry).total_bytes + self.driver_bytes
        self.margin_bytes = planning_margin_bytes(geometry)
        self.vision_bytes = vision_bytes(geometry) if request.vision == "on" else 0
        self.context_bytes = extra_context_bytes(geometry, window) + self.vision_bytes
        base = base_window(geometry)
        retained_growth = 0
        if retention == "complete" and window > base and not self.retains_apart:
            retained_growth = retention_bytes(geometry, window) - retention_bytes(geometry, base)
        self.window_charge_bytes = extra_context_bytes(geometry, window) + retained_growth

    @property
    def retains_apart(self) -> bool:
        """Whether conversations are retained in the host's memory, beside an accelerator's own that is divided here."""
        return self.machine.kind == "cuda"

    def apart_tokens(self) -> int | None:
        """Most tokens to retain in the host's memory, a quarter of what else it has; None where that is divided."""
        if not self.retains_apart:
            return None
        host, per_token = self.machine.host_available_bytes, self.geometry.kv_bytes_per_token
        if host is None or per_token == 0:
            return self.window
        share = (host - HOST_PROCESS_BYTES) // _HOST_SHARE
        return max(0, share - retention_fixed_bytes(self.geometry)) // per_token

    def draft_charge(self, draft: DraftState) -> int:
        if draft == "off":
            return 0
        surcharge = draft_surcharge_bytes(self.geometry, self.window)
        return draft_bytes(self.geometry, streamed=draft == "streamed") + surcharge

    def engine(self, draft: DraftState, *, lookahead: bool) -> EngineMemory:
        """What the engine holds beside slots, for the longest pass there may be."""
        return engine_memory(
            self.geometry,
            self.machine,
            pass_tokens=self.request.prefill_chunk or min(LARGEST_PASS, self.window),
            drafts=draft != "off",
            lookahead=lookahead,
            lanes=self.request.reading_lanes,
        )

    def lookahead_charge(self, *, lookahead: bool) -> int:
        if not lookahead:
            return 0
        separate = self.machine.kind == "cuda"
        lanes = self.request.reading_lanes or demand_lanes(self.machine.cores, copies=separate)
        return lookahead_bytes(self.geometry, lanes=ahead_lanes(lanes, copies=separate), separate=separate)

    def target(self, draft: DraftState) -> Target:
        added = self.draft_charge(draft) + self.window_charge_bytes + self.driver_bytes
        return process_target(self.geometry, self.machine, self.request, added_bytes=added)

    def divide(self, draft: DraftState, lookahead_charge: int) -> tuple[Target | None, Split]:
        """Return the target and split with the given charges; no target for a fixed pool."""
        retains = self.request.prefix_cache == "on"
        fixed_slots = self._fixed_slots()
        if fixed_slots is not None:
            return None, split_pool(
                self.geometry,
                fixed_slots,
                window=self.window,
                retained_floor=self.retained_floor,
                retains=retains,
                forced_pass=self.request.prefill_chunk,
                apart_tokens=self.apart_tokens(),
            )
        target = self.target(draft)
        engine_bytes = self.engine(draft, lookahead=False).charged_bytes
        charges = self.draft_charge(draft) + lookahead_charge + self.context_bytes + engine_bytes
        split = split_budget(
            self.geometry,
            target.target_bytes - self.fixed_bytes - self.margin_bytes - charges,
            window=self.window,
            retained_floor=self.retained_floor,
            retains=retains,
            forced_pass=self.request.prefill_chunk,
            apart_tokens=self.apart_tokens(),
        )
        return target, self._within_wish(split)

    def choose_draft(self) -> DraftState:
        request = self.request
        if request.mtp == "off" or self.geometry.draft_bytes == 0:
            return "off"
        placement: DraftState
        if request.mtp_experts == "automatic":
            placement = "resident" if self._experts("resident") >= _RESIDENT_DRAFT_EXPERTS else "streamed"
        else:
            placement = request.mtp_experts
        if request.mtp == "on":
            return placement
        target, split = self.divide(placement, 0)
        if target is not None:
            left = target.target_bytes - self.draft_charge(placement) - self.context_bytes - self.driver_bytes
            if left < minimum_target_bytes(self.geometry):
                return "off"
        enough = scaled_experts(self.geometry, split.slots) >= _draft_threshold(placement)
        return placement if enough else "off"

    def choose_lookahead(self, draft: DraftState) -> bool:
        if self.request.lookahead != "auto":
            return self.request.lookahead == "on"
        return self._experts(draft) >= _draft_threshold(draft)

    def _experts(self, draft: DraftState) -> float:
        return scaled_experts(self.geometry, self.divide(draft, 0)[1].slots)

    def _fixed_slots(self) -> int | None:
        geometry, request = self.geometry, self.request
        if request.experts_per_layer is not None:
            slots = request.experts_per_layer * geometry.layers
        elif request.pool_gb is not None:
            slots = gb_to_bytes(request.pool_gb, what="--pool-gb") // geometry.slot_bytes
        else:
            return None
        return max(floor_slots(geometry), min(slots, geometry.total_experts))

    def _wished_slots(self) -> int | None:
        """Return the cap the checkpoint itself asks for, in automatic plans only."""
        fraction = self.geometry.default_pool_fraction
        if fraction is None or self.request.source != "auto" or self.request.memory_limit_gb is not None:
            return None
        return max(floor_slots(self.geometry), round(fraction * self.geometry.total_experts))

    def _within_wish(self, split: Split) -> Split:
        cap = self._wished_slots()
        if cap is None or split.slots <= cap:
            return split
        return Split(slots=cap, pass_tokens=split.pass_tokens, retained_tokens=split.retained_tokens)

    def finish(self, draft: DraftState, lookahead: bool) -> Arrangement:
        geometry = self.geometry
        lookahead_charge = self.lookahead_charge(lookahead=lookahead)
        engine = self.engine(draft, lookahead=lookahead)
        target, split = self.divide(draft, lookahead_charge)
        retained = split.retained_tokens
        ledger = MemoryLedger(
            resource_identity=_RESOURCE_PROFILE if geometry.compute == "bf16" else f"{geometry.compute}-derived-v1",
            fixed_bytes=self.fixed_bytes,
            pool_bytes=split.slots * geometry.slot_bytes,
            active_capacity_bytes=active_sequence_bytes(geometry, self.window),
            additional_active_bytes=additional_active_bytes(geometry, self.window),
            retained_capacity_bytes=retained * geometry.kv_bytes_per_token,
            retained_recurrent_bytes=retention_fixed_bytes(geometry) if retained else 0,
            prefill_bytes=split.pass_tokens * geometry.prefill_bytes_per_token,
            long_context_reserve_bytes=transient_bytes(geometry, self.window),
            mtp_resident_bytes=self.draft_charge(draft),
            vision_resident_bytes=self.vision_bytes,
            planning_margin_bytes=self.margin_bytes,
            lookahead_reserve_bytes=lookahead_charge,
            expert_workspace_bytes=engine.charged_bytes,
            host_bytes=engine.host_bytes,
            retained_on_host=self.retains_apart,
            host_process_bytes=HOST_PROCESS_BYTES if self.retains_apart else 0,
        )
        beside = ledger.all_host_bytes + ledger.host_process_bytes
        head = draft == "streamed"
        pinned = pinned_file_bytes(
            geometry, self.machine, self.request, slots=split.slots, head=head, other_bytes=beside
        )
        ledger = replace(ledger, pinned_file_bytes=pinned)
        target_bytes = None if target is None else target.target_bytes
        if target_bytes is not None and self._wished_slots() == split.slots:
            target_bytes = min(target_bytes, ledger.expected_peak_bytes + self.margin_bytes)
        return Arrangement(
            window=self.window,
            retention=self.retention,
            target_bytes=target_bytes,
            split=split,
            draft=draft,
            lookahead=lookahead,
            ledger=ledger,
            availability_clamped=target is not None and target.availability_clamped,
            notes=self._notes(target, split),
        )

    def _notes(self, target: Target | None, split: Split) -> tuple[str, ...]:
        geometry, request = self.geometry, self.request
        notes = list(target.notes) if target is not None else []
        notes += [f"{name} is ignored because {request.source} is given" for name in request.ignored_sizes]
        if request.fixes_pool and split.slots == floor_slots(geometry):
            notes.append(f"the pool is at its floor of {split.slots} slots; a smaller one cannot run a pass")
        if target is not None and self._wished_slots() == split.slots:
            share = 100 * split.slots / geometry.total_experts
            notes.append(
                f"this checkpoint asks for {share:.0f}% of its experts in slots so that it streams; "
                "give --memory-gb or --experts-per-layer for more"
            )
        return tuple(notes)


def _draft_threshold(draft: DraftState) -> float:
    if draft == "resident":
        return _RESIDENT_DRAFT_EXPERTS
    return _STREAMED_DRAFT_EXPERTS if draft == "streamed" else _PLAIN_LOOKAHEAD_EXPERTS


def check_fit(arrangement: Arrangement, geometry: ModelGeometry, machine: Machine) -> None:
    """Refuse an arrangement whose peak exceeds its target or what the machine can give now.

    Raises:
        InsufficientMemory: It does not fit; the message names the amounts.
        MachineError: Available memory could not be read.
    """
    peak, target = arrangement.ledger.expected_peak_bytes, arrangement.target_bytes
    if target is not None and peak > target:
        raise InsufficientMemory(
            f"a {arrangement.window}-token window of {geometry.name} needs {format_bytes(peak)} with the smallest pool "
            f"and the target is {format_bytes(target)}",
            required_bytes=peak,
            available_bytes=target,
        )
    usable = machine.usable_bytes
    if peak > usable:
        raise InsufficientMemory(
            f"this plan of {geometry.name} needs {format_bytes(peak)} and the machine can give {format_bytes(usable)} "
            f"now ({format_bytes(machine.ram_bytes)} of memory, {format_bytes(machine.slack_bytes)} kept free)",
            required_bytes=peak,
            available_bytes=usable,
        )
    _check_host(arrangement.ledger, geometry, machine)


def _check_host(ledger: MemoryLedger, geometry: ModelGeometry, machine: Machine) -> None:
    """Refuse a plan that takes more of the host's memory, beside a device's own, than is available."""
    host = machine.host_available_bytes
    if host is None or ledger.all_host_bytes <= host:
        return
    pinned = ledger.pinned_file_bytes
    beside = ledger.all_host_bytes - pinned
    takes = (
        f"reading experts of {geometry.name} to the device takes {format_bytes(ledger.host_bytes)} of the host's memory"
        f" and retained conversations {format_bytes(beside - ledger.host_bytes)}"
    )
    remedy = "free memory or use fewer lanes (SLOTSTREAM_IO_QUEUE_DEPTH)"
    if pinned:
        takes += f", pinned files {format_bytes(pinned)} more"
        most = (host - beside - ledger.host_process_bytes) // (GB // 10) / 10
        remedy = f"give --pinned-gb {most:g} or less" if most > 0 else "free memory or give --pinned-gb off"
    raise InsufficientMemory(
        f"{takes}, and {format_bytes(host)} are available; {remedy}",
        required_bytes=ledger.all_host_bytes,
        available_bytes=host,
        of_host=True,
    )
