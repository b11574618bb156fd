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

FEW_ROWS: int
"""Up to so many rows products run on packed weights; a row's bits differ from those among more rows."""

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
def attend_rows(
    pool: int,
    q: _Floats,
    keys: _Floats,
    values: _Floats,
    kv_heads: int,
    dim: int,
    position: int,
    selected: npt.NDArray[np.uint8] | None,
    ratio: int,
    scale: float,
    out: _Floats,
    /,
) -> None:
    """Causal attention of many rows.

    Args:
        pool: The threads.
        q: [rows, heads * dim].
        keys: [KV heads, capacity, dim].
        values: As `keys`.
        kv_heads: Each serves the same number of consecutive heads.
        dim: Of a head.
        position: Of the first row; row t sees keys up to its own.
        selected: [rows, blocks]: of the blocks of `ratio` keys that a row has left behind, those that it sees; None
            for all.
        ratio: Keys of a block.
        scale: Factor of the products.
        out: As `q`.
    """

def route(logits: _Floats, normalise: int, ids: _Ids, weights: _Floats, /) -> None: ...
def combine(shared: _Floats, gate: _Floats, weights: _Floats, routed: _Floats, out: _Floats, /) -> None: ...
def ngram_gate(keys: _Floats, queries: _Floats, value: _Floats, out: _Floats, /) -> None: ...
def multiply(pool: int, matrix: int, x: _Floats, out: _Floats, /) -> None: ...
def multiply_many(pool: int, matrix: int, x: _Floats, out: _Floats, /) -> None: ...
def experts(pool: int, gate: int, up: int, down: int, x: _Floats, slots: _Ids, out: _Floats, /) -> None: ...
def expert_pairs(
    pool: int, gate: int, up: int, down: int, x: _Floats, pairs: _Ids, slots: _Ids, out: _Floats, /
) -> None:
    """Some rows through some experts, as passes of many rows compute it. Pair p is choice p % top of row p // top.

    Args:
        pool: The threads.
        gate: A stack of matrices, as the next two.
        up: As there.
        down: As there.
        x: [rows, hidden].
        pairs: Which outputs are written, each of them named once.
        slots: Where the expert of each of these pairs lies.
        out: [rows * top, hidden].
    """

def read_rows(places: npt.NDArray[np.int64], widths: npt.NDArray[np.int64], out: npt.NDArray[np.uint8], /) -> int:
    """Read rows that consist of pieces, one `pread` a piece.

    Args:
        places: Descriptor and offset of every piece, [rows, pieces, 2].
        widths: Bytes of each piece, [pieces].
        out: [rows, bytes]: the pieces one after another.

    Returns:
        How many rows came in full, before the first that did not.
    """

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
    attention: tuple[Any, ...] | None,
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
        attention: Map and first column of queries with gates, keys, values and what the indexer reads; the norms'
            weights of queries and keys; heads, KV heads, what the indexer reads of a row; the norms' eps; the
            products' factor. None for the delta rule.
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

def advance_attention(
    layer: Layer,
    pool: int,
    streams: _Floats,
    queries: int,
    cos: _Floats,
    sin: _Floats,
    keys: _Floats,
    values: _Floats,
    length: int,
    index: _Floats,
    out_streams: _Floats,
    out_x: _Floats,
    out_injection: _Floats,
    out_ids: _Ids,
    out_mix: _Floats,
    /,
) -> None:
    """Enter, attend from the last rows to every key up to each, and leave with these.

    Args:
        layer: With attention.
        pool: The threads.
        streams: [T, streams * hidden], at most `FEW_ROWS` rows.
        queries: How many rows attend; at least one.
        cos: Of the rows' positions, [T, rotated / 2].
        sin: As there.
        keys: [KV heads, capacity, dim]; the rows are written from ``length`` on.
        values: As ``keys``.
        length: Rows that the caches hold.
        index: Written: what the indexer reads, [T, width].
        out_streams: This and the other outputs are those of `leave`, of the last rows.
        out_x: As there.
        out_injection: As there.
        out_ids: As there.
        out_mix: As there.
    """

