"""A full-attention layer for one row, launched: from its input to its output, with the sequence's arrays in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.attention import CACHE_STEP_TOKENS, AttentionState, SparseAttention
from slotstream_core.models.qwen4_exp.device.attention_kernels import (
    AttentionKernels,
    AttentionSizes,
    InputPlaces,
    attention_kernels,
)
from slotstream_core.models.qwen4_exp.device.launching import Argument, Place, Program
from slotstream_core.models.qwen4_exp.device.products import RowProduct, suits_product
from slotstream_core.models.qwen4_exp.indexer import BLOCK_STEP
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding

ANGLE_TOKENS = 1024
"""Angles of so many positions are on the device at a time."""


class TokenPlace:
    """Where a program's token stands: what all of its attention layers share.

    Args:
        program: Runs the layers.
        rotary: Turns positions into angles.
        ratio: Tokens of an indexer's block.

    Attributes:
        position: Index of the token.
        angles_from: Of the first token whose angles are there.
        cosines: Of the rotation, [tokens, rotary dim / 2].
        sines: As ``cosines``.
    """

    def __init__(self, program: Program, rotary: RotaryEmbedding, ratio: int) -> None:
        self._program, self._rotary, self._ratio = program, rotary, ratio
        self._window = -1
        self.position = program.place("position")
        self.angles_from = program.place("angles_from")
        self.cosines = program.place("cosines", mx.bfloat16)
        self.sines = program.place("sines", mx.bfloat16)

    def move(self, position: int) -> None:
        """Stand at ``position`` in the runs to come."""
        self._program.set(self.position, position)
        window = position // ANGLE_TOKENS
        if window != self._window:
            # a block of the indexer stands at its first token, which may be before the window
            first = max(0, window * ANGLE_TOKENS - self._ratio)
            angles = self._rotary.angles(np.arange(first, (window + 1) * ANGLE_TOKENS, dtype=np.int64))
            self._program.point([self.cosines, self.sines], [angles.cos, angles.sin])
            self._program.set(self.angles_from, first)
            self._window = window


class Scratch:
    """What layers of the same sizes leave to each other's use within a program, one after the other.

    Args:
        program: Runs the layers.
        kernels: Of their sizes.
        products: Values of each product with a layer's input.
    """

    def __init__(self, program: Program, kernels: AttentionKernels, products: Sequence[int]) -> None:
        made = [*kernels.prepare.outputs, *kernels.score.outputs, *kernels.choose.outputs]
        made += [*kernels.parts.outputs, *kernels.join.outputs]
        grown = ("keys", "values", "tail", "block_keys")
        self.arrays = {each.name: program.scratch(each.shape, each.dtype) for each in made if each.name not in grown}
        self.products = [program.scratch((1, width), mx.bfloat16) for width in products]


@dataclass(kw_only=True, slots=True)
class SequencePlaces:
    """Where a layer of a program finds its part of a sequence.

    Attributes:
        arrays: Of keys, values, the indexer's blocks and its tail.
        capacity: Tokens that there is room for.
        pointed: The arrays that they refer to.
    """

    arrays: tuple[Place, Place, Place, Place]
    capacity: Place
    pointed: tuple[mx.array, ...] = ()


class DeviceAttention(SparseAttention):
    """A `SparseAttention` that a program can run for one row.

    Attributes:
        launchable: Whether `add_launches` may be called: sizes and types of the layer suit the kernels.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._sizes = AttentionSizes.of(config)
        matrices = [*(product for product, _ in self._inputs.groups), self._output]
        self.launchable = (
            self._dtype == mx.bfloat16 and self._sizes.suits and all(suits_product(matrix) for matrix in matrices)
        )
        if self.launchable:
            self._products = [RowProduct(product) for product, _ in self._inputs.groups]
            self._output_product = RowProduct(self._output)
            self._sources, places = self._input_places()
            self._kernels = attention_kernels(self._sizes, places)
            self._norms = [self._norm.plain_weight, *self._selector.norm_weights]

    def _input_places(self) -> tuple[list[int], InputPlaces]:
        """For queries, keys, values and the indexer: the product that holds each, and where it begins there."""
        sources, starts = [], []
        for source, (_, widths) in enumerate(self._inputs.groups):
            for index in range(len(widths)):
                sources.append(source)
                starts.append(sum(widths[:index]))
        return sources, InputPlaces(query=starts[0], key=starts[1], value=starts[2], index=starts[3])

    def scratch(self, program: Program) -> Scratch:
        """What `add_launches` needs; layers with the same weights' forms may share it, see `Scratch`."""
        return Scratch(program, self._kernels, [product.rows for product in self._products])

    def reaches(self, position: int) -> bool:
        """Whether launches compute a token at ``position``: there is scratch for so long a sequence."""
        return position < self._sizes.positions

    def chooses(self, position: int) -> bool:
        """Whether a token at ``position`` cannot see all before it."""
        return (position + 1) // self._sizes.ratio > self._sizes.best

    def add_launches(
        self, program: Program, scratch: Scratch, token: TokenPlace, x: Argument, y: Argument, *, choosing: bool = True
    ) -> SequencePlaces:
        """Append everything between the layer's input and its output.

        Args:
            program: Runs it.
            scratch: Used until the end of the layer.
            token: Where the token stands.
            x: The input, [1, hidden], bfloat16.
            y: The output, as ``x``.
            choosing: With the launches that a token needs where the layer `chooses`; elsewhere they do nothing.

        Returns:
            What to `point` at a sequence before each run.
        """
        names = ("keys", "values", "block_keys", "tail")
        keys, values, blocks, tail = (program.place(name, mx.bfloat16) for name in names)
        capacity, position, work = program.place("capacity"), token.position, scratch.arrays
        for product, result in zip(self._products, scratch.products, strict=True):
            product.add(program, x, result)
        given = [scratch.products[source] for source in self._sources]
        caches = (keys, values, work["index_queries"], tail, blocks)
        program.add(
            self._kernels.prepare,
            *given,
            *self._norms,
            token.cosines,
            token.sines,
            work["queries"],
            *caches,
            position,
            token.angles_from,
            capacity,
        )
        if choosing:
            program.add(self._kernels.score, work["index_queries"], blocks, work["scores"], position)
            program.add(self._kernels.choose, work["scores"], work["chosen"], position)
        parts = (work["parts"], work["peaks"], work["totals"])
        program.add(self._kernels.parts, work["queries"], keys, values, work["chosen"], *parts, position, capacity)
        program.add(self._kernels.join, *parts, given[0], work["attended"], position)
        self._output_product.add(program, work["attended"], y)
        return SequencePlaces(arrays=(keys, values, blocks, tail), capacity=capacity)


