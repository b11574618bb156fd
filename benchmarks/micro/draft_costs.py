"""What does a pass of several rows cost next to a pass of one, and what does a draft?

Everything is resident, so this is the computing alone. Minimum and median over the rounds, which mix all sizes; the
tokens are drawn anew for every pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.loading import load_model
from slotstream_core.models.base import DraftingModel
from slotstream_core.state.sequence import SequenceState
from slotstream_planner import PlanRequest

ROWS = (1, 2, 3, 5, 7)
DRAFTS = (1, 2, 4)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a draft head (default: the demo)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--prompt", type=int, default=64, help="tokens read before")
    parser.add_argument("--experts-per-layer", type=int, default=64, help="all of them, so that nothing is read")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    request = PlanRequest(
        experts_per_layer=options.experts_per_layer, mtp="on", mtp_experts="resident", lookahead="off"
    )
    with load_model(options.model or demo_directory(), request=request) as loaded:
        times = measure(loaded.model, prompt=options.prompt, rounds=options.rounds)
    plain = min(times["pass of 1"])
    rows = [
        (name, f"{1e3 * min(each):.2f}", f"{1e3 * statistics.median(each):.2f}", f"{min(each) / plain:.2f}")
        for name, each in times.items()
    ]
    values = {f"{name} least_s": min(each) for name, each in times.items()}
    values |= {f"{name} median_s": statistics.median(each) for name, each in times.items()}
    report(
        BenchmarkResult(
            benchmark="draft_costs", settings={"rounds": options.rounds, "prompt": options.prompt}, values=values
        ),
        table=format_table(("what", "least ms", "median ms", "of a plain pass"), rows),
        record=options.record,
    )


def measure(model: DraftingModel, *, prompt: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every pass and every drafting by what it was; the first round is dropped."""
    rng = np.random.default_rng(0)
    state = model.new_state()
    model.forward(rng.integers(300, 4000, prompt), state)
    times: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[SequenceState], object]) -> None:
        fork = state.fork()
        verify(model, fork, rng.integers(300, 4000, 1))  # a fork's first pass copies what it shares
        model.draft(fork, 5, 1)
        started = time.perf_counter()
        work(fork)
        times.setdefault(name, []).append(time.perf_counter() - started)

    for _ in range(rounds + 1):
        for count in ROWS:
            ids = rng.integers(300, 4000, count)
            timed(f"pass of {count}", lambda fork, ids=ids: verify(model, fork, ids))  # type: ignore[misc]
        for depth in DRAFTS:
            timed(f"drafting {depth}", lambda fork, depth=depth: model.draft(fork, 5, depth))  # type: ignore[misc]
    return {name: each[1:] for name, each in times.items()}


def verify(model: DraftingModel, state: SequenceState, ids: np.ndarray) -> None:
    """Run one pass as speculative decoding does, or a plain one."""
    np.array(model.forward(ids, state, logits="all", record=len(ids) > 1, decode=True).logits)


if __name__ == "__main__":
    main()
