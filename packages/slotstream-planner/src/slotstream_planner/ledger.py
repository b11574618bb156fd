"""The byte ledger of a plan: every amount by name, and the peak they add up to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from slotstream_planner.charges import retention_fixed_bytes
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.splitting import Split

__all__ = ["MemoryLedger"]


@dataclass(frozen=True, kw_only=True)
class MemoryLedger:
    """Where a plan's bytes go.

    `lines` are the amounts that add up to `expected_peak_bytes`. `active_capacity_bytes` is informational:
    its part up to the base window is inside `fixed_bytes`, the rest is `additional_active_bytes`.
    `planning_margin_bytes` is kept free and is not part of the peak.

    Attributes:
        resource_identity: Whose constants the ledger uses.
        fixed_bytes: Shared weights, n-gram row cache, one active sequence, runtime, an NVIDIA GPU's driver.
        pool_bytes: The expert slots.
        active_capacity_bytes: Sequence cache of the whole window.
        additional_active_bytes: Its part beyond the base window.
        retained_capacity_bytes: Sequence cache of retained conversations.
        retained_recurrent_bytes: Recurrent states of retained conversations.
        prefill_bytes: Workspace of one prompt pass.
        long_context_reserve_bytes: Transient copy while a long cache grows.
        mtp_resident_bytes: The draft head.
        vision_resident_bytes: The vision tower, when reserved at start.
        planning_margin_bytes: What the target keeps outside the pool.
        lookahead_reserve_bytes: Staging, router copies and correction of the lookahead.
        expert_workspace_bytes: What the engine holds for experts beside their slots
            (`slotstream_planner.engine_memory`) where the fixed cost does not include it.
        host_bytes: Pinned memory of the host beside an accelerator's own; not part of the peak.
        host_process_bytes: Interpreter, libraries and compiled kernels in the host's memory beside an accelerator's
            own. Left for them when conversations are retained there; never a reason to refuse a plan.
        pinned_file_bytes: Files of experts pinned in the host's memory (`slotstream_planner.pinning`); not part of
            the peak.
        retained_on_host: Whether retained conversations lie in the host's memory beside an accelerator's own, and are
            not part of the peak either.
    """

    resource_identity: str
    fixed_bytes: int
    pool_bytes: int
    active_capacity_bytes: int
    additional_active_bytes: int
    retained_capacity_bytes: int
    retained_recurrent_bytes: int
    prefill_bytes: int
    long_context_reserve_bytes: int
    mtp_resident_bytes: int
    vision_resident_bytes: int
    planning_margin_bytes: int
    lookahead_reserve_bytes: int
    expert_workspace_bytes: int = 0
    host_bytes: int = 0
    host_process_bytes: int = 0
    pinned_file_bytes: int = 0
    retained_on_host: bool = False

    @property
    def retained_bytes(self) -> int:
        """What retained conversations hold, wherever that is."""
        return self.retained_capacity_bytes + self.retained_recurrent_bytes

    @property
    def all_host_bytes(self) -> int:
        """What is taken of the host's memory beside an accelerator's own."""
        retained = self.retained_bytes if self.retained_on_host else 0
        return self.host_bytes + self.pinned_file_bytes + retained

    @property
    def lines(self) -> list[tuple[str, int]]:
        """The amounts that make up the peak, with the words a person reads."""
        return [
            ("fixed: shared weights, runtime, active sequence", self.fixed_bytes),
            ("expert slots", self.pool_bytes),
            ("active sequence beyond the base window", self.additional_active_bytes),
            ("retained conversations", 0 if self.retained_on_host else self.retained_capacity_bytes),
            ("retained recurrent states", 0 if self.retained_on_host else self.retained_recurrent_bytes),
            ("prompt pass workspace", self.prefill_bytes),
            ("long-context reserve", self.long_context_reserve_bytes),
            ("draft head", self.mtp_resident_bytes),
            ("vision tower", self.vision_resident_bytes),
            ("lookahead", self.lookahead_reserve_bytes),
            ("experts on their way and unpacked", self.expert_workspace_bytes),
        ]

    @property
    def expected_peak_bytes(self) -> int:
        """The most the process is planned to hold at once."""
        return sum(size for _, size in self.lines)

    def with_split(self, geometry: ModelGeometry, split: Split) -> MemoryLedger:
        """Return the ledger of the same plan with other slots, pass size and retention."""
        return replace(
            self,
            pool_bytes=split.slots * geometry.slot_bytes,
            prefill_bytes=split.pass_tokens * geometry.prefill_bytes_per_token,
            retained_capacity_bytes=split.retained_tokens * geometry.kv_bytes_per_token,
            retained_recurrent_bytes=retention_fixed_bytes(geometry) if split.retained_tokens else 0,
        )

    def to_json(self) -> dict[str, int | str]:
        """Return the ledger with its documented keys."""
        return {
            "version": 1,
            "pack_resident_reserve_bytes": 0,
            **asdict(self),
            "expected_peak_bytes": self.expected_peak_bytes,
        }
