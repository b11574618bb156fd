"""What the planner charges beside the slots is what readers and layers allocate."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import CUDA_GATHERING, Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import StoredExperts
from slotstream_core.experts.packed import best_layout
from slotstream_core.experts.reader import ExpertReader
from slotstream_core.experts.reading import trunk_layout
from slotstream_core.experts.repacking import repack_checkpoint
from slotstream_core.experts.slot_memory import Bytes, HostMemory
from slotstream_core.experts.stacks import QuantizedStack
from slotstream_core.generation.draft_depth import GATED_LIMIT
from slotstream_core.models.qwen4_exp.gathering import _dense_batches, _unpacked
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.testing import write_tiny_model
from slotstream_planner import ModelGeometry
from slotstream_planner.engine_memory import (
    DENSE_BATCH_ROWS,
    DENSE_EXPERTS,
    DENSE_MEAN_ROWS,
    RECORDED_ROWS,
    dense_batch_bytes,
)
from slotstream_planner.lanes import ahead_scratch_bytes, demand_scratch_bytes

LARGE_PAGE = 1 << 21


class CountedMemory(HostMemory):
    """Memory of the host that counts what is asked of it; `copying` says that it lies on a device."""

    def __init__(self, *, copying: bool) -> None:
        self.direct = not copying
        self.asked_bytes: list[int] = []

    def buffer(self, byte_count: int) -> Bytes:
        self.asked_bytes.append(byte_count)
        return super().buffer(byte_count)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_model(tmp_path_factory.mktemp("charged") / "model")
    repack_checkpoint(directory)
    return directory


@pytest.mark.parametrize("copying", [False, True])
@pytest.mark.parametrize("lanes", [1, 8, 32])
@pytest.mark.parametrize("direct", [False, True])
def test_lanes_ask_for_no_more_scratch_than_is_charged(
    directory: Path, *, copying: bool, lanes: int, direct: bool
) -> None:
    memory = CountedMemory(copying=copying)
    with Checkpoint.open(directory) as checkpoint:
        layout = best_layout(directory, trunk_layout(checkpoint, float_name="BF16"), "trunk")
        with (
            StoredExperts(layout, direct=direct) as source,
            ExpertReader(source, lane_count=lanes, ahead_lane_count=2, memory=memory) as reader,
        ):
            demand, ahead = memory.asked_bytes
            charged = demand_scratch_bytes(layout.record_bytes, lanes, copies=copying and reader.compiled)
            assert demand <= charged
            assert ahead <= ahead_scratch_bytes(layout.record_bytes, 2, copies=copying and reader.compiled)
            if reader.compiled:
                assert charged <= 1.02 * demand + LARGE_PAGE


def test_unpacked_experts_take_what_is_charged(directory: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(directory, compute="bf16")
    hidden, width = geometry.hidden, geometry.expert_width
    chosen = mx.array(np.arange(DENSE_EXPERTS, dtype=np.int32))
    with Checkpoint.open(directory) as checkpoint:
        quantization = trunk_layout(checkpoint, float_name="BF16").quantization
    held = 0
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    for projection, stored in quantization.items():
        assert stored is not None
        rows, columns = shapes[projection]
        values = mx.zeros((DENSE_EXPERTS, rows, columns), dtype=mx.bfloat16)
        weight, scales, biases = mx.quantize(values, group_size=stored.group_size, bits=stored.bits)
        stack = QuantizedStack(
            weight=weight, scales=scales, biases=biases, bits=stored.bits, group_size=stored.group_size
        )
        held += weight.nbytes + scales.nbytes + biases.nbytes + _unpacked(stack, chosen).nbytes
    activations = DENSE_BATCH_ROWS * (2 * hidden + 3 * width) * 2
    assert dense_batch_bytes(geometry, 4096) == held + activations


def test_batches_have_no_more_experts_and_rows_than_are_charged() -> None:
    slots = np.random.default_rng(0).integers(0, 40, 20_000)
    batches = list(_dense_batches(np.sort(slots), np.arange(len(slots))))
    assert max(len(batch.slots) for batch in batches) <= DENSE_EXPERTS
    assert max(len(batch.slots) * batch.rows for batch in batches) <= DENSE_BATCH_ROWS
    assert CUDA_GATHERING.dense_mean_rows == DENSE_MEAN_ROWS


def test_routers_are_float32_where_bfloat16_is_computed_in(directory: Path) -> None:
    geometry = ModelGeometry.from_checkpoint(directory, compute="bf16")
    with Checkpoint.open(directory) as checkpoint:
        weights = WeightReader(checkpoint, Backend(kind="metal", compute_dtype=mx.bfloat16))
        held = sum(
            weights.projection(f"language_model.model.layers.{layer}.mlp.gate", mx.float32).weight.nbytes
            for layer in range(geometry.layers)
        )
    assert held == geometry.layers * geometry.experts * geometry.hidden * 4 == 2 * geometry.float_router_bytes


def test_recorded_rows_are_those_of_the_deepest_drafts_made_unasked() -> None:
    assert RECORDED_ROWS == GATED_LIMIT + 1