def point(program: Program, parts: Sequence[tuple[SequencePlaces, AttentionState]]) -> None:
    """Let layers of a program write the next token of a sequence into its states.

    States keep what they hold; arrays that are too short, or that something else may refer to, are replaced by copies.
    Costs next to nothing where that is not needed.
    """
    places: list[Place] = []
    arrays: list[mx.array] = []
    for part, state in parts:
        own = writable_arrays(state)
        if len(part.pointed) != len(own) or any(a is not b for a, b in zip(part.pointed, own, strict=True)):
            part.pointed = own
            places += part.arrays
            arrays += own
            program.set(part.capacity, own[0].shape[1])
    if arrays:
        program.point(places, arrays)


def forget(program: Program, parts: Sequence[SequencePlaces]) -> None:
    """Refer to no sequence any more: its arrays can be freed, or reused by MLX, when nothing else does."""
    for part in parts:
        part.pointed = ()
        for place in part.arrays:
            program.set(place, 0)


def writable_arrays(state: AttentionState) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """The arrays of a state, with room for one token more, that nothing else refers to: see `AttentionState.private`.

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
    done, rest = divmod(index.length, index.ratio)
    if index.private is not blocks or done >= len(blocks):
        blocks = _copied(blocks, done, step=BLOCK_STEP, axis=0)
        index.blocks, index.private = blocks, blocks
    if not index.tail_room or index.tail is not index.tail_room[rest]:
        whole = mx.concatenate([index.tail, mx.zeros((index.ratio - rest, index.tail.shape[1]), index.tail.dtype)])
        mx.eval(whole)
        index.tail_room = (*(whole[:tokens] for tokens in range(index.ratio)), whole)
        mx.eval(index.tail_room)
        index.tail = index.tail_room[rest]
    return state.keys, state.values, blocks, index.tail_room[-1]


def advance(state: AttentionState) -> None:
    """Count a token that launches have written into the arrays of `writable_arrays`."""
    index = state.index
    state.length += 1
    index.length += 1
    index.tail = index.tail_room[index.length % index.ratio]
    index.recorded = None


def _copied(cache: mx.array, rows: int, *, step: int, axis: int) -> mx.array:
    """A copy of the first ``rows`` of ``cache`` along ``axis``, with room for more, in whole steps."""
    capacity = max(cache.shape[axis], (rows // step + 1) * step)
    shape = list(cache.shape)
    shape[axis] = capacity - rows
    kept = cache[:rows] if axis == 0 else cache[:, :rows]
    return mx.concatenate([kept, mx.zeros(shape, cache.dtype)], axis=axis)