def remember(
    layer: Layer,
    pool: int,
    streams: _Floats,
    cos: _Floats,
    sin: _Floats,
    keys: _Floats,
    values: _Floats,
    length: int,
    index: _Floats,
    /,
) -> None:
    """Write the keys and values of rows that nothing attends from; see `advance_attention`.

    Args:
        layer: With attention.
        pool: The threads.
        streams: [T, streams * hidden].
        cos: Of the rows' positions, [T, rotated / 2].
        sin: As there.
        keys: [KV heads, capacity, dim]; the rows are written from ``length`` on.
        values: As ``keys``.
        length: Rows that the caches hold.
        index: Written: what the indexer reads, [T, width].
    """

def join_inputs(
    pool: int,
    embedding: int,
    from_embedding: int,
    from_streams: int,
    embedding_weight: _Floats,
    streams_weight: _Floats,
    count: int,
    eps: float,
    streams: _Floats,
    after: npt.NDArray[np.int64],
    out: _Floats,
    /,
) -> None:
    """Write to ``out`` what a draft head's layer starts from; see `DraftInputs`.

    Args:
        pool: The threads.
        embedding: [vocabulary, hidden].
        from_embedding: [hidden, hidden].
        from_streams: [hidden, hidden], for each of the streams.
        embedding_weight: Of the norm, [hidden].
        streams_weight: Of the norm over all streams, [streams * hidden].
        count: Streams.
        eps: Of both norms.
        streams: [T, streams * hidden].
        after: The token after each, [T].
        out: As ``streams``.
    """

def guess(
    pool: int,
    down: int,
    up: int,
    norm_weight: _Floats,
    count: int,
    eps: float,
    vocabulary: int,
    streams: _Floats,
    /,
) -> tuple[int, float]:
    """The likeliest token after one row of ``streams`` [1, streams * hidden], and its probability.

    Args:
        pool: The threads.
        down: How the mixer reads the streams, as the next four; see `read_streams`.
        up: As there.
        norm_weight: As there.
        count: As there.
        eps: As there.
        vocabulary: [vocabulary, hidden].
        streams: Of the row.
    """

def forecast(
    layer: Layer,
    pool: int,
    streams: _Floats,
    logits: _Floats,
    router: int,
    a: int | None,
    b: int = ...,
    mu: _Floats = ...,
    delta: _Floats = ...,
    /,
) -> None:
    """Write to ``logits`` [T, experts] what a router would say of ``streams`` [T, streams * hidden] in the layer.

    Args:
        layer: The layer.
        pool: The threads.
        streams: Taken anywhere before the layer.
        logits: Written.
        router: The layer's own, or another matrix [experts, hidden].
        a: The matrix [rank, hidden] of a correction, logits + (x - mu) @ a.T @ b.T + delta; None, as the last
            argument, without one.
        b: [experts, rank].
        mu: [hidden].
        delta: [experts].
    """

def shared(layer: Layer, pool: int, x: _Floats, out: _Floats, gate: _Floats, /) -> None: ...
def join_experts(
    layer: Layer,
    pool: int,
    gate: int,
    up: int,
    down: int,
    slots: _Ids,
    x: _Floats,
    mix: _Floats,
    shared: _Floats,
    shared_gate: _Floats,
    streams: _Floats,
    injection: _Floats,
    out: _Floats,
    /,
) -> None: ...
def join_outputs(
    layer: Layer,
    pool: int,
    outputs: _Floats,
    mix: _Floats,
    shared: _Floats,
    shared_gate: _Floats,
    streams: _Floats,
    injection: _Floats,
    out: _Floats,
    /,
) -> None:
    """What `join_experts` does once the experts' ``outputs`` [rows * top, hidden] are there."""

class Residency:
    """The arrays of a `slotstream_core.experts.residency.Residency`, kept from changing their length."""

