"""The first tokens after a start: a cold pool, one filled while the model waited for its first request, and in between.

Runs that answer some prompts leave a file of uses; then fresh engines answer other prompts greedily, in rotating order:
without that file, asked at once with it, and asked when the pool has been filled.  The checkpoint's files are dropped
from the page cache before every start.  The ids must be equal.  Reported are medians over the rounds, and medians of
each round's ratios to the cold start, with a bootstrap interval of 95%: of the first text, which must not come later,
and of the whole reply.

A cold start is slower by what its misses cost, which is next to nothing where the page cache still has them, so
`--direct` reads experts past it, as the engine does by itself when they are larger than memory.  `--layers` takes a
synthetic checkpoint of the published widths, whose records are a hundred times the demo's.

    python -m benchmarks.offline.warm_start [--model DIR | --layers N [--directory DIR]] [--direct] [--share 0.25]
        [--learn 8] [--prompt 250] [--tokens 50] [--rounds 12] [--record]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.demo import demo_directory
from benchmarks.offline.wide_budget import wide_checkpoint
from benchmarks.pairing import estimate
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.diagnostics.prompts import PROMPTS
from slotstream_core.engine import Engine
from slotstream_core.events import Finished, TextDelta, ThinkingDelta
from slotstream_core.experts.probing import AccessSwitch
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.loading import load_model
from slotstream_core.options import EngineOptions
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest

Mode = Literal["cold", "at_once", "filled"]
MODES: tuple[Mode, ...] = ("cold", "at_once", "filled")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One first reply: until its first text, until its last token, and what it read."""

    first_s: float
    all_s: float
    ids: tuple[int, ...]
    stats: ExpertStats


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    parser.add_argument("--layers", type=int, help="of a synthetic checkpoint of the published widths instead")
    parser.add_argument("--directory", type=Path, help="where to write that (default: the temporary directory)")
    parser.add_argument("--share", type=float, default=0.25, help="of the experts, in slots")
    parser.add_argument("--prompt", type=int, default=250, help="most tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--learn", type=int, default=len(PROMPTS), help="most prompts of the runs before")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--direct", action="store_true", help="read experts past the page cache")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with ExitStack() as opened:
        if options.layers:
            directory = wide_checkpoint(opened, options.layers, options.directory)
        else:
            directory = options.model or demo_directory()
        measure(directory, options)


def measure(directory: Path, options: argparse.Namespace) -> None:
    """Compare the three starts with one checkpoint and report."""
    with Checkpoint.open(directory) as checkpoint:
        per_layer = max(1, round(options.share * checkpoint.config.num_experts))
    request = PlanRequest(experts_per_layer=per_layer)
    access: AccessSwitch = "direct" if options.direct else "auto"
    learnt, asked = PROMPTS[::2][: options.learn], PROMPTS[1::2]
    measured: dict[Mode, list[Measured]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as warm:
        ask = partial(
            answer,
            directory,
            request,
            prompt_tokens=options.prompt,
            tokens=options.tokens,
            warm=Path(warm),
            access=access,
        )
        for prompt in learnt:
            ask(prompt, mode="at_once")
        kept = {path: path.read_bytes() for path in Path(warm).iterdir()}
        for number in range(options.rounds):
            prompt = asked[number % len(asked)]
            for place in range(len(MODES)):
                mode = MODES[(place + number) % len(MODES)]
                for path, content in kept.items():
                    path.write_bytes(content)
                measured[mode].append(ask(prompt, mode=mode))
            if len({measured[mode][-1].ids for mode in MODES}) != 1:
                raise SystemExit("the three starts made different ids")
    values: dict[str, float] = {}
    rows = []
    for mode, results in measured.items():
        line = {
            "first_s": statistics.median(result.first_s for result in results),
            "all_s": statistics.median(result.all_s for result in results),
            "wait_s": statistics.median(result.stats.wait_s for result in results),
            "misses": statistics.median(result.stats.misses for result in results),
            "warmed": statistics.median(result.stats.warmed for result in results),
            "warm_used": statistics.median(result.stats.warm_used for result in results),
        }
        values |= {f"{mode}_{name}": value for name, value in line.items()}
        pairs = list(zip(results, measured["cold"], strict=True))
        first = estimate([cold.first_s / own.first_s for own, cold in pairs])
        whole = estimate([cold.all_s / own.all_s for own, cold in pairs])
        values |= first.values(f"{mode}_first_over_cold_ratio") | whole.values(f"{mode}_all_over_cold_ratio")
        counts = [f"{line[name]:.0f}" for name in ("misses", "warmed", "warm_used")]
        times = [f"{line[name]:.3f}" for name in ("first_s", "all_s", "wait_s")]
        rows.append((mode, *times, *counts, first.shown(2), whole.shown(2)))
    settings = {
        "model": directory.name,
        "layers": options.layers or "all",
        "share": options.share,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "learn": options.learn,
        "rounds": options.rounds,
        "access": access,
    }
    report(
        BenchmarkResult(benchmark="warm-start", settings=settings, values=values),
        table=format_table(
            ("start", "first s", "all s", "waiting s", "misses", "brought", "of use", "first, times sooner", "all"),
            rows,
        ),
        record=options.record,
    )


def answer(
    directory: Path,
    request: PlanRequest,
    prompt: str,
    *,
    prompt_tokens: int,
    tokens: int,
    warm: Path,
    mode: Mode,
    access: AccessSwitch,
) -> Measured:
    """Start an engine and measure its first reply."""
    forget_files(directory)
    options = replace(EngineOptions.from_environment(os.environ), warm_start="on", access=access)
    loaded = load_model(directory, request=request, options=options, warm_directory=None if mode == "cold" else warm)
    tokenizer = Tokenizer.from_directory(
        directory, vocabulary=loaded.checkpoint.config.vocab_size, eos_ids=loaded.checkpoint.config.eos_token_ids
    )
    with Engine(loaded, tokenizer=tokenizer, template=ChatTemplate.from_directory(directory)) as engine:
        ids = engine.chat_ids(prompt)[-prompt_tokens:]
        if mode == "filled":
            loaded.experts.finish_warming()
        started, first_s, last = time.perf_counter(), 0.0, None
        for event in engine.generate(ids, sampling=GREEDY, max_tokens=tokens):
            if not first_s and isinstance(event, TextDelta | ThinkingDelta):
                first_s = time.perf_counter() - started
            last = event
        all_s = time.perf_counter() - started
        first_s = first_s or all_s  # tokens of random weights need not be text
        if not isinstance(last, Finished):
            raise SystemExit("the reply did not end")
        return Measured(first_s=first_s, all_s=all_s, ids=last.token_ids, stats=loaded.experts.stats)


def forget_files(directory: Path) -> None:
    """Ask the system to drop a checkpoint's weights from its page cache, where it can be asked."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in directory.glob("*.safetensors"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
