"""Fitting the forecast correction: it learns what there is to learn, in bounded memory, and is measured apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotstream_core.diagnostics.fitting import _Sums, fit_correction, is_held_out
from slotstream_core.diagnostics.forecasts import (
    PASS_ROWS,
    RecordedTarget,
    agreement_of,
    corrected_logits,
    record_targets,
)
from slotstream_core.diagnostics.lookahead import make_sequences, report_lookahead
from slotstream_core.errors import RequestError
from slotstream_core.loading import load_model
from slotstream_planner import PlanRequest

HIDDEN, EXPERTS = 12, 8
SMALL = PlanRequest(experts_per_layer=1)


def random_sequences(count: int, length: int) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(0, 500, length).tolist() for _ in range(count)]


def test_a_linear_residual_of_low_rank_is_found_exactly() -> None:
    random = np.random.default_rng(0)
    weights = random.normal(size=(HIDDEN, 2)) @ random.normal(size=(2, EXPERTS))
    weights -= weights.mean(axis=1, keepdims=True)
    sums = _Sums(HIDDEN, EXPERTS)
    parts = []
    for _ in range(4):
        mixed = (random.normal(size=(200, HIDDEN)) + 3).astype(np.float32)
        forecast = random.normal(size=(200, EXPERTS)).astype(np.float32)
        actual = (forecast + mixed @ weights + 1.5).astype(np.float32)
        parts.append(RecordedTarget(boundary=forecast, mixed=mixed, attention=forecast, actual=actual))
        sums.add(parts[-1])
    correction = sums.solve(rank=2, ridge=1e-9)
    left = corrected_logits(parts[0], correction, 1) - parts[0].actual
    left -= left.mean(axis=1, keepdims=True)  # a shift of all experts moves no choice
    assert np.abs(left).max() < 0.05  # float16 factors
    assert agreement_of(corrected_logits(parts[0], correction, 1), parts[0].actual, top=3).recall > 0.99


def test_agreement_counts_what_is_foreseen_and_what_would_be_read() -> None:
    actual = np.array([[5.0, 4.0, 3.0, 0.0], [0.0, 1.0, 2.0, 3.0]], np.float32)
    forecast = np.array([[9.0, 1.0, 1.02, 0.0], [5.0, 1.0, 0.0, 4.0]], np.float32)
    found = agreement_of(forecast, actual, top=2)
    assert (found.rows, found.chosen, found.foreseen) == (2, 4, 2)
    assert (found.issued, found.issued_right) == (2, 1)  # expert 0 of each row; the second ones are the margin's zero
    assert (found + found).recall == found.recall == 0.5
    assert found.precision == 0.5


def test_a_recording_holds_what_the_routers_really_said(tiny_model: Path) -> None:
    ids = random_sequences(1, 40)
    with load_model(tiny_model, request=SMALL) as loaded:
        ((index, recorded),) = record_targets(loaded, ids, [1, 3])
    assert index == 0
    assert recorded.keys() == {1, 3}
    for rows in recorded.values():
        assert rows.mixed.shape == (40, 64)
        assert rows.boundary.shape == rows.attention.shape == rows.actual.shape == (40, 16)
        near = agreement_of(rows.attention, rows.actual, top=4)
        chance = agreement_of(rows.actual[::-1], rows.actual, top=4)
        assert near.recall > chance.recall


def test_targets_fitted_in_small_memory_come_out_the_same(tiny_model: Path) -> None:
    sequences = random_sequences(10, PASS_ROWS + 10)
    with load_model(tiny_model, request=SMALL) as loaded:
        calls: list[tuple[int, int]] = []
        at_once = fit_correction(loaded, sequences, rank=4, progress=lambda done, total: calls.append((done, total)))
        one_by_one = fit_correction(loaded, sequences, rank=4, memory_bytes=1)
    for name in ("a", "b", "mu", "delta"):
        assert np.array_equal(getattr(at_once.correction, name), getattr(one_by_one.correction, name))
    assert at_once.correction.a.shape == (3, 64, 4)
    assert at_once.rows == sum(len(ids) for index, ids in enumerate(sequences) if not is_held_out(index))
    assert 0 < at_once.held_out_rows < 2 * (PASS_ROWS + 10)
    assert calls[-1][1] == 10
    mean = {
        name: np.mean([found.recall for found in getattr(at_once, name).values()])
        for name in ("attention", "corrected")
    }
    assert mean["corrected"] >= mean["attention"] - 0.02


def test_too_little_text_and_a_rank_of_nothing_are_refused(tiny_model: Path) -> None:
    with load_model(tiny_model, request=SMALL) as loaded:
        with pytest.raises(RequestError, match="too few"):
            fit_correction(loaded, random_sequences(3, 10))
        with pytest.raises(RequestError, match="rank is 0"):
            fit_correction(loaded, random_sequences(8, 30), rank=0)


def test_the_report_compares_both_ways_on_the_same_tokens(tiny_model: Path) -> None:
    sequences = make_sequences(tiny_model, ["one", "two", "three", "four"], reply_tokens=6, request=SMALL)
    assert all(len(ids) > 6 for ids in sequences)
    report = report_lookahead(
        tiny_model, sequences, request=PlanRequest(experts_per_layer=1, lookahead="on"), tokens=4, prompts=2
    )
    assert report.same_ids
    assert report.agreement.keys() == {"boundary", "attention"}
    assert set(report.agreement["attention"]) == {1, 2, 3}
    assert report.with_it.traffic.ahead_records > 0
    assert report.without.traffic.ahead_records == 0
    assert report.with_it.tokens == report.without.tokens == 16
    assert report.to_json()["median_gain"] > 0
    everything = PlanRequest(experts_per_layer=16, lookahead="on")
    with pytest.raises(RequestError, match="nothing to read ahead"):
        report_lookahead(tiny_model, sequences, request=everything)
