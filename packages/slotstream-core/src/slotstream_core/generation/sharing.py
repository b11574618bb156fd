"""How many prompt passes may go together: as many as the plan's memory holds beside what the process uses now."""

from __future__ import annotations

import mlx.core as mx

from slotstream_core.memory import footprint
from slotstream_planner import MemoryPlan
from slotstream_planner.workspace import shared_token_bytes


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
    allowed_bytes = plan.expected_peak_bytes if plan.target_bytes is None else plan.target_bytes
    used_bytes = max(footprint().current_bytes, mx.get_active_memory() + mx.get_cache_memory())
    unused_bytes = allowed_bytes - used_bytes - workspace_bytes - unread_tokens * geometry.kv_bytes_per_token
    spare_bytes = max(0, max(unused_bytes, plan.ledger.prefill_bytes - workspace_bytes) - kept_bytes)
    return spare_bytes // shared_token_bytes(geometry)
