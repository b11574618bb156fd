"""Read throughput of the expert reader against parallel `pread` alone, on one file, in one run.

A file with the published model's expert records (nine pieces, 2,764,800 bytes) is written once. Each round draws a
random order of experts, drops the file from the page cache before every measurement, and reads the same experts

- with bare threads that `pread` each piece into a buffer of their own and do nothing else;
- with the reader as a prompt uses it: requests of 32 records, two under way;
- in requests of 10 records, one at a time, as one token's layer does, with bare threads and with the reader.

The order of the measurements rotates, and medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.reader import ExpertReader, StoredExperts, choose_lanes

HIDDEN, INTERMEDIATE, GROUP = 2560, 640, 64
LAYERS = 2
PROMPT_RECORDS, DECODE_RECORDS = 32, 10
TARGET = 0.8


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
    with stored_experts(options.directory, options.experts) as layout:
        rates = measure(layout, lanes=lanes, record_count=options.records, rounds=options.rounds)
    median = {name: statistics.median(values) for name, values in rates.items()}
    prompt, decode = median["reader"] / median["pread"], median["reader decode"] / median["pread decode"]
    rows = [
        [name, f"{median[name] / 1e6:,.0f}", f"{min(values) / 1e6:,.0f}", f"{max(values) / 1e6:,.0f}"]
        for name, values in rates.items()
    ]
    table = format_table(["cold reads", "median MB/s", "min", "max"], rows)
    table += f"\nreader / pread: {prompt:.0%} (must be at least {TARGET:.0%}); in requests of 10: {decode:.0%}"
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
            values={**values, "ratio": round(prompt, 3), "decode_ratio": round(decode, 3)},
        ),
        table=table,
        record=options.record,
    )


def measure(layout: ExpertLayout, *, lanes: int, record_count: int, rounds: int) -> dict[str, list[float]]:
    """Return bytes per second of each way to read, one value a round."""
    source = StoredExperts(layout)
    byte_count = record_count * layout.record_bytes
    rates: dict[str, list[float]] = {"pread": [], "reader": [], "pread decode": [], "reader decode": []}
    with ExpertReader(source, lane_count=lanes) as reader:
        for turn in range(rounds):
            order = np.random.default_rng(turn).permutation(layout.record_count)[:record_count].tolist()
            records = [divmod(number, layout.expert_count) for number in order]
            ways: dict[str, Callable[[], float]] = {
                "pread": partial(with_threads, source, records, lanes, len(records)),
                "reader": partial(with_reader, reader, records, PROMPT_RECORDS, 2),
                "pread decode": partial(with_threads, source, records, lanes, DECODE_RECORDS),
                "reader decode": partial(with_reader, reader, records, DECODE_RECORDS, 1),
            }
            names = list(ways)
            for name in names[turn % 4 :] + names[: turn % 4]:
                drop_cache(layout)
                rates[name].append(byte_count / ways[name]())
    return rates


def with_threads(source: StoredExperts, records: Sequence[tuple[int, int]], lanes: int, batch: int) -> float:
    """Read pieces with bare threads, in batches that all threads finish before the next; return the seconds."""
    kinds = source.layout.kinds
    buffers = [memoryview(bytearray(max(kind.disk_bytes for kind in kinds))) for _ in range(lanes)]
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))  # touched before the clock starts, as slots are
    reads = [
        sorted(
            (
                (fd, offset, kind.disk_bytes)
                for layer, expert in records[start : start + batch]
                for (fd, offset), kind in zip(source.locate(layer, expert), kinds, strict=True)
            ),
            key=lambda read: -read[2],
        )
        for start in range(0, len(records), batch)
    ]
    barrier = threading.Barrier(lanes + 1)

    def work(lane: int) -> None:
        for group in reads:
            barrier.wait()
            for fd, offset, size in group[lane::lanes]:
                if os.preadv(fd, [buffers[lane][:size]], offset) != size:
                    raise OSError("short read of the benchmark's own file")
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


def with_reader(reader: ExpertReader, records: Sequence[tuple[int, int]], batch: int, under_way: int) -> float:
    """Request records layer by layer through a pool just large enough; return the seconds."""
    by_layer = sorted(records, key=lambda record: record[0])
    pool = SlotPool(reader, slot_count=batch * under_way)
    started = time.perf_counter()
    leases = []
    for layer in range(reader.source.layout.layer_count):
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
    for fd in {piece.fd for layer in layout.layers for piece in layer}:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def stored_experts(directory: Path | None, expert_count: int) -> Iterator[ExpertLayout]:
    """Write a file of records of the published widths, filled with random bytes whose floats are finite."""
    kinds: list[PieceKind] = []
    for projection in ("gate", "up", "down"):
        rows, columns = (HIDDEN, INTERMEDIATE) if projection == "down" else (INTERMEDIATE, HIDDEN)
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
        with path.open("rb") as opened:
            yield ExpertLayout(
                kinds=tuple(kinds),
                layers=tuple(
                    tuple(
                        StoredPiece(tensor=kind.name, path=path, fd=opened.fileno(), offset=start)
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
