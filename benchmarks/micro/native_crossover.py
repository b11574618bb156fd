"""From how many rows on a product that unpacks panels of a matrix is faster than one on its packed words.

Both ways are those of a compiled layer on the processor. Shapes and bits are those of the demo model and of the
published one, in groups of 64, with float32 scales as layers hold them. The ways take turns within each round; medians
over the rounds are compared. The crossover of a shape is the first number of rows from which panels are faster for
every larger number, too; `NATIVE_ROWS` is chosen by it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np

from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import _native
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, EagerHost, MatrixView
from slotstream_core.models.qwen4_exp.host_products import HostThreads

GROUP = 64
COLD_BYTES = 64 << 20
WORK = 2e8
"""Floating-point operations of a round, about: one call is too short for the clock."""

DEMO = ((64, 256, 4), (256, 64, 4), (256, 256, 8), (384, 256, 8), (8192, 256, 8))
PUBLISHED = ((640, 2560, 4), (2560, 640, 4), (2560, 2560, 4), (10240, 2560, 4))
ROWS = (8, 16, 24, 32, 48, 64, 96, 128, 256)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="run the shapes whose name (640x2560) contains this")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    threads = HostThreads(options.threads)
    host = EagerHost.load(threads, os.environ)
    if host is None:
        raise SystemExit("the native library is switched off or cannot be used; see the log line above")
    table: list[list[str]] = []
    values: dict[str, float] = {}
    for shape in (*DEMO, *PUBLISHED):
        name = f"{shape[0]}x{shape[1]}, {shape[2]} bits"
        if options.only not in name:
            continue
        ratios = [ratio(shape, rows, host, rounds=options.rounds) for rows in ROWS]
        table.append([name, *(f"{value:.2f}" for value in ratios), str(crossover(ratios) or f"> {ROWS[-1]}")])
        key = f"{shape[0]}x{shape[1]}_bits{shape[2]}"
        values |= {f"{key}_rows{rows}_panels_over_packed": round(r, 3) for rows, r in zip(ROWS, ratios, strict=True)}
        values[f"{key}_crossover_rows"] = crossover(ratios)
    settings = {
        "threads": options.threads,
        "rounds": options.rounds,
        "variant": host.library.variant,
        "now": NATIVE_ROWS,
    }
    host.close()
    threads.close()
    report(
        BenchmarkResult(benchmark="native_crossover", settings=settings, values=values),
        table=format_table(["packed words' speed / panels'", *(f"{rows} rows" for rows in ROWS), "panels from"], table),
        record=options.record,
    )


def crossover(ratios: Sequence[float]) -> int:
    """The first of `ROWS` from which panels are faster throughout; 0 when it is not even at the last."""
    slower = [index for index, value in enumerate(ratios) if value >= 1]
    first = slower[-1] + 1 if slower else 0
    return ROWS[first] if first < len(ROWS) else 0


def ratio(shape: tuple[int, int, int], rows: int, host: EagerHost, *, rounds: int) -> float:
    """Seconds of a product by panels over those on packed words, medians; above 1 packed words are faster."""
    count = max(1, int(WORK / (2 * shape[0] * shape[1] * rows)))
    packed, panels = ways(shape, rows, host)
    taken: dict[str, list[float]] = {"packed": [], "panels": []}
    for turn in range(rounds + 1):
        order = (("packed", packed), ("panels", panels))
        for name, calls in order if turn % 2 else reversed(order):
            started = time.perf_counter()
            for _ in range(count):
                next(calls)()
            if turn:
                taken[name].append(time.perf_counter() - started)
    return statistics.median(taken["panels"]) / statistics.median(taken["packed"])


def ways(
    shape: tuple[int, int, int], rows: int, host: EagerHost
) -> tuple[Iterator[Callable[[], object]], Iterator[Callable[[], object]]]:
    """Endless calls on packed words and by panels; each takes the next of enough copies of the weights."""
    random = np.random.default_rng(5)
    x = random.standard_normal((rows, shape[1])).astype(np.float32)
    out = np.empty((rows, shape[0]), np.float32)
    copies = max(2, min(64, COLD_BYTES // (shape[0] * shape[1] * (shape[2] + 1) // 8)))
    words = random.integers(0, 2**32, (shape[0], shape[1] * shape[2] // 32), dtype=np.uint32)
    scales = np.full((shape[0], shape[1] // GROUP), 0.01, np.float32)

    def multiply(view: MatrixView) -> None:
        if rows <= NATIVE_ROWS:
            _native.multiply(host.handle, view.handle, x, out)
        else:
            host.library.multiply(view.matrix, x, out=out)

    packed: list[Callable[[], object]] = []
    panels: list[Callable[[], object]] = []
    for _ in range(copies):
        pieces = mx.array(words), mx.array(scales), mx.array(scales * -8)
        mx.eval(*pieces)
        view = host.view(*pieces, bits=shape[2], group_size=GROUP)
        if view is None:
            raise SystemExit("the native library does not take these matrices")
        packed.append(functools.partial(multiply, view))
        panels.append(functools.partial(_native.multiply_many, host.handle, view.handle, x, out))
    return itertools.cycle(packed), itertools.cycle(panels)


if __name__ == "__main__":
    main()
