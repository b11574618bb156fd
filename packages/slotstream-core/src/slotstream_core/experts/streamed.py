"""Experts that stay on disk and visit a fixed number of slots."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from slotstream_core.errors import PoolError
from slotstream_core.experts.compiled_requests import CompiledRun
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.mapped_files import MappedFiles
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import SlotMemory
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.experts.stacks import ExpertArrays, Lease, Slots
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.experts.sweeping import SWEEPING, ExpertSweep, SweepOptions, ring_size
from slotstream_core.experts.warming import Warming


class StreamedExperts:
    """The `Experts` of a model larger than memory: one slot pool and the lanes that fill it. A context manager.

    Args:
        source: Where records are read from.
        slot_count: Slots of the pool.
        lane_count: Threads for reads that a request waits for.
        ahead_lane_count: Threads for reading ahead; 0 where no `Lookahead` is used.
        sweeping: Whether and how passes of many rows go expert by expert.
        memory: Where the slots lie; the host's when not given.

    Raises (constructor):
        PoolError: Fewer than one slot.
    """

    def __init__(
        self,
        source: ExpertSource,
        *,
        slot_count: int,
        lane_count: int,
        ahead_lane_count: int = 0,
        sweeping: SweepOptions = SWEEPING,
        memory: SlotMemory | None = None,
    ) -> None:
        self.layout = source.layout
        self._sweeping = sweeping
        self._sweep: ExpertSweep | None = None
        self._warming: Warming | None = None
        self._places: dict[int, mx.array] = {}
        self._residents: list[PoolLease] = []
        self._reader = ExpertReader(source, lane_count=lane_count, ahead_lane_count=ahead_lane_count, memory=memory)
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
        self.end_warming()
        self._reader.close()

    def warm(self, records: Sequence[tuple[int, int]], *, budget_s: float) -> None:
        """Start reading records into unused slots and return at once; the first use of the pool ends that.

        Args:
            records: (layer, expert), most useful first; those beyond the unused slots are left out.
            budget_s: No read begins later than this after the call.

        Raises:
            PoolError: A record that does not exist.
        """
        self.end_warming()
        resident = self.pool.contents()
        wanted = [record for record in dict.fromkeys(records) if record not in resident]
        self._warming = Warming(self.pool, wanted, budget_s=budget_s)

    def finish_warming(self) -> None:
        """Wait until what `warm` started is read or its time is over, and publish it."""
        if self._warming is not None:
            self._warming.finish()
            self.end_warming()

    def stop_warming(self) -> None:
        """Begin no further read of what `warm` started, without waiting; the next use of the pool takes in the rest."""
        if self._warming is not None:
            self._warming.stop()

    def end_warming(self) -> None:
        """Stop what `warm` started and publish what arrived. Waits for the few reads under way at most."""
        if self._warming is not None:
            warming, self._warming = self._warming, None
            warming.settle()

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

    def places(self, layer: int) -> mx.array | None:
        """See `Experts.places`: given once every expert of the model has a slot of its own and this layer is loaded."""
        self.end_warming()
        if self.pool.slot_count < self.layout.record_count:
            return None
        places = self._places.get(layer)
        if places is None and (lease := self.pool.hold_layer(layer)) is not None:
            self._residents.append(lease)
            places = mx.array(lease.slots)
            mx.eval(places)
            self._places[layer] = places
        return places

    @property
    def ahead_bytes(self) -> int:
        """Scratch of the lanes that read ahead, where it lies in the memory that a plan divides; else 0."""
        return 0 if self._reader.memory.apart else self._reader.ahead_scratch_bytes

    @property
    def mapped(self) -> MappedFiles | None:
        """What a device may fetch from the files of these experts; None where it cannot, or they are read otherwise."""
        return self._reader.mapped

    def load_all(self) -> None:
        """Read every expert, so that nothing is read later. Counted as misses.

        Raises:
            PoolError: The pool has fewer slots than there are experts.
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
        """
        if self.pool.slot_count < self.layout.record_count:
            raise PoolError(
                f"{self.layout.record_count} experts do not fit in {self.pool.slot_count} slots; "
                "give the pool a slot for every expert or let them stream"
            )
        self.end_warming()
        for layer in range(self.layout.layer_count):
            lease = self.pool.request(layer, range(self.layout.expert_count))
            lease.wait()
            lease.release()

    @property
    def shares_reads(self) -> bool:
        """Whether passes of a prompt gain anything from being read together."""
        return self._sweeping.enabled and self._sweeping.shares_reads and self._sweeps

    @property
    def _sweeps(self) -> bool:
        """Whether the pool is neither too small to spare a ring nor large enough for everything."""
        slot_count = self.pool.slot_count
        return slot_count < self.layout.record_count and ring_size(slot_count, self.layout.expert_count) > 0

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> ExpertSweep | None:
        """See `Experts.open_sweep`: None when every expert has a slot, the pool is tiny, or sweeps are switched off."""
        self.end_warming()
        if not self._sweeping.enabled or not self._sweeps:
            return None
        admits = ends_prompt and self._sweeping.admits
        self._sweep = ExpertSweep(
            self.pool,
            admits=admits,
            group_records=self._sweeping.group_records,
            coverage=self._sweep.coverage if self._sweep is not None else 0.0,
            threads=threads,
        )
        return self._sweep

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> PoolLease:
        """See `Experts.request`."""
        if self._warming is not None:
            self.end_warming()
        return self.pool.request(layer, experts, threads=threads)

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        """See `Experts.visit`."""
        if self._warming is not None:
            self.end_warming()
        return self.pool.visit(layer, experts, threads=threads)

    def open_run(self, top: int) -> CompiledRun | None:
        """See `Experts.open_run`."""
        self.end_warming()
        return self.pool.open_run(top)

    def resize(self, slot_count: int) -> None:
        """Change the pool's size between requests; see `SlotPool.resize`."""
        self.end_warming()
        for lease in self._residents:
            lease.release()
        self._residents.clear()
        self._places.clear()
        self.pool.resize(slot_count)
