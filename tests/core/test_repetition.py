"""What a text says of its own next tokens, and how far that is to be trusted."""

from collections.abc import Iterable

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


def told(repetition: Repetition, tokens: Iterable[int], most: int = 2) -> list[int]:
    for token in tokens:
        repetition.add(token)
    return repetition.guesses(most)


def test_only_the_end_of_a_long_prompt_is_searched_and_ids_may_be_an_array() -> None:
    repetition = Repetition(np.arange(6_000, dtype=np.int32))
    assert told(repetition, range(10_000, 10_024)) == []  # takes the prompt in
    assert told(repetition, (10, 11, 12)) == []
    assert told(repetition, (1_902, 1_903, 1_904)) == []
    assert told(repetition, (1_904, 1_905, 1_906)) == [1_907, 1_908]
    assert told(repetition, (5_000, 5_001, 5_002)) == [5_003, 5_004]


@pytest.mark.parametrize("length", [0, 1, 3, 50, 64, 65, 250, 700, 4_096])
def test_a_prompt_that_is_taken_in_by_parts_says_what_it_says_at_once(length: int) -> None:
    """The same tokens and nearly the same chance, which counts the latest comparisons, as one comparison a token."""
    random = np.random.default_rng(length)
    text = random.integers(0, 6, length + 200).tolist()
    parts, single = Repetition(text[:length]), Repetition(())
    for token in text[:length]:
        told(single, (token,))
    for number, token in enumerate(text[length:]):
        mine, wanted = told(parts, (token,), 4), told(single, (token,), 4)
        if number > 25:
            assert mine == wanted
            assert parts.chance == pytest.approx(single.chance, abs=0.01)


def test_no_token_has_to_wait_until_a_long_prompt_is_taken_in() -> None:
    repetition = Repetition(range(4_096))
    sizes = []
    for token in range(5_000, 5_030):
        told(repetition, (token,))
        sizes.append(len(repetition._after))
    steps = np.diff([0, *sizes])
    assert steps.max() <= 200
    assert sizes[-1] == 4_096 + 30 - 3
