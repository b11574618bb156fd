"""What the prefill sweep saves: prompts read through the pool, expert by expert, and several passes at once.

All builds of one checkpoint live in one process and read the same prompts, in rotating order; every build must return
the same logits to the bit. Each prompt finds the pool as the one before left it. The medians over the rounds are
compared, with the bytes of expert records that a prompt made each build read.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.offline.wide_budget import layout_read, widths
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertLayout, StoredExperts, StreamedExperts, choose_lanes
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.packed import find_repacked
from slotstream_core.experts.repacking import repack_checkpoint
from slotstream_core.experts.sweeping import SweepOptions
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model

Passes = Sequence[Sequence[int]]
Read = Callable[[Qwen4ExpModel, Passes], tuple[bytes, float]]


@dataclass(frozen=True, kw_only=True)
class Build:
    """One way to read a prompt."""

    name: str
    model: Qwen4ExpModel
    experts: StreamedExperts
    read: Read


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One prompt read by one build."""

    tokens_per_s: float
    read_bytes: int
    wait_s: float


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    parser.add_argument("--wide-layers", type=int, help="a synthetic checkpoint of the published widths instead")
    parser.add_argument("--wide-experts", type=int, default=512, help="experts a layer of that")
    parser.add_argument("--repacked", action="store_true", help="write its experts as records, too, and read those")
    parser.add_argument("--directory", type=Path, help="where to write that (default: the temporary directory)")
    parser.add_argument("--share", type=float, default=0.25, help="of the experts, in slots")
    parser.add_argument("--pass-tokens", type=int, default=256)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with ExitStack() as opened:
        directory = options.model or wide_checkpoint(
            opened, options.wide_layers, options.wide_experts, options.directory, repacked=options.repacked
        )
        builds = open_builds(opened, directory or demo_directory(), share=options.share, direct=options.direct)
        layout = layout_read(builds[0].experts.layout)
        readings = measure(builds, [options.pass_tokens] * options.passes, rounds=options.rounds)
    medians = {
        name: Reading(
            tokens_per_s=statistics.median(each.tokens_per_s for each in all_of),
            read_bytes=int(statistics.median(each.read_bytes for each in all_of)),
            wait_s=statistics.median(each.wait_s for each in all_of),
        )
        for name, all_of in readings.items()
    }
    first = next(iter(medians.values()))
    rows = [
        (
            name,
            f"{each.tokens_per_s:.1f}",
            f"{each.tokens_per_s / first.tokens_per_s:.2f}",
            f"{each.read_bytes / 1e6:,.1f}",
            f"{each.wait_s:.3f}",
        )
        for name, each in medians.items()
    ]
    values: dict[str, int | float] = {}
    for name, each in medians.items():
        values |= {f"{name} tokens_per_s": each.tokens_per_s, f"{name} read_bytes": each.read_bytes}
    label = (
        "demo"
        if directory is None
        else f"wide, {options.wide_layers} layers of {options.wide_experts} experts"
        if options.wide_layers
        else "given"
    )
    settings: dict[str, int | float | str] = {
        "model": label,
        "share": options.share,
        "pass_tokens": options.pass_tokens,
        "passes": options.passes,
        "rounds": options.rounds,
        "direct": int(options.direct),
        "layout": layout,
    }
    name = "prefill_sweep" if directory is None else "prefill_sweep_wide"
    report(
        BenchmarkResult(benchmark=name, settings=settings, values=values),
        table=format_table(("build", "tok/s", "of the pool's", "MB read a prompt", "s waited"), rows),
        record=options.record,
    )


def wide_checkpoint(
    opened: ExitStack, layers: int | None, experts: int, parent: Path | None, *, repacked: bool
) -> Path | None:
    """Write a synthetic checkpoint that is removed at the end; None when none is asked for."""
    if layers is None:
        return None
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=parent))) / "wide"
    write_synthetic(directory, {**widths(layers), "num_experts": experts}, 0, bits=4)
    if repacked:
        repack_checkpoint(directory)
    return directory


def open_builds(opened: ExitStack, directory: Path, *, share: float, direct: bool) -> list[Build]:
    """Open one checkpoint once a build."""
    backend = Backend.detect()
    lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1)
    off = SweepOptions(enabled=False)
    ways: list[tuple[str, SweepOptions, Read]] = [
        ("through the pool", off, read_apart),
        ("swept", SweepOptions(), read_apart),
        ("swept together", SweepOptions(), read_together),
    ]
    builds = []
    for name, sweeping, read in ways:
        checkpoint = opened.enter_context(Checkpoint.open(directory))
        modules = trunk_modules(checkpoint.config.num_hidden_layers)
        stacked = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        layout = find_repacked(directory, stacked, "trunk") or stacked
        source = opened.enter_context(StoredExperts(layout, direct=direct))
        slots = int(layout.record_count * share)
        experts = opened.enter_context(StreamedExperts(source, slot_count=slots, lane_count=lanes, sweeping=sweeping))
        model = opened.enter_context(build_model(checkpoint, experts, backend))
        builds.append(Build(name=name, model=model, experts=experts, read=read))
    return builds


def measure(builds: Sequence[Build], lengths: Sequence[int], *, rounds: int) -> dict[str, list[Reading]]:
    """Read one prompt a round with every build; the first round warms up and is dropped."""
    readings: dict[str, list[Reading]] = {build.name: [] for build in builds}
    random = np.random.default_rng(0)
    total = sum(lengths)
    for number in range(rounds + 1):
        passes = [random.integers(300, 4000, length).tolist() for length in lengths]
        outputs = set()
        for position in range(len(builds)):
            build = builds[(number + position) % len(builds)]
            before = build.experts.stats
            logits, seconds = build.read(build.model, passes)
            done = build.experts.stats.since(before)
            outputs.add(logits)
            if number:
                readings[build.name].append(
                    Reading(tokens_per_s=total / seconds, read_bytes=done.bytes_read, wait_s=done.wait_s)
                )
        if len(outputs) != 1:
            raise SystemExit(f"round {number}: the builds disagree about the logits")
    return readings


def read_apart(model: Qwen4ExpModel, passes: Passes) -> tuple[bytes, float]:
    """One pass after the other; returns the last logits and the time."""
    state = model.new_state()
    started = time.perf_counter()
    for ids in passes[:-1]:
        model.forward(ids, state)
    read = model.read([passes[-1]], state, ends_prompt=True)
    for _ in read.steps():
        pass
    logits = np.array(read.result.logits).tobytes()
    return logits, time.perf_counter() - started


def read_together(model: Qwen4ExpModel, passes: Passes) -> tuple[bytes, float]:
    """All passes at once; returns the last logits and the time."""
    started = time.perf_counter()
    read = model.read(passes, model.new_state(), ends_prompt=True)
    for _ in read.steps():
        pass
    logits = np.array(read.result.logits).tobytes()
    return logits, time.perf_counter() - started


if __name__ == "__main__":
    main()
