"""What reading experts ahead does for decode: never, always, and where trials find it faster.

For each share of the experts in slots one model answers the same prompts greedily in four ways: without the lookahead,
with it in every pass, with the automatic choice, which has decided before the first counted round, and without once
more, so that it shows what two equal ways differ by.  In four rounds every way comes once after each other one, since
one may leave the machine slower for the next.  The ids must be equal.  Ratios are taken within rounds; their medians
are given with their 95% intervals, and with the counters that explain them.

    python -m benchmarks.offline.lookahead [--model DIR | --layers N [--repacked | --moved]] [--correction FILE]
        [--direct] [--record]

Without `--model` the demo is measured; `--layers` writes a synthetic checkpoint of the published layer widths instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.demo import demo_directory
from benchmarks.offline.wide_budget import add_layers, layout_read, wide_checkpoint
from benchmarks.pairing import estimate
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.corrections import Correction, read_correction
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.diagnostics.fitting import is_held_out
from slotstream_core.diagnostics.prompts import PROMPTS
from slotstream_core.experts import StoredExperts, StreamedExperts, choose_ahead_lanes, choose_lanes
from slotstream_core.experts.lookahead import Lookahead, Mode
from slotstream_core.experts.packed import best_layout
from slotstream_core.experts.reading import trunk_layout
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.experts.trials import BLOCK, BLOCKS
from slotstream_core.generation.decoding import logits_row
from slotstream_core.loading import find_correction, slot_memory
from slotstream_core.models.qwen4_exp.forecasting import Forecaster
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer

WAYS: dict[str, Mode] = {"off": "off", "on": "on", "auto": "auto", "off again": "off"}
ORDERS = (
    ("off", "on", "off again", "auto"),
    ("on", "auto", "off", "off again"),
    ("auto", "off again", "on", "off"),
    ("off again", "off", "auto", "on"),
)
"""Within these rounds each way comes once after each other one."""

TRIAL_PASSES = BLOCK * BLOCKS


@dataclass(kw_only=True)
class Build:
    """A model whose pool holds a share of its experts.

    Attributes:
        rates: Tokens a second of every round, by way.
        traffic: What the pool did, by way.
    """

    share: float
    model: Qwen4ExpModel
    experts: StreamedExperts
    lookahead: Lookahead
    rates: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    traffic: dict[str, ExpertStats] = field(default_factory=lambda: {way: ExpertStats() for way in WAYS})

    def of_off(self, way: str) -> list[float]:
        """How fast it was in each round next to `off` in the same one."""
        return [rate / off for rate, off in zip(self.rates[way], self.rates["off"], strict=True)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    add_layers(parser, default=None)
    parser.add_argument("--directory", type=Path, help="where to write it (default: the temporary directory)")
    parser.add_argument("--correction", type=Path, help="a correction file (default: the checkpoint's own, if any)")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=16, help="a multiple of four puts every way after each other one")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.25, 0.5], help="of the experts, in slots")
    parser.add_argument("--direct", action="store_true", help="read past the page cache")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    name = options.model.name if options.model else "wide" if options.layers else "demo"
    values: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    settings: dict[str, int | float | str] = {
        "tokens": options.tokens,
        "rounds": options.rounds,
        "direct": options.direct,
    }
    with ExitStack() as kept:
        directory = options.model
        if options.layers:
            directory = wide_checkpoint(kept, options.layers, options.directory, records=options.records)
        directory = directory or demo_directory()
        prompts = prompt_ids(directory)
        for share in options.shares:
            with ExitStack() as opened:
                build = open_build(opened, directory, share, options.correction, direct=options.direct)
                measure(build, prompts, tokens=options.tokens, rounds=options.rounds)
            judge(build, options.tokens * options.rounds, values, rows)
            settings["layout"] = layout_read(build.experts.layout)
    if options.layers:
        settings["layers"] = options.layers
    header = (
        "pool, lookahead",
        "tok/s",
        "of off (95%)",
        "hits",
        "read MB/tok",
        "wasted MB/tok",
        "wait ms/tok",
        "used of ahead",
    )
    report(
        BenchmarkResult(benchmark=f"lookahead_{name}", settings=settings, values=values),
        table=format_table(header, rows),
        record=options.record,
    )


def prompt_ids(directory: Path) -> list[list[int]]:
    """Return the built-in prompts that no fit uses, as ids of the checkpoint's chat."""
    with Checkpoint.open(directory) as checkpoint:
        config = checkpoint.config
    tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
    template = ChatTemplate.from_directory(directory)
    texts = [prompt for index, prompt in enumerate(PROMPTS) if is_held_out(index)]
    if template is not None:
        texts = [template.render([ChatMessage(role="user", content=text)]) for text in texts]
    return [tokenizer.encode(text) for text in texts]


