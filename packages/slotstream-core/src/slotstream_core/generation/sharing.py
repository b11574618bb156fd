"""How many passes of a prompt may go together by the memory that its plan leaves."""

from __future__ import annotations

from slotstream_core.generation.room import unused_bytes
from slotstream_planner import MemoryPlan
from slotstream_planner.workspace import shared_token_bytes


def spare_tokens(plan: MemoryPlan, *, pass_tokens: int, unread_tokens: int, kept_states: int = 0) -> int:
    """Return how many tokens beyond one pass the passes of a prompt that share their reads may have.

    At least what the plan's workspace holds when passes are smaller than it provides for. More, when the plan allows
    more than is used now and will be needed for one pass and the rest of the sequence cache; see `unused_bytes`.

    Args:
        plan: The plan in force.
        pass_tokens: Most tokens of one pass.
        unread_tokens: Prompt tokens still to be read.
        kept_states: States to be kept on the way; their recurrent parts live until passes under way together are done.
    """
    geometry = plan.geometry
    workspace_bytes = pass_tokens * geometry.prefill_bytes_per_token
    kept_bytes = kept_states * geometry.recurrent_bytes
    left_bytes = unused_bytes(plan) - workspace_bytes - unread_tokens * geometry.kv_bytes_per_token
    spare_bytes = max(0, max(left_bytes, plan.ledger.prefill_bytes - workspace_bytes) - kept_bytes)
    return spare_bytes // shared_token_bytes(geometry)
