"""Where launched rows read and write the states of n-gram layers.

A window is written into the other one of two arrays that belong to the state alone (see `NgramBuffers`); one that is
not in them, because other code replaced it or a fork shares it, is read from where it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.device.launching import LaunchTarget
from slotstream_core.models.qwen4_exp.ngram import NgramBuffers, NgramState

Entries = npt.NDArray[np.uint64]


class NgramAdvance:
    """The arguments of launches that advance the states of n-gram layers by a row.

    Args:
        entries: By layer, what `NgramPlaces.all` holds; written here.
        states: Of the layers.
        target: Knows addresses.

    Raises (constructor):
        BackendError: An array has no address.
    """

    def __init__(self, entries: Mapping[int, Entries], states: Mapping[int, NgramState], target: LaunchTarget) -> None:
        self._states = states
        self._kept: list[mx.array] = []
        for index, state in states.items():
            buffers = state.buffers
            if buffers is not None and buffers.hold(state):
                before = buffers.addresses[buffers.current]
            else:
                before, buffers = self._adopt(state, target)
            entries[index][:] = before, buffers.addresses[1 - buffers.current]

    def _adopt(self, state: NgramState, target: LaunchTarget) -> tuple[int, NgramBuffers]:
        """Where the window is, and new buffers for what comes after."""
        window = mx.contiguous(state.window)
        first, second = (mx.contiguous(mx.zeros(window.shape, window.dtype)) for _ in range(2))
        before, *own = target.addresses([window, first, second])
        self._kept.append(window)
        state.buffers = NgramBuffers(windows=(first, second), addresses=(own[0], own[1]), current=1)
        return before, state.buffers

    def complete(self, token: int) -> None:
        """Let the states be what was written for a token; call when it is."""
        for state in self._states.values():
            buffers = state.buffers
            if buffers is not None:
                buffers.current = 1 - buffers.current
                state.window = buffers.windows[buffers.current]
                state.context = np.append(state.context[1:], token)
                state.recorded = []
        self._kept = []
