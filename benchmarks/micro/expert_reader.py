"""Read throughput of the expert reader against parallel `pread` alone, on one file, in one run.

A file with the published model's expert records (nine pieces, 2,764,800 bytes) is written once. Each round draws a
random order of experts, drops the file from the page cache before every measurement, and reads the same pieces of the
same experts in six ways, through the page cache and past it:

- pread: as many bare threads as the reader has lanes `pread` each piece into memory of the size of the pool and do
  nothing else (past the cache: the whole blocks around it);
- recycled pread: the same into one small buffer a thread, which stays in the processor's cache;
- reader: requests of 32 records, two under way, as a prompt uses it; and of 10, one at a time, as a token's layer does.

The order of the measurements rotates, and medians over the rounds are compared. The reader also converts scales and
biases to float32 and checks that they are finite.

A second part compares the reader's two kinds of lanes, compiled and Python's, in turn: for these records from the page
cache and past it, and for cached records of the demo model's size, one request at a time as a token's layer asks.
It also reports the processor time of all threads that a record takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.experts.layout import (
    PARTS,
    ExpertLayout,
    Part,
    PieceDtype,
    PieceKind,
    Projection,
    Quantization,
    StoredPiece,
)
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.mirrors import MirroredExperts, choose_directories
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader, choose_lanes
from slotstream_core.experts.sources import ExpertSource, StoredExperts

HIDDEN, INTERMEDIATE, GROUP = 2560, 640, 64
LAYERS = 2
PROMPT_RECORDS, DECODE_RECORDS = 32, 10
SMALL_HIDDEN, SMALL_INTERMEDIATE, SMALL_RECORDS = 256, 64, 4
"""Widths of the demo model's experts, and how many of them a layer misses at a time."""


