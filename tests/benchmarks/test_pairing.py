"""Ratios of measurements in turn come with an interval that a scatter widens and more of them narrow."""

import random

import pytest

from benchmarks.pairing import Estimate, difference, estimate, excess, total_ratio


def test_a_ratio_that_never_changes_is_known_exactly() -> None:
    figure = excess([1.03, 2.06, 4.12], [1.0, 2.0, 4.0])
    assert figure.median == pytest.approx(0.03)
    assert figure.low == pytest.approx(0.03)
    assert figure.high == pytest.approx(0.03)


def test_the_interval_holds_the_median_and_narrows_with_more_samples() -> None:
    chance = random.Random(1)
    samples = [chance.gauss(5.0, 1.0) for _ in range(400)]
    few, many = estimate(samples[:25]), estimate(samples)
    for figure in (few, many):
        assert figure.low < figure.median < figure.high
        assert figure.low < 5.0 < figure.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_the_same_samples_give_the_same_interval() -> None:
    samples = [3.0, 1.0, 4.0, 1.0, 5.0]
    assert estimate(samples) == estimate(samples)


def test_differences_are_of_pairs() -> None:
    assert difference([2.0, 12.0, 5.0], [1.0, 10.0, 2.0]).median == 2.0


def test_pairs_have_to_be_pairs() -> None:
    with pytest.raises(ValueError):
        excess([1.0, 2.0], [1.0])
    with pytest.raises(ValueError):
        estimate([])


def test_values_are_named_with_their_unit_at_the_end() -> None:
    assert estimate([2.0]).values("added_s") == {"added_s": 2.0, "added_low_s": 2.0, "added_high_s": 2.0}


def test_an_estimate_is_shown_with_its_interval() -> None:
    assert Estimate(median=1.25, low=1.0, high=1.5).shown(2) == "1.25 (1.00-1.50)"


def test_the_ratio_of_sums_weighs_long_pairs_more_and_has_an_interval_over_pairs() -> None:
    found = total_ratio([1.0, 4.0, 10.0], [2.0, 4.0, 9.0])
    assert found.median == pytest.approx(1.0)
    assert found.low < found.median < found.high
    assert total_ratio([3.0, 6.0], [1.0, 2.0]) == Estimate(median=3.0, low=3.0, high=3.0)
    with pytest.raises(ValueError, match="at least one pair"):
        total_ratio([], [])