def residency(
    slot_of: array[int],
    coming: array[int],
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
def grant(
    residency: Residency, pool: int, layer: int, ids: _Ids, slots: _Ids, held: _Ids, records: _Ids, /
) -> tuple[int, int] | None:
    """Grant a request; see csrc/residency.h. No two of the arrays may share memory.

    Args:
        residency: The bookkeeping.
        pool: Threads that share the reads; 0 for none.
        layer: Of the ids.
        ids: Any shape.
        slots: Written: the slot of each id.
        held: Written: how many slots are held, then those; at least one longer than `ids` has values.
        records: Written: key and slot of each record that is still to be read, and behind twice as many values as `ids`
            has the keys of hits that are on their way; at least three times as long as `ids`.

    Returns:
        How many records are still to be read, and how many are on their way; None, with nothing done, when the request
        must be refused.
    """

def take_in(residency: Residency, records: _Ids, /) -> None:
    """Map records that are complete in the slots where they were expected, key and slot of each."""

def fetch(residency: Residency, pool: int, layer: int, ids: _Ids, slots: _Ids, /) -> bytes:
    """Read into lent slots those records that the page cache holds; nothing is mapped.

    Args:
        residency: The bookkeeping.
        pool: Threads that share the reads; 0 for none.
        layer: Of the ids.
        ids: Distinct.
        slots: Of each; lent, and distinct.

    Returns:
        For each id 1 when it is in its slot, else 0.
    """

def can_fetch(residency: Residency, /) -> bool:
    """Say whether `fetch` may bring anything: records are small, and lie where it can read them."""

def let_go(residency: Residency, held: _Ids, /) -> None:
    """Undo the holds that `grant` wrote to `held`. A second call does nothing."""

class Tickets:
    """Records read ahead, csrc/tickets.h; keeps the residency and the places it was made of."""

def tickets(residency: Residency, lanes: int, places: npt.NDArray[np.int64], /) -> Tickets:
    """Make the tickets of a pool.

    Args:
        residency: Its bookkeeping, made with the kinds of pieces.
        lanes: The reading lanes by their address, which outlive this.
        places: Where records lie, [layers, kinds, 3]: `ExpertSource.strides`.
    """

def list_tickets(tickets: Tickets, states: _Ids, /) -> int:
    """Write key, slot, whether it is being read, and whether it was dropped, of as many as fit; return how many are.

    Dropped ones are listed while their read holds the slot.
    """

def settle_tickets(tickets: Tickets, /) -> int:
    """Take back the slots of reads that ended; return how many tickets there are."""

def finish_dropped(tickets: Tickets, milliseconds: int, /) -> bool:
    """Wait, each time at most so long, for reads of dropped tickets; say whether none is left."""

def drop_tickets(tickets: Tickets, key: int, /) -> None:
    """Give up the tickets of records before `key`."""

def read_ahead(
    tickets: Tickets,
    layer: int,
    ids: _Ids,
    asked: _Ids | None,
    issued: int,
    reserved: int,
    in_flight: int,
    spare: int,
    /,
) -> int:
    """Read ahead the first experts of `ids`; see `foresee` for the rest."""

def foresee(
    tickets: Tickets,
    layer: int,
    logits: _Floats,
    ranked: _Ids,
    shares: npt.NDArray[np.float64],
    least: float,
    asked: _Ids | None,
    issued: int,
    reserved: int,
    in_flight: int,
    spare: int,
    /,
) -> int:
    """Rank the experts of every row and begin to read those that are believed and missing.

    Args:
        tickets: The tickets.
        layer: That the forecast is for.
        logits: [rows, experts].
        ranked: Written: [rows, ranks], best first.
        shares: How often each rank was right, [ranks].
        least: From which share on a rank is believed.
        asked: Experts of the layer that are on their way for somebody.
        issued: Most experts looked at.
        reserved: Most tickets at once.
        in_flight: Most records under way at once.
        spare: Slots without holds to be left.

    Returns:
        How many reads were issued; -1, with nothing done, when an id or the layer does not exist.
    """

def requested(tickets: Tickets, layer: int, chosen: _Ids, rate: float, /, *forecasts: npt.NDArray[Any]) -> None:
    """Drop the tickets of all layers up to one, and learn from what was chosen there.

    Args:
        tickets: The tickets.
        layer: Whose experts were requested.
        chosen: Them.
        rate: How much one forecast moves the shares.
        *forecasts: Of each forecast, the shares that move [ranks] and what it ranked [rows, ranks].
    """

def redeem(tickets: Tickets, layer: int, ids: _Ids, joined: npt.NDArray[np.int64], /) -> int:
    """Redeem the tickets of what is asked for.

    Args:
        tickets: The tickets.
        layer: Of the ids.
        ids: Any shape.
        joined: Written: key, slot and batch of each record that is on its way; the batch and the read's hold of the
            slot are the caller's then. At least three times as long as `ids`.

    Returns:
        How many are on their way; -1, with nothing done, when an id or the layer does not exist.
    """

def ask(
    tickets: Tickets,
    pool: int,
    layer: int,
    ids: _Ids,
    slots: _Ids,
    held: _Ids,
    records: _Ids,
    told: npt.NDArray[np.int64],
    brief: int,
    /,
) -> int:
    """Redeem tickets, grant a request and have read what is absent; see csrc/requests.h.

    Args:
        tickets: The tickets.
        pool: As for `grant`, like the next five.
        layer: As there.
        ids: As there.
        slots: As there.
        held: As there.
        records: As there; what is absent is being read.
        told: Written: how many records are absent, on their way, and joined, the batch that reads the absent ones by
            its address or 0, then what `redeem` writes. At least four longer than three times `ids`.
        brief: Not 0 where nothing has to be held if every record is there.

    Returns:
        2 when every record is there and, `brief`, none is held; else 1, or 0 when the request must be refused, -1 when
        there is no memory to plan its reads; in both cases nothing is held for it, and what was joined counts.
    """

class Program:
    """Launches in order; keeps the table of what changes between runs, and what they are given each time."""

def program(
    functions: tuple[int, ...],
    stream: int,
    launches: npt.NDArray[np.int64],
    indices: _Ids,
    constants: npt.NDArray[np.uint64],
    table: npt.NDArray[np.uint64],
    sent: int,
    taken: int,
    timeout_s: float,
    /,
) -> Program:
    """Describe launches of kernels; see csrc/launches.h.

    Args:
        functions: Nine addresses of functions with the signatures of `cudaLaunchKernel`; `cudaLaunchKernelExC`, used
            instead where it is not 0: a kernel's blocks may begin before the kernel before has ended, and must wait
            themselves; `cudaStreamQuery`; then, all or none, `cudaStreamBeginCapture`, `cudaStreamEndCapture`,
            `cudaGraphInstantiate`, `cudaGraphLaunch`, `cudaGraphExecDestroy` and `cudaGraphDestroy`.
        stream: What they are given.
        launches: [launches + 1, 5]: the kernel's handle, blocks, threads, and its arguments, the first and how many.
            The last one takes the table in, and begins every run.
        indices: Of all arguments, where they are among the constants.
        constants: What launches pass on, 64 bits each. They are kept, and must not change.
        table: What changes between runs; the first word is written here, and numbers the runs. It is kept, too.
        sent: Address of as many words of the host that the device reads: what the table held when a run began.
        taken: Address of a word of 32 bits that holds 0 now, and then the number of the run whose words were taken.
        timeout_s: Longest wait for that, at most 1e6.
    """

def launch(program: Program, first: int, last: int, /) -> tuple[int, int] | None:
    """Launch those from ``first`` up to ``last``, without Python's lock.

    Returns:
        None, or the number of the launch that was refused and the code; those before it are under way. The number after
        the last launch's stands for the one that takes the table in: with a code of `await_number`, the run before has
        not taken it.
    """

def await_number(address: int, number: int, timeout_s: float, query: int, stream: int, /) -> int:
    """Wait, awake and without Python's lock, until a word of 32 bits holds a number.

    Args:
        address: Of the word.
        number: Its lowest 32 bits count.
        timeout_s: Longest wait, at most 1e6.
        query: Address of a function with the signature of `cudaStreamQuery`, called every millisecond.
        stream: What it is given.

    Returns:
        0; -1 after that time; -2 when everything on the stream had ended without it; else what the query said.
    """

class LayerWords:
    """Where kernels and the host tell each other something about a layer; keeps these arrays."""

def layer_words(
    chosen: int,
    ids: _Ids,
    foreseen: int,
    logits: npt.NDArray[np.float32] | None,
    slots: _Ids,
    announced: npt.NDArray[np.uint64],
    timeout_s: float,
    query: int,
    stream: int,
    /,
) -> LayerWords:
    """Describe them; see csrc/launched_layers.h.

    Args:
        chosen: Address of the word that holds the number of a launch once its ids are there.
        ids: Written by kernels, [top].
        foreseen: Likewise of the forecast; 0 where there is none.
        logits: Of the forecast, [experts]; None where there is none.
        slots: Arguments of later launches, [top].
        announced: Another one, the number that they publish, [1].
        timeout_s: Longest wait for a number, at most 1e6.
        query: As for `await_number`.
        stream: What it is given.
    """

def take_layer(
    words: LayerWords,
    program: Program,
    tickets: Tickets,
    layer: int,
    first: int,
    last: int,
    number: int,
    next_first: int,
    next_last: int,
    next_number: int,
    learnt_shares: npt.NDArray[np.float64] | None,
    learnt_ids: _Ids | None,
    rate: float,
    target: int,
    shares: npt.NDArray[np.float64] | None,
    ranked: _Ids | None,
    least: float,
    issued: int,
    reserved: int,
    in_flight: int,
    spare: int,
    slots: _Ids,
    held: _Ids,
    records: _Ids,
    told: npt.NDArray[np.int64],
    wait_ms: int,
    /,
) -> tuple[int, int, int] | None:
    """Bring the experts that a launched router chooses, and launch what comes next, without Python's lock.

    Args:
        words: Where kernels and the host tell each other something.
        program: The launches.
        tickets: Of the pool.
        layer: The layer.
        first: The first launch up to the router; equal to ``last`` where the call before made these launches.
        last: The one after the last, which publishes ids and, with ``target``, a forecast.
        number: What these publish.
        next_first: The first launch from the experts up to the next router; equal to ``next_last`` for none.
        next_last: The one after the last.
        next_number: What these publish.
        learnt_shares: What is learnt from the layer's forecast, as for `requested`, [ranks]; or None.
        learnt_ids: What that ranked, [ranks]; or None.
        rate: As for `requested`.
        target: The layer that is forecast; -1 for none.
        shares: Of its ranks, as for `foresee`, [ranks]; or None.
        ranked: Written: what the forecast ranked, [ranks]; or None.
        least: As for `foresee`, like the next four.
        issued: As there.
        reserved: As there.
        in_flight: As there.
        spare: As there.
        slots: Written, as for `ask`, like the next three.
        held: What the layer before holds, which is given back; then what this one holds.
        records: As for `ask`, [3 * ids]; with ``told`` what the layer before left to its kernels, then what this one
            leaves.
        told: As for `ask`, and one number more. Zeros before the first layer.
        wait_ms: Longest wait for records.

    Returns:
        None when everything is in its slot, or will be when the next launches begin, and these are made, or none were
        to be; else an `ss_layer_outcome`, a code, and the number of a launch that was refused.
    """

def settle_layer(tickets: Tickets, records: _Ids, told: npt.NDArray[np.int64], wait_ms: int, /) -> bool:
    """Take in what the last layer left to its kernels, once these are done.

    Args:
        tickets: Of the pool.
        records: As `take_layer` left it, like ``told``.
        told: Changed: nothing is left, where that is so.
        wait_ms: Longest wait for records.

    Returns:
        Whether nothing is left; what is late or failed is still the caller's.
    """
