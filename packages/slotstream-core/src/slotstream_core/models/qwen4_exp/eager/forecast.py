"""Forecasts of an eager layer's router, each in one compiled call."""

from __future__ import annotations

import numpy as np

from slotstream_core import _native
from slotstream_core.models.qwen4_exp.eager.host import EagerHost, MatrixView
from slotstream_core.models.qwen4_exp.forecasting import TargetCorrection
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.native import NativeMatrix


class EagerForecast:
    """What a layer's router would say of streams, corrected where there is a correction.

    Nothing depends on its bits, so centred rows stay float32 here, which `TargetCorrection.apply` rounds to float16.

    Args:
        compiled: The layer.
        host: Where it runs.
        experts: Of the layer.
        correction: Kept; or None.
    """

    def __init__(
        self, compiled: _native.Layer, host: EagerHost, experts: int, correction: TargetCorrection | None
    ) -> None:
        self._compiled = compiled
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
        _native.forecast(self._compiled, self._host.handle, rows, logits, *self._correction)
        return logits
