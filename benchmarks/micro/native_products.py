"""Products of the native library against `mx.quantized_matmul` and ggml, on weights of equal size, in one run.

Every contender multiplies 4-bit matrices of 4.5 bits a value (groups of 64, bfloat16 scales and biases; Q4_0 for ggml;
MLX needs float32 scales: 5 bits) with rows of float32 activations. Weights alternate between enough copies that no
processor cache holds them, as in a model. They lie on large pages, as the slots of a pool do, and so do ggml's, which
gain a tenth by it. The contenders take turns within each round, and medians over the rounds are compared; the fastest
round is shown too, which says more on a busy machine.

For ggml, build its CPU backend as shared libraries (a llama.cpp source tree contains it; on processors with AMX add
`-mno-amx-tile -mno-amx-int8 -mno-amx-bf16` to the compiler's flags) and name the directory with --ggml.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from benchmarks.micro.ggml_peer import GgmlPeer
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.experts.slot_memory import use_large_pages
from slotstream_core.native import NativeLibrary, NativeMatrix, native_choice
from slotstream_core.native.binding import check, library_path, open_binding
from slotstream_core.native.matrices import TYPES, address

GROUP = 64
COLD_BYTES = 128 << 20
LEAST_CALLS = 4
SETTLING_S = 0.01
"""Pause before a contender's turn, and of its untimed calls after it.

The waiting threads of the one before spin for some milliseconds on a core that it needs, and its own have fallen asleep
and must be awake, on a core of their own.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One product: the shape of a matrix, how many of them in a call, and the rows of activations."""

    rows: int
    columns: int
    members: int
    activations: int

    @property
    def name(self) -> str:
        """As it is printed."""
        several = f"{self.members} x " if self.members > 1 else ""
        return f"{several}{self.rows}x{self.columns}, {self.activations} row{'s' * (self.activations > 1)}"

    @property
    def operations(self) -> int:
        """Floating-point operations of one call."""
        return 2 * self.rows * self.columns * self.members * self.activations

    @property
    def copies(self) -> int:
        """Weights to alternate between."""
        return max(2, COLD_BYTES // (self.rows * self.columns * self.members * 9 // 16))


CASES = tuple(
    Case(rows=rows, columns=columns, members=members, activations=activations)
    for activations in (1, 4, 8)
    for rows, columns, members in (
        (640, 2560, 1),
        (2560, 640, 1),
        (640, 2560, 10),
        (2560, 640, 10),
        (10240, 2560, 1),
        (248320, 2560, 1),
    )
    if activations == 1 or rows < 200_000
)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", type=Path, help="directory of libggml-base.so and libggml-cpu.so")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the processor time of one thread instead: a fair comparison on a busy machine",
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--without-mlx", action="store_true", help="leave out MLX's operations, which are slow")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    clock = time.thread_time if options.processor_time else time.perf_counter
    if options.processor_time:
        options.threads = 1
    library = NativeLibrary.load(threads=options.threads, choice=native_choice(os.environ))
    if library is None:
        raise SystemExit("the native library is switched off or cannot be used; see the log line above")
    peer = GgmlPeer(options.ggml, threads=options.threads) if options.ggml else None
    if peer is None:
        print("without --ggml there is no comparison with ggml")
    rows: list[list[str]] = []
    values: dict[str, float] = {}
    with library:
        for case in CASES:
            if options.only not in case.name:
                continue
            times = measure(case, library, peer, rounds=options.rounds, with_mlx=not options.without_mlx, clock=clock)
            speeds = {name: [case.operations / seconds / 1e9 for seconds in taken] for name, taken in times.items()}
            median = {name: statistics.median(taken) for name, taken in speeds.items()}
            ratios = [f"{median['native'] / median[name]:.2f}" if name in median else "-" for name in PEERS]
            best = [f"{max(speeds[name]):.1f}" if name in speeds else "-" for name in CONTENDERS]
            rows.append([case.name, *(f"{median[n]:.1f}" if n in median else "-" for n in CONTENDERS), *ratios, *best])
            key = f"{case.rows}x{case.columns}_members{case.members}_rows{case.activations}"
            values |= {f"{key}_{name.replace(' ', '_')}_gflops": round(speed, 2) for name, speed in median.items()}
    headings = ["GFLOP/s", *CONTENDERS, *(f"/ {name}" for name in PEERS), *(f"best {name}" for name in CONTENDERS)]
    report(
        BenchmarkResult(
            benchmark="native_products",
            settings={
                "threads": options.threads,
                "rounds": options.rounds,
                "variant": library.variant,
                "clock": "processor" if options.processor_time else "wall",
            },
            values=values,
        ),
        table=format_table(headings, rows),
        record=options.record,
    )


PEERS = ("ggml repacked", "ggml plain", "mlx")
CONTENDERS = ("native", *PEERS)


def measure(
    case: Case,
    library: NativeLibrary,
    peer: GgmlPeer | None,
    *,
    rounds: int,
    with_mlx: bool,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Return the seconds of a call of each contender, one value a round."""
    ways: dict[str, Iterator[Callable[[], None]]] = {"native": itertools.cycle(native_calls(case, library))}
    if peer is not None:
        for name, repack in (("ggml repacked", True), ("ggml plain", False)):
            calls = peer.products(
                matrices=case.copies,
                shape=(case.rows, case.columns),
                members=case.members,
                rows=case.activations,
                repack=repack,
            )
            ways[name] = itertools.cycle(calls)
    if with_mlx:
        ways["mlx"] = itertools.cycle(mlx_calls(case))
    calls_of = {
        name: max(1, min(40, int(2e9 / case.operations / (20 if name == "mlx" else 1)), 2 * case.copies))
        for name in ways
    }
    times: dict[str, list[float]] = {}
    names = list(ways)
    for turn in range(rounds + 1):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            count = max(calls_of[name], LEAST_CALLS if name != "mlx" else 1)
            time.sleep(SETTLING_S)
            until = time.perf_counter() + SETTLING_S
            while time.perf_counter() < until:
                next(ways[name])()
            started = clock()
            for _ in range(count):
                next(ways[name])()
            if turn:
                times.setdefault(name, []).append((clock() - started) / count)
    return times


