"""Kernels for one row, run on the host: they agree with MLX's operations, or are not used."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import CUDA_GATHERING, Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import SettingError
from slotstream_core.experts import ExpertLayout, StoredExperts, StreamedExperts
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.stacks import Slots
from slotstream_core.generation.decoding import logits_row
from slotstream_core.models.qwen4_exp.device.experts import RoutingKernels
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.registry import build_model
from tests.core.device.emulation import COMPILER, Emulator

emulated = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

SETTINGS = {
    "vocab_size": 288,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "ple_layer_ids": [1],
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "split_ngram_parts": 3,
}
DEVICE = Backend(kind="metal", compute_dtype=mx.bfloat16, gathering=CUDA_GATHERING)
PROMPT = [5, 6, 7, 8, 9]
TOKENS = 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("kernels"), SETTINGS, bits=4, group_size=32)


@contextmanager
def offered(kernels: DeviceKernels | None) -> Iterator[None]:
    """Models are built with these kernels, or with none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceKernels, "load", staticmethod(lambda *_: kernels))
        yield


class ArrivedExperts(StreamedExperts):
    """Requests return with their records in place: an emulated kernel computes when it is called, a device's later."""

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> PoolLease:
        """See `StreamedExperts.request`."""
        lease = super().request(layer, experts, threads=threads)
        lease.wait()
        return lease


def replies(directory: Path, emulator: Emulator | None, share: float) -> list[np.ndarray]:
    """The logits of a few greedy tokens after a prompt; the emulator notes what ran for these tokens."""
    return replies_of(directory, None if emulator is None else DeviceKernels(emulator), share, emulator)


def replies_of(
    directory: Path, kernels: DeviceKernels | None, share: float, emulator: Emulator | None = None
) -> list[np.ndarray]:
    """As `replies`, with any kernels."""
    with offered(kernels), ExitStack() as opened:
        stored = opened.enter_context(Checkpoint.open(directory))
        modules = trunk_modules(stored.config.num_hidden_layers)
        layout = ExpertLayout.from_checkpoint(stored, modules, float_name="BF16")
        source = opened.enter_context(StoredExperts(layout))
        backend = Backend.detect() if Backend.detect().kind == "cuda" else DEVICE
        slots = int(layout.record_count * share)
        experts = opened.enter_context(ArrivedExperts(source, slot_count=slots, lane_count=1))
        model = opened.enter_context(build_model(stored, experts, backend))
        state = model.new_state()
        row = logits_row(model.forward(PROMPT, state).logits)
        if emulator is not None:
            emulator.launches.clear()
        rows = []
        for _ in range(TOKENS):
            row = logits_row(model.forward([int(row.argmax())], state).logits)
            rows.append(row)
        return rows


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> list[np.ndarray]:
    return replies(checkpoint, None, 1.0)


