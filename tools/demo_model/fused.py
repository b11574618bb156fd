"""Hot elementwise parts of the model as pure functions of tensors, so that torch.compile builds each of them once.

The library's modules compute the same; :func:`install` makes them call these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers.models.qwen4_exp import modeling_qwen4_exp as family

from tools.demo_model import delta_rule


def gated_residual(
    streams: Tensor, norm: Tensor, down: Tensor, up: Tensor, inject: Tensor | None, count: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Read streams [..., S*H] into one state [..., H], and the weights [..., S] with which a block writes back."""
    split = streams.float().unflatten(-1, (count, -1))
    split = split * torch.rsqrt(split.pow(2).mean(-1, keepdim=True) + eps)
    normed = (split.flatten(-2) * (1.0 + norm.float())).to(streams.dtype)
    gate = torch.sigmoid(functional.linear(functional.silu(functional.linear(normed, down) / count), up))
    mixed = (gate * normed).unflatten(-1, (count, -1)).mean(dim=-2)
    if inject is None:
        return mixed, None
    return mixed, 2 * torch.sigmoid(functional.linear(normed, inject) / count)


def inject_output(carried: Tensor, output: Tensor, weights: Tensor) -> Tensor:
    """Add a block's output [B, T, H] to every stream of ``carried`` [B, T, S*H] with its weight [B, T, S]."""
    return carried + (output.unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2)


def gated_norm(states: Tensor, gate: Tensor, weight: Tensor, eps: float, activation: str) -> Tensor:
    """RMS norm of the delta rule's outputs [N, D], times the activated gate [N, D]."""
    wide = states.float()
    normed = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(states.dtype)
    opened = torch.sigmoid(gate.float()) if activation == "sigmoid" else functional.silu(gate.float())
    return (normed * opened).to(states.dtype)


def weighted_cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of the cross entropy in nats, computed in float32."""
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    flat = weights.flatten()
    return (losses * flat).sum() / flat.sum().clamp_min(1.0)


class Parts:
    """The functions in use: plain, or compiled by :func:`compile_parts`."""

    gated_residual = staticmethod(gated_residual)
    inject_output = staticmethod(inject_output)
    gated_norm = staticmethod(gated_norm)
    weighted_cross_entropy = staticmethod(weighted_cross_entropy)
    chunk_gated_delta_rule = staticmethod(delta_rule.chunk_gated_delta_rule)


_PLAIN = {name: getattr(Parts, name) for name in vars(Parts) if not name.startswith("_")}


def compile_parts() -> None:
    """Replace every part by its compiled form (a GPU; the first steps then take half a minute)."""
    torch._dynamo.config.recompile_limit = 64
    for name, function in _PLAIN.items():
        setattr(Parts, name, staticmethod(torch.compile(function, dynamic=False)))


@contextlib.contextmanager
def plain_parts() -> Iterator[None]:
    """Use the plain functions for a while: for batches of many shapes, each of which would compile anew."""
    compiled = {name: getattr(Parts, name) for name in _PLAIN}
    try:
        for name, function in _PLAIN.items():
            setattr(Parts, name, staticmethod(function))
        yield
    finally:
        for name, function in compiled.items():
            setattr(Parts, name, staticmethod(function))


def _residual_forward(self: nn.Module, hyper_input: Tensor) -> Any:
    inject = None if self.block_inject_weight is None else self.block_inject_weight.weight
    mixed, weights = Parts.gated_residual(
        hyper_input,
        self.hc_norm.weight,
        self.input_mix_weight_down.weight,
        self.input_mix_weight_up.weight,
        inject,
        self.hc_count,
        self.hc_norm.eps,
    )
    return mixed if weights is None else (mixed, hyper_input, weights)


def _norm_forward(self: nn.Module, hidden_states: Tensor, gate: Tensor) -> Tensor:
    return Parts.gated_norm(hidden_states, gate, self.weight, self.variance_epsilon, self.activation)


def _delta_rule(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    return Parts.chunk_gated_delta_rule(*args, **kwargs)


def _everything_visible(self: nn.Module, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=hidden_states.device)


def install() -> None:
    """Make the library's classes use these parts, for this process.

    The indexer's forward becomes "all keys are selected", which is what it computes whenever the number of keys
    is within its budget, without its loop over queries.
    """
    family.Qwen4ExpTextGatedResidual.forward = _residual_forward
    family.Qwen4ExpTextRMSNormGated.forward = _norm_forward
    family.Qwen4ExpTextQSAIndexer.forward = _everything_visible
    family.torch_chunk_gated_delta_rule = _delta_rule
