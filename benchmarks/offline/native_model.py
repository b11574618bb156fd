"""What do compiled layers bring to the demo model, and how far is a wide model from its bound?

Two processes hold the demo model with every expert in memory, one with the compiled layers and one with MLX's
(`SLOTSTREAM_NATIVE=0`), and take turns, so that a busy neighbour slows both. With `--wide` a synthetic checkpoint with
the published widths is decoded three times: with every expert in slots, which gives the time of the computation alone,
and streamed through a share of them from past the page cache, without reading ahead and with it; `--repacked` and
`--moved` let experts be read as records. The bound of a token
is the larger of that time and its missed bytes over the bandwidth that the pool's own requests reach when nothing is
computed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.demo import demo_directory
from benchmarks.offline.wide_budget import WIDE_LAYERS, add_layers, wide_checkpoint
from benchmarks.recording import BenchmarkResult, format_table, report

PROMPT_TOKENS = 512

DEMO_CHILD = """
import json, sys, time
from pathlib import Path
import slotstream_core
import numpy as np
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertLayout, ResidentExperts, StoredExperts
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
directory, prompt, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
backend = Backend.detect()
with Checkpoint.open(directory) as checkpoint:
    layout = ExpertLayout.from_checkpoint(checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name)
    with Qwen4ExpModel(checkpoint, ResidentExperts(StoredExperts(layout), lane_count=2), backend) as model:
        print("ready", flush=True)
        for _ in sys.stdin:
            state = model.new_state()
            started = time.perf_counter()
            np.array(model.forward(np.arange(prompt) % 500 + 300, state).logits)
            read = time.perf_counter()
            for token in range(tokens):
                np.array(model.forward([300 + token], state).logits)
            decoded = time.perf_counter()
            print(json.dumps({"prefill_s": read - started, "decode_s": decoded - read}), flush=True)
"""

WIDE_CHILD = """
import json, sys, time
from pathlib import Path
import slotstream_core
import numpy as np
from benchmarks.offline.wide_budget import layout_read
from slotstream_core.loading import load_model
from slotstream_core.options import EngineOptions
from slotstream_planner import PlanRequest
directory, pool_gb, tokens, lookahead = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
request = PlanRequest(pool_gb=pool_gb, max_context=4096, lookahead=lookahead, prefix_cache="off")
options = EngineOptions(access="direct")
with load_model(directory, request=request, options=options) as loaded:
    pool, layout = loaded.experts.pool, loaded.experts.layout
    everything = pool.slot_count >= layout.record_count
    if everything:
        loaded.experts.load_all()
    state = loaded.model.new_state()
    draw = np.random.default_rng(0)
    for token in draw.integers(300, 30_000, 8):
        np.array(loaded.model.forward([int(token)], state, decode=True).logits)
    before, processor = pool.stats, time.process_time()
    started = time.perf_counter()
    for token in draw.integers(300, 30_000, tokens):
        np.array(loaded.model.forward([int(token)], state, decode=True).logits)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    done = pool.stats.since(before)
    bandwidth = 0.0
    if not everything:
        before, started = pool.stats.bytes_read, time.perf_counter()
        for request in range(100):
            experts = draw.choice(layout.expert_count, 10, replace=False).tolist()
            lease = pool.request(request % layout.layer_count, experts)
            lease.wait()
            lease.release()
        bandwidth = (pool.stats.bytes_read - before) / (time.perf_counter() - started)
    print(json.dumps({"token_s": seconds / tokens, "processor_s": processor / tokens, "wait_s": done.wait_s / tokens,
                      "read_bytes": done.bytes_read / tokens, "bandwidth_bytes_per_s": bandwidth,
                      "layout": layout_read(layout)}))
