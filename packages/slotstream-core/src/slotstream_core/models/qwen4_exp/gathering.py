"""Products of rows with an expert each where MLX's kernels have limits: a `Gathering` says which.

Which kernel serves a pair of a row and an expert depends on the pass alone, on how many pairs it has and how many of
its rows chose the expert, so that an output is the same to the bit wherever the experts lie and however many of them
are computed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.backend import Gathering
from slotstream_core.experts.stacks import DenseStack, ExpertArrays, QuantizedStack, Stack
from slotstream_planner.engine_memory import DENSE_BATCH_ROWS, DENSE_EXPERTS

Indices = npt.NDArray[np.integer]

FEWEST_DENSE_ROWS = 16


def compute_experts(arrays: ExpertArrays, x: mx.array, slots: mx.array) -> mx.array:
    """The gated two-layer network of each expert in ``slots`` on its row of ``x``.

    Each output depends on one row and one expert only, whatever else is computed in the same call.

    Args:
        arrays: The places that ``slots`` indexes.
        x: [..., 1, hidden], leading axes broadcast against those of ``slots``.
        slots: Places, int32 or uint32.

    Returns:
        [*slots.shape, 1, hidden].
    """
    gate = _gathered(arrays.gate, x, slots)
    up = _gathered(arrays.up, x, slots)
    return _gathered(arrays.down, gate * mx.sigmoid(gate) * up, slots)


def _gathered(stack: Stack, x: mx.array, slots: mx.array) -> mx.array:
    if isinstance(stack, QuantizedStack):
        return mx.gather_qmm(
            x,
            stack.weight,
            stack.scales,
            stack.biases,
            rhs_indices=slots,
            transpose=True,
            group_size=stack.group_size,
            bits=stack.bits,
        )
    return mx.gather_mm(x, stack.weight.swapaxes(-1, -2), rhs_indices=slots)


class LimitedProducts:
    """The products of one layer's pairs within the limits of a backend.

    Args:
        gathering: The limits.
        expert_count: Experts of the layer that a row chooses from.
    """

    def __init__(self, gathering: Gathering, *, expert_count: int) -> None:
        self._limits = gathering
        self._expert_count = expert_count

    def compute(self, arrays: ExpertArrays, x: mx.array, slots: mx.array) -> mx.array:
        """Outputs [T, k, hidden] of the experts in ``slots`` [T, k] for ``x`` [T, hidden], the rows of a whole pass.

        Waits for the slots of a pass that unpacks experts, and when places must be counted in parts.
        """
        top = slots.shape[1]
        rows = np.repeat(np.arange(x.shape[0]), top)
        if slots.size <= self._limits.few_pairs:
            pairs = x if x.shape[0] == 1 else x[mx.array(rows.astype(np.int32))]
            outputs = self._few(arrays, pairs, slots.reshape(-1))
        elif not self._unpacks(x.shape[0], top) and _places(arrays.gate) <= self.part_places(arrays):
            return compute_experts(arrays, x[:, None, None, :], slots)[:, :, 0]
        else:
            outputs = self._many(arrays, x, rows, np.array(slots).reshape(-1), top)
        return outputs.reshape(*slots.shape, -1)

    def compute_pairs(self, arrays: ExpertArrays, x: mx.array, rows: Indices, slots: Indices, top: int) -> mx.array:
        """Outputs [pairs, hidden] of row ``rows[i]`` of ``x`` through the expert in ``slots[i]``.

        Args:
            arrays: The places that ``slots`` indexes.
            x: [T, hidden], every row of the pass.
            rows: Of the pairs; all pairs of the pass that chose one of these experts.
            slots: The place of each pair's expert.
            top: Experts a row chooses, so that the pass has T * top pairs.
        """
        if x.shape[0] * top <= self._limits.few_pairs:
            return self._few(arrays, x[mx.array(rows.astype(np.int32))], mx.array(slots.astype(np.int32)))
        return self._many(arrays, x, rows, slots, top)

    def part_places(self, arrays: ExpertArrays) -> int:
        """How many consecutive places the kernel for many pairs tells apart."""
        stacks = (arrays.gate, arrays.up, arrays.down)
        return max(1, self._limits.counted_weights // max(_weights(stack) for stack in stacks))

    def _unpacks(self, rows: int, top: int) -> bool:
        """Whether experts that enough of a pass's rows chose are unpacked for it."""
        limits = self._limits
        return rows >= limits.dense_rows and rows * top >= limits.dense_mean_rows * self._expert_count

    def _few(self, arrays: ExpertArrays, pairs: mx.array, slots: mx.array) -> mx.array:
        """Outputs [pairs, hidden] in calls of so few pairs that MLX takes its kernel for few.

        ``pairs`` [pairs, hidden] are their rows, or the one row of all of them.
        """
        calls = -(-len(slots) // self._limits.few_at_once)
        bounds = [len(slots) * call // calls for call in range(calls + 1)]
        shared = len(pairs) == 1
        outputs = [
            compute_experts(arrays, (pairs if shared else pairs[first:last])[:, None, :], slots[first:last])[:, 0]
            for first, last in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        return outputs[0] if calls == 1 else mx.concatenate(outputs)

    def _many(self, arrays: ExpertArrays, x: mx.array, rows: Indices, slots: Indices, top: int) -> mx.array:
        dense = np.zeros(len(slots), np.bool_)
        if self._unpacks(x.shape[0], top):
            dense = np.bincount(slots)[slots] >= self._limits.dense_rows
        outputs: list[mx.array] = []
        found = np.empty(len(slots), np.int32)  # where in the concatenated outputs each pair's is
        start = 0
        for part in self._parts(arrays, slots, np.flatnonzero(~dense)):
            outputs.append(self._padded(arrays, x, rows[part.pairs], slots[part.pairs] - part.first, part))
            found[part.pairs] = start + np.arange(len(part.pairs))
            start += len(part.pairs)
        for batch in _dense_batches(slots, _by_slot(slots, np.flatnonzero(dense))):
            outputs.append(_dense_outputs(arrays, x, rows, batch))
            found[batch.pairs] = start + batch.positions
            start += batch.rows * len(batch.slots)
        together = outputs[0] if len(outputs) == 1 else mx.concatenate(outputs)
        return together[mx.array(found)]

    def _parts(self, arrays: ExpertArrays, slots: Indices, pairs: Indices) -> Iterator[_Part]:
        """The pairs by the part of the places that their experts lie in; their order stays, which is the fastest."""
        size = self.part_places(arrays)
        parts = slots[pairs] // size
        for number in np.unique(parts):
            yield _Part(pairs=pairs[parts == number], first=int(number) * size, last=(int(number) + 1) * size)

    def _padded(self, arrays: ExpertArrays, x: mx.array, rows: Indices, slots: Indices, part: _Part) -> mx.array:
        """Outputs [pairs, hidden], computed among as many pairs as it takes for the kernel for many."""
        short = max(0, self._limits.few_at_once + 1 - len(slots))
        many = np.pad(rows, (0, short), mode="edge").astype(np.int32)
        places = np.pad(slots, (0, short), mode="edge").astype(np.int32)
        within = _part_of(arrays, part.first, part.last)
        return compute_experts(within, x[mx.array(many)][:, None, :], mx.array(places))[: len(slots), 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Pairs whose experts lie in the places from `first` to before `last`."""

    pairs: Indices
    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _DenseBatch:
    """Experts that as many rows chose, up to a power of two.

    Attributes:
        slots: Their places; the last one is repeated where there are fewer than a batch holds.
        rows: Rows computed for each.
        pairs: The pairs served, sorted by expert.
        positions: Where each of them is among the ``len(slots) * rows`` outputs.
    """

    slots: Indices
    rows: int
    pairs: Indices
    positions: Indices


def _by_slot(slots: Indices, pairs: Indices) -> Indices:
    return pairs[np.argsort(slots[pairs], kind="stable")]


def _dense_batches(slots: Indices, pairs: Indices) -> Iterator[_DenseBatch]:
    """Put pairs, sorted by slot, into batches whose shape depends on nothing but how many rows chose an expert.

    A matrix product of one shape is one kernel, and in one kernel an output depends on its row and its column only.
    """
    if not len(pairs):
        return
    experts, starts, counts = np.unique(slots[pairs], return_index=True, return_counts=True)
    ranks = np.arange(len(pairs)) - np.repeat(starts, counts)
    widths = np.maximum(FEWEST_DENSE_ROWS, 1 << np.ceil(np.log2(counts)).astype(np.int64))
    for width in np.unique(widths).tolist():
        chosen = np.flatnonzero(widths == width)
        size = max(1, min(DENSE_EXPERTS, DENSE_BATCH_ROWS // width))
        for first in range(0, len(chosen), size):
            batch = chosen[first : first + size]
            own = np.concatenate([np.arange(starts[each], starts[each] + counts[each]) for each in batch])
            yield _DenseBatch(
                slots=np.pad(experts[batch], (0, size - len(batch)), mode="edge"),
                rows=width,
                pairs=pairs[own],
                positions=np.repeat(np.arange(len(batch)) * width, counts[batch]) + ranks[own],
            )


def _dense_outputs(arrays: ExpertArrays, x: mx.array, rows: Indices, batch: _DenseBatch) -> mx.array:
    """Outputs [experts * rows, hidden] of a batch, with weights unpacked for it."""
    index = np.zeros(len(batch.slots) * batch.rows, np.int32)
    index[batch.positions] = rows[batch.pairs]
    chosen = x[mx.array(index)].reshape(len(batch.slots), batch.rows, -1)
    slots = mx.array(batch.slots.astype(np.int32))
    gate = chosen @ _unpacked(arrays.gate, slots)
    up = chosen @ _unpacked(arrays.up, slots)
    return ((gate * mx.sigmoid(gate) * up) @ _unpacked(arrays.down, slots)).reshape(len(index), -1)


def _unpacked(stack: Stack, slots: mx.array) -> mx.array:
    """The matrices in some places, [places, in, out]."""
    if isinstance(stack, DenseStack):
        return stack.weight[slots].swapaxes(-1, -2)
    weight = mx.dequantize(
        stack.weight[slots], stack.scales[slots], stack.biases[slots], group_size=stack.group_size, bits=stack.bits
    )
    return weight.swapaxes(-1, -2)


def _part_of(arrays: ExpertArrays, first: int, last: int) -> ExpertArrays:
    """The places from ``first`` to before ``last``; nothing is copied."""
    if first == 0 and _places(arrays.gate) <= last:
        return arrays

    def part(stack: Stack) -> Stack:
        if isinstance(stack, DenseStack):
            return DenseStack(weight=stack.weight[first:last])
        return QuantizedStack(
            weight=stack.weight[first:last],
            scales=stack.scales[first:last],
            biases=stack.biases[first:last],
            bits=stack.bits,
            group_size=stack.group_size,
        )

    return ExpertArrays(gate=part(arrays.gate), up=part(arrays.up), down=part(arrays.down))


def _places(stack: Stack) -> int:
    return int(stack.weight.shape[0])


def _weights(stack: Stack) -> int:
    """Weights of one expert."""
    rows, columns = stack.weight.shape[1:]
    return int(rows * columns * 32 // stack.bits if isinstance(stack, QuantizedStack) else rows * columns)
