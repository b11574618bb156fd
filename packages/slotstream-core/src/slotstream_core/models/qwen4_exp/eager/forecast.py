"""Forecasts of an eager layer's router, each in one compiled call."""

from __future__ import annotations

from typing import Final

import mlx.core as mx
import numpy as np

from slotstream_core import _native
from slotstream_core.models.qwen4_exp.eager.host import EagerHost, MatrixView
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.native import NativeMatrix

COMPACT_VALUES: Final = 1 << 19
"""A dense router of as many values lies in no cache when a forecast needs it, and reading it takes most of the time."""

COMPACT_BITS: Final = 8
COMPACT_GROUP: Final = 64


class EagerForecast:
    """What a layer's router would say of streams, corrected where there is a correction.

    Nothing depends on its bits, so centred rows stay float32 here, which `TargetCorrection.apply` rounds to float16.

    Args:
        compiled: The layer.
        router: Its own, or a compact copy, by the address in C.
        host: Where it runs.
        experts: Of the layer.
        correction: Kept; or None.
    """

    def __init__(
        self,
        compiled: _native.Layer,
        router: int,
        host: EagerHost,
        experts: int,
        correction: TargetCorrection | None,
    ) -> None:
        self._compiled = compiled
        self._router = router
        self._host = host
        self._experts = experts
        self._matrices: list[MatrixView] = []
        self._correction: tuple[int, int, Floats, Floats] | tuple[None] = (None,)
        if correction is not None:
            a, b, mu, delta = correction.host_factors
            self._matrices = [MatrixView(NativeMatrix(factor)) for factor in (a, b)]
            first, second = (matrix.handle for matrix in self._matrices)
            self._correction = (first, second, mu, delta)

    def __call__(self, rows: Floats) -> Floats:
        """Return the logits [T, experts] for ``rows`` [T, streams * hidden]."""
        logits = np.empty((len(rows), self._experts), np.float32)
        _native.forecast(self._compiled, self._host.handle, rows, logits, self._router, *self._correction)
        return logits


def compact_router(router: Projection, host: EagerHost) -> MatrixView | None:
    """Return a copy of a large dense router in a quarter of its bytes, for forecasts only; None of any other.

    A weight is off by at most a 510th of the range of its group, which moves logits by less than a tenth of a percent.
    """
    weight = router.weight
    if router.bits or weight.size < COMPACT_VALUES or weight.shape[1] % COMPACT_GROUP:
        return None
    packed, scales, biases = mx.quantize(weight, group_size=COMPACT_GROUP, bits=COMPACT_BITS)
    mx.eval(packed, scales, biases)
    return host.view(packed, scales, biases, bits=COMPACT_BITS, group_size=COMPACT_GROUP)
