"""Hyper-connections: several residual streams, mixed into one input for a block and fed by its output."""

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.projections import WeightReader


class StreamMixer:
    """Collapses the residual streams [T, streams, hidden] to one block input [T, hidden].

    Every stream is RMS-normalised by itself; a low-rank gate computed from all of them weighs each value, and the
    weighted streams are averaged. Every use of the normalised streams is divided by their number, so the norm's
    weights are.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        self._count = config.hc_count
        self._hidden = config.hidden_size
        self._norm = weights.norm(
            f"{prefix}.hc_norm.weight", config.rms_norm_eps, groups=self._count, factor=1.0 / self._count
        )
        self._down = weights.projection(f"{prefix}.input_mix_weight_down")
        self._up = weights.projection(f"{prefix}.input_mix_weight_up")

    def mix(self, streams: mx.array) -> mx.array:
        """The block input [T, hidden]."""
        return self._mixed(streams)[0]

    def _mixed(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """The block input and the scaled normalised streams, flat [T, streams * hidden]."""
        rows = streams.shape[0]
        normed = self._norm(streams)
        flat = normed.reshape(rows, self._count * self._hidden)
        low = self._down(flat)
        gate = mx.sigmoid(self._up(low * mx.sigmoid(low)))
        mixed = (gate.reshape(normed.shape) * normed).sum(axis=1)
        return mixed, flat


class HyperConnection(StreamMixer):
    """A `StreamMixer` that also says how strongly a block's output enters each stream."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._inject = weights.projection(f"{prefix}.block_inject_weight")

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """The block input [T, hidden] and half the injection weights, [T, streams, 1], between 0 and 1."""
        mixed, flat = self._mixed(streams)
        return mixed, mx.sigmoid(self._inject(flat))[:, :, None]

    def inject(self, streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
        """Add a block's ``output`` [T, hidden] to every stream as `read` said."""
        return inject(streams, output, injection)


def inject(streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
    """Add a block's ``output`` [T, hidden] to every stream with twice ``injection`` [T, streams, 1]."""
    return mx.addmm(streams, injection, output[:, None, :], alpha=2.0)