@emulated
def test_one_row_goes_through_kernels_and_gives_what_the_operations_give(
    checkpoint: Path, plain: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emulator = Emulator(tmp_path)
    with caplog.at_level(logging.WARNING):
        rows = replies(checkpoint, emulator, 1.0)
    assert not [record.getMessage() for record in caplog.records if record.name == "slotstream.device"]
    for mine, theirs in zip(rows, plain, strict=True):
        assert np.linalg.norm(mine - theirs) < 0.03 * np.linalg.norm(theirs)
        assert mine.argmax() == theirs.argmax()
    a_token = {name: count / TOKENS for name, count in Counter(emulator.launches).items()}
    assert a_token == {
        "streams_down": 5,  # two a layer, and before the head
        "streams_up": 5,
        "streams_inject": 4,
        "delta_step": 1,
        "router_logits": 2,
        "choose_experts": 2,
        "experts_inner": 2,
        "experts_outer": 2,
    }
    for mine, streamed in zip(rows, replies(checkpoint, emulator, 0.5), strict=True):
        np.testing.assert_array_equal(mine, streamed)  # wherever the experts lie


@emulated
def test_parts_whose_kernels_disagree_are_computed_by_operations(
    checkpoint: Path, plain: list[np.ndarray], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = {
        "the gated delta rule": ("float error = (v[row] -", "float error = (v[row] +"),
        "routing": ("expf(best[thread] - best[0])", "expf(best[0] - best[thread])"),
        "experts": ("shares[chunk / PARTS] * dot", "shares[0] * dot"),
        "hyper-connections": ("2.0f * slotstream_float(injection", "slotstream_float(injection"),
        "mixing streams": ("if (row == 0) lengths[s]", "if (INJECTED && row == 0) lengths[s]"),
    }
    emulator = Emulator(tmp_path, spoil=tuple(faults.values()))
    with caplog.at_level(logging.WARNING):
        rows = replies(checkpoint, emulator, 1.0)
    messages = [record.getMessage() for record in caplog.records if record.name == "slotstream.device"]
    warned = [message.split(" are not used")[0] for message in messages]
    assert sorted(warned) == sorted(f"the kernels for {part}" for part in faults)
    assert not emulator.launches
    for mine, theirs in zip(rows, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@emulated
def test_a_kernel_that_does_not_compile_is_not_used(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emulator = Emulator(tmp_path, spoil=(("mixed[", "missing["), ("gated[", "missing["), ("logits[expert]", "missing")))
    with caplog.at_level(logging.WARNING):
        replies(checkpoint, emulator, 1.0)
    assert "MLX says" in caplog.text
    assert Counter(emulator.launches).keys() == {"experts_inner", "experts_outer"}


@emulated
@pytest.mark.parametrize(("count", "top", "normalised"), [(70, 12, True), (64, 3, False), (40, 36, True)])
def test_the_largest_logits_are_chosen_and_of_equal_ones_the_first(
    checkpoint: Path, tmp_path: Path, count: int, top: int, normalised: bool
) -> None:
    with Checkpoint.open(checkpoint) as stored:
        config = replace(stored.config, num_experts=count, num_experts_per_tok=top, norm_topk_prob=normalised)
    choose = RoutingKernels(DeviceKernels(Emulator(tmp_path)), config).choose
    for seed in range(3):
        logits = np.random.default_rng(seed).integers(-3, 3, count).astype(np.float32) * 0.5
        logits[seed::7] = -0.0
        logits[seed + 20] = np.nan
        found, mix = choose(mx.array(logits[None]))
        order = np.where(np.isnan(logits), -np.inf, logits)
        wanted = np.argsort(-order, kind="stable")[:top]
        np.testing.assert_array_equal(np.array(found)[0], wanted)
        if not np.isnan(logits[wanted]).any() and normalised:
            shares = np.exp(logits[wanted])
            np.testing.assert_allclose(np.array(mix)[0], shares / shares.sum(), rtol=1e-5)


def test_kernels_are_made_for_cuda_alone_and_can_be_switched_off() -> None:
    cuda = replace(DEVICE, kind="cuda")
    assert DeviceKernels.load(cuda, {}) is not None
    assert DeviceKernels.load(cuda, {"SLOTSTREAM_DEVICE_KERNELS": "1"}) is not None
    assert DeviceKernels.load(cuda, {"SLOTSTREAM_DEVICE_KERNELS": "0"}) is None
    assert DeviceKernels.load(DEVICE, {}) is None
    assert DeviceKernels.load(replace(cuda, compute_dtype=mx.float32), {}) is None
    with pytest.raises(SettingError, match="use 0 or 1"):
        DeviceKernels.load(cuda, {"SLOTSTREAM_DEVICE_KERNELS": "yes"})


@pytest.mark.skipif(Backend.detect().kind != "cuda", reason="needs an NVIDIA GPU")
def test_every_kernel_proves_itself_on_a_gpu(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wider = {"hc_lowrank": 64, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}  # two groups a row
    longer = {"num_hidden_layers": 4, "full_attention_interval": 4}
    checkpoint = write_synthetic(tmp_path / "wider", {**SETTINGS, **wider, **longer}, bits=4, group_size=32)
    kernels = DeviceKernels.load(Backend.detect(), {})
    assert kernels is not None
    with caplog.at_level(logging.WARNING):
        replies_of(checkpoint, kernels, 1.0)
    assert not [record.getMessage() for record in caplog.records if record.name == "slotstream.device"]
    assert set(kernels.verdicts.values()) == {True}
    assert {part for part, *_ in kernels.verdicts} == {
        "the gated delta rule",
        "hyper-connections",
        "mixing streams",
        "routing",
        "experts",
        "launched layers",
        "launched head",
        "launched embedding",
        "launched n-grams",
    }
