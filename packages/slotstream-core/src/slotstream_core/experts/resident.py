"""Experts that are all in memory: plain stacked arrays a layer, the reference that streaming must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.errors import PoolError
from slotstream_core.experts.batches import Record
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slot_memory import SlotMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import ExpertSource
from slotstream_core.experts.stacks import ExpertArrays, Slots


class ResidentLease:
    """A lease of places that do not change while they are used: nothing to wait for, nothing to give back."""

    def __init__(self, slots: npt.NDArray[np.int32]) -> None:
        self.slots = slots

    def late(self) -> list[int]:
        """Return nothing: every record is in place."""
        return []

    def wait(self) -> None:
        """Return at once."""

    def release(self) -> None:
        """Do nothing."""


class ResidentExperts:
    """The `Experts` of a model that fits in memory. Expert e of a layer lies at place e of that layer's arrays.

    Reads everything when made and holds no file afterwards.

    Raises (constructor):
        ExpertReadError: A record could not be read.
        CheckpointDamaged: A record holds scales that are not finite.
    """

    def __init__(self, source: ExpertSource, *, lane_count: int, memory: SlotMemory | None = None) -> None:
        self.layout = source.layout
        count = self.layout.expert_count
        self._layers: list[ExpertArrays] = []
        self._places = mx.arange(count, dtype=mx.int32)
        mx.eval(self._places)
        with ExpertReader(source, lane_count=lane_count, memory=memory) as reader:
            for layer in range(self.layout.layer_count):
                slots = SlotArrays(self.layout, count, reader.memory)
                records = [Record(layer, expert, expert, True) for expert in range(count)]
                batch = reader.prepare(records, slots)
                reader.submit(batch)
                batch.done.wait()
                if batch.errors:
                    raise batch.errors[min(batch.errors)]
                self._layers.append(slots.arrays)

    @property
    def group_limit(self) -> int:
        """See `Experts.group_limit`: a whole layer."""
        return self.layout.expert_count

    def arrays(self, layer: int) -> ExpertArrays:
        """See `Experts.arrays`."""
        return self._layers[layer]

    def places(self, layer: int) -> mx.array:
        """See `Experts.places`: every expert is at the place of its own number."""
        return self._places

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> None:
        """See `Experts.open_sweep`: nothing is to be read."""

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.request`.

        Raises:
            PoolError: An id or layer is out of range.
        """
        if not 0 <= layer < self.layout.layer_count:
            raise PoolError(f"layer {layer} has no routed experts; there are {self.layout.layer_count} such layers")
        slots = np.array(experts, np.int32)
        if slots.size and not (slots.min() >= 0 and slots.max() < self.layout.expert_count):
            raise PoolError(
                f"experts {slots.min()} to {slots.max()} of layer {layer} were asked for; "
                f"ids are 0 to {self.layout.expert_count - 1}"
            )
        return ResidentLease(slots)

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.visit`; as `request`."""
        return self.request(layer, experts)

    def open_run(self, top: int) -> None:
        """See `Experts.open_run`: there is nothing to bring."""
