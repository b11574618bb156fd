"""Ranks of forecasts are believed as far as they were right."""

from __future__ import annotations

import numpy as np
import pytest

from slotstream_core.experts.confidence import RankConfidence, rank_experts


def test_experts_are_ranked_by_their_logits_in_every_row() -> None:
    logits = np.array([[0.0, 1.0, 2.0, 3.0, 4.0, 1.5], [9.0, 0.0, 0.1, 0.2, 0.3, 0.4]], np.float32)
    assert rank_experts(logits, 3).tolist() == [[4, 3, 2], [0, 5, 4]]
    assert rank_experts(logits, 6).tolist() == [[4, 3, 2, 5, 1, 0], [0, 5, 4, 3, 2, 1]]


def test_what_is_no_number_is_ranked_after_every_number() -> None:
    logits = np.array([[np.nan, -np.inf, 1.0, np.nan, -np.inf, np.inf]], np.float32)
    assert rank_experts(logits, 6).tolist() == [[5, 2, 1, 4, 0, 3]]


def test_before_anything_is_learned_the_ranks_that_would_be_chosen_are_believed() -> None:
    confidence = RankConfidence(ranks=5, top=3)
    assert confidence.believed(np.array([[8, 6, 4, 2, 0]]), least=0.5) == [8, 6, 4]


def test_a_rank_that_is_seldom_right_is_no_longer_believed_and_one_that_is_right_comes_back() -> None:
    confidence = RankConfidence(ranks=4, top=2)
    for number in range(60):
        ranked = np.array([[0, 1, 2, 3]])
        confidence.learn(ranked, np.array([0, 2 if number % 4 else 1]))
    assert confidence.believed(np.array([[7, 5, 6, 4]]), least=0.5) == [7, 6]
    for _ in range(60):
        confidence.learn(np.array([[0, 1, 2, 3]]), np.array([1]))
    assert confidence.believed(np.array([[7, 5, 6, 4]]), least=0.5) == [5]


def test_rows_name_each_expert_once_and_good_ranks_of_all_rows_come_first() -> None:
    confidence = RankConfidence(ranks=3, top=2)
    assert confidence.believed(np.array([[4, 1, 9], [4, 7, 8]]), least=0.5) == [4, 1, 7]


def test_what_is_learned_approaches_the_share_of_right_forecasts() -> None:
    confidence = RankConfidence(ranks=2, top=1)
    for number in range(400):
        confidence.learn(np.array([[0, 1], [2, 3]]), np.array([0, 1] if number % 2 else [0, 1, 2, 3]))
    assert confidence.shares == pytest.approx([0.75, 0.75], abs=0.02)
