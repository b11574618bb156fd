"""What memory there is for prompt passes: how many may go together, and whether the next ones may begin at all."""

from __future__ import annotations

from typing import Final

import mlx.core as mx

from slotstream_core.errors import MemoryUnavailable
from slotstream_core.memory import footprint
from slotstream_planner import Machine, MachineError, MemoryPlan
from slotstream_planner.workspace import ReadScope, shared_token_bytes

LEAST_CHECKED_BYTES: Final = 32 * 2**20
"""Less is taken without a look at the machine, which costs about as much as reading a few tokens."""

RESERVE_DIVISOR: Final = 4
"""A plan leaves `Machine.slack_bytes` to the system when it is made; this part of it must still be there."""


def spare_tokens(plan: MemoryPlan, *, pass_tokens: int, unread_tokens: int, kept_states: int = 0) -> int:
    """Return how many tokens beyond one pass the passes of a prompt that share their reads may have.

    At least what the plan's workspace holds when passes are smaller than it provides for. More, when the plan allows
    the process more than it uses now and will need for one pass and the rest of the sequence cache. On an accelerator
    what MLX holds counts as used, when that is more than the process.

    Args:
        plan: The plan in force.
        pass_tokens: Most tokens of one pass.
        unread_tokens: Prompt tokens still to be read.
        kept_states: States to be kept on the way; their recurrent parts live until passes under way together are done.
    """
    geometry = plan.geometry
    workspace_bytes = pass_tokens * geometry.prefill_bytes_per_token
    kept_bytes = kept_states * geometry.recurrent_bytes
    unused_bytes = _unused_bytes(plan) - workspace_bytes - unread_tokens * geometry.kv_bytes_per_token
    spare_bytes = max(0, max(unused_bytes, plan.ledger.prefill_bytes - workspace_bytes) - kept_bytes)
    return spare_bytes // shared_token_bytes(geometry)


def check_room(plan: MemoryPlan, scope: ReadScope) -> None:
    """Refuse passes that the machine has no memory for, before they take any.

    What they take is the workspace of the largest, a share of one for every other token, and the rows of the sequence
    cache, but never more than the process may still grow by under its plan. An NVIDIA device is not looked at: asking
    its driver takes longer than a pass.

    Args:
        plan: The plan in force.
        scope: Passes that go together.

    Raises:
        MemoryUnavailable: Less is available.
    """
    if plan.machine.kind == "cuda":
        return
    geometry = plan.geometry
    largest = max(each.tokens for each in scope.passes)
    wanted_bytes = (
        largest * geometry.prefill_bytes_per_token
        + (scope.tokens - largest) * shared_token_bytes(geometry)
        + scope.tokens * geometry.kv_bytes_per_token
    )
    if wanted_bytes < LEAST_CHECKED_BYTES:  # nor is the process looked at
        return
    growth_bytes = min(wanted_bytes, _unused_bytes(plan))
    if growth_bytes < LEAST_CHECKED_BYTES:
        return
    try:
        machine = Machine.current()
    except MachineError:
        return  # a plan could be made, so sensors worked; without them now there is nothing to compare with
    required_bytes = growth_bytes + machine.slack_bytes // RESERVE_DIVISOR
    if machine.available_bytes is not None and machine.available_bytes < required_bytes:
        raise MemoryUnavailable(required_bytes=required_bytes, available_bytes=machine.available_bytes)


def _unused_bytes(plan: MemoryPlan) -> int:
    """What the plan allows the process beyond what it uses now; negative when it uses more."""
    allowed_bytes = plan.expected_peak_bytes if plan.target_bytes is None else plan.target_bytes
    return allowed_bytes - max(footprint().current_bytes, mx.get_active_memory() + mx.get_cache_memory())
