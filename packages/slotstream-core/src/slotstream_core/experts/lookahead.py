"""Reading experts ahead of the layer that will ask for them, from a forecast of its router's logits.

A forecast only decides what is read early. Which experts compute is decided by the real router, so the output is the
same with any forecast, and with none.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from slotstream_core.experts.confidence import Ids, Logits, RankConfidence
from slotstream_core.experts.leases import AheadLimits
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.tickets import Forecast
from slotstream_core.experts.trials import Trial

LEAST_SHARE: Final = 2 / 3
"""How often a rank must have been right for what it names to be read."""

Mode = Literal["auto", "on", "off"]

REFERENCE_EXPERTS, REFERENCE_TOP = 512, 10
REFERENCE_CANDIDATES, REFERENCE_RESERVED, REFERENCE_SPARE = 24, 64, 256
ISSUE_LIMIT = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class LookaheadSettings:
    """What is read ahead.

    Attributes:
        least_share: How often the experts at a forecast's rank must be right for what it names to be read.
        candidates: Most experts considered a row.
        issue_limit: Most reads issued for one layer in one pass.
        limits: What may be taken from the pool.
    """

    least_share: float = LEAST_SHARE
    candidates: int
    issue_limit: int = ISSUE_LIMIT
    limits: AheadLimits

    @staticmethod
    def scaled(*, experts: int, top: int, slots: int) -> LookaheadSettings:
        """Return the settings measured on the published model, in proportion to another model and pool.

        With 512 experts, 10 of them chosen, and 512 slots or more: 24 candidates a row, at most 64 reserved slots, 256
        slots left idle. Never is more than an eighth of the pool reserved.

        Args:
            experts: Experts a layer.
            top: Experts chosen for a row.
            slots: Slots of the pool.
        """
        reserved = max(top, experts * REFERENCE_RESERVED // REFERENCE_EXPERTS)
        spare = max(1, experts * REFERENCE_SPARE // REFERENCE_EXPERTS)
        return LookaheadSettings(
            candidates=min(experts, math.ceil(top * REFERENCE_CANDIDATES / REFERENCE_TOP)),
            limits=AheadLimits(
                reserved=min(REFERENCE_RESERVED, reserved, slots // 8),
                in_flight=ISSUE_LIMIT,
                spare=min(spare, slots // 2),
            ),
        )


class Expected(NamedTuple):
    """A forecast of one row that compiled code is about to make.

    Attributes:
        confidence: How far it is believed.
        ranked: To be written: its experts by rank, [1, ranks].
        settings: What is read ahead.
    """

    confidence: RankConfidence
    ranked: Ids
    settings: LookaheadSettings


FOLLOWED_PASSES: Final = 400
"""Passes of a number of rows that follow another number's trial before they are tried themselves."""


