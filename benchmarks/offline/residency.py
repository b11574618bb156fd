"""What streaming costs: decode speed with plain arrays, with every expert in the pool, and with a part of them.

Three builds of one checkpoint live in one process: plain stacked arrays without a pool, the streamed build with a slot
for every expert, and streamed builds with smaller pools. Each round continues the same prompt greedily in every build,
in rotating order, and the ids must be equal. The medians over the rounds of a build's decode rate are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertLayout, Experts, ResidentExperts, StoredExperts, StreamedExperts, choose_lanes
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.generation.decoding import logits_row
from slotstream_core.loading import slot_memory
from slotstream_core.models.base import Model
from slotstream_core.models.registry import build_model

PLAIN = "plain arrays"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build of the checkpoint."""

    name: str
    model: Model
    experts: Experts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens decoded a round")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125], help="of the experts, in slots")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with ExitStack() as opened:
        builds = open_builds(opened, options.model or demo_directory(), [None, 1.0, *options.shares])
        rates = measure(builds, prompt=options.prompt, tokens=options.tokens, rounds=options.rounds)
    decode = {name: statistics.median(pair[1] for pair in pairs) for name, pairs in rates.items()}
    prefill = {name: statistics.median(pair[0] for pair in pairs) for name, pairs in rates.items()}
    rows = [
        (name, f"{prefill[name]:.1f}", f"{decode[name]:.1f}", f"{decode[name] / decode[PLAIN]:.3f}") for name in decode
    ]
    values = {f"{name} decode_tokens_per_s": value for name, value in decode.items()}
    values |= {f"{name} prefill_tokens_per_s": value for name, value in prefill.items()}
    report(
        BenchmarkResult(
            benchmark="residency",
            settings={"tokens": options.tokens, "prompt": options.prompt, "rounds": options.rounds},
            values=values,
        ),
        table=format_table(("build", "prefill tok/s", "decode tok/s", "of plain arrays"), rows),
        record=options.record,
    )


def open_builds(
    opened: ExitStack, directory: Path, shares: Sequence[float | None], *, direct: bool = False
) -> list[Build]:
    """Open one checkpoint once a build; a share of None stands for plain arrays."""
    backend = Backend.detect()
    memory = slot_memory(backend)
    builds = []
    for share in shares:
        checkpoint = opened.enter_context(Checkpoint.open(directory))
        modules = trunk_modules(checkpoint.config.num_hidden_layers)
        layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        source = opened.enter_context(StoredExperts(layout, direct=direct))
        lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1, source=source, memory=memory)
        experts: ResidentExperts | StreamedExperts
        if share is None:
            experts = ResidentExperts(source, lane_count=lanes, memory=memory)
        else:
            slots = int(layout.record_count * share)
            experts = opened.enter_context(StreamedExperts(source, slot_count=slots, lane_count=lanes, memory=memory))
            if share == 1.0:
                experts.load_all()
        model = opened.enter_context(build_model(checkpoint, experts, backend))
        name = PLAIN if share is None else f"pool of {share:.1%}"
        builds.append(Build(name=name, model=model, experts=experts))
    return builds


def measure(builds: Sequence[Build], *, prompt: int, tokens: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return (prefill, decode) tokens a second of every round by build; the first round warms up and is dropped."""
    rates: dict[str, list[tuple[float, float]]] = {build.name: [] for build in builds}
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        ids = rng.integers(300, 4000, prompt)
        outputs = set()
        for position in range(len(builds)):
            build = builds[(number + position) % len(builds)]
            pair, output = run(build.model, ids.tolist(), tokens)
            outputs.add(output)
            if number:
                rates[build.name].append(pair)
        if len(outputs) != 1:
            raise SystemExit(f"round {number}: the builds disagree about the ids")
    return rates


def run(model: Model, ids: list[int], tokens: int) -> tuple[tuple[float, float], tuple[int, ...]]:
    """Decode greedily; return the two rates in tokens a second and the ids."""
    state = model.new_state()
    started = time.perf_counter()
    row = logits_row(model.forward(ids, state).logits)
    read = time.perf_counter()
    output = []
    for _ in range(tokens):
        output.append(int(row.argmax()))
        row = logits_row(model.forward(output[-1:], state).logits)
    ended = time.perf_counter()
    return (len(ids) / (read - started), tokens / (ended - read)), tuple(output)


if __name__ == "__main__":
    main()
