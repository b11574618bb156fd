"""What the server says about a checkpoint: read from its headers before it is loaded, and from its plan after."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_planner import MemoryPlan
from slotstream_serve.dialects.base import ModelFacts
from slotstream_serve.serving import default_output_tokens

EXPERTS = ".switch_mlp."
NGRAM = "ngram"
DIGEST_DIGITS = 12


def describe_checkpoint(directory: Path, *, name: str, names: Iterable[str] = ()) -> ModelFacts:
    """Return the facts of a checkpoint; its window is 0 until `with_plan`.

    Args:
        directory: The checkpoint directory.
        name: What to call the model.
        names: Other names that clients may use for it.

    Raises:
        CheckpointError: The directory cannot be used as a model.
    """
    with Checkpoint.open(directory) as checkpoint:
        total, active = _parameters(checkpoint)
        quantization = checkpoint.quantization.default
        experts = checkpoint.config.num_experts
        kind = "none" if quantization is None else f"{quantization.bits}bit"
        files = sorted({tensor.path for tensor in checkpoint.tensors.values()})
    config = directory / "config.json"
    identity = hashlib.sha256(config.read_bytes())
    for file in files:
        identity.update(f"{file.name}:{file.stat().st_size};".encode())
    return ModelFacts(
        name=name,
        names=frozenset({name, *names}),
        window_tokens=0,
        max_output_tokens=0,
        parameters=total,
        parameter_size=f"{short_count(total)}-A{short_count(active)}",
        size_bytes=sum(file.stat().st_size for file in files),
        resident_bytes=0,
        modified_at=config.stat().st_mtime,
        vision=False,
        memory_plan={},
        context_policy={},
        digest=f"slotstream-{identity.hexdigest()[:DIGEST_DIGITS]}",
        family="qwen4_exp",
        quantization=kind,
        experts_per_layer=experts,
    )


def with_plan(facts: ModelFacts, plan: MemoryPlan, *, max_prefill_wait_s: float) -> ModelFacts:
    """Return the facts of a model that is loaded under a plan."""
    document = plan.to_json()
    window = plan.window_tokens
    return replace(
        facts,
        window_tokens=window,
        max_output_tokens=default_output_tokens(window),
        memory_plan=document,
        context_policy={
            "configured_window": window,
            "model_limit": document["model_context_limit"],
            "implementation_limit": document["implementation_context_limit"],
            "mtp_limit": document["mtp_context_limit"],
            "vision_limit": document["vision_context_limit"],
            "max_prefill_wait_minutes": max_prefill_wait_s / 60,
            "wait_scope": document["prefill_wait_scope"],
            "qualification": document["context_qualification"],
            "allocation_available": True,
            "estimate_scope": "prompts_read_by_this_process",
        },
    )


def short_count(value: float) -> str:
    """Return a count in at most three digits and a letter: 176B, 6B, 43M, 950."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if value >= unit:
            return f"{value / unit:.{0 if value >= 10 * unit else 1}f}".removesuffix(".0") + letter
    return f"{value:.0f}"


def _parameters(checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the parameters in all, and those that take part in one token: no n-gram tables, only routed experts."""
    config = checkpoint.config
    total = active = 0
    for tensor in checkpoint.tensors.values():
        module, _, kind = tensor.name.rpartition(".")
        quantized = checkpoint.module_quantization(module) if checkpoint.has(f"{module}.scales") else None
        if quantized is not None and kind in ("scales", "biases"):
            continue
        count = math.prod(tensor.shape)
        if quantized is not None and kind == "weight":
            count = count * 32 // quantized.bits
        total += count
        if EXPERTS in tensor.name:
            active += count * config.num_experts_per_tok // config.num_experts
        elif NGRAM not in tensor.name:
            active += count
    return total, active
