"""How far streamed decoding is from its physical limit, and where the rest of its time goes.

A token can take no less than the larger of two times: what computing it takes with every expert in a slot, and what
reading its missed bytes takes at the bandwidth that the same reader reaches without any computation.  The build that
holds everything and one with a pool live in one process and continue the same prompt side by side, a few tokens of
one and a few of the other, once without reading ahead and once with it; the ids must be equal.  One pool after the
other is measured so.  They continue greedily, except on a synthetic checkpoint, which `--synthetic` says of one that
`--model` names: random weights soon repeat themselves, and a pool then holds what is asked for, so there every round
feeds fresh random tokens to pools that hold random records, the same for both modes, and the ids that would have been
chosen are compared.  The bound of each
build uses the bytes that it missed in the same round without reading ahead.  Reported is bound over measured time, so
1.0 is the limit, with the 95% interval of its median over rounds, and what a token waited for records.  What is
neither that wait nor the time of computing alone is named `rest`: the work of forecasts and of planning reads, and the
cores that reading takes from computing.  Records that were missed, and those that were still on their way when asked
for, are counted.

With `--direct` there is a second bound.  On a virtual machine the disk may be served by the processor that computes, so
that computing beside reads is slower than alone whoever asks for them.  Computing with every expert in a slot is
therefore timed again while each build's reader brings as many records as that build missed, which nothing waits for,
until both are done; the reader, the disk and the way past the page cache are the build's own.

    python -m benchmarks.offline.distance [--model DIR [--synthetic] | [--demo | --layers N] [--repacked | --moved]]
        [--direct | --pinned] [--record]

The demo is measured as a copy: as it was published, or with records that `--repacked` or `--moved` wrote.  Without
`--model` or `--demo` a synthetic checkpoint with the published layer widths is written; its routing is uniform, so the
pool hits no more often than it is large, which no trained model is so bad at.  What a token pays once, the first
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

from benchmarks.demo import demo_copy
from benchmarks.offline.lookahead import Build, open_build
from benchmarks.offline.wide_budget import WIDE_LAYERS, add_layers, layout_read, wide_checkpoint
from benchmarks.pairing import Estimate, estimate
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.experts.lookahead import Mode
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.generation.decoding import logits_row
from slotstream_core.memory import drop_buffer_cache

PROBE_RECORDS = 512

BLOCK_TOKENS = 12
"""Tokens after which the two builds of a comparison change over."""


@dataclass
class Rounds:
    """What each round of one build measured in one mode; everything but the prompt's speed is a token's.

    Attributes:
        whole_s: What the build that holds everything took meanwhile.
    """

    prefill_tokens_per_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
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
        directory = options.model
        if options.demo:
            directory = demo_copy(opened, options.directory, records=options.records)
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
        "pinned": options.pinned,
        "synthetic": options.synthetic,
        "layout": layout,
    }
    model = "demo" if options.demo else options.model.name if options.model else "wide"
    kind = "" if layout == "stacked" else f"_{layout}"
    few = model != "wide" or options.layers == WIDE_LAYERS
    settings |= {"layers": options.layers} if model == "wide" else {"model": model}
    header = (
        "build, reading ahead",
        "disk GB/s",
        "decode tok/s",
        "MB/tok",
        "bound ms",
        "measured",
        "of the limit (95%)",
        "beside reads",
        "of that limit (95%)",
        "wait",
        "rest",
        "processor",
        "missed",
        "late",
        "wasted MB",
    )
    report(
        BenchmarkResult(
            benchmark=f"distance_{model}{'' if few else options.layers}{kind if options.demo else ''}"
            f"{'_direct' if options.direct else '_pinned' if options.pinned else ''}",
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
    parser.add_argument(
        "--synthetic", action="store_true", help="its weights are random, as those of a written one are"
    )
    parser.add_argument("--demo", action="store_true", help="the demo model")
    add_layers(parser)
    parser.add_argument("--directory", type=Path, help="where to write it (default: the temporary directory)")
    parser.add_argument("--prompt", type=int, default=8, help="tokens; each brings experts of its own")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125], help="of the experts, in slots")
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--pinned", action="store_true", help="have an NVIDIA GPU fetch from pinned files")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    if options.synthetic and options.model is None:
        parser.error("--synthetic says what --model names; without it a checkpoint is random, and the demo is not")
    return options


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
        build = open_build(opened, directory, share, None, direct=options.direct, pinned=options.pinned)
        bandwidth = statistics.median(read_alone(build) for _ in range(3))
        measured, disagreements = measure(
            whole,
            build,
            direct=options.direct,
            prompt=options.prompt,
            tokens=options.tokens,
            rounds=options.rounds,
            greedy=options.demo or (options.model is not None and not options.synthetic),
        )
    del build
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
    whole: Build, build: Build, *, direct: bool, prompt: int, tokens: int, rounds: int, greedy: bool
) -> tuple[dict[str, Rounds], int]:
    """Run everything in rotating order; also return how often the ids differed.  The first round is not kept."""
    legs: list[tuple[Way, ...]] = [(Way(whole, "off"), Way(build, mode)) for mode in ("off", "on")]
    if direct:
        legs.append((Way(whole, "off", beside=build),))
    measured = {way.name: Rounds() for leg in legs for way in leg}
    missed = 0  # records of a round
    disagreements = 0
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        ids = rng.integers(300, 4000, prompt).tolist()
        fed = None if greedy else rng.integers(300, 30_000, tokens).tolist()
        outputs = set()
        for position in range(len(legs)):
            leg = legs[(number + position) % len(legs)]
            if fed is not None and leg[-1].build is build:
                refill(build, build.experts.pool.slot_count, np.random.default_rng(number))
            if leg[0].beside is not None and not number:
                continue  # it is not known yet how much to read
            replies = [Reply(way, ids, fed) for way in leg]
            side_by_side(replies, tokens, partial(bring, build, missed) if leg[0].beside is not None else None)
            outputs |= {tuple(reply.output) for reply in replies}
            if leg[-1].build is build and leg[-1].mode == "off":
                missed = replies[-1].traffic.misses
            for reply in replies if number else ():
                reply.note(measured[reply.way.name], beside=replies[0])
        if len(outputs) != 1:
            print(f"round {number}: the builds disagree about the ids")
            disagreements += 1
    return measured, disagreements


class Reply:
    """A prompt that was read, and what follows it: greedily chosen, or the tokens that are fed."""

    def __init__(self, way: Way, ids: list[int], fed: list[int] | None) -> None:
        self.way = way
        self.output: list[int] = []
        self.traffic = ExpertStats()
        self.decode_s = self.processor_s = 0.0
        self._fed = fed
        self._state = way.build.model.new_state()
        way.build.lookahead.mode = way.mode
        started = time.perf_counter()
        self._row = logits_row(way.build.model.forward(ids, self._state).logits)
        self._prefill_tokens_per_s = len(ids) / (time.perf_counter() - started)

    def advance(self, tokens: int, meanwhile: Callable[[], None] | None = None) -> None:
        """Continue it by so many tokens.  The time is that until `meanwhile`, which has a thread, is done as well."""
        build, reading = self.way.build, threading.Thread(target=meanwhile or (lambda: None))
        build.lookahead.mode = self.way.mode
        started, processor, before = time.perf_counter(), time.process_time(), build.experts.stats
        reading.start()
        for _ in range(tokens):
            self.output.append(int(self._row.argmax()))
            token = self.output[-1] if self._fed is None else self._fed[len(self.output) - 1]
            self._row = logits_row(build.model.forward([token], self._state, decode=True).logits)
        reading.join()
        self.decode_s += time.perf_counter() - started
        self.processor_s += time.process_time() - processor
        self.traffic = self.traffic.plus(build.experts.stats.since(before))

    def note(self, rounds: Rounds, beside: Reply) -> None:
        """Add what it took to a way's rounds, and what another one took at the same time."""
        tokens, traffic = len(self.output), self.traffic
        rounds.token_s.append(self.decode_s / tokens)
        rounds.whole_s.append(beside.decode_s / tokens)
        rounds.processor_s.append(self.processor_s / tokens)
        rounds.prefill_tokens_per_s.append(self._prefill_tokens_per_s)
        rounds.read_bytes.append(traffic.bytes_read / tokens)
        rounds.wait_s.append(traffic.wait_s / tokens)
        rounds.missed_records.append(traffic.misses / tokens)
        rounds.late_records.append(traffic.ahead_joined / tokens)
        rounds.wasted_bytes.append(traffic.wasted_bytes / tokens)


