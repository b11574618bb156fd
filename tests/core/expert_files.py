"""Small expert files with random bytes, and sources that fail or wait on command."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from slotstream_core.experts.batches import Batch, Record
from slotstream_core.experts.layout import ExpertLayout, FloatName, PieceDtype
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.native.lanes import READ_FUNCTION

HIDDEN, INTERMEDIATE = 64, 32
ITEM = {"U32": 4, "F32": 4, "BF16": 2, "F16": 2}


def thread_numbers() -> set[str]:
    """Name this process's threads as the kernel does: Python's, and where it tells, others."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return {str(thread.native_id) for thread in threading.enumerate()}
    return {task.name for task in tasks.iterdir()}


def have_ended(threads: set[str]) -> bool:
    """Say whether threads are gone; the kernel may list one for a moment after it was joined."""
    deadline = time.monotonic() + 240
    while threads & thread_numbers() and time.monotonic() < deadline:
        os.sched_yield()
    return not threads & thread_numbers()


@dataclass(frozen=True)
class Header:
    dtype: str
    shape: tuple[int, ...]
    path: Path


@dataclass(frozen=True)
class Place:
    fd: int
    offset: int
    byte_count: int
    stride_bytes: int | None = None


@dataclass
class ExpertFile:
    """One file with the experts of a few layers; satisfies TensorDirectory."""

    path: Path
    fd: int
    tensors: dict[str, Header] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)

    def extent(self, name: str) -> Place:
        return self.places[name]

    def layout(self, float_name: FloatName = "F32") -> ExpertLayout:
        return ExpertLayout.from_checkpoint(self, self.modules, float_name=float_name)

    def bytes_of(self, layout: ExpertLayout, layer: int, expert: int, kind: int) -> bytes:
        """Read one piece without the code under test."""
        piece = layout.kinds[kind]
        size = math.prod(piece.shape) * ITEM[piece.disk_dtype]
        name = f"{self.modules[layer]}.{piece.projection}_proj.{piece.part}"
        return os.pread(self.fd, size, self.places[name].offset + expert * size)


@contextmanager
def expert_file(
    directory: Path,
    *,
    layers: int = 2,
    experts: int = 6,
    bits: Literal[4, 8] | None = 4,
    float_dtype: PieceDtype = "BF16",
    seed: int = 0,
    gap: int = 0,
) -> Iterator[ExpertFile]:
    """Write a file of experts after `gap` other bytes, and open it: nine kinds of piece with `bits`, else three."""
    path = directory / f"experts-{layers}-{experts}-{bits}-{float_dtype}.bin"
    random = np.random.default_rng(seed)
    path.write_bytes(b"")
    stored = ExpertFile(path=path, fd=os.open(path, os.O_RDONLY))
    try:
        with path.open("wb") as out:
            out.write(bytes(gap))
            for layer in range(layers):
                stored.modules.append(f"layers.{layer}.mlp.switch_mlp")
                for projection in ("gate", "up", "down"):
                    rows, columns = (HIDDEN, INTERMEDIATE) if projection == "down" else (INTERMEDIATE, HIDDEN)
                    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"weight": (float_dtype, (experts, rows, columns))}
                    if bits:
                        shapes["weight"] = ("U32", (experts, rows, columns * bits // 32))
                        shapes |= dict.fromkeys(("scales", "biases"), (float_dtype, (experts, rows, columns // 32)))
                    for part, (dtype, shape) in shapes.items():
                        name = f"{stored.modules[-1]}.{projection}_proj.{part}"
                        data = random_bytes(random, dtype, math.prod(shape))
                        stored.tensors[name] = Header(dtype, shape, path)
                        stored.places[name] = Place(stored.fd, out.tell(), len(data))
                        out.write(data)
        yield stored
    finally:
        os.close(stored.fd)


def random_bytes(random: np.random.Generator, dtype: str, count: int) -> bytes:
    if dtype == "U32":
        return random.integers(0, 2**32, count, dtype=np.uint32).tobytes()
    values = random.standard_normal(count).astype(np.float32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


class Buffer(ctypes.Structure):
    """`struct iovec` of <sys/uio.h>."""

    _fields_ = [("address", ctypes.c_void_p), ("byte_count", ctypes.c_size_t)]


class ScriptedSource(StoredExperts):
    """Reads as stored, except for the experts it was told to fail, cut short or hold back; compiled lanes call it."""

    def __init__(self, layout: ExpertLayout) -> None:
        super().__init__(layout)
        self.failing: set[tuple[int, int]] = set()
        self.short: set[tuple[int, int]] = set()
        self.most_bytes: int | None = None
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.entered = threading.Semaphore(0)
        self.read_count = 0
        self._where = {
            place: (layer, expert)
            for layer in range(layout.layer_count)
            for expert in range(layout.expert_count)
            for place in self.locate(layer, expert)
        }
        self._starts_of = sorted(self._where)
        self._callback = READ_FUNCTION(self._read)

    @property
    def native_read(self) -> int | None:
        return ctypes.cast(self._callback, ctypes.c_void_p).value

    def _read(self, context: int | None, fd: int, buffers: int, count: int, offset: int) -> int:
        parts = (Buffer * count).from_address(buffers)
        try:
            return self.read(
                fd, [memoryview((ctypes.c_uint8 * b.byte_count).from_address(b.address)) for b in parts], offset
            )
        except OSError as error:
            return -(error.errno or errno.EIO)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self.read_count += 1
        self.entered.release()
        self.open_gate.wait()
        total = sum(buffer.nbytes for buffer in buffers)
        touched = {self._where[start] for start in self._starts_of if offset <= start[1] < offset + total}
        if touched & self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if touched & self.short:
            return 0
        if self.most_bytes is not None:
            buffers = [buffers[0][: self.most_bytes]]
        return super().read(fd, buffers, offset)


def read_batch(reader: ExpertReader, arrays: SlotArrays, records: Sequence[Record], *, ahead: bool = False) -> Batch:
    """Read records into slots, and wait until every one of them is there or failed."""
    batch = reader.prepare(records, arrays)
    if ahead:
        reader.submit_ahead(batch)
    else:
        reader.submit(batch)
    assert batch.done.wait(240)
    return batch
