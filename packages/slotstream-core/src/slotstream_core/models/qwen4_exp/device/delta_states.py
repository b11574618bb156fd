"""Where launched rows read and write the states of gated delta layers.

A window is written into the other one of two arrays, a memory in place. Both belong to the state alone (see
`DeltaBuffers`); a state that is not in them, because other code replaced its arrays or a fork shares them, is read from
where it is and written into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.device.launching import LaunchTarget
from slotstream_core.models.qwen4_exp.gated_delta import DeltaBuffers, DeltaState

Entries = npt.NDArray[np.uint64]


class DeltaAdvance:
    """The arguments of launches that advance the states of gated delta layers by a row.

    Args:
        entries: By layer, what `DeltaPlaces.all` holds; written here.
        states: Of the layers.
        target: Knows addresses.

    Raises (constructor):
        BackendError: An array has no address.
    """

    def __init__(self, entries: Mapping[int, Entries], states: Mapping[int, DeltaState], target: LaunchTarget) -> None:
        self._states = states
        self._kept: list[mx.array] = []
        adopted: list[tuple[Entries, DeltaState]] = []
        for index, state in states.items():
            buffers = state.buffers
            if buffers is not None and buffers.hold(state):
                now, memory = buffers.current, buffers.addresses[2]
                entries[index][:] = buffers.addresses[now], memory, buffers.addresses[1 - now], memory
            else:
                adopted.append((entries[index], state))
        if adopted:
            self._adopt(adopted, target)

    def _adopt(self, adopted: Sequence[tuple[Entries, DeltaState]], target: LaunchTarget) -> None:
        arrays: list[mx.array] = []
        for _, state in adopted:
            window, memory = mx.contiguous(state.window), mx.contiguous(state.memory)
            windows = (_like(window), _like(window))
            arrays += [window, memory, *windows, _like(memory)]
        addresses = target.addresses(arrays)
        for number, (entries, state) in enumerate(adopted):
            window_at, memory_at, *own = addresses[5 * number : 5 * number + 5]
            first, second, next_memory = arrays[5 * number + 2 : 5 * number + 5]
            state.buffers = DeltaBuffers(
                windows=(first, second), memory=next_memory, addresses=(own[0], own[1], own[2]), current=1
            )
            entries[:] = window_at, memory_at, own[0], own[2]
        self._kept = arrays

    def complete(self) -> None:
        """Let the states be what was written; call when it is."""
        for state in self._states.values():
            buffers = state.buffers
            if buffers is not None:
                buffers.current = 1 - buffers.current
                state.window, state.memory = buffers.windows[buffers.current], buffers.memory
                state.recorded = None
        self._kept = []


def _like(array: mx.array) -> mx.array:
    return mx.contiguous(mx.zeros(array.shape, array.dtype))
