"""How well forecasts of a layer's router agree with what the router then chooses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.corrections import Correction
from slotstream_core.loading import LoadedModel
from slotstream_core.models.qwen4_exp.forecasting import TargetLayer
from slotstream_core.models.qwen4_exp.moe import Shown

__all__ = ["PASS_ROWS", "Agreement", "RecordedTarget", "agreement_of", "corrected_logits", "record_targets"]

Floats = npt.NDArray[np.float32]

MARGIN: Final = 0.062
"""How far a forecast logit lies above the last one that would be chosen, for a forecast to count as sure."""

PASS_ROWS: Final = 128
"""Rows of a recording pass: their recorded arrays are held for every target until the pass ends."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTarget:
    """What one pass says about one target layer; a row a token.

    Attributes:
        boundary: Forecast logits from the streams entering the layer before, [rows, experts].
        mixed: What the target's router would read after that layer's attention, [rows, hidden].
        attention: Forecast logits from `mixed`, [rows, experts].
        actual: The router's logits, [rows, experts].
    """

    boundary: Floats
    mixed: Floats
    attention: Floats
    actual: Floats


class _Recorder:
    """The `PassWatch` that keeps what a pass says about some targets."""

    def __init__(self, layers: Sequence[TargetLayer], targets: Sequence[int]) -> None:
        self._layers = layers
        self._targets = frozenset(targets)
        self._kept: dict[int, dict[str, mx.array]] = {target: {} for target in targets}
        self._fresh: list[mx.array] = []

    def entering(self, layer: int, streams: mx.array) -> None:
        """Keep the boundary forecast."""
        if layer + 1 in self._targets:
            target = self._layers[layer + 1]
            self._keep(layer + 1, "boundary", target.router_logits(target.expert_input(streams)))

    def attended(self, layer: int, streams: Shown) -> None:
        """Keep the row after attention and its forecast."""
        if layer + 1 in self._targets:
            target = self._layers[layer + 1]
            mixed = target.expert_input(mx.array(streams))
            self._keep(layer + 1, "mixed", mixed)
            self._keep(layer + 1, "attention", target.router_logits(mixed))

    def routing(self, layer: int, x: Shown) -> None:
        """Keep the router's logits."""
        if layer in self._targets:
            self._keep(layer, "actual", self._layers[layer].router_logits(mx.array(x)))

    def arrays(self) -> list[mx.array]:
        """Evaluate what was kept with the routing, so that no pass piles up."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def requested(self, layer: int, experts: npt.NDArray[np.integer]) -> None:
        """Nothing is read ahead."""

    def _keep(self, target: int, name: str, array: mx.array) -> None:
        self._kept[target][name] = array.astype(mx.float32)
        self._fresh.append(self._kept[target][name])

    def take(self) -> dict[int, RecordedTarget]:
        """What was kept, by target."""
        return {
            target: RecordedTarget(**{name: np.asarray(array) for name, array in kept.items()})
            for target, kept in self._kept.items()
        }


def record_targets(
    loaded: LoadedModel, sequences: Sequence[Sequence[int]], targets: Sequence[int]
) -> Iterator[tuple[int, dict[int, RecordedTarget]]]:
    """Read sequences in passes and yield what each pass says about some target layers.

    Yields:
        The index of the sequence, and the recorded rows by target.

    Raises:
        RequestError: A sequence is empty or holds an id outside the vocabulary.
        ExpertReadError: Expert bytes could not be read.
    """
    for index, ids in enumerate(sequences):
        state = loaded.model.new_state()
        for start in range(0, len(ids), PASS_ROWS):
            recorder = _Recorder(loaded.model.layers, targets)
            loaded.model.forward(list(ids[start : start + PASS_ROWS]), state, watch=recorder)
            yield index, recorder.take()


def corrected_logits(recorded: RecordedTarget, correction: Correction, target: int) -> Floats:
    """The corrected forecast, computed as documented but in float32 throughout."""
    row = target - 1
    centred = (recorded.mixed - correction.mu[row]).astype(np.float16).astype(np.float32)
    inner = centred @ correction.a[row].astype(np.float32)
    corrected: Floats = recorded.attention + inner @ correction.b[row].astype(np.float32) + correction.delta[row]
    return corrected


@dataclass(slots=True)
class Agreement:
    """Sums over rows; add recordings with `agreement_of` and `+`.

    Attributes:
        rows: Rows counted.
        chosen: Experts the router chose, over all rows.
        foreseen: Of those, experts among as many with the largest forecast logits.
        issued: Experts clearly enough inside the forecast to be read ahead.
        issued_right: Of those, experts the router chose.
    """

    rows: int = 0
    chosen: int = 0
    foreseen: int = 0
    issued: int = 0
    issued_right: int = 0

    @property
    def recall(self) -> float:
        """Share of the chosen experts that the forecast had among its first."""
        return self.foreseen / self.chosen if self.chosen else 0.0

    @property
    def precision(self) -> float:
        """Share of the experts that would be read ahead which were chosen."""
        return self.issued_right / self.issued if self.issued else 0.0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            rows=self.rows + other.rows,
            chosen=self.chosen + other.chosen,
            foreseen=self.foreseen + other.foreseen,
            issued=self.issued + other.issued,
            issued_right=self.issued_right + other.issued_right,
        )


def agreement_of(forecast: Floats, actual: Floats, *, top: int, margin: float = MARGIN) -> Agreement:
    """Compare forecast logits with the router's, both [rows, experts]."""
    chosen, foreseen = _largest(actual, top), _largest(forecast, top)
    last = np.where(foreseen, forecast, np.inf).min(axis=1, keepdims=True)
    issued = forecast - last >= margin
    return Agreement(
        rows=len(actual),
        chosen=int(chosen.sum()),
        foreseen=int((chosen & foreseen).sum()),
        issued=int(issued.sum()),
        issued_right=int((issued & chosen).sum()),
    )


def _largest(logits: Floats, top: int) -> npt.NDArray[np.bool_]:
    """Mark the `top` largest of each row, exactly that many."""
    order = np.argpartition(logits, logits.shape[1] - top, axis=1)[:, logits.shape[1] - top :]
    marks = np.zeros(logits.shape, bool)
    np.put_along_axis(marks, order, True, axis=1)
    return marks
