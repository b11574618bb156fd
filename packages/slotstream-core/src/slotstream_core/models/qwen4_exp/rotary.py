"""Rotary position embedding: angles computed once a pass on the host, applied by every attention layer."""

from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig

WINDOW_TOKENS = 256
"""Angles of so many neighbouring positions are computed together and kept: passes of a few rows come one by one."""


@dataclass(frozen=True, kw_only=True)
class Angles:
    """Cosines and sines of some positions.

    Attributes:
        host_cos: For numpy, float32 [positions, rotary_dim / 2].
        host_sin: As `host_cos`.
        dtype: The compute dtype.
    """

    host_cos: npt.NDArray[np.float32]
    host_sin: npt.NDArray[np.float32]
    dtype: mx.Dtype

    @cached_property
    def cos(self) -> mx.array:
        """[positions, 1, rotary_dim / 2] in the compute dtype."""
        return mx.array(self.host_cos[:, None]).astype(self.dtype)

    @cached_property
    def sin(self) -> mx.array:
        """As `cos`."""
        return mx.array(self.host_sin[:, None]).astype(self.dtype)


class RotaryEmbedding:
    """Turns positions into angles.

    The first ``partial_rotary_factor`` of a head is rotated, in pairs (i, i + rotary_dim / 2), by the position
    times ``rope_theta ** (-2 i / rotary_dim)``. With three position axes (time, height, width) the frequencies are
    dealt to the axes in turn, as many to height and width as ``mrope_section`` says, the rest to time.
    """

    def __init__(self, config: Qwen4ExpConfig, compute_dtype: mx.Dtype) -> None:
        self.rotary_dim = int(config.head_dim * config.partial_rotary_factor)
        exponents = np.arange(0, self.rotary_dim, 2, dtype=np.float32) / np.float32(self.rotary_dim)
        self._frequencies = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
        self._axis_of = np.zeros(self.rotary_dim // 2, np.intp)
        for axis in (1, 2):
            self._axis_of[axis : 3 * config.mrope_section[axis] : 3] = axis
        self._dtype = compute_dtype
        self._window_start = -1
        self._window = self.angles(np.zeros(0, np.int64))

    def angles(self, positions: npt.NDArray[np.int64]) -> Angles:
        """Angles of ``positions``, [T] or [3, T] (time, height, width)."""
        axes = positions.astype(np.float32)
        own = axes[:, None] if axes.ndim == 1 else np.ascontiguousarray(axes[self._axis_of].T)
        turns = own * self._frequencies
        return Angles(host_cos=np.cos(turns), host_sin=np.sin(turns), dtype=self._dtype)

    def pass_angles(self, start: int, tokens: int, ratio: int) -> tuple[Angles, Angles | None]:
        """Angles of a pass of ``tokens`` from position ``start`` on, and of the indexer blocks that it completes.

        A block of ``ratio`` tokens stands at its first token; None when the pass completes none.
        """
        end = start + tokens
        first, last = start // ratio * ratio, end // ratio * ratio
        own = self._between(start, end, 1)
        return own, self._between(first, last, ratio) if last > first else None

    def _between(self, start: int, end: int, step: int) -> Angles:
        """Angles of every ``step``-th position from ``start`` to before ``end``."""
        window = start // WINDOW_TOKENS * WINDOW_TOKENS
        if end - window > WINDOW_TOKENS:
            return self.angles(np.arange(start, end, step, dtype=np.int64))
        if window != self._window_start:
            self._window = self.angles(np.arange(window, window + WINDOW_TOKENS, dtype=np.int64))
            self._window_start = window
        places = slice(start - window, end - window, step)
        cos, sin = self._window.host_cos[places], self._window.host_sin[places]
        if step > 1:
            cos, sin = cos.copy(), sin.copy()
        return Angles(host_cos=cos, host_sin=sin, dtype=self._dtype)


def rotate(x: mx.array, angles: Angles) -> mx.array:
    """Rotate the first part of each head of ``x`` [T, heads, head_dim]; the rest of the head passes through."""
    half = angles.cos.shape[-1]
    left, right = x[..., :half], x[..., half : 2 * half]
    rotated = [left * angles.cos - right * angles.sin, right * angles.cos + left * angles.sin]
    if x.shape[-1] > 2 * half:
        rotated.append(x[..., 2 * half :])
    return mx.concatenate(rotated, axis=-1)
