"""Root-mean-square norms over the last axis, in the form that costs least on the backend.

On the CPU every small operation costs microseconds and MLX composes its norm of a dozen, so there the norm is written
with as few as it takes; elsewhere `mx.fast.rms_norm` is one kernel and accumulates in float32.
"""

import mlx.core as mx


class RmsNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis of ``x`` [T, groups, dim].

    Args:
        weight: [groups, dim], or [1, dim] for all groups alike, in the compute dtype.
        eps: Added to the mean square.
        composed: Write the norm out (CPU, float32) instead of calling the fused kernel.

    Attributes:
        plain_weight: As given.
    """

    def __init__(self, weight: mx.array, eps: float, *, composed: bool) -> None:
        dim = weight.shape[-1]
        self._eps = eps
        self._composed = composed
        self.plain_weight = weight
        # sqrt(dim) turns the mean under the root into the plain sum; the leading 1 is the token axis
        self._weight = (weight * dim**0.5 if composed else weight)[None]
        self._sum_eps = mx.full((*self._weight.shape[:-1], 1), eps * dim)
        mx.eval(self._weight, self._sum_eps, self.plain_weight)

    def __call__(self, x: mx.array) -> mx.array:
        """Normalise ``x`` [T, groups, dim]."""
        if not self._composed:
            return mx.fast.rms_norm(x, None, self._eps) * self._weight
        total = mx.square(x).sum(axis=-1, keepdims=True)
        return x * mx.rsqrt(total + self._sum_eps) * self._weight
