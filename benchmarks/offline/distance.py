"""How far streamed decoding is from its physical limit.

A token can take no less than the larger of two times: what computing it takes with every expert in a slot, and what
reading its missed bytes takes at the bandwidth that the same reader reaches without any computation.  All builds live
in one process and continue the same prompt greedily in rotating order; the ids must be equal.  The bound of each build
uses its own missed bytes.  Reported is bound over measured time, so 1.0 is the limit.

    python -m benchmarks.offline.distance [--model DIR | --layers N] [--direct] [--record]

Without `--model` a synthetic checkpoint with the published layer widths is written; its routing is uniform, so the pool
hits no more often than it is large, which no trained model is so bad at.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.offline.residency import Build, open_builds
from benchmarks.offline.wide_budget import widths
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.experts import StreamedExperts
from slotstream_core.generation.decoding import logits_row
from slotstream_core.testing import write_tokenizer

PROBE_RECORDS = 512


@dataclass
class Rounds:
    """What each round of one build measured."""

    prefill_tokens_per_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    missed_bytes: list[float] = field(default_factory=list)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: a synthetic one)")
    parser.add_argument("--layers", type=int, default=4, help="of the synthetic checkpoint")
    parser.add_argument("--directory", type=Path, help="where to write it (default: the temporary directory)")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125], help="of the experts, in slots")
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with ExitStack() as opened:
        directory = options.model or wide_checkpoint(opened, options.layers, options.directory)
        builds = open_builds(opened, directory, [1.0, *options.shares], direct=options.direct)
        bandwidth = statistics.median(read_alone(builds[-1]) for _ in range(3))
        measured, disagreements = measure(builds, prompt=options.prompt, tokens=options.tokens, rounds=options.rounds)
    values, rows = judge(measured, bandwidth)
    values["rounds_with_different_ids"] = disagreements
    settings = {"prompt": options.prompt, "tokens": options.tokens, "rounds": options.rounds, "direct": options.direct}
    settings |= {"layers": options.layers} if options.model is None else {"model": options.model.name}
    print(f"reading alone: {bandwidth / 1e9:.2f} GB/s")
    header = ("build", "prefill tok/s", "decode tok/s", "MB missed/tok", "bound ms", "measured ms", "of the limit")
    report(
        BenchmarkResult(benchmark=f"distance_{settings.get('model', 'wide')}", settings=settings, values=values),
        table=format_table(header, rows),
        record=options.record,
    )


def wide_checkpoint(opened: ExitStack, layers: int, parent: Path | None) -> Path:
    """Write a checkpoint of the published widths that goes with the benchmark."""
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=parent))) / "wide"
    write_synthetic(directory, widths(layers), 0, bits=4)
    write_tokenizer(directory)
    return directory


def read_alone(build: Build) -> float:
    """Return the bytes a second at which missing records come into slots while nothing is computed."""
    experts = build.experts
    assert isinstance(experts, StreamedExperts)
    experts.pool.forget()
    layout, before = experts.layout, experts.stats
    chosen = np.random.default_rng().choice(layout.record_count, min(PROBE_RECORDS, layout.record_count), replace=False)
    started = time.perf_counter()
    for layer in range(layout.layer_count):
        wanted = [int(key % layout.expert_count) for key in chosen if key // layout.expert_count == layer]
        for first in range(0, len(wanted), experts.group_limit):
            lease = experts.request(layer, wanted[first : first + experts.group_limit])
            lease.wait()
            lease.release()
    return experts.stats.since(before).bytes_read / (time.perf_counter() - started)


def measure(builds: list[Build], *, prompt: int, tokens: int, rounds: int) -> tuple[dict[str, Rounds], int]:
    """Run every build in rotating order; also return how often their ids differed.  The first round is not kept."""
    measured = {build.name: Rounds() for build in builds}
    disagreements = 0
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        ids = rng.integers(300, 4000, prompt).tolist()
        outputs = set()
        for position in range(len(builds)):
            build = builds[(number + position) % len(builds)]
            assert isinstance(build.experts, StreamedExperts)
            outputs.add(one_round(build, build.experts, ids, tokens, measured[build.name] if number else Rounds()))
        if len(outputs) != 1:
            print(f"round {number}: the builds disagree about the ids")
            disagreements += 1
    return measured, disagreements


def one_round(build: Build, experts: StreamedExperts, ids: list[int], tokens: int, rounds: Rounds) -> tuple[int, ...]:
    """Read a prompt and continue it greedily; note the times and return the ids."""
    state = build.model.new_state()
    started = time.perf_counter()
    row = logits_row(build.model.forward(ids, state).logits)
    read, before = time.perf_counter(), experts.stats
    output = []
    for _ in range(tokens):
        output.append(int(row.argmax()))
        row = logits_row(build.model.forward(output[-1:], state).logits)
    traffic = experts.stats.since(before)
    rounds.token_s.append((time.perf_counter() - read) / tokens)
    rounds.prefill_tokens_per_s.append(len(ids) / (read - started))
    rounds.missed_bytes.append(traffic.bytes_read / tokens)
    return tuple(output)


def judge(measured: dict[str, Rounds], bandwidth: float) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """Return the values to keep and the rows to print."""
    compute_s = statistics.median(next(iter(measured.values())).token_s)
    values: dict[str, float] = {"read_bytes_per_s": bandwidth, "compute_s_per_token": compute_s}
    rows = []
    for name, rounds in measured.items():
        token_s = statistics.median(rounds.token_s)
        missed = statistics.median(rounds.missed_bytes)
        bound_s = max(compute_s, missed / bandwidth)
        prefill = statistics.median(rounds.prefill_tokens_per_s)
        values |= {
            f"{name} decode_tokens_per_s": 1 / token_s,
            f"{name} prefill_tokens_per_s": prefill,
            f"{name} missed_bytes_per_token": missed,
            f"{name} of_the_limit": bound_s / token_s,
        }
        rows.append(
            (
                name,
                f"{prefill:.1f}",
                f"{1 / token_s:.2f}",
                f"{missed / 1e6:.1f}",
                f"{bound_s * 1e3:.1f}",
                f"{token_s * 1e3:.1f}",
                f"{bound_s / token_s:.2f}",
            )
        )
    return values, rows


if __name__ == "__main__":
    main()
