"""How far streamed decoding is from its physical limit, and where the rest of its time goes.

A token can take no less than the larger of two times: what computing it takes with every expert in a slot, and what
reading its missed bytes takes at the bandwidth that the same reader reaches without any computation.  The build that
holds everything and one with a pool live in one process and continue the same prompt in rotating order, the streamed
one without reading ahead and with it; the ids must be equal.  One pool after the other is measured so.  They continue
greedily, except on a synthetic checkpoint: random weights soon repeat themselves, and a pool then holds what is asked
for, so there every round feeds fresh random tokens to pools that hold random records, the same for both modes, and the
ids that would have been chosen are compared.  The bound of each build uses the bytes that it missed without reading
ahead.  Reported is bound over measured time, so 1.0 is the limit, and what a token waited for records.  What is neither
that wait nor the time of computing alone is named `rest`: the work of forecasts and of planning reads, and the cores
that reading takes from computing.  Records that were missed, and those that were still on their way when asked for, are
counted.

With `--direct` there is a second bound.  On a virtual machine the disk may be served by the processor that computes, so
that computing beside reads is slower than alone whoever asks for them.  Computing with every expert in a slot is
therefore timed again while each build's reader brings as many records as that build missed, which nothing waits for,
until both are done; the reader, the disk and the way past the page cache are the build's own.

    python -m benchmarks.offline.distance [--model DIR | --demo | --layers N [--repacked | --moved]]
        [--direct] [--record]

Without `--model` or `--demo` a synthetic checkpoint with the published layer widths is written; its routing is uniform,
so the pool hits no more often than it is large, which no trained model is so bad at.  What a token pays once, the first
layer's wait and the output head, weighs more the fewer layers there are: the published model has 48.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.offline.lookahead import Build, open_build
from benchmarks.offline.wide_budget import WIDE_LAYERS, add_layers, layout_read, wide_checkpoint
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.experts.lookahead import Mode
from slotstream_core.generation.decoding import logits_row
from slotstream_core.memory import drop_buffer_cache

PROBE_RECORDS = 512


@dataclass
class Rounds:
    """What each round of one build measured in one mode; everything but the prompt's speed is a token's."""

    prefill_tokens_per_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    read_bytes: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    missed_records: list[float] = field(default_factory=list)
    late_records: list[float] = field(default_factory=list)
    wasted_bytes: list[float] = field(default_factory=list)


class Way(NamedTuple):
    """One thing that is timed.

    Attributes:
        build: Computes.
        mode: How it reads ahead.
        beside: Whose reader brings meanwhile what it misses itself without reading ahead; None for nobody.
    """

    build: Build
    mode: Mode
    beside: Build | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        if self.beside is not None:
            return f"pool of {self.beside.share:.1%}, beside"
        return f"pool of {self.build.share:.1%}" + ("" if self.build.share == 1.0 else f", {self.mode}")


def main() -> None:
    """Run from the command line."""
    options = parse()
    values: dict[str, float] = {"rounds_with_different_ids": 0}
    rows: list[tuple[str, ...]] = []
    with ExitStack() as opened:
        directory = demo_directory() if options.demo else options.model
        directory = directory or wide_checkpoint(opened, options.layers, options.directory, records=options.records)
        whole = open_build(opened, directory, 1.0, None, direct=options.direct)
        whole.experts.load_all()
        for share in options.shares:
            measure_share(whole, directory, share, options, values, rows)
        layout = layout_read(whole.experts.layout)
    settings = {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "direct": options.direct,
        "layout": layout,
    }
    model = "demo" if options.demo else options.model.name if options.model else "wide"
    few = model != "wide" or options.layers == WIDE_LAYERS
    settings |= {"layers": options.layers} if model == "wide" else {"model": model}
    header = (
        "build, reading ahead",
        "disk GB/s",
        "decode tok/s",
        "MB/tok",
        "bound ms",
        "measured",
        "of the limit",
        "beside reads",
        "of that limit",
        "wait",
        "rest",
        "processor",
        "missed",
        "late",
        "wasted MB",
    )
    report(
        BenchmarkResult(
            benchmark=f"distance_{model}{'' if few else options.layers}{'_direct' if options.direct else ''}",
            settings=settings,
            values=values,
        ),
        table=format_table(header, rows),
        record=options.record,
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: a synthetic one)")
    parser.add_argument("--demo", action="store_true", help="the demo model")
    add_layers(parser)
    parser.add_argument("--directory", type=Path, help="where to write it (default: the temporary directory)")
    parser.add_argument("--prompt", type=int, default=8, help="tokens; each brings experts of its own")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125], help="of the experts, in slots")
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    return parser.parse_args()


def measure_share(
    whole: Build,
    directory: Path,
    share: float,
    options: argparse.Namespace,
    values: dict[str, float],
    rows: list[tuple[str, ...]],
) -> None:
    """Compare a build that has slots for a share of the experts with the one that holds all; its memory goes again."""
    with ExitStack() as opened:
        build = open_build(opened, directory, share, None, direct=options.direct)
        ways = [Way(whole, "off"), Way(build, "off"), Way(build, "on")]
        if options.direct:
            ways.append(Way(whole, "off", beside=build))
        bandwidth = statistics.median(read_alone(build) for _ in range(3))
        measured, disagreements = measure(
            ways,
            prompt=options.prompt,
            tokens=options.tokens,
            rounds=options.rounds,
            greedy=options.demo or options.model is not None,
        )
    del build, ways
    gc.collect()
    drop_buffer_cache()
    found, lines = judge(measured, bandwidth)
    values |= {f"pool of {share:.1%} {name}" if not name.startswith("pool") else name: v for name, v in found.items()}
    values["rounds_with_different_ids"] += disagreements
    rows += lines


def read_alone(build: Build) -> float:
    """Return the bytes a second at which missing records come into slots while nothing is computed."""
    before, started = build.experts.stats, time.perf_counter()
    refill(build, PROBE_RECORDS, np.random.default_rng())
    return build.experts.stats.since(before).bytes_read / (time.perf_counter() - started)


def refill(build: Build, count: int, rng: np.random.Generator) -> None:
    """Forget what the pool holds and read this many random records, at most as many as there are."""
    experts = build.experts
    experts.pool.forget()
    layout = experts.layout
    chosen = rng.choice(layout.record_count, min(count, layout.record_count), replace=False)
    for layer in range(layout.layer_count):
        wanted = [int(key % layout.expert_count) for key in chosen if key // layout.expert_count == layer]
        for first in range(0, len(wanted), experts.group_limit):
            lease = experts.request(layer, wanted[first : first + experts.group_limit])
            lease.wait()
            lease.release()


def bring(build: Build, count: int) -> None:
    """Read so many random records, which nobody needs."""
    rng = np.random.default_rng()
    while count > 0:
        some = min(count, build.experts.layout.record_count)
        refill(build, some, rng)
        count -= some


def measure(
    ways: Sequence[Way], *, prompt: int, tokens: int, rounds: int, greedy: bool
) -> tuple[dict[str, Rounds], int]:
    """Run everything in rotating order; also return how often the ids differed.  The first round is not kept."""
    measured = {way.name: Rounds() for way in ways}
    missed: dict[float, int] = {}  # records of a round, by share
    disagreements = 0
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        ids = rng.integers(300, 4000, prompt).tolist()
        fed = None if greedy else rng.integers(300, 30_000, tokens).tolist()
        outputs = set()
        for position in range(len(ways)):
            way = ways[(number + position) % len(ways)]
            if fed is not None and way.build.share < 1.0:
                refill(way.build, way.build.experts.pool.slot_count, np.random.default_rng(number))
            kept = measured[way.name] if number else Rounds()
            if way.beside is None:
                outputs.add(one_round(way, ids, fed, tokens, kept))
                if way.mode == "off":
                    missed[way.build.share] = round(kept.missed_records[-1] * tokens)
            elif number:
                reads = partial(bring, way.beside, missed[way.beside.share])
                outputs.add(one_round(way, ids, fed, tokens, kept, reads))
        if len(outputs) != 1:
            print(f"round {number}: the builds disagree about the ids")
            disagreements += 1
    return measured, disagreements


def one_round(
    way: Way,
    ids: list[int],
    fed: list[int] | None,
    tokens: int,
    rounds: Rounds,
    beside: Callable[[], None] | None = None,
) -> tuple[int, ...]:
    """Read a prompt and continue it, greedily or with the tokens that are fed; note the times and return the ids.

    The time is that until `beside`, which runs meanwhile on a thread of its own, is done as well.
    """
    build, build.lookahead.mode = way.build, way.mode
    reading = threading.Thread(target=beside or (lambda: None))
    state = build.model.new_state()
    started = time.perf_counter()
    row = logits_row(build.model.forward(ids, state).logits)
    read, processor, before = time.perf_counter(), time.process_time(), build.experts.stats
    reading.start()
    output = []
    for number in range(tokens):
        output.append(int(row.argmax()))
        token = output[-1] if fed is None else fed[number]
        row = logits_row(build.model.forward([token], state, decode=True).logits)
    reading.join()
    traffic = build.experts.stats.since(before)
    rounds.token_s.append((time.perf_counter() - read) / tokens)
    rounds.processor_s.append((time.process_time() - processor) / tokens)
    rounds.prefill_tokens_per_s.append(len(ids) / (read - started))
    rounds.read_bytes.append(traffic.bytes_read / tokens)
    rounds.wait_s.append(traffic.wait_s / tokens)
    rounds.missed_records.append(traffic.misses / tokens)
    rounds.late_records.append(traffic.ahead_joined / tokens)
    rounds.wasted_bytes.append(traffic.wasted_bytes / tokens)
    return tuple(output)


def judge(measured: dict[str, Rounds], bandwidth: float) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """Return the values to keep and the rows to print."""
    compute_s = statistics.median(next(iter(measured.values())).token_s)
    values: dict[str, float] = {"read_bytes_per_s": bandwidth, "compute_s_per_token": compute_s}
    rows: list[tuple[str, ...]] = []
    for name, rounds in measured.items():
        if name.endswith(", beside"):
            continue
        token_s, wait_s = statistics.median(rounds.token_s), statistics.median(rounds.wait_s)
        processor_s, read = statistics.median(rounds.processor_s), statistics.median(rounds.read_bytes)
        missed = (
            statistics.median(measured[name.removesuffix("on") + "off"].read_bytes) if name.endswith("on") else read
        )
        bound_s = max(compute_s, missed / bandwidth)
        records, late = statistics.median(rounds.missed_records), statistics.median(rounds.late_records)
        wasted = statistics.median(rounds.wasted_bytes)
        values |= {
            f"{name} decode_tokens_per_s": 1 / token_s,
            f"{name} prefill_tokens_per_s": statistics.median(rounds.prefill_tokens_per_s),
            f"{name} missed_bytes_per_token": missed,
            f"{name} read_bytes_per_token": read,
            f"{name} wait_s_per_token": wait_s,
            f"{name} processor_s_per_token": processor_s,
            f"{name} missed_records_per_token": records,
            f"{name} late_records_per_token": late,
            f"{name} wasted_bytes_per_token": wasted,
            f"{name} of_the_limit": bound_s / token_s,
        }
        beside = measured.get(f"{name.partition(',')[0]}, beside")
        beside_s = statistics.median(beside.token_s) if beside is not None else None
        if beside_s is not None:
            values |= {f"{name} beside_s_per_token": beside_s, f"{name} of_the_limit_beside_reads": beside_s / token_s}
        rows.append(
            (
                name,
                f"{bandwidth / 1e9:.2f}",
                f"{1 / token_s:.2f}",
                f"{read / 1e6:.1f}",
                f"{bound_s * 1e3:.1f}",
                f"{token_s * 1e3:.1f}",
                f"{bound_s / token_s:.2f}",
                "" if beside_s is None else f"{beside_s * 1e3:.1f}",
                "" if beside_s is None else f"{beside_s / token_s:.2f}",
                f"{wait_s * 1e3:.1f}",
                f"{(token_s - wait_s - compute_s) * 1e3:.1f}",
                f"{processor_s * 1e3:.1f}",
                f"{records:.1f}",
                f"{late:.1f}",
                f"{wasted / 1e6:.1f}",
            )
        )
    return values, rows


if __name__ == "__main__":
    main()
