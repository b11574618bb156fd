"""Right arguments for every function of `_native` that takes some."""

import ctypes
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from slotstream_core.experts.integrity import UNMAPPED
from slotstream_core.experts.residency import Count
from slotstream_core.native.lanes import PieceKindStructure
from tests.core.native.fuzz_maker import Address, Maker


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


def remember(m: Maker) -> list[Any]:
    shape, made = described(m, mixer="attention")
    rows, length = m.up_to(40), m.up_to(20, 0)
    capacity = length + rows + m.up_to(3, 0)
    caches = [m.floats(shape.key_heads, capacity, shape.value_dim) for _ in range(2)]
    angles = [m.floats(rows, shape.half) for _ in range(2)]
    before = [made, m.pool, m.floats(rows, shape.streams * shape.hidden), *angles, *caches, length]
    return [*before, m.floats(rows, shape.index_width)]


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
    outputs = [np.zeros(count, np.int32) for count in (wanted, wanted + 1, 3 * wanted)]
    return [reading.books, m.pool, m.random.randrange(reading.layers), ids, *outputs]


def fetch(m: Maker) -> list[Any]:
    """Into slots that are held and hold nothing; half the time of records that the call reads."""
    reading = Reading(m, fetches=m.random.random() < 0.5)
    count = m.up_to(min(reading.experts, reading.slots), 0)
    slots = m.numbers.permutation(reading.slots).astype(np.int32)[:count]
    reading.holds[slots] = 1
    ids = m.numbers.permutation(reading.experts).astype(np.int32)[:count]
    return [reading.books, m.pool, m.random.randrange(reading.layers), ids, slots]


def take_in(m: Maker) -> list[Any]:
    """Of records that are expected in slots that hold nothing."""
    reading = Reading(m)
    count = m.up_to(min(reading.experts, reading.slots), 0)
    slots = m.numbers.permutation(reading.slots).astype(np.int32)[:count]
    keys = m.numbers.permutation(reading.layers * reading.experts).astype(np.int32)[:count]
    reading.holds[slots] = 1
    reading.coming[keys] = slots
    return [reading.books, np.stack([keys, slots], axis=1).reshape(-1)]


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
        books[:9] = [
            np.full(records, UNMAPPED, np.int32),
            np.full(records, UNMAPPED, np.int32),
            np.zeros(records, np.uint8),
            np.zeros(records, np.int64),
            np.full(self.slots, UNMAPPED, np.int32),
            np.zeros(self.slots, np.int32),
            np.zeros(self.slots, np.uint8),
            np.arange(self.slots - 1, -1, -1, dtype=np.int32),
            counts,
        ]
        self.coming, self.holds = books[1], books[5]
        kinds = (PieceKindStructure * len(sizes))()
        places = np.zeros((self.layers, len(sizes), 3), np.int64)
        for index, (kind, bytes_each) in enumerate(zip(kinds, sizes, strict=True)):
            memory = np.zeros((self.slots, bytes_each), np.uint8)
            m.lasting.append(memory)  # lanes may write there after the call
            kind.slots, kind.slot_count = memory.__array_interface__["data"][0], self.slots
            kind.slot_bytes = kind.disk_bytes = bytes_each
            kind.check = (0, 1, 1)[index]
            places[:, index] = m.zeros, 0, bytes_each
        books[9:] = [kinds, places if fetches else None, self.layers]
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


def ask(m: Maker) -> list[Any]:
    reading, made = with_tickets(m)
    wanted = m.up_to(5)
    outputs = [np.zeros(count, np.int32) for count in (wanted, wanted + 1, 3 * wanted)]
    layer, ids = m.random.randrange(reading.layers), m.ids(reading.experts, wanted)
    return [made, m.pool, layer, ids, *outputs, np.zeros(4 + 3 * wanted, np.int64), m.random.randrange(2)]


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
        *(advance_attention, remember, join_inputs, guess, join_outputs, fetch, can_fetch, read_rows),
        *(layer, enter, leave, advance_delta, shared, join_experts, residency, grant, take_in, let_go, forecast),
        *(
            tickets,
            list_tickets,
            settle_tickets,
            finish_dropped,
            drop_tickets,
            read_ahead,
            foresee,
            requested,
            redeem,
            ask,
        ),
    )
} | {"silu": activation, "sigmoid": activation}
