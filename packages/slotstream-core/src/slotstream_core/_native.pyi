"""The compiled products and the pieces between them; see csrc/module.c.

Arrays are float32. Those with two axes may have any distance between rows where they are read; outputs are contiguous.
A mismatch of shapes raises ValueError and writes nothing.
"""

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
