"""How fast records come from the page cache into slots on an NVIDIA GPU, as a share of what its bus copies.

A file with the published model's expert records is written once and stays in the page cache. Its bytes are read as
stacked tensors, nine pieces a record, and as records of their own, one read each, by lanes and from the pinned file,
in turns: all of one request at once, as a prompt asks, and in requests of 5 to 8 records, one at a time, as a layer of
a token does. A request is timed from the moment it is handed over until its last byte lies in its slot, right after
the one before it and after a millisecond without any, and compared with what copying as many bytes takes at the bus's
speed: that of one plain copy from pinned memory to slots. The order of the sizes rotates; medians over all requests
are given.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from benchmarks.micro.expert_reader import stored_experts
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.backend import Backend
from slotstream_core.errors import BackendError
from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.layout import ExpertLayout, StoredPiece
from slotstream_core.experts.reader import ExpertReader, choose_lanes
from slotstream_core.experts.slot_memory import SlotMemory
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.loading import slot_memory

SIZES: Final = (5, 6, 7, 8)
"""Records that a layer of the published model misses where a quarter of them has a slot, of 10."""

IDLE_S: Final = 0.001
BLOCK: Final = 4096
COPY_BYTES: Final = 1 << 28
COPIES: Final = 9
SMALL, LARGE = 8, 1
"""Requests of a round."""

WAYS: Final = ("read", "pinned")

Case = tuple[str, int, str]
"""A way, how many records, and what came before the request."""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="where to write the file (default: the temporary directory)")
    parser.add_argument("--experts", type=int, default=256, help="experts a layer; two layers (default 256: 1.4 GB)")
    parser.add_argument("--records", type=int, default=256, help="of the large request (default 256: 708 MB)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    memory = slot_memory(Backend.detect())
    if memory.direct:
        parser.exit(
            1, "this machine has no NVIDIA GPU whose memory is its own; see benchmarks/micro/expert_reader.py\n"
        )
    with stored_experts(options.directory, options.experts) as written:
        stacked = dataclasses.replace(
            written, kinds=tuple(dataclasses.replace(kind, slot_dtype=kind.disk_dtype) for kind in written.kinds)
        )
        layouts = {"stacked": stacked, "repacked": as_records(stacked)}
        count = min(options.records, *(layout.record_count for layout in layouts.values()))
        copy_rate = copying(memory)
        measured = {
            name: measure(layout, memory, count=count, rounds=options.rounds) for name, layout in layouts.items()
        }
    values, rows = summary(
        {name: times for name, (times, _) in measured.items()}, record_bytes=stacked.record_bytes, copy_rate=copy_rate
    )
    pinning = {f"{name}_pinning_s_per_gb": round(rate, 3) for name, (_, rate) in measured.items()}
    report(
        BenchmarkResult(
            benchmark="device_reader",
            settings={"records": count, "rounds": options.rounds, "record_bytes": stacked.record_bytes},
            values={"copy_bytes_per_s": round(copy_rate), **pinning, **values},
        ),
        table=f"one plain copy: {copy_rate / 1e9:.1f} GB/s; {pinning}\n"
        + format_table(["records", "way", "at once", "before it", "median us", "p90 us", "GB/s", "of the bus"], rows),
        record=options.record,
    )


def as_records(stacked: ExpertLayout) -> ExpertLayout:
    """Return the bytes of a file of stacked tensors as if each run of them were a record; their values mean nothing."""
    path = stacked.paths[0]
    stride = -(-stacked.record_bytes // BLOCK) * BLOCK
    experts = path.stat().st_size // stride // stacked.layer_count
    layers = []
    for layer in range(stacked.layer_count):
        offset, pieces = layer * experts * stride, []
        for kind in stacked.kinds:
            pieces.append(StoredPiece(tensor=kind.name, path=path, offset=offset, stride_bytes=stride))
            offset += kind.disk_bytes
        layers.append(tuple(pieces))
    return dataclasses.replace(stacked, layers=tuple(layers), expert_count=experts)


def copying(memory: SlotMemory) -> float:
    """Return the bytes a second of one large copy from pinned memory to memory like that of slots."""
    array = mx.zeros((COPY_BYTES,), dtype=mx.uint8)
    mx.eval(array)
    window = memoryview(array).cast("B")  # type: ignore[arg-type]
    memory.keep(window)
    place, source = np.frombuffer(window, dtype=np.uint8), memory.buffer(COPY_BYTES)
    source[:] = 0
    times = []
    for _ in range(COPIES):
        started = time.perf_counter()
        memory.put(place, source)
        memory.finish()
        times.append(time.perf_counter() - started)
    return COPY_BYTES / statistics.median(times)


def measure(
    layout: ExpertLayout, memory: SlotMemory, *, count: int, rounds: int
) -> tuple[dict[Case, list[float]], float]:
    """Return the seconds of each request, and how many seconds it took to pin a GB.

    Args:
        layout: Where the records lie.
        memory: Where the slots lie.
        count: Records of the large request.
        rounds: The first is not kept.
    """
    times: dict[Case, list[float]] = {}
    random = np.random.default_rng(0)
    with ExitStack() as opened:
        source = opened.enter_context(StoredExperts(layout))
        lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1, source=source, memory=memory)
        readers = {way: opened.enter_context(ExpertReader(source, lane_count=lanes, memory=memory)) for way in WAYS}
        s_per_gb = pin(readers["pinned"])
        slots = SlotArrays(layout, count, memory)
        sizes = [*SIZES, count]
        for turn in range(rounds + 1):
            for size in sizes[turn % len(sizes) :] + sizes[: turn % len(sizes)]:
                for before, idle_s in (("a request", 0.0), ("1 ms of nothing", IDLE_S)):
                    for way in WAYS if turn % 2 else reversed(WAYS):
                        for _ in range(LARGE if size == count else SMALL):
                            batch = readers[way].prepare(draw(layout, random, size, count), slots)
                            seconds = bring(readers[way], batch, idle_s)
                            if turn:
                                times.setdefault((way, size, before), []).append(seconds)
    return times, s_per_gb


def pin(reader: ExpertReader) -> float:
    """Pin all files of a reader; return the seconds for a GB.

    Raises:
        BackendError: They were not pinned.
    """
    if reader.mapped is None:
        raise BackendError("files cannot be pinned here")
    started = time.perf_counter()
    reader.mapped.pin(reader.mapped.byte_count)
    reader.mapped.finished.wait()
    seconds = time.perf_counter() - started
    if reader.mapped.pinned_bytes != reader.mapped.byte_count:
        raise BackendError("the files were not pinned; the log says why")
    return seconds / (reader.mapped.byte_count / 1e9)


def draw(layout: ExpertLayout, random: np.random.Generator, size: int, slot_count: int) -> list[Record]:
    """Draw distinct records and slots for them."""
    keys = random.choice(layout.record_count, size, replace=False).tolist()
    slots = random.choice(slot_count, size, replace=False).tolist()
    return [
        Record(key // layout.expert_count, key % layout.expert_count, slot, check=False)
        for key, slot in zip(keys, slots, strict=True)
    ]


def bring(reader: ExpertReader, batch: Batch, idle_s: float) -> float:
    """Wait so long, then hand a batch over; return the seconds until its last byte is in its slot."""
    end = time.perf_counter() + idle_s
    while time.perf_counter() < end:
        pass
    started = time.perf_counter()
    reader.submit(batch)
    batch.done.wait()
    seconds = time.perf_counter() - started
    for error in batch.errors.values():
        raise error
    return seconds


def summary(
    times: Mapping[str, Mapping[Case, list[float]]], *, record_bytes: int, copy_rate: float
) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """Return the values to keep and the rows to print."""
    values: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    for name, measured in times.items():
        for (way, size, before), seconds in sorted(measured.items(), key=lambda item: (item[0][1:], item[0][0])):
            median_s, late_s = statistics.median(seconds), sorted(seconds)[len(seconds) * 9 // 10]
            rate = size * record_bytes / median_s
            key = f"{name}_{way}_{size}_{'hot' if before == 'a request' else 'idle'}"
            values |= {f"{key}_us": round(median_s * 1e6, 1), f"{key}_of_bus": round(rate / copy_rate, 3)}
            rows.append(
                (
                    name,
                    way,
                    str(size),
                    before,
                    f"{median_s * 1e6:,.0f}",
                    f"{late_s * 1e6:,.0f}",
                    f"{rate / 1e9:.1f}",
                    f"{rate / copy_rate:.0%}",
                )
            )
    return values, rows


if __name__ == "__main__":
    main()
