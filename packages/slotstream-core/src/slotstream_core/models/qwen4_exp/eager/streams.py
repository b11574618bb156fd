"""`StreamMixer` and `HyperConnection`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from slotstream_core import _native as pieces
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.eager.host import EagerHost, rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.hyper_connections import HyperConnection, StreamMixer
from slotstream_core.models.qwen4_exp.projections import Projection, WeightReader


class _Mixing:
    """What both classes do with the streams, flat [T, streams * hidden]."""

    def __init__(self, norm_weight: mx.array, eps: float, maps: tuple[Projection, Projection], host: EagerHost) -> None:
        weight = np.asarray(norm_weight)
        self._streams, self._hidden = weight.shape
        self._weight = np.ascontiguousarray(weight).reshape(-1)
        self._eps = eps
        self._down, self._up = (EagerMap(projection, host) for projection in maps)
        self._run = host.run_rows

    def __call__(self, streams: Floats) -> tuple[Floats, Floats]:
        """The block input [T, hidden] and the scaled normalised streams."""
        normed = np.empty(streams.shape, np.float32)
        mixed = np.empty((len(streams), self._hidden), np.float32)
        self._run(
            lambda rows: pieces.rms_norm(streams[rows], self._weight, self._streams, self._eps, normed[rows]), streams
        )
        low = self._down(normed)
        pieces.silu(low)
        gate = self._up(low)
        self._run(lambda rows: pieces.mix_streams(gate[rows], normed[rows], self._streams, mixed[rows]), streams)
        return mixed, normed


class EagerStreamMixer(StreamMixer):
    """See `StreamMixer`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._mixing = _Mixing(
            self._norm.plain_weight, config.rms_norm_eps, (self._down, self._up), weights.eager_host()
        )

    def mix(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """See `StreamMixer.mix`."""
        mixed, flat = self._mixing(rows_of(streams))
        return mx.array(mixed), mx.array(flat)


class EagerHyperConnection(HyperConnection):
    """See `HyperConnection`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        host = weights.eager_host()
        self._mixing = _Mixing(self._norm.plain_weight, config.rms_norm_eps, (self._down, self._up), host)
        self._injection = EagerMap(self._inject, host)
        self._run = host.run_rows

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """See `HyperConnection.read`."""
        mixed, flat = self._mixing(rows_of(streams))
        injection = self._injection(flat)
        pieces.sigmoid(injection)
        return mx.array(mixed), mx.array(injection[:, :, None])

    def inject(self, streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
        """See `HyperConnection.inject`."""
        flat, y, strength = rows_of(streams), rows_of(output), rows_of(injection)
        result = np.empty(flat.shape, np.float32)
        self._run(lambda rows: pieces.inject(flat[rows], strength[rows], y[rows], result[rows]), flat)
        return mx.array(result.reshape(streams.shape))
