"""Stacked tensors against repacked records: reads, processor time and throughput of an expert, and the same reply.

A synthetic checkpoint with the published widths is written and repacked once. Each round draws a random order of
experts and reads the same ones in six ways, in turns: from either layout, past the page cache, through it when it is
cold, and through it when it is warm. Requests are of ten records, one at a time, as one token's layer asks for them.
Reads are counted by the kernel where it does so (/proc/self/io). Then both layouts answer one prompt from a small pool.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.micro.expert_reader import drop_cache, with_reader
from benchmarks.offline.wide_budget import widths
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import Finished, SamplingParams, load
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.packed import find_repacked
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader, choose_lanes
from slotstream_core.experts.repacking import repack_checkpoint, stacked_layouts
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.options import RECORDS_VARIABLE
from slotstream_core.testing import write_tokenizer
from slotstream_planner import PlanRequest

REQUEST = 10


@dataclass
class Measured:
    """What one way of reading took, one value a round."""

    bytes_per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=64, help="experts a layer (default 64: 0.7 GB in four layers)")
    parser.add_argument("--records", type=int, default=120, help="records read per measurement (default 120: 332 MB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=12, help="tokens of the replies that are compared")
    parser.add_argument("--directory", type=Path, help="where to write (default: the temporary directory)")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as temporary:
        model = Path(temporary) / "wide"
        write_synthetic(model, {**widths(options.layers), "num_experts": options.experts}, 0, bits=4)
        write_tokenizer(model)
        started = time.perf_counter()
        repacked = repack_checkpoint(model)
        repack_s = time.perf_counter() - started
        measured = measure(model, record_count=options.records, rounds=options.rounds)
        ids_equal, decode_s = compare_replies(model, tokens=options.tokens)
    values: dict[str, int | float] = {
        "repack_bytes_per_s": round(repacked.total_bytes / repack_s),
        "ids_equal": int(ids_equal),
        **{f"{name}_decode_s": round(seconds, 3) for name, seconds in decode_s.items()},
    }
    rows = []
    for name, way in measured.items():
        rate, cpu_us, reads = (statistics.median(each) for each in (way.bytes_per_s, way.cpu_us, way.reads))
        key = name.replace(" ", "_")
        values |= {f"{key}_bytes_per_s": round(rate), f"{key}_cpu_us": round(cpu_us), f"{key}_reads": round(reads, 2)}
        rows.append([name, f"{reads:.1f}", f"{cpu_us:,.0f}", f"{rate / 1e6:,.0f}"])
    footer = f"repacked at {values['repack_bytes_per_s'] / 1e6:,.0f} MB/s, ids equal: {ids_equal}, decode {decode_s}"
    report(
        BenchmarkResult(
            benchmark="layouts",
            settings={"layers": options.layers, "experts": options.experts, "records": options.records},
            values=values,
        ),
        table=format_table(["layout", "reads an expert", "processor us", "median MB/s"], rows) + f"\n{footer}",
        record=options.record,
    )


def measure(model: Path, *, record_count: int, rounds: int) -> dict[str, Measured]:
    """Read the same records in every way; return what each took."""
    lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1)
    with Checkpoint.open(model) as checkpoint:
        stacked = stacked_layouts(checkpoint)["trunk"]
        repacked = find_repacked(model, stacked, "trunk")
        assert repacked is not None
        layouts: dict[str, ExpertLayout] = {"stacked": stacked, "repacked": repacked}
        ways: dict[str, Callable[[list[tuple[int, int]]], tuple[float, float, int]]] = {}
        for name, layout in layouts.items():
            for how in ("direct", "cold", "warm"):
                reader = ExpertReader(StoredExperts(layout, direct=how == "direct"), lane_count=lanes)
                ways[f"{name} {how}"] = partial(_read, SlotPool(reader, slot_count=REQUEST), layout, warm=how == "warm")
        measured = {name: Measured() for name in ways}
        names = list(ways)
        for turn in range(rounds):
            order = np.random.default_rng(turn).permutation(stacked.record_count)[:record_count].tolist()
            records = [divmod(number, stacked.expert_count) for number in order]
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                seconds, cpu_s, reads = ways[name](records)
                measured[name].bytes_per_s.append(record_count * stacked.record_bytes / seconds)
                measured[name].cpu_us.append(cpu_s / record_count * 1e6)
                measured[name].reads.append(reads / record_count)
    return measured


def _read(
    pool: SlotPool, layout: ExpertLayout, records: list[tuple[int, int]], *, warm: bool
) -> tuple[float, float, int]:
    if warm:
        with_reader(pool, records, REQUEST)
    else:
        drop_cache(layout)
    reads, cpu_s = _read_calls(), time.process_time()
    seconds = with_reader(pool, records, REQUEST)
    return seconds, time.process_time() - cpu_s, _read_calls() - reads


def _read_calls() -> int:
    """Reads this process asked the kernel for so far; 0 where that is not counted."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("syscr"))


def compare_replies(model: Path, *, tokens: int) -> tuple[bool, dict[str, float]]:
    """Answer one prompt from either layout, twice in turns; say whether ids are equal and the faster decode of each."""
    ids: set[tuple[int, ...]] = set()
    decode_s: dict[str, float] = {}
    earlier = os.environ.pop(RECORDS_VARIABLE, None)
    for switch in ("0", "1", "1", "0"):
        os.environ[RECORDS_VARIABLE] = switch
        with load(model, request=PlanRequest(experts_per_layer=24, max_context=1024, lookahead="off")) as engine:
            prompt = list(range(300, 332))
            *_, last = engine.generate(prompt, sampling=SamplingParams(seed=1), max_tokens=tokens)
            assert isinstance(last, Finished)
            ids.add(tuple(last.token_ids))
            name = engine.reading.layout
            decode_s[name] = min(last.timings.decode_s, decode_s.get(name, float("inf")))
    os.environ.pop(RECORDS_VARIABLE)
    if earlier is not None:
        os.environ[RECORDS_VARIABLE] = earlier
    return len(ids) == 1 and set(decode_s) == {"stacked", "repacked"}, decode_s


if __name__ == "__main__":
    main()