"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--wide", action="store_true", help="also decode a wide checkpoint (6 GB of disk and memory)")
    add_layers(parser)
    parser.add_argument("--share", type=float, default=0.25, help="of the wide model's experts, in slots")
    parser.add_argument("--directory", type=Path, help="where to write it (default: the temporary directory)")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    values = measure_demo(options.rounds, options.tokens)
    settings: dict[str, int | float | str] = {
        "rounds": options.rounds,
        "tokens": options.tokens,
        "prompt": PROMPT_TOKENS,
    }
    if options.wide:
        found, settings["wide_layout"] = measure_wide(options)
        values |= found
    rows = [(name, f"{value:,.3f}" if value < 100 else f"{value:,.0f}") for name, value in values.items()]
    report(
        BenchmarkResult(
            benchmark="native_model" if options.layers == WIDE_LAYERS else f"native_model_wide{options.layers}",
            settings=settings,
            values=values,
        ),
        table=format_table(("value", "measured"), rows),
        record=options.record,
    )


def measure_demo(rounds: int, tokens: int) -> dict[str, float]:
    """Let both processes take turns; the first round warms up and is left out."""
    seconds: dict[str, list[dict[str, float]]] = {"native": [], "mlx": []}
    with _child("1", tokens) as native, _child("0", tokens) as mlx:
        for _ in range(rounds + 1):
            for name, child in (("native", native), ("mlx", mlx)):
                seconds[name].append(json.loads(_ask(child)))
    values: dict[str, float] = {}
    for name, found in seconds.items():
        values[f"{name}_prefill_tokens_per_s"] = PROMPT_TOKENS / statistics.median(r["prefill_s"] for r in found[1:])
        values[f"{name}_decode_tokens_per_s"] = tokens / statistics.median(r["decode_s"] for r in found[1:])
    for what in ("prefill", "decode"):
        values[f"{what}_ratio"] = values[f"native_{what}_tokens_per_s"] / values[f"mlx_{what}_tokens_per_s"]
    return values


def measure_wide(options: argparse.Namespace) -> tuple[dict[str, float], str]:
    """Decode the wide checkpoint with every expert in slots and with a share of them, read past the page cache.

    The latter without reading ahead and with it; the bound is made of what is missed without.  Also returns the layout
    that experts were read from.
    """
    layers, share, tokens = options.layers, options.share, options.tokens
    with ExitStack() as opened:
        model = wide_checkpoint(opened, layers, options.directory, records=options.records)
        geometry_gb = layers * 512 * 3.1e6 / 1e9
        whole = _decode_wide(model, geometry_gb, tokens, "off")
        streamed = {mode: _decode_wide(model, geometry_gb * share, tokens, mode) for mode in ("off", "on")}
    alone = streamed["off"]
    bound_s = max(whole["token_s"], alone["read_bytes"] / alone["bandwidth_bytes_per_s"])
    values = {
        "wide_share": share,
        "wide_layers": layers,
        "wide_compute_s": whole["token_s"],
        "wide_compute_processor_s": whole["processor_s"],
        "wide_missed_bytes_per_token": alone["read_bytes"],
        "wide_bandwidth_bytes_per_s": alone["bandwidth_bytes_per_s"],
        "wide_bound_s": bound_s,
    }
    for mode, found in streamed.items():
        label = "wide_streamed" if mode == "off" else "wide_ahead"
        values |= {
            f"{label}_s": found["token_s"],
            f"{label}_wait_s": found["wait_s"],
            f"{label}_processor_s": found["processor_s"],
            f"{label}_read_bytes_per_token": found["read_bytes"],
            f"{label}_share_of_bound": bound_s / found["token_s"],
        }
    return values, alone["layout"]


def _decode_wide(model: Path, pool_gb: float, tokens: int, lookahead: str) -> dict[str, Any]:
    command = [sys.executable, "-c", WIDE_CHILD, str(model), str(pool_gb), str(tokens), lookahead]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def _child(native: str, tokens: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", DEMO_CHILD, str(demo_directory()), str(PROMPT_TOKENS), str(tokens)]
    environment = {**os.environ, "SLOTSTREAM_NATIVE": native}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


if __name__ == "__main__":
    main()
