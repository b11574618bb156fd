"""Whether there is memory for what a request does next: prompt passes, and the growth of a long reply's cache."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from slotstream_core.errors import MemoryUnavailable
from slotstream_core.generation.control import StopCheck
from slotstream_core.memory import drop_buffer_cache, footprint, machine_of
from slotstream_core.state.sequence import SequenceState
from slotstream_planner import MachineError, MemoryPlan
from slotstream_planner.charges import SEQUENCE_STEP_TOKENS, sequence_step_bytes
from slotstream_planner.workspace import ReadScope, shared_token_bytes

LEAST_CHECKED_BYTES: Final = 32 * 2**20
"""Less is taken without a look at the machine, which costs about as much as reading a few tokens."""

RESERVE_DIVISOR: Final = 4
"""A plan leaves `Machine.slack_bytes` to the system when it is made; this part of it must still be there."""

PASS_ROWS: Final = 32
"""So many tokens before the cache is full its growth is looked at: a pass that verifies drafts has fewer rows."""


def unused_bytes(plan: MemoryPlan) -> int:
    """Return what a plan allows beyond what is used now of the memory it divides; negative when that is more.

    Of a machine whose accelerator shares the host's memory the process is measured, or what MLX holds when that is
    more; beside an NVIDIA device only what MLX holds there.
    """
    used_bytes = int(mx.get_active_memory() + mx.get_cache_memory())
    if plan.machine.kind != "cuda":
        used_bytes = max(used_bytes, footprint().current_bytes)
    allowed_bytes = plan.expected_peak_bytes if plan.target_bytes is None else plan.target_bytes
    return allowed_bytes - used_bytes


def check_passes(plan: MemoryPlan, scope: ReadScope) -> None:
    """Refuse passes that there is no memory for, before they take any.

    What they take is the workspace of the largest, a share of one for every other token, and the rows of the sequence
    cache.

    Args:
        plan: The plan in force.
        scope: Passes that go together.

    Raises:
        MemoryUnavailable: Less is available.
    """
    geometry = plan.geometry
    largest = max(each.tokens for each in scope.passes)
    _check(
        plan,
        largest * geometry.prefill_bytes_per_token
        + (scope.tokens - largest) * shared_token_bytes(geometry)
        + scope.tokens * geometry.kv_bytes_per_token,
    )


def _check(plan: MemoryPlan, wanted_bytes: int) -> None:
    """Refuse work that takes so much, though never more than its plan still allows, when that is not there.

    What MLX keeps of freed buffers is given back before anything is refused.

    Raises:
        MemoryUnavailable: It is not there.
    """
    if wanted_bytes < LEAST_CHECKED_BYTES:  # nor is the process looked at
        return
    growth_bytes = min(wanted_bytes, unused_bytes(plan))
    if growth_bytes < LEAST_CHECKED_BYTES or not (lacking := _lacking(plan, growth_bytes)):
        return
    if drop_buffer_cache():
        lacking = _lacking(plan, growth_bytes)
    if lacking:
        raise lacking


def _lacking(plan: MemoryPlan, growth_bytes: int) -> MemoryUnavailable | None:
    """Return the refusal of a growth, or None when there is memory for it."""
    try:
        machine = machine_of(plan.machine.kind)
    except MachineError:
        return None  # a plan could be made, so sensors worked; without them now there is nothing to compare with
    if (machine.kind == "cuda") != (plan.machine.kind == "cuda"):
        return None  # a device that cannot be asked now
    required_bytes = growth_bytes + machine.slack_bytes // RESERVE_DIVISOR
    if machine.available_bytes is None or machine.available_bytes >= required_bytes:
        return None
    return MemoryUnavailable(required_bytes=required_bytes, available_bytes=machine.available_bytes)


class ReplyRoom:
    """A `StopCheck` of a reply: also stops it where its sequence cache would grow and there is no memory for that.

    The cache grows by steps; before each of them the machine is looked at once.

    Args:
        stop: The caller's own wish to stop, looked at first.
        plan: The plan in force.
        state: Of the reply.
    """

    def __init__(self, stop: StopCheck, plan: MemoryPlan, state: SequenceState) -> None:
        self._stop = stop
        self._plan = plan
        self._state = state
        self._checked_tokens = -(-state.length // SEQUENCE_STEP_TOKENS) * SEQUENCE_STEP_TOKENS

    def check(self) -> None:
        """Raise what is due.

        Raises:
            GenerationCancelled: The caller asked to stop.
            MemoryUnavailable: The machine has too little memory to go on.
        """
        self._stop.check()
        if self._state.length + PASS_ROWS > self._checked_tokens:
            _check(self._plan, sequence_step_bytes(self._plan.geometry, self._checked_tokens))
            self._checked_tokens += SEQUENCE_STEP_TOKENS
