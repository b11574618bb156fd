"""Small models for the tests of the text model: made once a session, opened by each test."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.backend import Backend, Gathering
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import (
    ExpertLayout,
    Experts,
    ResidentExperts,
    StoredExperts,
    StreamedExperts,
    draft_modules,
)
from slotstream_core.experts.sweeping import SWEEPING, SweepOptions
from slotstream_core.loading import slot_memory
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from slotstream_core.state.sequence import SequenceState

Logits = npt.NDArray[np.float32]


def exact_backend() -> Backend:
    """This machine's backend, computing in float32, so that what is compared differs by rounding only."""
    return replace(Backend.detect(), compute_dtype=mx.float32)


def limited_backend(gathering: Gathering) -> Backend:
    """`exact_backend` with limited gathered products, and MLX computing rather than the host."""
    backend = exact_backend()
    return replace(backend, kind="metal" if backend.kind == "cpu" else backend.kind, gathering=gathering)


def alike(one: Logits, other: Logits) -> bool:
    """Whether logits of the same tokens are equal: in every bit where products of few and many rows round alike."""
    if exact_backend().kind == "cpu":
        return np.array_equal(one, other)
    return np.allclose(one, other, rtol=0, atol=2e-5)


@contextmanager
def open_model(
    directory: Path,
    *,
    slots: int | None = None,
    ngram_cache_bytes: int = 1 << 20,
    sweeping: SweepOptions = SWEEPING,
    backend: Backend | None = None,
) -> Iterator[Qwen4ExpModel]:
    """The model of a checkpoint with every expert resident, or streamed through ``slots`` slots."""
    backend = backend or exact_backend()
    with Checkpoint.open(directory) as checkpoint:
        layout = ExpertLayout.from_checkpoint(
            checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name
        )
        source = StoredExperts(layout)
        if slots is None:
            resident = ResidentExperts(source, lane_count=2, memory=slot_memory(backend))
            with Qwen4ExpModel(checkpoint, resident, backend, ngram_cache_bytes=ngram_cache_bytes) as model:
                yield model
        else:
            with (
                StreamedExperts(
                    source, slot_count=slots, lane_count=2, sweeping=sweeping, memory=slot_memory(backend)
                ) as streamed,
                Qwen4ExpModel(checkpoint, streamed, backend, ngram_cache_bytes=ngram_cache_bytes) as model,
            ):
                yield model
                streamed.pool.check_integrity()


def run_passes(model: Qwen4ExpModel, ids: Sequence[int], lengths: Sequence[int], state: SequenceState) -> Logits:
    """Logits [T, vocab] of ``ids`` read in passes of the given lengths, the last one repeated as needed."""
    outputs = []
    start = index = 0
    while start < len(ids):
        length = lengths[min(index, len(lengths) - 1)]
        outputs.append(np.array(model.forward(ids[start : start + length], state, logits="all").logits))
        start, index = start + length, index + 1
    return np.concatenate(outputs)


def last_logits(model: Qwen4ExpModel, ids: Sequence[int], state: SequenceState) -> Logits:
    """Logits [vocab] of the last of ``ids``, read in one pass."""
    return np.array(model.forward(ids, state).logits[0].astype(mx.float32))


@contextmanager
def open_drafting_model(
    directory: Path, *, slots: int | None = None, draft_slots: int | None = None
) -> Iterator[Qwen4ExpModel]:
    """The model of a checkpoint with its draft head; experts resident, or streamed where slots are given."""
    backend = exact_backend()
    with ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint.open(directory))

        def experts(modules: list[str], count: int | None) -> Experts:
            source = StoredExperts(ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name))
            if count is None:
                return ResidentExperts(source, lane_count=2, memory=slot_memory(backend))
            return opened.enter_context(
                StreamedExperts(source, slot_count=count, lane_count=2, memory=slot_memory(backend))
            )

        trunk, head = expert_modules(checkpoint.config), draft_modules()
        model = Qwen4ExpModel(checkpoint, experts(trunk, slots), backend, draft_experts=experts(head, draft_slots))
        yield opened.enter_context(model)
