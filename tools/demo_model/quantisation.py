"""What affine quantisation in groups does to the demo model: its bytes, and its rounding, without a converter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model import architecture as arch

#: Small or sensitive matrices that stay in bf16, by the end of their names.
KEPT = (
    "mlp.gate.weight",
    "block_inject_weight.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "shared_expert_gate.weight",
)


@dataclass(frozen=True, kw_only=True)
class Format:
    """Bits and group of experts, n-gram table, both vocabulary tables and the rest; 0 bits is bf16."""

    name: str
    experts: tuple[int, int]
    ngrams: tuple[int, int]
    vocabulary: tuple[int, int]
    rest: tuple[int, int]


FORMATS = (
    Format(name="bf16", experts=(0, 0), ngrams=(0, 0), vocabulary=(0, 0), rest=(0, 0)),
    Format(name="4-bit, group 64", experts=(4, 64), ngrams=(4, 64), vocabulary=(4, 64), rest=(4, 64)),
    Format(name="4-bit, group 32", experts=(4, 32), ngrams=(4, 32), vocabulary=(4, 32), rest=(4, 32)),
    Format(
        name="experts 4-bit group 64, n-grams and vocabulary 4-bit group 32, rest 8-bit",
        experts=(4, 64),
        ngrams=(4, 32),
        vocabulary=(4, 32),
        rest=(8, 64),
    ),
    Format(
        name="experts 4-bit group 64, rest 8-bit", experts=(4, 64), ngrams=(4, 32), vocabulary=(8, 64), rest=(8, 64)
    ),
)


def round_to_groups(matrix: Tensor, *, bits: int, group: int) -> Tensor:
    """Return a matrix [..., I] as affine codes of ``bits`` bits would restore it, scales and offsets in bf16."""
    grouped = matrix.float().unflatten(-1, (-1, group))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp_min(1e-8).bfloat16().float()
    offset = low.bfloat16().float()
    codes = ((grouped - offset) / scale).round().clamp(0, 2**bits - 1)
    return (codes * scale + offset).flatten(-2)


def setting_of(name: str, parameter: Tensor, form: Format) -> tuple[int, int]:
    """Bits and group of one parameter in a format; 0 bits where it stays in bf16."""
    if parameter.dim() < 2 or "conv1d" in name or name.endswith(KEPT):
        return 0, 0
    bits, group = form.rest
    if "experts." in name:
        bits, group = form.experts
    elif "ngram_embedding" in name:
        bits, group = form.ngrams
    elif "embed_tokens" in name or "lm_head" in name:
        bits, group = form.vocabulary
    return bits, min(group, parameter.shape[-1])


def quantise(model: arch.DemoModel, form: Format) -> int:
    """Round a model's weights in place; return the bytes of the stored weights, scales and offsets."""
    total_bytes = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bits, group = setting_of(name, parameter, form)
            if not bits:
                total_bytes += 2 * parameter.numel()
                continue
            parameter.copy_(round_to_groups(parameter, bits=bits, group=group))
            total_bytes += parameter.numel() * bits // 8 + 4 * parameter.numel() // group
    return total_bytes
