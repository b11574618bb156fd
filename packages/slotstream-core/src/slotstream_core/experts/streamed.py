"""Experts that stay on disk and visit a fixed number of slots."""

from __future__ import annotations

from collections.abc import Sequence

from slotstream_core.experts.pool import PoolLease, SlotPool
from slotstream_core.experts.reader import ExpertReader, ExpertSource
from slotstream_core.experts.stacks import ExpertArrays
from slotstream_core.experts.stats import ExpertStats


class StreamedExperts:
    """The `Experts` of a model larger than memory: one slot pool and the lanes that fill it. A context manager.

    Raises (constructor):
        PoolError: Fewer than one slot.
    """

    def __init__(self, source: ExpertSource, *, slot_count: int, lane_count: int) -> None:
        self.layout = source.layout
        self._reader = ExpertReader(source, lane_count=lane_count)
        try:
            self.pool = SlotPool(self._reader, slot_count=slot_count)
        except BaseException:
            self._reader.close()
            raise

    def __enter__(self) -> StreamedExperts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the lanes. Further requests that must read are refused."""
        self._reader.close()

    @property
    def group_limit(self) -> int:
        """See `Experts.group_limit`: half the slots, and a whole layer when everything fits."""
        count = self.layout.expert_count
        if self.pool.slot_count >= self.layout.record_count:
            return count
        return max(1, min(count, self.pool.slot_count // 2))

    @property
    def stats(self) -> ExpertStats:
        """What the pool did so far."""
        return self.pool.stats

    def arrays(self, layer: int) -> ExpertArrays:
        """See `Experts.arrays`. The same for every layer; new objects after a resize."""
        return self.pool.slots.arrays

    def request(self, layer: int, experts: Sequence[int]) -> PoolLease:
        """See `Experts.request`."""
        return self.pool.request(layer, experts)

    def resize(self, slot_count: int) -> None:
        """Change the pool's size between requests; see `SlotPool.resize`."""
        self.pool.resize(slot_count)
