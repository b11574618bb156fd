"""Where launched rows read and write the states of attention layers.

Rows go into a state's own arrays, after those that are there. Arrays that something else may refer to, or that have no
room for another token, are copied first, in whole steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.attention import CACHE_STEP_TOKENS, AttentionBuffers, AttentionState
from slotstream_core.models.qwen4_exp.device.launching import LaunchTarget
from slotstream_core.models.qwen4_exp.indexer import BLOCK_STEP, IndexState

Entries = npt.NDArray[np.uint64]


class AttentionAdvance:
    """The arguments of launches that advance the states of attention layers by a row.

    Args:
        entries: By layer, what `AttentionPlaces.all` holds; written here.
        states: Of the layers.
        target: Knows addresses.

    Raises (constructor):
        BackendError: An array has no address.
    """

    def __init__(
        self, entries: Mapping[int, Entries], states: Mapping[int, AttentionState], target: LaunchTarget
    ) -> None:
        self._states = states
        adopted: dict[int, tuple[mx.array, ...]] = {}
        for index, state in states.items():
            arrays, buffers = writable_arrays(state), state.buffers
            if buffers is None or any(a is not b for a, b in zip(arrays, buffers.arrays, strict=True)):
                adopted[index] = arrays
            else:
                entries[index][:] = *buffers.addresses, arrays[0].shape[1]
        if adopted:
            addresses = target.addresses([array for arrays in adopted.values() for array in arrays])
            for number, (index, own) in enumerate(adopted.items()):
                places = tuple(addresses[4 * number : 4 * number + 4])
                states[index].buffers = AttentionBuffers(arrays=own, addresses=places)
                entries[index][:] = *places, own[0].shape[1]

    def complete(self) -> None:
        """Let the states be what was written; call when it is."""
        for state in self._states.values():
            index = state.index
            state.length += 1
            index.length += 1
            index.tail = index.tail_room[index.length % index.ratio]
            index.recorded = None


def writable_arrays(state: AttentionState) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Return a state's arrays, with room for another token, that nothing else refers to.

    Returns:
        Keys, values, the indexer's blocks and its tail [ratio, dim]; new ones are not evaluated yet.
    """
    for name in ("keys", "values"):
        cache: mx.array = getattr(state, name)
        if state.private.get(name) is not cache or state.length >= cache.shape[1]:
            cache = _copied(cache, state.length, step=CACHE_STEP_TOKENS, axis=1)
            setattr(state, name, cache)
            state.private[name] = cache
    index, blocks = state.index, state.index.blocks
    done = index.length // index.ratio
    if index.private is not blocks or done >= len(blocks):
        blocks = _copied(blocks, done, step=BLOCK_STEP, axis=0)
        index.blocks, index.private = blocks, blocks
    return state.keys, state.values, blocks, _writable_tail(index)


def _writable_tail(index: IndexState) -> mx.array:
    """The indexer's tail, [ratio, dim], of which its present one is the first part."""
    tokens = index.length % index.ratio
    if not index.tail_room or index.tail is not index.tail_room[tokens]:
        free = mx.zeros((index.ratio - tokens, index.tail.shape[1]), index.tail.dtype)
        whole = mx.concatenate([index.tail, free])
        mx.eval(whole)
        index.tail_room = (*(whole[:count] for count in range(index.ratio)), whole)
        mx.eval(index.tail_room)
        index.tail = index.tail_room[tokens]
    return index.tail_room[-1]


def _copied(cache: mx.array, rows: int, *, step: int, axis: int) -> mx.array:
    """A copy of the first ``rows`` of ``cache`` along ``axis``, with room for more, in whole steps."""
    shape = list(cache.shape)
    shape[axis] = max(shape[axis], (rows // step + 1) * step) - rows
    kept = cache[:rows] if axis == 0 else cache[:, :rows]
    return mx.concatenate([kept, mx.zeros(shape, cache.dtype)], axis=axis)
