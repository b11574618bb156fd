"""A full-attention layer for one row, as launches of a program, from its input to its output."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.attention import SparseAttention
from slotstream_core.models.qwen4_exp.device.attention_kernels import (
    AttentionKernels,
    AttentionSizes,
    InputPlaces,
    attention_kernels,
)
from slotstream_core.models.qwen4_exp.device.kernels import KernelKey
from slotstream_core.models.qwen4_exp.device.launching import Argument, Place, Program
from slotstream_core.models.qwen4_exp.device.products import RowProducts, suits_product
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
        products: With a layer's input.
    """

    def __init__(self, program: Program, kernels: AttentionKernels, products: RowProducts) -> None:
        made = [*kernels.prepare.outputs, *kernels.score.outputs, *kernels.choose.outputs]
        made += [*kernels.parts.outputs, *kernels.join.outputs]
        grown = ("keys", "values", "tail", "block_keys")
        self.arrays = {each.name: program.scratch(each.shape, each.dtype) for each in made if each.name not in grown}
        self.products = products.scratch(program)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionPlaces:
    """The arguments of a program that are one layer's part of a sequence, in this order.

    Attributes:
        keys: With room for the token, as all of them.
        values: Likewise.
        blocks: Of the indexer.
        tail: Of the indexer.
        capacity: Tokens that keys and values have room for.
    """

    keys: Place
    values: Place
    blocks: Place
    tail: Place
    capacity: Place

    @property
    def all(self) -> tuple[Place, ...]:
        """In this order."""
        return (self.keys, self.values, self.blocks, self.tail, self.capacity)

    @staticmethod
    def of(program: Program) -> AttentionPlaces:
        """New places; they follow each other."""
        return AttentionPlaces(
            keys=program.place("keys", mx.bfloat16),
            values=program.place("values", mx.bfloat16),
            blocks=program.place("blocks", mx.bfloat16),
            tail=program.place("tail", mx.bfloat16),
            capacity=program.place("capacity"),
        )


class DeviceAttention(SparseAttention):
    """A `SparseAttention` that a program can run for one row.

    Attributes:
        launchable: Whether `add` may be called: sizes and types of the layer suit the kernels.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._sizes = AttentionSizes.of(config)
        matrices = [*(product for product, _ in self._inputs.groups), self._output]
        self.launchable = (
            self._dtype == mx.bfloat16 and self._sizes.suits and all(suits_product(matrix) for matrix in matrices)
        )
        if self.launchable:
            self._products = RowProducts([product for product, _ in self._inputs.groups])
            self._output_product = RowProducts([self._output])
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

    @property
    def launch_kind(self) -> tuple[KernelKey, ...]:
        """The same for layers that are launched alike, which may share `scratch`."""
        return self._products.spec.key, self._output_product.spec.key, self._kernels.prepare.key

    def scratch(self, program: Program) -> Scratch:
        """What `add` needs; layers with the same weights' forms may share it, see `Scratch`."""
        return Scratch(program, self._kernels, self._products)

    def reaches(self, position: int) -> bool:
        """Whether launches compute a token at ``position``: there is scratch for so long a sequence."""
        return position < self._sizes.positions

    def chooses(self, position: int) -> bool:
        """Whether a token at ``position`` cannot see all before it."""
        return (position + 1) // self._sizes.ratio > self._sizes.best

    def add(
        self,
        program: Program,
        x: Argument,
        places: AttentionPlaces,
        y: Argument,
        *,
        token: TokenPlace,
        scratch: Scratch,
        choosing: bool = True,
    ) -> None:
        """Append everything between the layer's input and its output.

        Args:
            program: Runs it.
            x: The input, [1, hidden], bfloat16.
            places: The layer's part of the sequence.
            y: The output, as ``x``.
            token: Where the token stands.
            scratch: Used until the end of the layer.
            choosing: With the launches that a token needs where the layer `chooses`; elsewhere they do nothing.
        """
        work, position = scratch.arrays, token.position
        self._products.add(program, x, scratch.products)
        given = [scratch.products[source] for source in self._sources]
        caches = (places.keys, places.values, work["index_queries"], places.tail, places.blocks)
        angles, numbers = (token.cosines, token.sines), (position, token.angles_from, places.capacity)
        program.add(self._kernels.prepare, *given, *self._norms, *angles, work["queries"], *caches, *numbers)
        if choosing:
            program.add(self._kernels.score, work["index_queries"], places.blocks, work["scores"], position)
            program.add(self._kernels.choose, work["scores"], work["chosen"], position)
        parts, seen = (work["parts"], work["peaks"], work["totals"]), (places.keys, places.values, work["chosen"])
        program.add(self._kernels.parts, work["queries"], *seen, *parts, position, places.capacity)
        program.add(self._kernels.join, *parts, given[0], work["attended"], position)
        self._output_product.add(program, work["attended"], [y])
