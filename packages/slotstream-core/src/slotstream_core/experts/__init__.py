"""Where a model's routed experts come from: all in memory, or read from disk into a pool of slots."""

from slotstream_core.experts.layout import ExpertLayout, draft_modules, trunk_modules
from slotstream_core.experts.reader import choose_ahead_lanes, choose_lanes
from slotstream_core.experts.resident import ResidentExperts
from slotstream_core.experts.sources import StoredExperts, prefers_direct
from slotstream_core.experts.stacks import DenseStack, ExpertArrays, Experts, Lease, QuantizedStack
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.experts.streamed import StreamedExperts

__all__ = [
    "DenseStack",
    "ExpertArrays",
    "ExpertLayout",
    "ExpertStats",
    "Experts",
    "Lease",
    "QuantizedStack",
    "ResidentExperts",
    "StoredExperts",
    "StreamedExperts",
    "choose_ahead_lanes",
    "choose_lanes",
    "draft_modules",
    "prefers_direct",
    "trunk_modules",
]