class Lookahead:
    """Decides in which passes to read ahead and what; belongs to one pool and one thread.

    Args:
        pool: Where slots are reserved.
        top: Experts the router chooses for a row.
        mode: Read ahead in every decode pass, in none, or as trials decide: passes with and without it are timed in
            turn, and the faster way is kept for a while. Passes of another number of rows than the first follow the
            trial of the nearest number, and are tried themselves once they have been many.
        clock: Monotonic seconds.

    Attributes:
        mode: As given; may be changed between passes.
    """

    def __init__(
        self, pool: SlotPool, *, top: int, mode: Mode = "auto", clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.mode: Mode = mode
        self._pool = pool
        self._top = top
        self._clock = clock
        self._trials: dict[int, Trial] = {}
        self._followed: Counter[int] = Counter()
        self._slots = -1
        self._settings: LookaheadSettings | None = None
        self._active = False
        self._trial: Trial | None = None
        self._started_s = 0.0
        self._confidences: dict[tuple[int, int], RankConfidence] = {}
        self._forecasts: dict[int, list[Forecast]] = {}

    @property
    def settings(self) -> LookaheadSettings:
        """What is read ahead with the pool's present size."""
        if self._settings is None or self._slots != self._pool.slot_count:
            self._slots = self._pool.slot_count
            self._settings = LookaheadSettings.scaled(
                experts=self._pool.layout.expert_count, top=self._top, slots=self._slots
            )
            self._trials.clear()
            self._followed.clear()
            self._confidences.clear()
        return self._settings

    @property
    def verdicts(self) -> dict[int, bool | None]:
        """By rows of a pass: whether trials found reading ahead faster; None while the first is running."""
        return {rows: trial.verdict for rows, trial in self._trials.items()}

    def begin_pass(self, rows: int) -> bool:
        """Say whether the decode pass that begins now is to be forecast. `end_pass` must follow."""
        self._active, self._trial = False, None
        self._forecasts.clear()
        streams = self._pool.slot_count < self._pool.layout.record_count
        if self.mode != "off" and streams and self.settings.limits.reserved:
            self._active = self.mode == "on" or self._chosen(rows)
        self._started_s = self._clock()
        return self._active

    @property
    def trying(self) -> bool:
        """Whether the present or last pass is not as passes of its kind are going to be: a trial only times it."""
        return self._trial is not None and self._active != bool(self._trial.verdict)

    def _chosen(self, rows: int) -> bool:
        """What trials say of a pass of so many rows, which then belongs to one or follows another."""
        if rows not in self._trials and self._trials:
            self._followed[rows] += 1
            if self._followed[rows] <= FOLLOWED_PASSES:
                nearest = min(self._trials, key=lambda tried: abs(tried - rows))
                return bool(self._trials[nearest].verdict)
        self._trial = self._trials.setdefault(rows, Trial())
        return self._trial.next_arm()

    def foresee(self, target: int, logits: Logits, *, distance: int) -> int:
        """Read ahead what a forecast names, as far as its ranks have been right so far.

        Args:
            target: The layer it is for.
            logits: Its forecast router logits, [rows, experts].
            distance: How many layers before the target's own experts it was made; 0 within that layer.

        Returns:
            How many reads were issued.
        """
        settings, confidence = self.settings, self._confidence(target, distance)
        ranked, issued = self._pool.foresee(
            target,
            logits,
            confidence,
            least=settings.least_share,
            issue_limit=settings.issue_limit,
            limits=settings.limits,
        )
        self._forecasts.setdefault(target, []).append((confidence, ranked))
        return issued

    def _confidence(self, target: int, distance: int) -> RankConfidence:
        found = self._confidences.get((target, distance))
        if found is None:
            found = RankConfidence(ranks=self.settings.candidates, top=self._top)
            self._confidences[target, distance] = found
        return found

    def expect(self, target: int) -> Expected:
        """What compiled code needs that makes a row's forecast one layer before its target, as `foresee` would."""
        confidence = self._confidence(target, 1)
        return Expected(confidence, np.empty((1, confidence.ranks), np.int32), self.settings)

    def foreseen(self, target: int, expected: Expected) -> None:
        """Take note of what compiled code ranked, and has read ahead, for a layer."""
        self._forecasts.setdefault(target, []).append((expected.confidence, expected.ranked))

    def recall(self, layer: int) -> Sequence[Forecast]:
        """What was forecast of a layer, once: the caller has it learned from."""
        return self._forecasts.pop(layer, ())

    def requested(self, layer: int, experts: npt.NDArray[np.integer]) -> None:
        """Learn from what a layer asked for; what was read ahead for layers up to it is not waited for any more.

        Args:
            layer: The layer whose experts were just requested.
            experts: Them, for every row, [rows, top].
        """
        self.learn(layer, experts, self.recall(layer))

    def learn(self, layer: int, experts: npt.NDArray[np.integer], forecasts: Sequence[Forecast]) -> None:
        """As `requested`, from forecasts that were recalled."""
        self._pool.requested(layer, experts, forecasts)

    def end_pass(self, *, completed: bool) -> None:
        """Give up what nobody asked for, and take the pass's time into the trial if it completed."""
        self._pool.drop_tickets()
        if completed and self._trial is not None:
            self._trial.record(self._clock() - self._started_s, on=self._active)
