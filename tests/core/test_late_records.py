"""On a device a layer is prepared while its records are read; nothing reads a place before its lease was waited for."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

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
from slotstream_core.models.qwen4_exp.moe import ExpertLayer
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from tests.core.qwen4_exp_models import Logits, exact_backend, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(48)]

pytestmark = pytest.mark.skipif(Backend.detect().kind == "cuda", reason="the host does not write slots here")


class LateLease:
    """A lease whose places hold other bytes until it is waited for."""

    def __init__(self, lease: Lease, arrays: SlotArrays) -> None:
        lease.wait()
        self._lease = lease
        self._rows = [view[slot] for view in arrays.views for slot in np.unique(lease.slots)]
        self._stored = [row.copy() for row in self._rows]
        for row in self._rows:
            row[:] = 0x41

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        return self._lease.slots

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
