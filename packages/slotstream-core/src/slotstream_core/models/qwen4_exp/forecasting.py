"""Forecasts of the next layer's router.

    boundary    layer t's router on the streams that enter layer t - 1
    attention   layer t's router on the streams after layer t - 1's attention, without its experts
    corrected   the same with a learned low-rank correction, see `slotstream_core.checkpoint.corrections`

Each reads the streams through layer t's own hyper-connection, as its router will. Nothing here touches what the pass
computes with.

Where layers are computed at once, a forecast after attention is made when the layer's own experts have been requested:
it then fills a wait for them. A forecast from the streams that enter is made right there. The first layer, and every
layer before which n-grams are added to the streams, is forecast from the streams that enter it as well, since nothing
before says much about them. Elsewhere a forecast is read back together with its layer's routing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.corrections import Correction
from slotstream_core.errors import StateError
from slotstream_core.experts.confidence import Logits
from slotstream_core.experts.lookahead import Lookahead
from slotstream_core.models.qwen4_exp.moe import Shown
from slotstream_core.options import Tap


class TargetLayer(Protocol):
    """What a forecast needs of the layer it is for; `DecoderLayer` provides it."""

    def expert_input(self, streams: mx.array) -> mx.array:
        """What the layer's router would read from streams [T, streams, hidden]: [T, hidden]."""

    def router_logits(self, x: mx.array) -> mx.array:
        """float32 [T, experts]."""

    @property
    def at_once(self) -> bool:
        """Whether both are computed when they return."""

    def forecast_at_once(self, correction: TargetCorrection | None) -> Callable[[Shown], Logits] | None:
        """What makes forecasts, corrected ones, where that is so."""

    @property
    def forecast_bytes(self) -> int:
        """Bytes that this needed for itself, without corrections."""


class TargetCorrection:
    """One target's correction.

    On a CPU it is applied by NumPy after the readback, from float32 factors: twice the bytes, but no conversion a layer
    and no operation handed to MLX's thread. Elsewhere the device applies it, from float16 factors.
    """

    def __init__(self, correction: Correction, index: int, backend: Backend) -> None:
        self.on_host = backend.kind == "cpu"
        self._arrays: list[mx.array] = []
        self._factors: list[Logits] = []
        stored = (correction.a, correction.b, correction.mu, correction.delta)
        a, b, mu, delta = (array[index] for array in stored)
        if self.on_host:
            self._factors = [np.ascontiguousarray(array).astype(np.float32) for array in (a.T, b.T, mu, delta)]
        else:
            self._arrays = [mx.array(array) for array in (a, b, mu, delta)]
            mx.eval(self._arrays)

    @property
    def byte_count(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in self._arrays) + sum(array.nbytes for array in self._factors)

    @property
    def host_factors(self) -> tuple[Logits, Logits, Logits, Logits]:
        """The factors [rank, hidden] and [experts, rank], mu [hidden] and delta [experts]; only where `on_host`."""
        a, b, mu, delta = self._factors
        return a, b, mu, delta

    @property
    def device_factors(self) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """The factors [hidden, rank] and [rank, experts], float16, mu [hidden] and delta [experts]; not `on_host`."""
        a, b, mu, delta = self._arrays
        return a, b, mu, delta

    def apply(self, mixed: mx.array, logits: mx.array) -> mx.array:
        """Correct logits [T, experts] that were made from ``mixed`` [T, hidden]; not where `on_host`."""
        a, b, mu, delta = self.device_factors
        centred = (mixed.astype(mx.float32) - mu).astype(mx.float16).astype(mx.float32)
        inner = centred @ a.astype(mx.float32)
        return logits + inner @ b.astype(mx.float32) + delta

    def apply_on_host(self, mixed: Logits, logits: Logits) -> Logits:
        """As `apply`, on the host; only where `on_host`."""
        a, b, mu, delta = self.host_factors
        centred = (mixed - mu).astype(np.float16).astype(np.float32)
        moved: Logits = np.matmul(np.matmul(centred, a.T), b.T)
        return logits + moved + delta