@dataclass(frozen=True, kw_only=True)
class LaneCase:
    """What both kinds of lanes read.

    Attributes:
        name: For the table.
        layout: The records.
        direct: Whether past the page cache, where they are otherwise.
        at_once: Records of a request.
        record_count: Of one measurement.
        directories: That the records lie in: the one file, opened so many times.
    """

    name: str
    layout: ExpertLayout
    direct: bool
    at_once: int
    record_count: int
    directories: int = 1


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where to write the file (default: the temporary directory)")
    parser.add_argument("--experts", type=int, default=256, help="experts a layer; two layers (default 256: 1.4 GB)")
    parser.add_argument("--records", type=int, default=160, help="records read per measurement (default 160: 442 MB)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1)
    small_widths = {"hidden": SMALL_HIDDEN, "intermediate": SMALL_INTERMEDIATE}
    with (
        stored_experts(options.directory, options.experts) as layout,
        stored_experts(options.directory, options.experts, **small_widths) as small,
    ):
        rates = measure(layout, lanes=lanes, record_count=options.records, rounds=options.rounds)
        count = min(options.records // 2, layout.record_count)
        few, all_small = (SMALL_RECORDS, small.record_count)
        cases = [
            LaneCase(name="wide", layout=layout, direct=False, at_once=DECODE_RECORDS, record_count=count),
            LaneCase(name="wide direct", layout=layout, direct=True, at_once=DECODE_RECORDS, record_count=count),
            LaneCase(name="small", layout=small, direct=False, at_once=few, record_count=all_small),
            LaneCase(
                name="wide mirrored",
                layout=layout,
                direct=True,
                at_once=DECODE_RECORDS,
                record_count=count,
                directories=2,
            ),
            LaneCase(
                name="small mirrored", layout=small, direct=False, at_once=few, record_count=all_small, directories=2
            ),
        ]
        lane_values, lane_rows = compare_lanes(cases, lanes=lanes, rounds=options.rounds)
    median = {name: statistics.median(values) for name, values in rates.items()}
    rows = [
        [name, f"{median[name] / 1e6:,.0f}", f"{min(values) / 1e6:,.0f}", f"{max(values) / 1e6:,.0f}"]
        for name, values in rates.items()
    ]
    ratios = {
        "ratio": median["reader"] / median["pread"],
        "decode_ratio": median["reader by 10"] / median["pread by 10"],
        "recycled_ratio": median["reader"] / median["recycled pread"],
        "direct_ratio": median["direct reader"] / median["direct pread"],
        "direct_to_cached_ratio": median["direct reader"] / median["pread"],
    }
    summary = ", ".join(f"{name} {value:.0%}" for name, value in ratios.items())
    values = {f"{name.replace(' ', '_')}_bytes_per_s": round(value) for name, value in median.items()}
    report(
        BenchmarkResult(
            benchmark="expert_reader",
            settings={
                "lanes": lanes,
                "records": options.records,
                "rounds": options.rounds,
                "record_bytes": layout.record_bytes,
            },
            values={**values, **{name: round(value, 3) for name, value in ratios.items()}, **lane_values},
        ),
        table="\n".join(
            [
                format_table(["cold reads", "median MB/s", "min", "max"], rows),
                summary,
                format_table(["records", "lanes", "median MB/s", "processor us a record"], lane_rows),
            ]
        ),
        record=options.record,
    )


def measure(layout: ExpertLayout, *, lanes: int, record_count: int, rounds: int) -> dict[str, list[float]]:
    """Return bytes per second of each way to read, one value a round."""
    byte_count = record_count * layout.record_bytes
    rates: dict[str, list[float]] = {}
    cached = StoredExperts(layout)
    with (
        StoredExperts(layout, direct=True) as direct,
        ExpertReader(cached, lane_count=lanes) as reader,
        ExpertReader(direct, lane_count=lanes) as direct_reader,
    ):
        prompt = SlotPool(reader, slot_count=2 * PROMPT_RECORDS)
        direct_prompt = SlotPool(direct_reader, slot_count=2 * PROMPT_RECORDS)
        decode = SlotPool(reader, slot_count=DECODE_RECORDS)
        memory = np.zeros(prompt.slot_count * layout.record_bytes, np.uint8).data
        memory[:] = bytes(len(memory))  # touched before the clock starts, as slots are
        small = memory[: lanes * (2 << 20)]
        for turn in range(rounds):
            order = np.random.default_rng(turn).permutation(layout.record_count)[:record_count].tolist()
            records = [divmod(number, layout.expert_count) for number in order]
            ways: dict[str, Callable[[], float]] = {
                "pread": partial(with_threads, cached, records, memory, lanes, record_count),
                "recycled pread": partial(with_threads, cached, records, small, lanes, record_count),
                "reader": partial(with_reader, prompt, records, PROMPT_RECORDS),
                "pread by 10": partial(with_threads, cached, records, memory, lanes, DECODE_RECORDS),
                "reader by 10": partial(with_reader, decode, records, DECODE_RECORDS),
                "direct pread": partial(with_threads, direct, records, small, lanes, record_count),
                "direct reader": partial(with_reader, direct_prompt, records, PROMPT_RECORDS),
            }
            names = list(ways)
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                drop_cache(layout)
                rates.setdefault(name, []).append(byte_count / ways[name]())
    return {name: rates[name] for name in ways}


def compare_lanes(
    cases: Sequence[LaneCase], *, lanes: int, rounds: int
) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """Read every case with both kinds of lanes in turn; return the values to keep and the rows to print."""
    values: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    for case in cases:
        costs: dict[str, list[tuple[float, float]]] = {}
        with ExitStack() as opened:
            pools: dict[str, SlotPool] = {}
            for native in (True, False):
                source = lane_source(case, opened, native=native)
                reader = opened.enter_context(ExpertReader(source, lane_count=lanes, native=native))
                pools["compiled" if reader.compiled else "python"] = SlotPool(reader, slot_count=case.at_once)
            for turn in range(rounds + 1):
                order = np.random.default_rng(turn).permutation(case.layout.record_count)[: case.record_count].tolist()
                records = [divmod(number, case.layout.expert_count) for number in order]
                for name in sorted(pools, reverse=bool(turn % 2)):
                    processor_s = time.process_time()
                    seconds = with_reader(pools[name], records, case.at_once)
                    processor_s = time.process_time() - processor_s
                    if turn:  # the first brings the file into the page cache
                        costs.setdefault(name, []).append((seconds, processor_s))
        for name, measured in costs.items():
            rate = case.record_count * case.layout.record_bytes / statistics.median(wall for wall, _ in measured)
            processor_us = statistics.median(processor for _, processor in measured) / case.record_count * 1e6
            key = f"{name}_{case.name}".replace(" ", "_")
            values |= {f"{key}_bytes_per_s": round(rate), f"{key}_processor_us": round(processor_us, 1)}
            rows.append((case.name, name, f"{rate / 1e6:,.0f}", f"{processor_us:,.0f}"))
    return values, rows


def lane_source(case: LaneCase, opened: ExitStack, *, native: bool) -> ExpertSource:
    """Open what both kinds of lanes read; where it is mirrored, each kind with its own way to choose."""
    sources = [opened.enter_context(StoredExperts(case.layout, direct=case.direct)) for _ in range(case.directories)]
    if len(sources) == 1:
        return sources[0]
    names = [Path(str(number)) for number in range(len(sources))]
    chooser = choose_directories(len(sources), {"SLOTSTREAM_NATIVE": "1" if native else "0"})
    return MirroredExperts(sources, names, chooser=chooser)


def with_threads(
    source: StoredExperts, records: Sequence[tuple[int, int]], memory: memoryview, lanes: int, batch: int
) -> float:
    """Read pieces with bare threads, in batches that all threads finish before the next; return the seconds.

    Each thread walks through its own share of `memory`, page by page aligned, and starts over at its end.
    """
    kinds, block = source.layout.kinds, source.alignment
    share = len(memory) // lanes // 4096 * 4096
    first = -np.frombuffer(memory, np.uint8).ctypes.data % 4096
    reads = [
        sorted(
            (
                (fd, offset // block * block, -(-(offset % block + kind.disk_bytes) // block) * block)
                for layer, expert in records[start : start + batch]
                for (fd, offset), kind in zip(source.locate(layer, expert), kinds, strict=True)
            ),
            key=lambda read: -read[2],
        )
        for start in range(0, len(records), batch)
    ]
    barrier = threading.Barrier(lanes + 1)

    def work(lane: int) -> None:
        place = 0
        for group in reads:
            barrier.wait()
            for fd, offset, size in group[lane::lanes]:
                if place + size > share - 4096:
                    place = 0
                begin = first + lane * share + place
                os.preadv(fd, [memory[begin : begin + size]], offset)
                place += -(-size // 4096) * 4096
            barrier.wait()

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    for _ in reads:
        barrier.wait()
        barrier.wait()
    elapsed = time.perf_counter() - started
    for thread in threads:
        thread.join()
    return elapsed


def with_reader(pool: SlotPool, records: Sequence[tuple[int, int]], batch: int) -> float:
    """Request records layer by layer, as many requests at once as the pool has room for; return the seconds."""
    by_layer = sorted(records, key=lambda record: record[0])
    pool.forget()
    under_way = pool.slot_count // batch
    started = time.perf_counter()
    leases: list[PoolLease] = []
    for layer in range(pool.layout.layer_count):
        experts = [expert for owner, expert in by_layer if owner == layer]
        for start in range(0, len(experts), batch):
            leases.append(pool.request(layer, experts[start : start + batch]))
            if len(leases) == under_way:
                oldest = leases.pop(0)
                oldest.wait()
                oldest.release()
    for lease in leases:
        lease.wait()
        lease.release()
    return time.perf_counter() - started


def drop_cache(layout: ExpertLayout) -> None:
    """Make the next reads come from the disk."""
    for path in layout.paths:
        with path.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def stored_experts(
    directory: Path | None, expert_count: int, *, hidden: int = HIDDEN, intermediate: int = INTERMEDIATE
) -> Iterator[ExpertLayout]:
    """Write a file of records, of the published widths by default, of random bytes whose floats are finite."""
    kinds: list[PieceKind] = []
    for projection in ("gate", "up", "down"):
        rows, columns = (hidden, intermediate) if projection == "down" else (intermediate, hidden)
        kinds.append(_kind(projection, "weight", (rows, columns // 8), "U32"))
        kinds += [_kind(projection, part, (rows, columns // GROUP), "BF16") for part in PARTS[1:]]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = Path(folder) / "experts.bin"
        starts: list[list[int]] = []
        with path.open("wb") as out:
            for _ in range(LAYERS):
                starts.append([])
                for kind in kinds:
                    starts[-1].append(out.tell())
                    for _ in range(expert_count):
                        data = random.integers(0, 256, kind.disk_bytes, dtype=np.uint8)
                        if kind.part != "weight":
                            data.view("<u2")[:] &= 0x3FFF
                        out.write(data.tobytes())
            out.flush()
            os.fsync(out.fileno())
        yield ExpertLayout(
            kinds=tuple(kinds),
            layers=tuple(
                tuple(
                    StoredPiece(tensor=kind.name, path=path, offset=start)
                    for kind, start in zip(kinds, layer, strict=True)
                )
                for layer in starts
            ),
            expert_count=expert_count,
            quantization=dict.fromkeys(("gate", "up", "down"), Quantization(bits=4, group_size=GROUP)),
        )


def _kind(projection: Projection, part: Part, shape: tuple[int, ...], dtype: PieceDtype) -> PieceKind:
    return PieceKind(
        projection=projection, part=part, shape=shape, disk_dtype=dtype, slot_dtype="F32" if dtype == "BF16" else dtype
    )


if __name__ == "__main__":
    main()