def side_by_side(replies: Sequence[Reply], tokens: int, meanwhile: Callable[[], None] | None) -> None:
    """Continue replies a few tokens at a time, in turn and in alternating order; a single one all at once."""
    if len(replies) == 1:
        replies[0].advance(tokens, meanwhile)
        return
    for number, first in enumerate(range(0, tokens, BLOCK_TOKENS)):
        for reply in replies if number % 2 else reversed(replies):
            reply.advance(min(BLOCK_TOKENS, tokens - first))


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
        missed = measured[name.removesuffix("on") + "off"].read_bytes if name.endswith("on") else rounds.read_bytes
        bound_s = max(compute_s, statistics.median(missed) / bandwidth)
        alone = zip(rounds.whole_s, missed, strict=True)
        of_limit = share_of([max(alone_s, bytes_ / bandwidth) for alone_s, bytes_ in alone], rounds)
        records, late = statistics.median(rounds.missed_records), statistics.median(rounds.late_records)
        wasted = statistics.median(rounds.wasted_bytes)
        values |= {
            f"{name} decode_tokens_per_s": 1 / token_s,
            f"{name} prefill_tokens_per_s": statistics.median(rounds.prefill_tokens_per_s),
            f"{name} missed_bytes_per_token": statistics.median(missed),
            f"{name} read_bytes_per_token": read,
            f"{name} wait_s_per_token": wait_s,
            f"{name} processor_s_per_token": processor_s,
            f"{name} missed_records_per_token": records,
            f"{name} late_records_per_token": late,
            f"{name} wasted_bytes_per_token": wasted,
        }
        values |= with_interval(f"{name} of_the_limit", of_limit)
        beside = measured.get(f"{name.partition(',')[0]}, beside")
        shown = ("", "")
        if beside is not None:
            beside_s = statistics.median(beside.token_s)
            of_beside = share_of(beside.token_s, rounds)
            values |= {f"{name} beside_s_per_token": beside_s}
            values |= with_interval(f"{name} of_the_limit_beside_reads", of_beside)
            shown = (f"{beside_s * 1e3:.1f}", of_beside.shown(2))
        rows.append(
            (
                name,
                f"{bandwidth / 1e9:.2f}",
                f"{1 / token_s:.2f}",
                f"{read / 1e6:.1f}",
                f"{bound_s * 1e3:.1f}",
                f"{token_s * 1e3:.1f}",
                of_limit.shown(2),
                *shown,
                f"{wait_s * 1e3:.1f}",
                f"{(token_s - wait_s - compute_s) * 1e3:.1f}",
                f"{processor_s * 1e3:.1f}",
                f"{records:.1f}",
                f"{late:.1f}",
                f"{wasted / 1e6:.1f}",
            )
        )
    return values, rows


def share_of(bounds_s: Sequence[float], rounds: Rounds) -> Estimate:
    """Return what of each round's time its bound was."""
    return estimate([bound_s / token_s for bound_s, token_s in zip(bounds_s, rounds.token_s, strict=True)])


def with_interval(name: str, share: Estimate) -> dict[str, float]:
    """Return the values to keep of a share."""
    return {name: share.median, f"{name}_low": share.low, f"{name}_high": share.high}


if __name__ == "__main__":
    main()
