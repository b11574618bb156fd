"""The gated delta rule over chunks, with the triangular systems inverted by matrix products.

Same function as the library's ``torch_chunk_gated_delta_rule`` (arguments, shapes, float32 arithmetic); only the
way to solve ``(I + L) x = b`` differs, because batched triangular solves of 64 x 64 are slow on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor


class _UnitLowerInverse(torch.autograd.Function):
    """Inverse of a unit lower triangular matrix [..., n, n], n a power of two; the diagonal is taken as one."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        size = matrix.shape[-1]
        blocks = matrix.new_ones(*matrix.shape[:-2], size, 1, 1)
        width = 1
        while width < size:
            count = size // (2 * width)
            tiles = matrix.unflatten(-2, (count, 2 * width)).unflatten(-1, (count, 2 * width))
            pairs = tiles.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., width:, :width]
            upper, lower = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
            corner = -(lower @ pairs @ upper)
            top = torch.cat([upper, torch.zeros_like(upper)], dim=-1)
            blocks = torch.cat([top, torch.cat([corner, lower], dim=-1)], dim=-2)
            width *= 2
        inverse = blocks.squeeze(-3)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ gradient @ transposed).tril(-1)


def unit_lower_inverse(matrix: Tensor) -> Tensor:
    """Return the inverse of ``I + tril(matrix, -1)`` for [..., n, n] with n a power of two."""
    return _UnitLowerInverse.apply(matrix)


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated delta rule for query/key [B, T, Hk, Dk], value [B, T, Hv, Dv], g and beta [B, T, Hv].

    Returns the outputs [B, T, Hv, Dv] in the query's dtype and, when asked, the final state [B, Hv, Dk, Dv].
    """
    dtype, length = query.dtype, query.shape[1]
    repeat = value.shape[2] // key.shape[2]
    q, k, v = (x.float().transpose(1, 2) for x in (query, key, value))  # [B, H, T, D]
    if use_qk_l2norm_in_kernel:
        q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6)
        k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    q = q * q.shape[-1] ** -0.5
    if repeat > 1:
        q, k = q.repeat_interleave(repeat, dim=1), k.repeat_interleave(repeat, dim=1)
    b, d = (x.float().transpose(1, 2) for x in (beta, g))  # [B, H, T]
    padding = -length % chunk_size
    if padding:
        q, k, v = (functional.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        b, d = (functional.pad(x, (0, padding)) for x in (b, d))
    q, k, v = (x.unflatten(2, (-1, chunk_size)) for x in (q, k, v))  # [B, H, C, 64, D]
    b, d = (x.unflatten(2, (-1, chunk_size)) for x in (b, d))  # [B, H, C, 64]
    decay = d.cumsum(-1)
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).triu(1)
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    keys_t = k.transpose(-1, -2)
    k_beta = k * b.unsqueeze(-1)
    inverse = unit_lower_inverse((k_beta @ keys_t) * between)
    inside = (q @ keys_t) * between
    corrected = inverse @ torch.cat([v * b.unsqueeze(-1), k_beta * decay.exp().unsqueeze(-1)], dim=-1)
    new_values, read_keys = corrected.split([v.shape[-1], k.shape[-1]], dim=-1)
    q = q * decay.exp().unsqueeze(-1)
    k = (k * (decay[..., -1:] - decay).exp().unsqueeze(-1)).transpose(-1, -2)
    fade = decay[..., -1].exp()[..., None, None]
    state = q.new_zeros(q.shape[0], q.shape[1], q.shape[-1], v.shape[-1])
    if initial_state is not None:
        state = initial_state.float()
    # Only the state and the corrected values depend on the chunk before.
    states, written = [], []
    for chunk in range(q.shape[2]):
        states.append(state)
        fresh = new_values[:, :, chunk] - read_keys[:, :, chunk] @ state
        written.append(fresh)
        state = state * fade[:, :, chunk] + k[:, :, chunk] @ fresh
    outputs = q @ torch.stack(states, dim=2) + inside @ torch.stack(written, dim=2)
    outputs = outputs.flatten(2, 3)[:, :, :length].transpose(1, 2).to(dtype)
    return outputs.contiguous(), state if output_final_state else None
