"""Calls every function of `_native` with right and wrong arguments; the sanitizers watch what it touches.

Run with `python -m`: the module's path, a seed, and how many calls. Right arguments must be taken; wrong ones must be
taken or refused with an ordinary error, and a refused call must have written nothing. Prints one line a function.
"""

import collections
import ctypes
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.residency import Count
from slotstream_core.native.binding import MatrixStructure
from slotstream_core.native.lanes import LaneSettings, PieceKindStructure
from tests.built_modules import built_module

Array = npt.NDArray[Any]
REFUSALS = (ValueError, TypeError, OverflowError, BufferError)
LARGE = 2**20  # bytes that only a view without memory of its own has here
ODD_INTEGERS = (0, -1, 1, 2, 3, 7, 2**20, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1, -(2**63), 2**64)
ODD_VALUES: tuple[Any, ...] = (None, "text", b"bytes", 1.5, (), [], object())


class Address(int):
    """Of something in C that its owner keeps valid; 0 for nothing. Not any other number can be tried in its place."""


class Maker:
    """Random arguments. Every array has memory of exactly its own size, so that a step outside is noticed."""

    def __init__(self, module: ModuleType, library: ctypes.CDLL, seed: int) -> None:
        self.module = module
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.kept: list[Any] = []
        self.matrices: list[Address] = []
        pool = ctypes.c_void_p()
        variant = self.random.choice([i for i in range(8) if library.ss_variant_runnable(i)])
        assert library.ss_pool_create(2, variant, ctypes.byref(pool)) == 0
        self.pool = Address(pool.value or 0)
        self.lasting: list[Any] = []
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1024))
            file.flush()
            self.zeros = os.dup(file.fileno())
        self.lanes = self._open_lanes(library)

    def _open_lanes(self, library: ctypes.CDLL) -> Address:
        scratch = np.zeros(4 * 4096, np.uint8)
        self.lasting.append(scratch)
        start = scratch.__array_interface__["data"][0]
        start += -start % 64
        settings = LaneSettings(
            demand_lanes=1,
            ahead_lanes=1,
            alignment=1,
            merge_bytes=4096,
            job_bytes=4096,
            staging=1,
            scratch=start,
            scratch_bytes=4096,
            scratch_stride=4096,
            ahead_scratch=start + 2 * 4096,
            ahead_scratch_bytes=4096,
            ahead_scratch_stride=4096,
        )
        lanes = ctypes.c_void_p()
        assert library.ss_lanes_create(ctypes.byref(settings), ctypes.byref(lanes)) == 0
        return Address(lanes.value or 0)

    def up_to(self, most: int, least: int = 1) -> int:
        return self.random.randint(least, most)

    def floats(self, *shape: int) -> Array:
        return self.numbers.standard_normal(shape).astype(np.float32)

    def spread(self, rows: int, width: int) -> Array:
        """Rows that may have something between them."""
        return self.floats(rows, width + self.random.choice((0, 0, 1, 5)))[:, :width]

    def ids(self, below: int, *shape: int) -> Array:
        return self.numbers.integers(0, below, shape).astype(np.int32)

    def matrix(self, rows: int, columns: int, members: int = 1) -> Address:
        """That of a description; quantised where the columns allow it, mostly."""
        groups = [group for group in (32, 64, 128) if columns % group == 0]
        bits, group, kind = 0, 0, self.random.choice((np.float32, np.uint16))
        if groups and self.random.random() < 0.8:
            bits, group = self.random.choice((4, 8)), self.random.choice(groups)
            arrays = [self.numbers.integers(0, 2**32, (members, rows, columns * bits // 32)).astype(np.uint32)]
            for _ in range(2):
                values = self.floats(members, rows, columns // group)
                arrays.append(values if kind is np.float32 else (values.view(np.uint32) >> 16).astype(np.uint16))
        else:
            values = self.floats(members, rows, columns)
            arrays = [values if kind is np.float32 else (values.view(np.uint32) >> 16).astype(np.uint16)]
        places = [array.__array_interface__["data"][0] for array in arrays]
        structure = MatrixStructure(
            weight=places[0],
            scales=places[1] if bits else None,
            biases=places[2] if bits else None,
            weight_bytes=arrays[0].nbytes,
            scales_bytes=arrays[1].nbytes if bits else 0,
            members=members,
            rows=rows,
            columns=columns,
            bits=bits,
            group=group,
            type=0 if kind is np.float32 else 1,
        )
        self.kept.append((arrays, structure))
        self.matrices.append(Address(ctypes.addressof(structure)))
        return self.matrices[-1]

    def spoiled(self, address: Address) -> Address:
        """That of the same description with something wrong that can be seen from it; or none at all."""
        if self.random.random() < 0.2:
            return Address(0)
        spoiled = MatrixStructure.from_buffer_copy(MatrixStructure.from_address(address))
        name, values = self.random.choice(
            (
                ("weight", (None,)),
                ("scales", (None, 1)) if spoiled.bits else ("scales", (16,)),
                ("biases", (None, 1)) if spoiled.bits else ("biases", (16,)),
                ("weight_bytes", (0, -1, spoiled.weight_bytes - 1)),
                ("members", (0, -1, 2**31, 2**62)),
                ("rows", (0, -1, spoiled.rows + 1, 2**41, 2**62)),
                ("columns", (0, -1, spoiled.columns + 128, 2**41, 2**62)),
                ("bits", (1, 3, 16, -4)),
                ("group", (1, 16, 96, -32, 2**31 - 1)),
                ("type", (2, -1)),
            )
        )
        setattr(spoiled, name, self.random.choice(values))
        self.kept.append(spoiled)
        return Address(ctypes.addressof(spoiled))


def rms_norm(m: Maker) -> list[Any]:
    rows, groups, dim = m.up_to(4, 0), m.up_to(3), m.up_to(20)
    weight = m.floats(dim * m.random.choice((1, groups)))
    return [m.spread(rows, groups * dim), weight, groups, 1e-6, m.floats(rows, groups * dim)]


def mix_streams(m: Maker) -> list[Any]:
    rows, streams, hidden = m.up_to(4, 0), m.up_to(4), m.up_to(20)
    gate, normed = m.floats(rows, streams * hidden), m.floats(rows, streams * hidden)
    return [gate, normed, streams, m.floats(rows, hidden)]


def inject(m: Maker) -> list[Any]:
    rows, streams, hidden = m.up_to(4, 0), m.up_to(4), m.up_to(20)
    wide = (rows, streams * hidden)
    return [m.floats(*wide), m.floats(rows, streams), m.floats(rows, hidden), m.floats(*wide)]


def activation(m: Maker) -> list[Any]:
    return [m.floats(m.up_to(40, 0))]


def silu_multiply(m: Maker) -> list[Any]:
    rows, width = m.up_to(4, 0), m.up_to(20)
    return [m.spread(rows, width), m.spread(rows, width), m.floats(rows, width)]


def gate(m: Maker) -> list[Any]:
    rows, width = m.up_to(4, 0), m.up_to(20)
    return [m.floats(rows, width), m.spread(rows, width), m.floats(rows, width)]


def convolve(m: Maker) -> list[Any]:
    rows, channels, taps, dilation = m.up_to(4, 0), m.up_to(20), m.up_to(4), m.up_to(3)
    window, kernel = m.floats((taps - 1) * dilation, channels), m.floats(taps, channels)
    return [window, m.spread(rows, channels), kernel, dilation, m.floats(rows, channels)]


def delta(m: Maker) -> list[Any]:
    rows, key_heads, key_dim, dim = m.up_to(4, 0), m.up_to(2), m.up_to(20), m.up_to(20)
    heads = key_heads * m.up_to(3)
    first = m.up_to(heads, 0)
    return [
        m.floats(rows, 2 * key_heads * key_dim + heads * dim),
        m.spread(rows, heads * dim),
        m.spread(rows, heads),
        m.spread(rows, heads),
        m.floats(heads),
        m.floats(heads),
        m.floats(dim),
        m.floats(heads, dim, key_dim),
        key_heads,
        key_dim,
        1e-6,
        1e-6,
        m.up_to(1, 0),
        first,
        m.up_to(heads, first),
        m.floats(rows, heads * dim),
    ]


def norm_rotate(m: Maker) -> list[Any]:
    rows, heads, dim, apart = m.up_to(4, 0), m.up_to(4), m.up_to(20), m.up_to(3, 0)
    half, stride = m.up_to(dim // 2, 0), dim + apart
    angles = m.floats(rows, half), m.floats(rows, half)
    return [m.spread(rows, heads * stride), stride, m.floats(dim), *angles, 1e-6, m.floats(rows, heads * dim)]


def attend(m: Maker) -> list[Any]:
    kv_heads, dim, capacity = m.up_to(2), m.up_to(20), m.up_to(9)
    heads, count = kv_heads * m.up_to(3), m.up_to(capacity)
    chosen = m.random.choice((None, m.ids(capacity, count)))
    first = m.up_to(heads, 0)
    keys, values = m.floats(kv_heads, capacity, dim), m.floats(kv_heads, capacity, dim)
    part = first, m.up_to(heads, first)
    scores, out = m.floats(heads, count), m.floats(heads, dim)
    return [m.floats(heads, dim), keys, values, kv_heads, dim, count, chosen, 0.5, scores, *part, out]


def score_blocks(m: Maker) -> list[Any]:
    rows, heads, dim, blocks = m.up_to(4, 0), m.up_to(3), m.up_to(20), m.up_to(6, 0)
    return [m.floats(rows, heads * dim), m.floats(blocks, dim), 0.5, m.floats(rows, m.up_to(blocks, 0))]


def route(m: Maker) -> list[Any]:
    rows, experts = m.up_to(4, 0), m.up_to(20)
    top = m.up_to(experts)
    return [m.floats(rows, experts), m.up_to(1, 0), m.ids(9, rows, top), m.floats(rows, top)]


def combine(m: Maker) -> list[Any]:
    rows, top, hidden = m.up_to(4, 0), m.up_to(4), m.up_to(20)
    routed = m.floats(rows * top, hidden)
    return [m.floats(rows, hidden), m.floats(rows, 1), m.floats(rows, top), routed, m.floats(rows, hidden)]


def ngram_gate(m: Maker) -> list[Any]:
    rows, streams, hidden = m.up_to(4, 0), m.up_to(3), m.up_to(20)
    keys, queries = m.floats(rows, streams * hidden), m.floats(rows, streams * hidden)
    return [keys, queries, m.spread(rows, hidden), m.floats(rows, streams * hidden)]


def size(m: Maker) -> int:
    """A width: of whole groups, or not."""
    return m.random.choice((m.up_to(40), 32 * m.up_to(4), 32))


def multiply(m: Maker) -> list[Any]:
    rows, columns, count = m.up_to(90), size(m), m.random.choice((m.up_to(10, 0), m.up_to(50, 30)))
    return [m.pool, m.matrix(rows, columns), m.floats(count, columns), m.floats(count, rows)]


def multiply_many(m: Maker) -> list[Any]:
    return multiply(m)


def experts(m: Maker) -> list[Any]:
    rows, hidden, inner, members, top = m.up_to(9), size(m), size(m), m.up_to(5), m.up_to(4)
    maps = m.matrix(inner, hidden, members), m.matrix(inner, hidden, members), m.matrix(hidden, inner, members)
    slots, out = m.ids(members, rows, top), m.floats(rows * top, hidden)
    return [m.pool, *maps, m.floats(rows, hidden), slots, out]


def expert_pairs(m: Maker) -> list[Any]:
    rows, hidden, inner, members, top = m.up_to(9), size(m), size(m), m.up_to(5), m.up_to(4)
    maps = m.matrix(inner, hidden, members), m.matrix(inner, hidden, members), m.matrix(hidden, inner, members)
    pairs = m.numbers.permutation(rows * top).astype(np.int32)[: m.up_to(rows * top, 0)]
    return [m.pool, *maps, m.floats(rows, hidden), pairs, m.ids(members, len(pairs)), m.floats(rows * top, hidden)]


def attend_rows(m: Maker) -> list[Any]:
    kv_heads, dim, rows, position, ratio = m.up_to(2), m.up_to(20), m.up_to(40), m.up_to(70, 0), m.up_to(4)
    width, capacity = kv_heads * m.up_to(3) * dim, rows + position + m.up_to(3, 0)
    keys, values = m.floats(kv_heads, capacity, dim), m.floats(kv_heads, capacity, dim)
    selected = m.random.choice((None, m.numbers.integers(0, 2, (rows, capacity // ratio)).astype(np.uint8)))
    head = [kv_heads, dim, position, selected, ratio, 0.5]
    return [m.pool, m.floats(rows, width), keys, values, *head, m.floats(rows, width)]


def read_streams(m: Maker) -> list[Any]:
    rows, count, hidden, rank = m.up_to(4, 0), m.up_to(4), size(m), size(m)
    wide = count * hidden
    inject_map = m.random.choice((Address(0), m.matrix(count, wide)))
    maps = m.matrix(rank, wide), m.matrix(wide, rank), inject_map
    scratch = m.floats(rows, wide), m.floats(rows, rank), m.floats(rows, wide)
    results = m.floats(rows, hidden), m.floats(rows, count)
    return [m.pool, *maps, m.spread(rows, wide), m.floats(wide), count, 1e-6, *scratch, *results]


def is_narrow(m: Maker) -> list[Any]:
    return [m.matrix(m.up_to(9), size(m))]


def choose(m: Maker) -> list[Any]:
    return [m.random.choice(m.module.instruction_sets())]


class LayerShape:
    """Sizes of a random layer, and what `layer` takes for it."""

    def __init__(self, m: Maker) -> None:
        self.streams, self.hidden = m.up_to(4), size(m)
        self.key_heads, self.key_dim, self.value_dim, self.taps = m.up_to(2), m.up_to(9), m.up_to(9), m.up_to(4)
        self.heads = self.key_heads * m.up_to(2)
        self.width = self.heads * self.value_dim
        self.channels = 2 * self.key_heads * self.key_dim + self.width
        self.experts, self.inner, self.members = m.up_to(9), size(m), m.up_to(4)
        self.top = m.up_to(self.experts)
        self.has_delta, self.has_attention = m.random.choice(((True, False), (False, True), (False, False)))
        self.index_width, self.half = m.up_to(5), m.up_to(self.value_dim // 2, 0)
        self.cached = 2 * self.key_heads * self.value_dim + self.index_width

    @property
    def maps_width(self) -> int:
        """Outputs of the mixer's maps."""
        if self.has_attention:
            return 2 * self.width + self.cached
        return self.channels + self.width + 2 * self.heads

    def _reader(self, m: Maker) -> tuple[Any, ...]:
        wide, rank = self.streams * self.hidden, size(m)
        maps = m.matrix(rank, wide), m.matrix(wide, rank), m.matrix(self.streams, wide)
        return (*maps, m.floats(wide), self.streams, 1e-6)

    def arguments(self, m: Maker) -> list[Any]:
        inputs = m.matrix(self.channels + self.width, self.hidden), m.matrix(2 * self.heads, self.hidden)
        parts = (0, 0, 0, self.channels, 1, 0, 1, self.heads)
        vectors = (
            m.floats(self.taps, self.channels),
            m.floats(self.heads),
            m.floats(self.heads),
            m.floats(self.value_dim),
        )
        rule = (*parts, *vectors, self.key_heads, self.key_dim, 1e-6, 1e-6, m.up_to(1, 0))
        if self.has_attention:
            inputs = m.matrix(2 * self.width, self.hidden), m.matrix(self.cached, self.hidden)
        columns = (0, 0, 1, 0, 1, self.key_heads * self.value_dim, 1, 2 * self.key_heads * self.value_dim)
        norms = m.floats(self.value_dim), m.floats(self.value_dim)
        attention = (*columns, *norms, self.heads, self.key_heads, self.index_width, 1e-6, 0.3)
        shared = (m.matrix(2 * self.inner, self.hidden),)
        ends = m.matrix(self.hidden, self.inner), m.matrix(1, self.hidden)
        routed = (m.matrix(self.experts, self.hidden), shared, 0, 0, 0, self.inner, *ends, self.top, m.up_to(1, 0))
        output = m.matrix(self.hidden, self.width)
        mixers = rule if self.has_delta else None, attention if self.has_attention else None
        return [self._reader(m), self._reader(m), inputs, output, *mixers, routed]

    def attended(self, m: Maker, rows: int) -> list[Any]:
        wide, ids = self.streams * self.hidden, m.ids(9, rows, self.top)
        return [
            m.floats(rows, wide),
            m.floats(rows, self.hidden),
            m.floats(rows, self.streams),
            ids,
            m.floats(rows, self.top),
        ]


def layer(m: Maker) -> list[Any]:
    return LayerShape(m).arguments(m)


def described(m: Maker, *, mixer: Literal["any", "delta", "attention"] = "any") -> tuple[LayerShape, Any]:
    shape = LayerShape(m)
    if mixer != "any":
        shape.has_delta, shape.has_attention = mixer == "delta", mixer == "attention"
    arguments = shape.arguments(m)
    return shape, m.module.layer(*arguments)


def enter(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows = m.up_to(4)
    streams, injection = m.floats(rows, shape.streams * shape.hidden), m.floats(rows, shape.streams)
    return [made, m.pool, streams, m.floats(rows * shape.maps_width), injection]


def leave(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows = m.up_to(4)
    streams, injection = m.floats(rows, shape.streams * shape.hidden), m.floats(rows, shape.streams)
    return [made, m.pool, m.floats(rows, shape.width), streams, injection, *shape.attended(m, rows)]


def advance_delta(m: Maker) -> list[Any]:
    shape, made = described(m, mixer="delta")
    rows = m.up_to(4)
    kept, recorded = shape.taps - 1, m.up_to(2) == 2
    window, moved = m.floats(kept, shape.channels), m.floats(kept + rows * recorded, shape.channels)
    memory = m.floats(shape.heads, shape.value_dim, shape.key_dim)
    history = m.floats(rows, shape.heads * shape.value_dim * shape.key_dim) if recorded else None
    streams = m.floats(rows, shape.streams * shape.hidden)
    return [made, m.pool, streams, window, moved, memory, history, *shape.attended(m, rows)]


def advance_attention(m: Maker) -> list[Any]:
    shape, made = described(m, mixer="attention")
    rows, length = m.up_to(4), m.up_to(20, 0)
    queries, capacity = m.up_to(rows), length + rows + m.up_to(3, 0)
    caches = [m.floats(shape.key_heads, capacity, shape.value_dim) for _ in range(2)]
    angles = [m.floats(rows, shape.half) for _ in range(2)]
    before = [made, m.pool, m.floats(rows, shape.streams * shape.hidden), queries, *angles, *caches, length]
    return [*before, m.floats(rows, shape.index_width), *shape.attended(m, queries)]


def join_inputs(m: Maker) -> list[Any]:
    rows, count, hidden, tokens = m.up_to(4), m.up_to(4), size(m), m.up_to(9)
    maps = m.matrix(tokens, hidden), m.matrix(hidden, hidden), m.matrix(hidden, hidden)
    after = m.ids(tokens, rows).astype(np.int64)
    norms = m.floats(hidden), m.floats(count * hidden)
    streams = m.floats(rows, count * hidden)
    return [m.pool, *maps, *norms, count, 1e-6, streams, after, m.floats(rows, count * hidden)]


def guess(m: Maker) -> list[Any]:
    count, hidden, rank = m.up_to(4), size(m), size(m)
    wide = count * hidden
    maps = m.matrix(rank, wide), m.matrix(wide, rank)
    vocabulary = m.matrix(m.up_to(30), hidden)
    return [m.pool, *maps, m.floats(wide), count, 1e-6, vocabulary, m.floats(1, wide)]


def shared(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows = m.up_to(4)
    return [made, m.pool, m.floats(rows, shape.hidden), m.floats(rows, shape.hidden), m.floats(rows, 1)]


def join_experts(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows, hidden, inner, members = m.up_to(4), shape.hidden, size(m), shape.members
    maps = m.matrix(inner, hidden, members), m.matrix(inner, hidden, members), m.matrix(hidden, inner, members)
    slots, x = m.ids(members, rows, shape.top), m.floats(rows, hidden)
    return [made, m.pool, *maps, slots, x, *joined(m, shape, rows)]


def join_outputs(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows = m.up_to(4)
    return [made, m.pool, m.floats(rows * shape.top, shape.hidden), *joined(m, shape, rows)]


def joined(m: Maker, shape: LayerShape, rows: int) -> list[Any]:
    hidden, wide = shape.hidden, shape.streams * shape.hidden
    outputs = m.floats(rows, shape.top), m.floats(rows, hidden), m.floats(rows, 1)
    return [*outputs, m.floats(rows, wide), m.floats(rows, shape.streams), m.floats(rows, wide)]


def residency(m: Maker) -> list[Any]:
    """The books of an empty pool of records that no file is known of."""
    layers, slots = m.up_to(3), m.up_to(8)
    records = layers * m.up_to(6)
    counts = np.zeros(len(Count), np.int64)
    counts[[Count.IDLE, Count.FREE]] = slots
    kinds = m.up_to(3)
    return [
        np.full(records, UNMAPPED, np.int32),
        np.zeros(records, np.uint8),
        np.zeros(records, np.int64),
        np.full(slots, UNMAPPED, np.int32),
        np.zeros(slots, np.int32),
        np.zeros(slots, np.uint8),
        np.arange(slots - 1, -1, -1, dtype=np.int32),
        counts,
        np.zeros(kinds * ctypes.sizeof(PieceKindStructure), np.uint8),
        m.random.choice((None, np.zeros((layers, kinds, 3), np.int64))),
        layers,
    ]


def grant(m: Maker) -> list[Any]:
    """Of an empty pool; half the time of one whose records the call itself reads."""
    reading = Reading(m, fetches=m.random.random() < 0.5)
    wanted = m.up_to(5)
    ids = m.ids(reading.experts, wanted)
    outputs = [np.zeros(count, np.int32) for count in (wanted, wanted + 1, 2 * wanted)]
    return [reading.books, m.pool, m.random.randrange(reading.layers), ids, *outputs]


def fetch(m: Maker) -> list[Any]:
    """Into slots that are held and hold nothing; half the time of records that the call reads."""
    reading = Reading(m, fetches=m.random.random() < 0.5)
    count = m.up_to(min(reading.experts, reading.slots), 0)
    slots = m.numbers.permutation(reading.slots).astype(np.int32)[:count]
    reading.holds[slots] = 1
    ids = m.numbers.permutation(reading.experts).astype(np.int32)[:count]
    return [reading.books, m.pool, m.random.randrange(reading.layers), ids, slots]


def read_rows(m: Maker) -> list[Any]:
    rows, widths = m.up_to(5, 0), m.numbers.integers(1, 9, m.up_to(3))
    places = np.zeros((rows, len(widths), 2), np.int64)
    places[:, :, 0] = m.zeros
    return [places, widths.astype(np.int64), np.ones((rows, int(widths.sum())), np.uint8)]


def can_fetch(m: Maker) -> list[Any]:
    return [Reading(m, fetches=m.random.random() < 0.5).books]


def let_go(m: Maker) -> list[Any]:
    granted = grant(m)
    m.module.grant(*granted)
    return [granted[0], granted[5]]


def forecast(m: Maker) -> list[Any]:
    shape, made = described(m)
    rows = m.up_to(4)
    arguments = [made, m.pool, m.floats(rows, shape.streams * shape.hidden), m.floats(rows, shape.experts)]
    arguments.append(m.matrix(shape.experts, shape.hidden))
    if m.random.random() < 0.4:
        return [*arguments, None]
    rank = size(m)
    factors = m.matrix(rank, shape.hidden), m.matrix(shape.experts, rank)
    return [*arguments, *factors, m.floats(shape.hidden), m.floats(shape.experts)]


class Reading:
    """The books of an empty pool whose records come from one file of zeros, with lanes that read ahead."""

    def __init__(self, m: Maker, *, fetches: bool = False) -> None:
        self.layers, self.experts, self.slots, sizes = m.up_to(3), m.up_to(6), m.up_to(8), (64, 16, 16)
        books = residency(m)
        counts = np.zeros(len(Count), np.int64)
        counts[[Count.IDLE, Count.FREE]] = self.slots
        records = self.layers * self.experts
        books[:8] = [
            np.full(records, UNMAPPED, np.int32),
            np.zeros(records, np.uint8),
            np.zeros(records, np.int64),
            np.full(self.slots, UNMAPPED, np.int32),
            np.zeros(self.slots, np.int32),
            np.zeros(self.slots, np.uint8),
            np.arange(self.slots - 1, -1, -1, dtype=np.int32),
            counts,
        ]
        self.holds = books[4]
        kinds = (PieceKindStructure * len(sizes))()
        places = np.zeros((self.layers, len(sizes), 3), np.int64)
        for index, (kind, bytes_each) in enumerate(zip(kinds, sizes, strict=True)):
            memory = np.zeros((self.slots, bytes_each), np.uint8)
            m.lasting.append(memory)  # lanes may write there after the call
            kind.slots, kind.slot_count = memory.__array_interface__["data"][0], self.slots
            kind.slot_bytes = kind.disk_bytes = bytes_each
            kind.check = (0, 1, 1)[index]
            places[:, index] = m.zeros, 0, bytes_each
        books[8:] = [kinds, places if fetches else None, self.layers]
        self.places = places
        self.books = m.module.residency(*books)
        m.lasting.append(self.books)

    def arguments(self, m: Maker) -> list[Any]:
        return [self.books, m.lanes, self.places]

    def made(self, m: Maker) -> Any:
        return m.module.tickets(*self.arguments(m))


def tickets(m: Maker) -> list[Any]:
    return Reading(m).arguments(m)


def limits(m: Maker) -> list[int]:
    return [m.up_to(9, 0), m.up_to(5, 0), m.up_to(5, 0), m.up_to(3, 0)]


def read_ahead(m: Maker) -> list[Any]:
    reading = Reading(m)
    ids, asked = m.ids(reading.experts, m.up_to(8, 0)), m.random.choice((None, m.ids(reading.experts, m.up_to(2))))
    return [reading.made(m), m.random.randrange(reading.layers), ids, asked, *limits(m)]


def foresee(m: Maker) -> list[Any]:
    reading = Reading(m)
    rows, ranks = m.up_to(3), m.up_to(reading.experts)
    asked = m.random.choice((None, m.ids(reading.experts, m.up_to(2))))
    logits, ranked = m.floats(rows, reading.experts), m.ids(9, rows, ranks)
    shares = m.numbers.random(ranks)
    return [
        reading.made(m),
        m.random.randrange(reading.layers),
        logits,
        ranked,
        shares,
        m.random.random(),
        asked,
        *limits(m),
    ]


def with_tickets(m: Maker) -> tuple[Reading, Any]:
    reading = Reading(m)
    made = reading.made(m)
    for layer in range(reading.layers):
        m.module.read_ahead(made, layer, m.ids(reading.experts, m.up_to(4)), None, 4, 4, 4, 0)
    return reading, made


def requested(m: Maker) -> list[Any]:
    reading, made = with_tickets(m)
    pairs: list[Any] = []
    for _ in range(m.up_to(2, 0)):
        rows, ranks = m.up_to(3), m.up_to(reading.experts)
        pairs += [m.numbers.random(ranks), m.ids(reading.experts, rows, ranks)]
    return [made, m.random.randrange(reading.layers), m.ids(reading.experts, m.up_to(4, 0)), 0.25, *pairs]


def redeem(m: Maker) -> list[Any]:
    reading, made = with_tickets(m)
    wanted = m.up_to(5, 0)
    ids = m.ids(reading.experts, wanted)
    return [made, m.random.randrange(reading.layers), ids, np.zeros(3 * wanted, np.int64)]


def list_tickets(m: Maker) -> list[Any]:
    return [with_tickets(m)[1], m.ids(9, m.up_to(4, 0), 4)]


def settle_tickets(m: Maker) -> list[Any]:
    return [with_tickets(m)[1]]


def finish_dropped(m: Maker) -> list[Any]:
    return [with_tickets(m)[1], m.up_to(5, 0)]


def drop_tickets(m: Maker) -> list[Any]:
    return [with_tickets(m)[1], m.up_to(20, 0)]


RECIPES: dict[str, Callable[[Maker], list[Any]]] = {
    recipe.__name__: recipe
    for recipe in (
        *(rms_norm, mix_streams, inject, silu_multiply, gate, convolve, delta, norm_rotate, attend, score_blocks),
        *(
            route,
            combine,
            ngram_gate,
            multiply,
            multiply_many,
            experts,
            expert_pairs,
            attend_rows,
            read_streams,
            is_narrow,
            choose,
        ),
        *(advance_attention, join_inputs, guess, join_outputs, fetch, can_fetch, read_rows),
        *(layer, enter, leave, advance_delta, shared, join_experts, residency, grant, let_go, forecast),
        *(tickets, list_tickets, settle_tickets, finish_dropped, drop_tickets, read_ahead, foresee, requested, redeem),
    )
} | {"silu": activation, "sigmoid": activation}
WITHOUT_ARGUMENTS = {"instruction_sets"}


def other_array(m: Maker, array: Array) -> Any:
    """The array with another shape, type or layout."""
    if array.nbytes >= LARGE:
        return array[:1]
    flat = np.ascontiguousarray(array).reshape(-1)
    shorter = flat[: max(0, flat.size - m.up_to(3))].copy()
    choices: list[Callable[[], Any]] = [
        lambda: shorter,
        lambda: shorter.reshape(1, -1),
        lambda: flat.copy(),
        lambda: array[:-1].copy(),
        lambda: array[..., :-1].copy(),
        lambda: array[..., :-1],
        lambda: array[..., :0],
        lambda: array[:0].copy(),
        lambda: array.T,
        lambda: array.T.copy(),
        lambda: array[::-1],
        lambda: array[..., ::-1],
        lambda: array[None].copy(),
        lambda: np.repeat(array, 2, axis=0)[::2],
        lambda: np.repeat(array, 2, axis=-1)[..., ::2],
        lambda: np.concatenate([array, array]),
        lambda: np.broadcast_to(array[:1].copy(), array.shape),
        lambda: np.broadcast_to(array.reshape(-1)[:1].copy(), (2**40, 3)),
        lambda: np.lib.stride_tricks.as_strided(array, (2**40, 0), (0, 4)),
        lambda: array.astype(np.float64),
        lambda: array.astype(np.float16),
        lambda: array.astype(np.int64),
        lambda: np.resize(array, array.size * array.itemsize).view(np.uint8),
        lambda: np.where(array < 0, 1, array).astype(np.uint32),
        lambda: array.astype(">f4"),
        lambda: read_only(array),
        lambda: unaligned(array),
        lambda: np.ascontiguousarray(array).data,
        lambda: array.tobytes(),
    ]
    if array.dtype == np.int32:
        for wrong in (-1, 1 << 20, 2**31 - 1, -(2**31)):
            choices += [lambda wrong=wrong: with_value(m, array, wrong)] * 2  # type: ignore[misc]
    try:
        return m.random.choice(choices)()
    except (ValueError, TypeError, IndexError, np.exceptions.AxisError):  # not every layout suits every shape
        return shorter


def read_only(array: Array) -> Array:
    copied = array.copy()
    copied.flags.writeable = False
    return copied


def unaligned(array: Array) -> object:
    """The same numbers at an address that is no multiple of their size."""
    octets = memoryview(bytearray(array.nbytes + 1))[1:]
    octets[:] = array.tobytes()
    return octets.cast("i" if array.dtype == np.int32 else "f", shape=list(array.shape))


def with_value(m: Maker, array: Array, value: int) -> Array:
    copied = array.copy()
    if copied.size:
        copied.reshape(-1)[m.random.randrange(copied.size)] = value
    return copied


def overlap(m: Maker, leaves: list[Any]) -> None:
    """Let two arrays share memory, wholly or from some value on."""
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and 0 < leaf.nbytes < LARGE]
    if len(places) < 2:
        return
    one, two = m.random.sample(places, 2)
    shift = 4 * m.random.choice((0, 0, 1, 2, 8))
    a, b = np.ascontiguousarray(leaves[one]), np.ascontiguousarray(leaves[two])
    memory = np.zeros(max(a.nbytes, shift + b.nbytes), np.uint8)
    for place, array, start in ((two, b, shift), (one, a, 0)):
        leaves[place] = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        leaves[place][...] = array


def spoil(m: Maker, leaves: list[Any]) -> None:
    """Make one argument wrong, or two of them one."""
    if m.random.random() < 0.2:
        overlap(m, leaves)
        return
    at = m.random.randrange(len(leaves))
    value = leaves[at]
    if m.random.random() < 0.1:
        leaves[at] = m.random.choice(ODD_VALUES)
    elif isinstance(value, np.ndarray):
        leaves[at] = other_array(m, value)
    elif isinstance(value, Address):
        choices = (
            [m.spoiled(value), m.spoiled(value), m.random.choice(m.matrices)] if value in m.matrices else [Address(0)]
        )
        leaves[at] = m.random.choice(choices)
    elif isinstance(value, int):
        leaves[at] = m.random.choice(ODD_INTEGERS)
    else:
        leaves[at] = m.random.choice(ODD_VALUES)


def leaves_of(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves_of(item)] if isinstance(value, tuple | list) else [value]


def rebuilt(like: Any, leaves: collections.deque[Any]) -> Any:
    if isinstance(like, tuple | list):
        return type(like)(rebuilt(item, leaves) for item in like)
    return leaves.popleft()


def copies(values: list[Any]) -> list[bytes | None]:
    small = (np.ndarray, memoryview)
    return [value.tobytes() if isinstance(value, small) and value.nbytes < LARGE else None for value in values]


def attempt(m: Maker, name: str, counts: dict[str, list[int]]) -> None:
    """One call, right or wrong."""
    arguments = RECIPES[name](m)
    wrong = m.random.random() < 0.75
    if wrong:
        leaves = leaves_of(arguments)
        for _ in range(m.random.choice((1, 1, 2))):
            spoil(m, leaves)
        arguments = rebuilt(arguments, collections.deque(leaves))
        if m.random.random() < 0.05:
            arguments = m.random.choice((arguments[:-1], [*arguments, 0], [None] * len(arguments)))
    before = copies(leaves_of(arguments))
    try:
        getattr(m.module, name)(*arguments)
    except REFUSALS as error:
        if not wrong:
            raise AssertionError(f"{name} refused right arguments: {error}") from error
        if copies(leaves_of(arguments)) != before:
            raise AssertionError(f"{name} wrote before it refused: {error}") from error
        counts[name][1] += 1
    else:
        counts[name][0] += 1


def main() -> None:
    """Make the calls of one seed."""
    path, seed, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    module = built_module("_native", path)
    named = {name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))}
    offered = named - WITHOUT_ARGUMENTS
    assert offered == set(RECIPES), f"functions without a recipe, or gone: {sorted(offered ^ set(RECIPES))}"
    maker = Maker(module, ctypes.CDLL(path), seed)
    counts = {name: [0, 0] for name in sorted(RECIPES)}
    for call in range(calls):
        name = sorted(RECIPES)[call % len(RECIPES)]
        print(f"call {call} of seed {seed}: {name}", file=sys.stderr)
        attempt(maker, name, counts)
        maker.kept.clear()
        maker.matrices.clear()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
