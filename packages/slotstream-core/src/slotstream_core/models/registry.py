"""Which class runs which architecture."""

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts.stacks import Experts
from slotstream_core.models.qwen4_exp.text import NGRAM_CACHE_BYTES, Qwen4ExpModel


def build_model(
    checkpoint: Checkpoint,
    experts: Experts,
    backend: Backend,
    *,
    ngram_cache_bytes: int = NGRAM_CACHE_BYTES,
    draft_experts: Experts | None = None,
) -> Qwen4ExpModel:
    """The model of an open checkpoint, whose architecture was checked when it was opened.

    Args:
        checkpoint: Must stay open while the model is used; not owned.
        experts: Where routed experts come from; not owned.
        backend: What runs here.
        ngram_cache_bytes: Payload that n-gram row caches may keep.
        draft_experts: Where the draft head's experts come from, not owned; without them it is not loaded.

    Raises:
        CheckpointError: A weight is missing, damaged, or not stored as the configuration says.
    """
    return Qwen4ExpModel(checkpoint, experts, backend, ngram_cache_bytes=ngram_cache_bytes, draft_experts=draft_experts)