def open_build(
    opened: ExitStack, directory: Path, share: float, correction: Path | None, *, direct: bool, pinned: bool = False
) -> Build:
    """Open the checkpoint with a pool for a share of its experts, which are read from its records if it has them.

    With `pinned` all of their files are pinned first, for an NVIDIA GPU to fetch from.
    """
    backend = Backend.detect()
    checkpoint = opened.enter_context(Checkpoint.open(directory))
    config = checkpoint.config
    layout = best_layout(directory, trunk_layout(checkpoint, float_name=backend.float_name), "trunk")
    source = opened.enter_context(StoredExperts(layout, direct=direct))
    slots, memory = int(layout.record_count * share), slot_memory(backend)
    lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1, source=source, memory=memory)
    experts = opened.enter_context(
        StreamedExperts(
            source,
            slot_count=slots,
            lane_count=lanes,
            ahead_lane_count=choose_ahead_lanes(lanes, memory),
            memory=memory,
        )
    )
    if pinned:
        pin(experts)
    model = opened.enter_context(build_model(checkpoint, experts, backend))
    found: Correction | None = find_correction(checkpoint)
    if correction is not None:
        found = read_correction(
            correction, layers=config.num_hidden_layers, hidden=config.hidden_size, experts=config.num_experts
        )
    lookahead = Lookahead(experts.pool, top=config.num_experts_per_tok)
    renewed = model.renewed_layers
    model.look_ahead(Forecaster(model.layers, lookahead, backend, correction=found, renewed=renewed))
    return Build(share=share, model=model, experts=experts, lookahead=lookahead)


def pin(experts: StreamedExperts) -> None:
    """Pin all files of experts, and return when that is done."""
    mapped = experts.mapped
    if mapped is None:
        raise SystemExit("files are not pinned here: there is no NVIDIA GPU, or they are read past the page cache")
    mapped.pin(mapped.byte_count)
    mapped.finished.wait()
    if mapped.pinned_bytes < mapped.byte_count:
        raise SystemExit("the driver refused to pin a file; the log says why")


def measure(build: Build, prompts: Sequence[list[int]], *, tokens: int, rounds: int) -> None:
    """Let the automatic choice decide, then answer every prompt in each way."""
    build.lookahead.mode = "auto"
    decode(build, prompts[-1], TRIAL_PASSES + 1)
    for number in range(rounds):
        ids = prompts[number % len(prompts)]
        outputs = set()
        for way in ORDERS[number % len(ORDERS)]:
            build.lookahead.mode = WAYS[way]
            rate, traffic, output = decode(build, ids, tokens)
            build.rates[way].append(rate)
            build.traffic[way] = build.traffic[way].plus(traffic)
            outputs.add(output)
        if len(outputs) != 1:
            raise SystemExit(f"round {number}: the ids depend on the lookahead")


def decode(build: Build, ids: list[int], tokens: int) -> tuple[float, ExpertStats, tuple[int, ...]]:
    """Read a prompt and continue it greedily; return tokens a second, the pool's work, and the ids."""
    state = build.model.new_state()
    row = logits_row(build.model.forward(ids, state).logits)
    before, started = build.experts.stats, time.perf_counter()
    output = []
    for _ in range(tokens):
        output.append(int(row.argmax()))
        row = logits_row(build.model.forward(output[-1:], state, decode=True).logits)
    return tokens / (time.perf_counter() - started), build.experts.stats.since(before), tuple(output)


def judge(build: Build, tokens: int, values: dict[str, float], rows: list[tuple[str, ...]]) -> None:
    """Add the values to keep and the rows to print."""
    for way in WAYS:
        rate, traffic = statistics.median(build.rates[way]), build.traffic[way]
        used = (traffic.ahead_used + traffic.ahead_joined) / max(1, traffic.ahead_records)
        label, of_off = f"{build.share:.1%} {way}", estimate(build.of_off(way))
        values |= of_off.values(f"{label} speed_ratio")
        values |= {
            f"{label} decode_tokens_per_s": rate,
            f"{label} hit_rate": traffic.hit_rate,
            f"{label} read_bytes_per_token": traffic.bytes_read / tokens,
            f"{label} wasted_bytes_per_token": traffic.wasted_bytes / tokens,
            f"{label} wait_s_per_token": traffic.wait_s / tokens,
            f"{label} ahead_used_share": used,
        }
        rows.append(
            (
                label,
                f"{rate:.2f}",
                of_off.shown(3),
                f"{traffic.hit_rate:.1%}",
                f"{traffic.bytes_read / tokens / 1e6:.2f}",
                f"{traffic.wasted_bytes / tokens / 1e6:.2f}",
                f"{1e3 * traffic.wait_s / tokens:.1f}",
                f"{used:.1%}",
            )
        )
    values[f"{build.share:.1%} chosen"] = float(build.lookahead.verdicts.get(1) is True)


if __name__ == "__main__":
    main()
