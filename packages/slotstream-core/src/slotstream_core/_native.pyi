"""The compiled products and the pieces between them; see csrc/module.c.

Arrays are float32. Those with two axes may have any distance between rows where they are read; outputs are contiguous.
A mismatch of shapes raises ValueError and writes nothing.
"""

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int32]

def instruction_sets() -> tuple[str, ...]: ...
def is_narrow(matrix: int, /) -> bool: ...
def choose(name: str, /) -> None: ...
def rms_norm(x: _Floats, weight: _Floats, groups: int, eps: float, out: _Floats, /) -> None: ...
def mix_streams(gate: _Floats, normed: _Floats, streams: int, mixed: _Floats, /) -> None: ...
def inject(streams: _Floats, injection: _Floats, y: _Floats, out: _Floats, /) -> None: ...
def silu(x: _Floats, /) -> None: ...
def sigmoid(x: _Floats, /) -> None: ...
def silu_multiply(gate: _Floats, up: _Floats, out: _Floats, /) -> None: ...
def gate(x: _Floats, gate: _Floats, out: _Floats, /) -> None: ...
def convolve(window: _Floats, x: _Floats, kernel: _Floats, dilation: int, out: _Floats, /) -> None: ...
def delta(
    convolved: _Floats,
    gate: _Floats,
    step: _Floats,
    decay: _Floats,
    rate: _Floats,
    dt_bias: _Floats,
    norm_weight: _Floats,
    memory: _Floats,
    key_heads: int,
    key_dim: int,
    norm_eps: float,
    key_eps: float,
    silu_gate: int,
    first: int,
    last: int,
    out: _Floats,
    /,
) -> None: ...
def norm_rotate(
    x: _Floats, head_stride: int, weight: _Floats, cos: _Floats, sin: _Floats, eps: float, out: _Floats, /
) -> None: ...
def attend(
    q: _Floats,
    keys: _Floats,
    values: _Floats,
    kv_heads: int,
    dim: int,
    key_count: int,
    chosen: _Ids | None,
    scale: float,
    scores: _Floats,
    first: int,
    last: int,
    out: _Floats,
    /,
) -> None: ...
def route(logits: _Floats, normalise: int, ids: _Ids, weights: _Floats, /) -> None: ...
def combine(shared: _Floats, gate: _Floats, weights: _Floats, routed: _Floats, out: _Floats, /) -> None: ...
def ngram_gate(keys: _Floats, queries: _Floats, value: _Floats, out: _Floats, /) -> None: ...
def unpack(
    packed: npt.NDArray[np.uint32], scales: _Floats, biases: _Floats, bits: int, group_size: int, out: _Floats, /
) -> None: ...
def multiply(pool: int, matrix: int, x: _Floats, out: _Floats, /) -> None: ...
def experts(pool: int, gate: int, up: int, down: int, x: _Floats, slots: _Ids, out: _Floats, /) -> None: ...
def read_streams(
    pool: int,
    down: int,
    up: int,
    inject: int,
    streams: _Floats,
    norm_weight: _Floats,
    count: int,
    eps: float,
    normed: _Floats,
    low: _Floats,
    gate: _Floats,
    mixed: _Floats,
    injection: _Floats,
    /,
) -> None: ...
def score_blocks(q: _Floats, blocks: _Floats, scale: float, out: _Floats, /) -> None: ...

class Layer:
    """A decoder layer for the calls below. Keeps the vectors it was made of; the matrices are kept by their owners."""

_Reader = tuple[int, int, int, _Floats, int, float]
"""How a block reads the streams: the matrices down, up and inject, the norm's weights, the streams, the norm's eps."""

def layer(
    first: _Reader,
    second: _Reader,
    inputs: tuple[int, ...],
    output: int,
    delta: tuple[Any, ...] | None,
    experts: tuple[Any, ...],
    /,
) -> Layer:
    """Describe a layer.

    Args:
        first: How the mixer (delta rule or attention) reads.
        second: How the experts read.
        inputs: The mixer's matrices; neighbours that are stored alike are one.
        output: The mixer's last matrix.
        delta: Map and first column of qkv, gate, step and decay; taps, rate, dt_bias, norm weight; key heads, key
            dim; the norm's and the keys' eps; whether the gate is SiLU. None for attention.
        experts: The router; the shared expert's matrices, map and first column of gate and up; its down matrix and
            gate; experts a row; whether weights are normalised over them.
    """

def enter(layer: Layer, pool: int, streams: _Floats, projections: _Floats, injection: _Floats, /) -> None: ...
def leave(
    layer: Layer,
    pool: int,
    mixed: _Floats,
    streams: _Floats,
    injection: _Floats,
    out_streams: _Floats,
    out_x: _Floats,
    out_injection: _Floats,
    out_ids: _Ids,
    out_mix: _Floats,
    /,
) -> None: ...
def advance_delta(
    layer: Layer,
    pool: int,
    streams: _Floats,
    window: _Floats,
    moved: _Floats,
    memory: _Floats,
    history: _Floats | None,
    out_streams: _Floats,
    out_x: _Floats,
    out_injection: _Floats,
    out_ids: _Ids,
    out_mix: _Floats,
    /,
) -> None:
    """Enter, advance the delta rule and leave.

    Args:
        layer: With a delta rule.
        pool: The threads.
        streams: [T, streams * hidden].
        window: The convolution's last inputs, [taps - 1, channels].
        moved: The last rows of the window followed by this call's inputs, at least as many as the window has.
        memory: Advanced in place, or left alone where there is a history.
        history: [T, values]: the memory after each row.
        out_streams: This and the other outputs are those of `leave`.
        out_x: As there.
        out_injection: As there.
        out_ids: As there.
        out_mix: As there.
    """

def shared(layer: Layer, pool: int, x: _Floats, out: _Floats, gate: _Floats, /) -> None: ...
def join_experts(
    layer: Layer,
    pool: int,
    gate: int,
    up: int,
    down: int,
    slots: _Ids,
    mix: _Floats,
    x: _Floats,
    shared: _Floats,
    shared_gate: _Floats,
    streams: _Floats,
    injection: _Floats,
    out: _Floats,
    /,
) -> None: ...

class Residency:
    """The arrays of a `slotstream_core.experts.residency.Residency`, kept from changing their length."""

def residency(
    slot_of: array[int],
    marks: bytearray,
    uses: array[int],
    key_of: array[int],
    holds: array[int],
    referenced: bytearray,
    free: array[int],
    counts: array[int],
    kinds: Any,
    places: npt.NDArray[np.int64] | None,
    layers: int,
    /,
) -> Residency: ...
def grant(residency: Residency, pool: int, layer: int, ids: _Ids, slots: _Ids, held: _Ids, absent: _Ids, /) -> int:
    """Grant a request; see csrc/residency.h. No two of the arrays may share memory.

    Args:
        residency: The bookkeeping.
        pool: Threads that share the reads; 0 for none.
        layer: Of the ids.
        ids: Any shape.
        slots: Written: the slot of each id.
        held: Written: how many slots are held, then those; at least one longer than `ids` has values.
        absent: Written: key and slot of each record that is still to be read; at least twice as long as `ids`.

    Returns:
        How many records are still to be read; -1, with nothing done, when the request must be refused.
    """

def let_go(residency: Residency, held: _Ids, /) -> None:
    """Undo the holds that `grant` wrote to `held`. A second call does nothing."""