class Forecaster:
    """Forecasts the layers of one model and reads their experts ahead. Used by one thread.

    Args:
        layers: The model's decoder layers, first one first.
        lookahead: Decides when and what to read.
        backend: Where it runs.
        correction: With it forecasts are corrected ones.
        tap: Overrides where the streams are taken, which is after attention where layers are computed at once or a
            correction is there, else at the boundary; a correction belongs to "attention" and is not used elsewhere.
        renewed: Layers to be forecast from the streams that enter them, too, where that can be done at once.

    Attributes:
        tap: Where the streams are taken.
        at_once: Whether forecasts are there when they are made.
        corrections: Of each layer from the second on; none where forecasts are not corrected.
        renewed: As given.
    """

    def __init__(
        self,
        layers: Sequence[TargetLayer],
        lookahead: Lookahead,
        backend: Backend,
        *,
        correction: Correction | None = None,
        tap: Tap | None = None,
        renewed: Collection[int] = (0,),
    ) -> None:
        self.lookahead = lookahead
        self.at_once = all(layer.at_once for layer in layers)
        self.tap: Tap = tap or ("boundary" if correction is None and not self.at_once else "attention")
        self.renewed = frozenset(renewed)
        self._layers = layers
        self.corrections: tuple[TargetCorrection, ...] = ()
        if correction is not None and self.tap == "attention":
            self.corrections = tuple(TargetCorrection(correction, index, backend) for index in range(len(layers) - 1))
        # what is forecast within the target's own layer is not corrected: the correction was fitted one layer before
        self._own = [layer.forecast_at_once(None) for layer in layers]
        corrections = [None, *self.corrections] if self.corrections else [None] * len(layers)
        self._before = [
            layer.forecast_at_once(found) if found is not None else own
            for layer, found, own in zip(layers, corrections, self._own, strict=True)
        ]

    @property
    def byte_count(self) -> int:
        """Bytes held for forecasts: corrections and compact routers."""
        corrections = sum(correction.byte_count for correction in self.corrections)
        return corrections + sum(layer.forecast_bytes for layer in self._layers)

    @property
    def trying(self) -> bool:
        """See `Forecasts.trying`."""
        return self.lookahead.trying

    @contextmanager
    def watching(self, rows: int) -> Iterator[ForecastPass | None]:
        """See `Forecasts.watching`."""
        completed = False
        active = self.lookahead.begin_pass(rows)
        try:
            yield ForecastPass(self) if active else None
            completed = True
        finally:
            self.lookahead.end_pass(completed=completed)

    def forecast(self, target: int, streams: mx.array) -> list[mx.array]:
        """What to evaluate for a layer's forecast from streams taken at the tap; `finish` makes logits of it."""
        layer = self._layers[target]
        mixed = layer.expert_input(streams)
        logits = layer.router_logits(mixed)
        if not self.corrections:
            return [logits]
        correction = self.corrections[target - 1]
        return [logits, mixed] if correction.on_host else [correction.apply(mixed, logits)]

    def logits_at_once(self, target: int, streams: Shown, *, distance: int) -> Logits:
        """The forecast of a layer, float32 [T, experts]; only where `at_once`.

        Args:
            target: The layer.
            streams: [T, streams, hidden].
            distance: 1 when they were taken at the tap, 0 when they enter the layer itself.
        """
        forecast = (self._before if distance else self._own)[target]
        if forecast is None:
            raise StateError(f"layer {target} is not computed at once; its forecast has to be evaluated")
        return forecast(streams)

    def finish(self, target: int, evaluated: Sequence[mx.array]) -> Logits:
        """The forecast logits, float32 [T, experts], of what `forecast` returned, once it is evaluated."""
        logits = np.asarray(evaluated[0])
        if len(evaluated) == 1:
            return logits
        return self.corrections[target - 1].apply_on_host(np.asarray(evaluated[1]), logits)

    def forecast_published(self, target: int, logits: Logits) -> None:
        """Read ahead what a forecast names that was made elsewhere.

        Args:
            target: The layer.
            logits: float32 [1, experts], corrected where there are `corrections`.
        """
        self.lookahead.foresee(target, logits, distance=1)

    def has_layer(self, layer: int) -> bool:
        """Whether the model has such a layer."""
        return layer < len(self._layers)


class ForecastPass:
    """The `PassWatch` of one decode pass.

    Attributes:
        forecaster: Whose.
    """

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self._pending: list[mx.array] = []
        self._streams: Shown | None = None

    def entering(self, layer: int, streams: mx.array) -> None:
        """See `PassWatch.entering`."""
        forecaster = self.forecaster
        if forecaster.at_once and layer in forecaster.renewed:
            logits = forecaster.logits_at_once(layer, streams, distance=0)
            forecaster.lookahead.foresee(layer, logits, distance=0)
        if forecaster.tap == "boundary":
            self._take(layer, streams)
            if forecaster.at_once:
                self._foresee(layer)

    def attended(self, layer: int, streams: Shown) -> None:
        """See `PassWatch.attended`."""
        if self.forecaster.tap == "attention":
            self._take(layer, streams)

    def _take(self, layer: int, streams: Shown) -> None:
        self._pending, self._streams = [], None
        if not self.forecaster.has_layer(layer + 1):
            return
        if self.forecaster.at_once:
            self._streams = streams
        else:
            self._pending = self.forecaster.forecast(layer + 1, mx.array(streams))

    def routing(self, layer: int, x: Shown) -> None:
        """See `PassWatch.routing`."""

    def arrays(self) -> list[mx.array]:
        """See `PassWatch.arrays`."""
        return self._pending

    def requested(self, layer: int, experts: npt.NDArray[np.integer]) -> None:
        """See `PassWatch.requested`."""
        self.forecaster.lookahead.requested(layer, experts)
        self._foresee(layer)

    def _foresee(self, layer: int) -> None:
        """Read ahead for the next layer what the pending forecast names, once."""
        forecaster = self.forecaster
        if self._streams is not None:
            logits, self._streams = forecaster.logits_at_once(layer + 1, self._streams, distance=1), None
        elif self._pending:
            logits, self._pending = forecaster.finish(layer + 1, self._pending), []
        else:
            return
        forecaster.lookahead.foresee(layer + 1, logits, distance=1)
