"""The children of `benchmarks.offline.peers` that run here: this engine with its pool, and without one over a mapping.

    python -m benchmarks.offline.peer_engines pool DIRECTORY TOKENS PLAN
    python -m benchmarks.offline.peer_engines mapped DIRECTORY TOKENS

PLAN is a pickled plan, made outside the memory group, whose whole peak the group allows.

Prints one JSON object. Tokens are random, so that what is chosen depends on no engine's numbers.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertArrays, ExpertLayout, choose_lanes
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.resident import ResidentLease
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.experts.stacks import Slots
from slotstream_core.loading import load_model
from slotstream_core.memory import footprint
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_planner import MemoryPlan


class MappedExperts:
    """`Experts` that are copied out of mapped files whenever they are asked for; the page cache alone remembers them.

    Places are reused by the next request but one, so two leases can be held at once.
    """

    def __init__(self, layout: ExpertLayout, lanes: ThreadPoolExecutor, opened: ExitStack) -> None:
        self.layout = layout
        self._lanes = lanes
        self._slots = SlotArrays(layout, 2 * self.group_limit)
        self._half = 0
        self._maps: dict[Path, npt.NDArray[np.uint8]] = {}
        for path in sorted({piece.path for layer in layout.layers for piece in layer}):
            file = opened.enter_context(path.open("rb"))
            self._maps[path] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    @property
    def group_limit(self) -> int:
        """See `Experts.group_limit`."""
        return min(32, self.layout.expert_count)

    def arrays(self, layer: int) -> ExpertArrays:
        """See `Experts.arrays`."""
        return self._slots.arrays

    def places(self, layer: int) -> mx.array | None:
        """See `Experts.places`: nothing stays."""
        return None

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> None:
        """See `Experts.open_sweep`."""

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.request`; copies at once, in several threads of its own."""
        first = self._half * self.group_limit
        self._half = 1 - self._half
        distinct, places = np.unique(experts, return_inverse=True)
        jobs = [
            self._lanes.submit(self._copy, layer, expert, first + place)
            for place, expert in enumerate(distinct.tolist())
        ]
        for job in jobs:
            job.result()
        return ResidentLease((first + places).astype(np.int32).reshape(np.shape(experts)))

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> ResidentLease:
        """See `Experts.visit`; as `request`."""
        return self.request(layer, experts, threads=threads)

    def _copy(self, layer: int, expert: int, slot: int) -> None:
        for index, (piece, kind) in enumerate(zip(self.layout.layers[layer], self.layout.kinds, strict=True)):
            start = piece.offset + expert * kind.disk_bytes
            stored = self._maps[piece.path][start : start + kind.disk_bytes]
            if kind.disk_dtype == kind.slot_dtype:
                self._slots.views[index][slot][:] = stored
            else:
                self._slots.write(index, slot, stored)


def main() -> None:
    """Run one engine and print what it did."""
    kind, directory, tokens = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if kind == "pool":
        memory_plan: MemoryPlan = pickle.loads(Path(sys.argv[4]).read_bytes())
        print(json.dumps(with_pool(directory, memory_plan, tokens)))
    else:
        print(json.dumps(with_mapping(directory, tokens)))


def with_pool(directory: Path, memory_plan: MemoryPlan, tokens: int) -> dict[str, float]:
    """Decode through the pool of a plan, loaded as the engine loads it."""
    started = time.perf_counter()
    with load_model(directory, memory_plan) as loaded:
        if loaded.experts.pool.slot_count >= loaded.experts.layout.record_count:
            loaded.experts.load_all()
        load_s = time.perf_counter() - started
        draw = np.random.default_rng(0)
        decode(loaded.model, draw, tokens)
        before = loaded.experts.stats
        decode_s = decode(loaded.model, draw, tokens)
        done = loaded.experts.stats.since(before)
        return {
            "load_s": load_s,
            "decode_s": decode_s,
            "decode_read_bytes": done.bytes_read,
            "hit_rate": done.hit_rate,
            "wait_s": done.wait_s,
            "peak_bytes": footprint().peak_bytes,
            "current_bytes": footprint().current_bytes,
        }


def with_mapping(directory: Path, tokens: int) -> dict[str, float]:
    """Decode with the experts mapped."""
    started = time.perf_counter()
    backend = Backend.detect()
    lanes = choose_lanes(os.environ, core_count=os.cpu_count() or 1)
    with ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint.open(directory))
        modules = trunk_modules(checkpoint.config.num_hidden_layers)
        layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        experts = MappedExperts(layout, opened.enter_context(ThreadPoolExecutor(lanes)), opened)
        model = opened.enter_context(build_model(checkpoint, experts, backend))
        load_s = time.perf_counter() - started
        draw = np.random.default_rng(0)
        decode(model, draw, tokens)
        return {"load_s": load_s, "decode_s": decode(model, draw, tokens)}


def decode(model: Qwen4ExpModel, draw: np.random.Generator, tokens: int) -> float:
    """Feed random tokens one by one into a new state; return the time it took."""
    state = model.new_state()
    started = time.perf_counter()
    for token in draw.integers(300, 30_000, tokens):
        np.array(model.forward([int(token)], state, decode=True).logits)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
