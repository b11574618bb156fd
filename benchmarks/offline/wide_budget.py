"""A checkpoint with the published widths under a pool of a tenth of its experts: does the process stay in its plan?

Writes a synthetic checkpoint (random weights, published layer widths, all 512 experts a layer), plans it with slots for
the given share of its expert bytes, generates, and compares the process's lifetime peak with the plan's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.demo import Records, write_records
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.checkpoint.synthesis import PUBLISHED, write_synthetic
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.testing import write_tokenizer
from slotstream_planner import ModelGeometry
from slotstream_planner.moved import MOVED_NAME

WIDE_LAYERS = 4
"""Of a wide checkpoint unless a command line says otherwise; results of others have names of their own."""

SMALLER = {"vocab_size": 32_000, "ngram_vocab_size_base": 20_000, "eos_token_id": 256}
"""What is not of the published size: vocabulary and n-gram table."""

CHILD = """
import json, sys
from slotstream_core import Finished, SamplingParams, load
from slotstream_core.memory import footprint
from slotstream_planner import PlanRequest
with load(sys.argv[1], request=PlanRequest(pool_gb=float(sys.argv[2]), max_context=4096)) as engine:
    after_load = footprint().current_bytes
    *_, last = engine.generate(list(range(300, 300 + int(sys.argv[3]))), sampling=SamplingParams(seed=1),
                               max_tokens=int(sys.argv[4]))
    assert isinstance(last, Finished)
    print(*engine.plan.ledger.lines, sep="\\n", file=sys.stderr)
    print(json.dumps({
        "plan_peak_bytes": engine.plan.expected_peak_bytes, "pool_bytes": engine.plan.pool_bytes,
        "peak_bytes": footprint().peak_bytes, "loaded_bytes": after_load,
        "prefill_s": last.timings.prefill_s, "decode_s": last.timings.decode_s,
        "tokens": last.usage.completion_tokens, "misses": last.experts.misses, "hits": last.experts.hits,
        "read_bytes": last.experts.bytes_read}))
"""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.1, help="of the expert bytes, in slots")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--directory", type=Path, help="where to write (default: the temporary directory)")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        model = Path(temporary) / "wide"
        write_synthetic(model, widths(options.layers), 0, bits=4)
        write_tokenizer(model)
        geometry = ModelGeometry.from_checkpoint(model, compute="float32")
        pool_gb = geometry.total_experts * geometry.slot_bytes * options.share / 1e9
        arguments = [str(model), str(pool_gb), str(options.prompt), str(options.tokens)]
        child = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    values = json.loads(child.stdout)
    values["peak_of_plan"] = values["peak_bytes"] / values["plan_peak_bytes"]
    values["decode_tokens_per_s"] = (values["tokens"] - 1) / values["decode_s"]
    rows = [(name, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}") for name, value in values.items()]
    report(
        BenchmarkResult(
            benchmark="wide_budget",
            settings={"layers": options.layers, "share": options.share, "prompt": options.prompt},
            values=values,
        ),
        table=format_table(("value", "measured"), rows),
        record=options.record,
    )


def wide_checkpoint(opened: ExitStack, layers: int, parent: Path | None, *, records: Records = "none") -> Path:
    """Write a checkpoint of the published widths, with a tokenizer, that goes when `opened` closes.

    Its experts may be written as records, too: beside the stacked tensors, or in their place, for a disk that cannot
    hold both.
    """
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=parent))) / "wide"
    write_synthetic(directory, widths(layers), 0, bits=4)
    write_tokenizer(directory)
    write_records(directory, records)
    return directory


def layout_read(layout: ExpertLayout) -> str:
    """Return where experts are read, for a result: "stacked" tensors, "repacked" beside them, or "moved" records."""
    if not layout.repacked:
        return "stacked"
    return "moved" if all(path.parent.name == MOVED_NAME for path in layout.paths) else "repacked"


def add_layers(parser: argparse.ArgumentParser, *, default: int | None = WIDE_LAYERS) -> None:
    """Let a command line say how many layers a wide checkpoint has and where its experts lie."""
    parser.add_argument(
        "--layers", type=int, default=default, help="of a wide checkpoint, 1.5 GB each on disk and in slots"
    )
    records = parser.add_mutually_exclusive_group()
    records.add_argument(
        "--repacked",
        dest="records",
        action="store_const",
        const="beside",
        default="none",
        help="write its experts as records, too (as much disk again)",
    )
    records.add_argument(
        "--moved",
        dest="records",
        action="store_const",
        const="instead",
        help="write them as records in place of the stacked tensors (a fifth of the disk again, and not for long)",
    )


def widths(layers: int) -> dict[str, Any]:
    """Return the settings of a checkpoint with this many layers, every fourth of them full attention."""
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)]
    return {**PUBLISHED, **SMALLER, "num_hidden_layers": layers, "layer_types": kinds}


if __name__ == "__main__":
    main()
