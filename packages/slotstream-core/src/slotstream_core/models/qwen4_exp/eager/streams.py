"""`StreamMixer` and `HyperConnection`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from slotstream_core import _native as pieces
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.eager.host import PARALLEL_VALUES, EagerHost, rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.hyper_connections import HyperConnection, StreamMixer
from slotstream_core.models.qwen4_exp.projections import Projection, WeightReader


class EagerMixing:
    """What both classes do with the streams, flat [T, streams * hidden].

    Args:
        norm_weight: [streams, hidden].
        eps: Of the norm.
        maps: The gate's two maps.
        inject: The map of the injection weights, or None.
        host: Where it runs.
    """

    def __init__(
        self,
        norm_weight: mx.array,
        eps: float,
        maps: tuple[Projection, Projection],
        inject: Projection | None,
        host: EagerHost,
    ) -> None:
        weight = np.asarray(norm_weight)
        self._streams, self._hidden = weight.shape
        self._weight = np.ascontiguousarray(weight).reshape(-1)
        self._eps = eps
        self._rank = maps[0].out_features
        self._down, self._up = (EagerMap(projection, host) for projection in maps)
        self._inject = None if inject is None else EagerMap(inject, host)
        self._host = host
        self._native = bool(self._down.handle and self._up.handle and (self._inject is None or self._inject.handle))

    def reading(self) -> tuple[int, int, Floats, int, float] | None:
        """For `_native.guess`: maps, norm and streams; None when a matrix is not taken."""
        return (self._down.handle, self._up.handle, self._weight, self._streams, self._eps) if self._native else None

    def description(self) -> tuple[int, int, int, Floats, int, float] | None:
        """For `_native.layer`: matrices, norm and streams; None without injection, or when a matrix is not taken."""
        if not self._native or self._inject is None:
            return None
        return self._down.handle, self._up.handle, self._inject.handle, self._weight, self._streams, self._eps

    def __call__(self, streams: Floats) -> tuple[Floats, Floats, Floats]:
        """The block input [T, hidden], the scaled normalised streams and the injection [T, streams]."""
        rows = len(streams)
        normed = np.empty(streams.shape, np.float32)
        mixed = np.empty((rows, self._hidden), np.float32)
        if self._native:
            injection = np.empty((rows, self._streams), np.float32)
            pieces.read_streams(
                self._host.handle,
                self._down.handle,
                self._up.handle,
                0 if self._inject is None else self._inject.handle,
                streams,
                self._weight,
                self._streams,
                self._eps,
                normed,
                np.empty((rows, self._rank), np.float32),
                np.empty(streams.shape, np.float32),
                mixed,
                injection,
            )
            return mixed, normed, injection
        return mixed, normed, self._apart(streams, normed, mixed)

    def _apart(self, streams: Floats, normed: Floats, mixed: Floats) -> Floats:
        """As one call does, where the compiled products do not take every matrix."""
        weight, count = self._weight, self._streams
        self._host.run_rows(
            lambda rows: pieces.rms_norm(streams[rows], weight, count, self._eps, normed[rows]), streams
        )
        low = self._down(normed)
        pieces.silu(low)
        gate = self._up(low)
        self._host.run_rows(lambda rows: pieces.mix_streams(gate[rows], normed[rows], count, mixed[rows]), streams)
        if self._inject is None:
            return np.empty((len(streams), count), np.float32)
        injection = self._inject(normed)
        pieces.sigmoid(injection)
        return injection


class EagerStreamMixer(StreamMixer):
    """See `StreamMixer`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        norm, host = self._norm.plain_weight, weights.eager_host()
        self.mixing = EagerMixing(norm, config.rms_norm_eps, (self._down, self._up), None, host)

    def mix(self, streams: mx.array) -> mx.array:
        """See `StreamMixer.mix`."""
        return mx.array(self.mixing(rows_of(streams))[0])


class EagerHyperConnection(HyperConnection):
    """See `HyperConnection`.

    Attributes:
        mixing: Reads the streams.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig) -> None:
        super().__init__(weights, prefix, config)
        self._eager = weights.eager_host()
        norm, maps = self._norm.plain_weight, (self._down, self._up)
        self.mixing = EagerMixing(norm, config.rms_norm_eps, maps, self._inject, self._eager)

    def mix(self, streams: mx.array) -> mx.array:
        """See `StreamMixer.mix`."""
        return mx.array(self.mixing(rows_of(streams))[0])

    def read(self, streams: mx.array) -> tuple[mx.array, mx.array]:
        """See `HyperConnection.read`."""
        mixed, _, injection = self.mixing(rows_of(streams))
        return mx.array(mixed), mx.array(injection[:, :, None])

    def inject(self, streams: mx.array, output: mx.array, injection: mx.array) -> mx.array:
        """See `HyperConnection.inject`."""
        flat, y, strength = rows_of(streams), rows_of(output), rows_of(injection)
        result = np.empty(flat.shape, np.float32)
        if flat.size < PARALLEL_VALUES:
            pieces.inject(flat, strength, y, result)
        else:
            self._eager.run_rows(lambda rows: pieces.inject(flat[rows], strength[rows], y[rows], result[rows]), flat)
        return mx.array(result.reshape(streams.shape))