def native_calls(case: Case, library: NativeLibrary) -> list[Callable[[], None]]:
    """One call for each copy of the weights.

    Arguments are converted beforehand, as ggml's graphs are built beforehand; inference calls these functions from C.
    """
    random = np.random.default_rng(3)
    x = random.standard_normal((case.activations, case.columns)).astype(np.float32)
    sources, members = np.divmod(np.arange(case.activations * case.members, dtype=np.int32), case.members)
    out = np.empty((len(members), case.rows), np.float32)
    arrays = (x, sources, members, out)
    kind, *places = TYPES[x.dtype], *(ctypes.c_void_p(address(array)) for array in arrays)
    where = library_path()
    if where is None:
        raise SystemExit("the native library was not built")
    functions = open_binding(where)
    pool = ctypes.c_void_p(library.handle)
    if case.members > 1:
        function = functions.ss_multiply_members
        rest: tuple[object, ...] = (places[0], kind, case.activations, places[1], places[2], len(members), places[3])
    else:
        function = functions.ss_multiply
        rest = (0, places[0], kind, case.activations, places[3])

    def run(matrix: NativeMatrix, _alive: object) -> None:
        check(function(pool, matrix.reference, *rest), "a product")

    return [functools.partial(run, matrix, arrays) for matrix in stacks(case, random)]


def stacks(case: Case, random: np.random.Generator) -> list[NativeMatrix]:
    """Copies of one matrix, one after another in one block, as the slots of a pool and ggml's tensors are."""
    shape = (case.copies, case.members, case.rows)
    words = np.empty((*shape, case.columns // 8), np.uint32)
    use_large_pages(words.data)
    words[:] = random.integers(0, 2**32, words.shape[1:], dtype=np.uint32)
    scales = np.full((*shape, case.columns // GROUP), 0x3C00, np.uint16)
    biases = np.full(scales.shape, 0xBD80, np.uint16)
    return [NativeMatrix(*pieces, bits=4, group_size=GROUP) for pieces in zip(words, scales, biases, strict=True)]


def mlx_calls(case: Case) -> list[Callable[[], None]]:
    """One product is so slow there that two copies are enough."""
    random = np.random.default_rng(3)
    x = mx.array(random.standard_normal((case.activations, 1, case.columns)).astype(np.float32))
    words = mx.array(random.integers(0, 2**32, (case.members, case.rows, case.columns // 8), dtype=np.uint32))
    scales = mx.full((case.members, case.rows, case.columns // GROUP), 0.0078125)
    biases = mx.full((case.members, case.rows, case.columns // GROUP), -0.0625)
    members = mx.array(np.tile(np.arange(case.members, dtype=np.uint32), (case.activations, 1)))
    mx.eval(x, words, scales, biases, members)

    def run() -> None:
        if case.members > 1:
            pairs = x[:, None]
            mx.eval(mx.gather_qmm(pairs, words, scales, biases, rhs_indices=members, group_size=GROUP, bits=4))
        else:
            mx.eval(mx.quantized_matmul(x[:, 0], words[0], scales[0], biases[0], group_size=GROUP, bits=4))

    return [run]


if __name__ == "__main__":
    main()
