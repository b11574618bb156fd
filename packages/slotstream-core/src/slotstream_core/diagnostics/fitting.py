"""Learning the forecast correction of a checkpoint from recorded states.

For each target the residual r between the router's logits and the forecast's, less its mean over the experts (which
moves no choice), is predicted from the row m the forecast was made from. Only sums are kept while sequences are read:
of m, r, m m' and m r', so memory does not grow with the text. The solution is ridge regression cut to a rank:

    S = cov(m), C = cov(m, r)
    W = (S + ridge * mean(diag S) * I)^-1 C
    V = eigenvectors of W' S W with the largest eigenvalues        (the directions of r that W explains most of)
    a = W V,  b = V',  mu = mean(m),  delta = mean(r)

Targets are taken in groups whose sums fit in a given memory; each group reads the sequences again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.corrections import FIRST_TARGET, Correction
from slotstream_core.diagnostics.forecasts import (
    Agreement,
    RecordedTarget,
    agreement_of,
    corrected_logits,
    record_targets,
)
from slotstream_core.errors import RequestError
from slotstream_core.loading import LoadedModel

__all__ = ["HELD_OUT_EVERY", "CorrectionFit", "fit_correction", "is_held_out"]

Doubles = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

HELD_OUT_EVERY: Final = 4
HELD_OUT_ROWS: Final = 2048
RIDGES: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LEAST_ROWS: Final = 64


def is_held_out(index: int) -> bool:
    """Whether a sequence is kept from the fit, to measure it with."""
    return index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrectionFit:
    """A fitted correction and how it does on sequences it was not fitted on.

    Attributes:
        correction: The factors.
        rows: Rows it was fitted on.
        held_out_rows: Rows it was measured on; others of the held-out sequences chose the ridge.
        ridges: The ridge chosen for each target.
        boundary: Agreement of the boundary forecast by target.
        attention: Agreement of the uncorrected forecast after attention by target.
        corrected: Agreement of the corrected one by target.
    """

    correction: Correction
    rows: int
    held_out_rows: int
    ridges: dict[int, float]
    boundary: dict[int, Agreement]
    attention: dict[int, Agreement]
    corrected: dict[int, Agreement]


class _Sums:
    """The sums of one target."""

    def __init__(self, hidden: int, experts: int) -> None:
        self.rows = 0
        self.m = np.zeros(hidden)
        self.r = np.zeros(experts)
        self.mm = np.zeros((hidden, hidden))
        self.mr = np.zeros((hidden, experts))

    def add(self, recorded: RecordedTarget) -> None:
        residual = (recorded.actual - recorded.attention).astype(np.float64)
        residual -= residual.mean(axis=1, keepdims=True)
        mixed = recorded.mixed.astype(np.float64)
        self.rows += len(mixed)
        self.m += mixed.sum(axis=0)
        self.r += residual.sum(axis=0)
        self.mm += mixed.T @ mixed
        self.mr += mixed.T @ residual

    def solve(self, rank: int, ridge: float) -> Correction:
        """The correction of this one target."""
        mu, delta = self.m / self.rows, self.r / self.rows
        s = self.mm / self.rows - np.outer(mu, mu)
        c = self.mr / self.rows - np.outer(mu, delta)
        damped = s + (ridge * float(np.trace(s)) / len(s) + 1e-12) * np.eye(len(s))
        w = np.linalg.solve(damped, c)
        _, vectors = np.linalg.eigh(w.T @ s @ w)
        v = vectors[:, ::-1][:, :rank]
        a, b = _balanced(w @ v, np.ascontiguousarray(v.T))
        return Correction(
            a=a.astype(np.float16)[None],
            b=b.astype(np.float16)[None],
            mu=mu.astype(np.float32)[None],
            delta=delta.astype(np.float32)[None],
        )


def _balanced(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Share each direction's size between its two factors, so that float16 holds both well."""
    left, right = np.abs(a).max(axis=0), np.abs(b).max(axis=1)
    factor = np.sqrt(np.maximum(right, 1e-12) / np.maximum(left, 1e-12))
    return a * factor, b / factor[:, None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _TargetFit:
    """One target's correction, what it was made from, and how it does."""

    correction: Correction
    rows: int
    ridge: float
    boundary: Agreement
    attention: Agreement
    corrected: Agreement


@dataclass
class _Group:
    """The targets being fitted together: their sums and their held-out rows."""

    sums: dict[int, _Sums]
    held_out: dict[int, list[RecordedTarget]] = field(default_factory=dict)
    held_out_rows: int = 0

    def add(self, index: int, recorded: dict[int, RecordedTarget]) -> None:
        if not is_held_out(index):
            for target, rows in recorded.items():
                self.sums[target].add(rows)
        elif self.held_out_rows < HELD_OUT_ROWS:
            for target, rows in recorded.items():
                self.held_out.setdefault(target, []).append(rows)
            self.held_out_rows += len(next(iter(recorded.values())).actual)

    def fit(self, target: int, rank: int, top: int) -> _TargetFit:
        """Solve one target with the ridge that does best on one half of its held-out passes; measure on the other."""
        sums, kept = self.sums[target], self.held_out.get(target, [])
        if sums.rows < LEAST_ROWS or len(kept) < 2:
            raise RequestError(
                f"{sums.rows} tokens to fit on and {len(kept)} held-out passes are too few; give at least "
                f"{2 * HELD_OUT_EVERY} prompts with {LEAST_ROWS} tokens together"
            )
        choosing, measuring = kept[0::2], kept[1::2]
        solved = [(ridge, sums.solve(rank, ridge)) for ridge in RIDGES]
        ridge, best = max(solved, key=lambda pair: (_measure(choosing, pair[1], top).recall, pair[0]))
        return _TargetFit(
            correction=best,
            rows=sums.rows,
            ridge=ridge,
            boundary=_sum(agreement_of(part.boundary, part.actual, top=top) for part in measuring),
            attention=_sum(agreement_of(part.attention, part.actual, top=top) for part in measuring),
            corrected=_measure(measuring, best, top),
        )


def fit_correction(
    loaded: LoadedModel,
    sequences: Sequence[Sequence[int]],
    *,
    rank: int = 128,
    memory_bytes: int = 2 * 10**9,
    progress: Progress | None = None,
) -> CorrectionFit:
    """Fit the correction of every layer but the first.

    Every fourth sequence is held out. One half of its passes chooses the ridge, the other measures the result.

    Args:
        loaded: The model.
        sequences: Token ids, such as prompts with the model's own replies.
        rank: Inner width; at most the hidden width and the number of experts are of use.
        memory_bytes: What sums and held-out rows may take; targets are fitted in as many groups as that needs.
        progress: Called with sequences read and sequences to read over all groups.

    Raises:
        RequestError: There is too little text, or the model has a single layer.
        ExpertReadError: Expert bytes could not be read.
    """
    config = loaded.checkpoint.config
    hidden, experts = config.hidden_size, config.num_experts
    targets = list(range(FIRST_TARGET, config.num_hidden_layers))
    if not targets:
        raise RequestError("a model of one layer has no layer to forecast")
    if rank < 1:
        raise RequestError(f"the rank is {rank}; give at least 1, such as 128")
    each = 8 * (hidden + experts) * (hidden + 1) + 4 * HELD_OUT_ROWS * (hidden + 3 * experts)
    size = max(1, memory_bytes // each)
    groups = [targets[start : start + size] for start in range(0, len(targets), size)]
    fits: list[_TargetFit] = []
    for number, chosen in enumerate(groups):
        group = _Group(sums={target: _Sums(hidden, experts) for target in chosen})
        for index, recorded in record_targets(loaded, sequences, chosen):
            group.add(index, recorded)
            if progress is not None:
                progress(number * len(sequences) + index + 1, len(groups) * len(sequences))
        fits += [group.fit(target, min(rank, hidden, experts), config.num_experts_per_tok) for target in chosen]
    parts = [fit.correction for fit in fits]
    return CorrectionFit(
        correction=Correction(
            a=np.concatenate([part.a for part in parts]),
            b=np.concatenate([part.b for part in parts]),
            mu=np.concatenate([part.mu for part in parts]),
            delta=np.concatenate([part.delta for part in parts]),
        ),
        rows=fits[0].rows,
        held_out_rows=fits[0].corrected.rows,
        ridges={target: fit.ridge for target, fit in zip(targets, fits, strict=True)},
        boundary={target: fit.boundary for target, fit in zip(targets, fits, strict=True)},
        attention={target: fit.attention for target, fit in zip(targets, fits, strict=True)},
        corrected={target: fit.corrected for target, fit in zip(targets, fits, strict=True)},
    )


def _measure(parts: Sequence[RecordedTarget], single: Correction, top: int) -> Agreement:
    return _sum(agreement_of(corrected_logits(part, single, FIRST_TARGET), part.actual, top=top) for part in parts)


def _sum(agreements: Iterable[Agreement]) -> Agreement:
    return sum(agreements, Agreement())
