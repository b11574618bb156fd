"""Layers are computed while their records are read; nothing reads a place before its record is there."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertArrays, ExpertLayout, Lease, StoredExperts, StreamedExperts
from slotstream_core.experts.layout import draft_modules
from slotstream_core.experts.slots import SlotArrays
from slotstream_core.models.qwen4_exp.gathering import compute_experts
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.moe import ExpertLayer
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from slotstream_core.native.binding import library_path
from tests.core.qwen4_exp_models import Logits, exact_backend, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(48)]

pytestmark = pytest.mark.skipif(Backend.detect().kind == "cuda", reason="the host does not write slots here")


class LateLease:
    """A lease of which every place, or every second one, holds other bytes until it is waited for."""

    def __init__(self, lease: Lease, arrays: SlotArrays, *, every: int = 1) -> None:
        lease.wait()
        self._lease = lease
        self._places: list[int] = np.unique(lease.slots)[::every].tolist()
        self._rows = [view[slot] for view in arrays.views for slot in self._places]
        self._stored = [row.copy() for row in self._rows]
        for row in self._rows:
            row[:] = 0x41

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        return self._lease.slots

    def late(self) -> list[int]:
        return self._places if self._rows else []

    def wait(self) -> None:
        for row, stored in zip(self._rows, self._stored, strict=True):
            row[:] = stored
        self._rows, self._stored = [], []

    def release(self) -> None:
        self.wait()
        self._lease.release()


class LateExperts(StreamedExperts):
    """Streamed experts whose records arrive when they are waited for, and not before."""

    def request(self, layer: int, experts: Sequence[int]) -> Lease:  # type: ignore[override]
        return LateLease(super().request(layer, experts), self.pool.slots)


class HalfLateExperts(StreamedExperts):
    """The same for every second record of a request."""

    def request(self, layer: int, experts: Sequence[int], *, threads: int = 0) -> Lease:  # type: ignore[override]
        return LateLease(super().request(layer, experts, threads=threads), self.pool.slots, every=2)

    def visit(self, layer: int, experts: Sequence[int], *, threads: int = 0) -> Lease:  # type: ignore[override]
        return self.request(layer, experts, threads=threads)


def device_backend(dtype: mx.Dtype = mx.float32) -> Backend:
    """This machine's computation, asked for as a device is: in one graph a layer."""
    return replace(exact_backend(), kind="metal", compute_dtype=dtype)


def computed(
    directory: Path, experts: type[StreamedExperts], backend: Backend, *, drafts: bool
) -> tuple[Logits, list[list[int]]]:
    """Logits of the prompt in passes of several lengths, and the drafts after some of them."""
    with ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint.open(directory))

        def streamed(modules: list[str]) -> StreamedExperts:
            layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
            return opened.enter_context(experts(StoredExperts(layout), slot_count=24, lane_count=2))

        head = streamed(draft_modules()) if drafts else None
        trunk = streamed(expert_modules(checkpoint.config))
        model = opened.enter_context(Qwen4ExpModel(checkpoint, trunk, backend, draft_experts=head))
        state = model.new_state()
        logits = [run_passes(model, PROMPT[:32], (20, 1, 1, 3), state)]
        guesses = []
        for token in PROMPT[32:]:
            if drafts:
                guesses.append(model.draft(state, token, 3))
            logits.append(np.array(model.forward([token], state, decode=True).logits))
        return np.concatenate(logits), guesses


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafting"])
def test_no_layer_reads_a_place_before_its_records_were_waited_for(
    dtype: mx.Dtype, drafts: bool, tmp_path: Path
) -> None:
    backend = device_backend(dtype)
    write_synthetic(tmp_path, SETTINGS, bits=4, group_size=32, draft=drafts)
    expected, drafted = computed(tmp_path, StreamedExperts, backend, drafts=drafts)
    logits, guesses = computed(tmp_path, LateExperts, backend, drafts=drafts)
    assert np.array_equal(logits, expected)
    assert guesses == drafted


def test_the_layers_of_a_device_are_prepared_while_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_synthetic(tmp_path, SETTINGS, bits=4, group_size=32)
    order: list[str] = []
    request, wait = LateExperts.request, LateLease.wait

    def requested(experts: LateExperts, layer: int, chosen: Sequence[int]) -> Lease:
        lease = request(experts, layer, chosen)
        order.append("requested")
        return lease

    def waited(lease: LateLease) -> None:
        order.append("waited")
        wait(lease)

    def prepared(arrays: ExpertArrays, x: mx.array, slots: mx.array) -> mx.array:
        order.append("prepared")
        return compute_experts(arrays, x, slots)

    monkeypatch.setattr(LateExperts, "request", requested)
    monkeypatch.setattr(f"{ExpertLayer.__module__}.compute_experts", prepared)
    with Checkpoint.open(tmp_path) as checkpoint:
        modules, backend = expert_modules(checkpoint.config), device_backend()
        layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        with (
            LateExperts(StoredExperts(layout), slot_count=24, lane_count=2) as experts,
            Qwen4ExpModel(checkpoint, experts, backend) as model,
        ):
            monkeypatch.setattr(LateLease, "wait", waited)
            model.forward([5], model.new_state())
    seen = [step for step, before in zip(order, ["", *order], strict=False) if step != before]  # released leases, too
    assert seen == ["requested", "prepared", "waited"] * len(modules)


@pytest.mark.skipif(library_path() is None, reason="installed without a compiler")
def test_a_layer_computed_at_once_begins_with_the_records_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotstream_core.models.qwen4_exp.eager.experts import EagerExpertLayer

    monkeypatch.setenv("SLOTSTREAM_NATIVE", "1")
    write_synthetic(tmp_path, SETTINGS, bits=4, group_size=32)
    expected, _ = computed(tmp_path, StreamedExperts, exact_backend(), drafts=False)
    compute, shares = EagerExpertLayer._compute_in_turn, []

    def noting(layer: EagerExpertLayer, calls: Any, x: Floats, lease: Lease, early: npt.NDArray[np.bool_]) -> Floats:
        shares.append((len(x), float(early.mean())))
        return compute(layer, calls, x, lease, early)

    monkeypatch.setattr(EagerExpertLayer, "_compute_in_turn", noting)
    logits, _ = computed(tmp_path, HalfLateExperts, exact_backend(), drafts=False)
    assert np.array_equal(logits, expected)
    assert {rows for rows, _ in shares} == {1, 3}  # 20 rows ask for more experts than one request holds
    assert all(0 < share < 1 for _, share in shares)
