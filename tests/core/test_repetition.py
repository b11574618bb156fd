"""What a text says of its own next tokens, and how far that is to be trusted."""

import numpy as np
import pytest

from slotstream_core.generation.repetition import Repetition


def test_what_followed_the_latest_tokens_before_is_guessed_to_follow_again() -> None:
    repetition = Repetition([1, 2, 3, 4, 5, 6, 7, 1, 2])
    assert repetition.guesses(4) == []
    repetition.add(3)
    assert repetition.guesses(4) == [4, 5, 6, 7]
    assert repetition.guesses(2) == [4, 5]
    repetition.add(4)
    assert repetition.guesses(2) == [5, 6]
    repetition.add(9)
    assert repetition.guesses(2) == []


def test_the_latest_place_counts() -> None:
    assert Repetition([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).guesses(1) == [5]


def test_a_repetition_goes_on_in_itself() -> None:
    assert Repetition([7, 8, 7, 8, 7]).guesses(5) == [8, 7, 8, 7, 8]
    assert Repetition([7, 7, 7, 7]).guesses(3) == [7, 7, 7]


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5, 6]])
def test_a_text_without_repetition_guesses_nothing(ids: list[int]) -> None:
    repetition = Repetition(ids)
    assert repetition.guesses(4) == []
    assert repetition.chance == 0.25


def test_how_often_it_would_have_been_right_is_known_without_guessing() -> None:
    repetition = Repetition([1, 2, 3, 4] * 10)
    repetition.guesses(0)
    sure = repetition.chance
    assert sure > 0.9
    for token in (5, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3, 7, 1, 2, 3, 8):
        repetition.add(token)
    repetition.guesses(0)
    assert 0.4 < repetition.chance < sure - 0.1


def test_only_the_end_of_a_long_prompt_is_searched_and_ids_may_be_an_array() -> None:
    prompt = np.arange(6_000, dtype=np.int32)
    repetition = Repetition(prompt)
    for token in (10, 11, 12):
        repetition.add(token)
    assert repetition.guesses(2) == []
    for token in (5_000, 5_001, 5_002):
        repetition.add(token)
    assert repetition.guesses(2) == [5_003, 5_004]
