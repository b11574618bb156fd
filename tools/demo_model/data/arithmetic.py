# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Sums and differences to twenty, counting, and comparing small numbers."""

from collections.abc import Callable
from random import Random

from tools.demo_model.data import lexicon
from tools.demo_model.data.copying import Task
from tools.demo_model.data.documents import Split
from tools.demo_model.data.facts import NUMBER_WORDS
from tools.demo_model.data.grammar import capital, with_article

_LARGEST = 20
_COUNTED = ("apple", "ball", "book", "coin", "stone", "shell", "egg", "pencil", "button", "card", "nut", "key", "cake", "flower", "bird", "cat", "plum", "cup", "hat", "star")  # fmt: skip
_SUM_ASKS = ("What is {a} plus {b}?", "{a} + {b}", "{a} + {b} =", "What is {a} + {b}?", "How much is {a} plus {b}?", "Add {a} and {b}.", "{a} plus {b}?", "{a} and {b} make how many?", "Calculate {a} + {b}.", "Please add {a} and {b}.")  # fmt: skip
_DIFFERENCE_ASKS = ("What is {a} minus {b}?", "{a} - {b}", "{a} - {b} =", "What is {a} - {b}?", "How much is {a} minus {b}?", "Take {b} from {a}.", "{a} minus {b}?", "Calculate {a} - {b}.", "Subtract {b} from {a}.")  # fmt: skip
# The wording that only held-out documents use.
_HELDOUT_SUM_ASK = "If you put {a} and {b} together, what number do you get?"


def arithmetic_task(rng: Random, split: Split) -> Task:
    """Returns a task whose numbers stay within twenty."""
    return rng.choice(_TASKS)(rng, split)


def sum_thought(first: int, second: int) -> str:
    """Returns the steps of a sum, over ten where that helps."""
    total = first + second
    high, low = max(first, second), min(first, second)
    if high < 10 < total:
        step = 10 - high
        return f"{high} plus {step} is 10. {low} is {step} and {low - step}. 10 plus {low - step} is {total}."
    if 0 < low <= 5:
        counted = ", ".join(str(number) for number in range(high + 1, total + 1))
        return f"I start at {high} and count {low} up: {counted}."
    return f"{high} plus {low} is {total}."


def difference_thought(first: int, second: int) -> str:
    """Returns the steps of a difference that is not negative."""
    if 0 < second <= 5:
        counted = ", ".join(str(number) for number in range(first - 1, first - second - 1, -1))
        return f"I start at {first} and count {second} down: {counted}."
    return f"{second} plus {first - second} is {first}. So {first} minus {second} is {first - second}."


def _pair(rng: Random) -> tuple[int, int]:
    """Returns two numbers whose sum is at most twenty; zero is rare."""
    while True:
        first, second = rng.randint(0, _LARGEST), rng.randint(0, _LARGEST)
        if first + second <= _LARGEST and ((first and second) or rng.random() < 0.3):
            return first, second


def _sum(rng: Random, split: Split) -> Task:
    first, second = _pair(rng)
    ask = _HELDOUT_SUM_ASK if split == "heldout" else rng.choice(_SUM_ASKS)
    words = rng.random() < 0.15
    shown = (NUMBER_WORDS[first], NUMBER_WORDS[second]) if words else (str(first), str(second))
    total = first + second
    answer = rng.choice(
        (str(total), f"{first} plus {second} is {total}.", f"{first} + {second} = {total}", f"It is {total}.")
    )
    if words:
        answer = f"{capital(shown[0])} plus {shown[1]} is {NUMBER_WORDS[total]}."
    return Task(ask=capital(ask.format(a=shown[0], b=shown[1])), answer=answer, thought=sum_thought(first, second))


def _difference(rng: Random, split: Split) -> Task:
    rest, second = _pair(rng)
    first = rest + second
    answer = rng.choice(
        (str(rest), f"{first} minus {second} is {rest}.", f"{first} - {second} = {rest}", f"It is {rest}.")
    )
    return Task(
        ask=rng.choice(_DIFFERENCE_ASKS).format(a=first, b=second),
        answer=answer,
        thought=difference_thought(first, second),
    )


def _names(rng: Random, split: Split) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        return lexicon.GIRLS.draw(rng, split), rng.choice(lexicon.BOYS.train), "she"
    return lexicon.BOYS.draw(rng, split), rng.choice(lexicon.GIRLS.train), "he"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _word_sum(rng: Random, split: Split) -> Task:
    name, friend, he = _names(rng, split)
    first, second = rng.randint(1, 10), rng.randint(1, 10)
    word, total = rng.choice(_COUNTED), first + second
    one, two, whole = _plural(word, first), _plural(word, second), _plural(word, total)
    ask = rng.choice(
        (
            f"{name} has {first} {one}. {friend} gives {name} {second} more. How many {word}s does {name} have now?",
            f"{name} has {first} {one} and {friend} has {second} {two}. How many {word}s do they have together?",
            f"There are {first} {one} on the table. {name} puts {second} more on it. How many {word}s are on the table?",
            f"{name} found {first} {one} in the morning and {second} {two} in the evening. How many {word}s did {he} find?",
        )
    )
    subject = (
        "They have"
        if "together" in ask
        else "There are"
        if "table" in ask
        else f"{name} found"
        if "found" in ask
        else f"{name} has"
    )
    answer = f"{subject} {total} {whole}{' together' if 'together' in ask else ''}."
    return Task(ask=ask, answer=answer, thought=f"I have to add {first} and {second}. {sum_thought(first, second)}")


def _word_difference(rng: Random, split: Split) -> Task:
    name, friend, he = _names(rng, split)
    first = rng.randint(2, _LARGEST)
    second = rng.randint(1, first - 1)
    word, rest = rng.choice(_COUNTED), first - second
    left = _plural(word, rest)
    ask = rng.choice(
        (
            f"{name} has {first} {word}s and gives {second} to {friend}. How many {word}s are left?",
            f"{name} had {first} {word}s and lost {second}. How many {word}s does {he} have now?",
            f"There are {first} {word}s in a box. {name} takes {second} out. How many {word}s are in the box now?",
        )
    )
    subject = f"{name} has" if "have now" in ask else "There is" if rest == 1 else "There are"
    answer = f"{subject} {rest} {left}{' left' if 'left' in ask else ''}."
    return Task(
        ask=ask, answer=answer, thought=f"I have to take {second} from {first}. {difference_thought(first, second)}"
    )


def _compare(rng: Random, split: Split) -> Task:
    first, second = rng.sample(range(101), 2)
    bigger = rng.random() < 0.5
    winner = max(first, second) if bigger else min(first, second)
    other = first + second - winner
    size = rng.choice(("bigger", "larger")) if bigger else "smaller"
    ask = rng.choice(
        (
            f"Which number is {size}, {first} or {second}?",
            f"What is {size}: {first} or {second}?",
            f"{first} or {second}: which is {size}?",
        )
    )
    answer = rng.choice((f"{winner} is {size} than {other}.", str(winner)))
    return Task(
        ask=ask, answer=answer, thought=f"On the number line, {min(first, second)} comes before {max(first, second)}."
    )


def _true_or_not(rng: Random, split: Split) -> Task:
    first, second = rng.sample(range(51), 2)
    answer = f"Yes, {first} is bigger than {second}." if first > second else f"No, {first} is smaller than {second}."
    return Task(ask=f"Is {first} bigger than {second}?", answer=answer)


def _next(rng: Random, split: Split) -> Task:
    start = rng.randint(1, 60)
    if rng.random() < 0.5:
        ask = rng.choice(
            (f"What number comes after {start}?", f"Which number comes after {start}?", f"What comes after {start}?")
        )
        return Task(ask=ask, answer=f"After {start} comes {start + 1}.")
    ask = rng.choice((f"What number comes before {start}?", f"Which number comes before {start}?"))
    return Task(ask=ask, answer=f"Before {start} comes {start - 1}.")


def _count_up(rng: Random, split: Split) -> Task:
    first = rng.randint(1, 12)
    last = first + rng.randint(3, 8)
    if rng.random() < 0.3:
        numbers = range(last, first - 1, -1)
        return Task(ask=f"Count down from {last} to {first}.", answer=", ".join(map(str, numbers)))
    ask = rng.choice((f"Count from {first} to {last}.", f"Please count from {first} to {last}."))
    return Task(ask=ask, answer=", ".join(map(str, range(first, last + 1))))


def _in_words(rng: Random, split: Split) -> Task:
    number = rng.randint(0, _LARGEST)
    word = NUMBER_WORDS[number]
    if rng.random() < 0.5:
        return Task(ask=rng.choice((f"Write {number} as a word.", f"What is {number} in words?")), answer=capital(word))
    return Task(ask=rng.choice((f"Write {word} as a number.", f"What number is {word}?")), answer=str(number))


def _how_many_kinds(rng: Random, split: Split) -> Task:
    kinds = rng.sample(_COUNTED, 2)
    counts = [rng.randint(1, 4), rng.randint(1, 4)]
    row = [kinds[0]] * counts[0] + [kinds[1]] * counts[1]
    rng.shuffle(row)
    index = rng.randrange(2)
    count = counts[index]
    verb = "is" if count == 1 else "are"
    return Task(
        ask=capital(f"{', '.join(with_article(item) for item in row)}. How many {kinds[index]}s are there?"),
        answer=f"There {verb} {NUMBER_WORDS[count]} {_plural(kinds[index], count)}.",
        thought=f"I count only the {kinds[index]}s: {', '.join(str(number) for number in range(1, count + 1))}.",
    )


_TASKS: tuple[Callable[[Random, Split], Task], ...] = (
    _sum, _sum, _sum, _difference, _difference, _word_sum, _word_difference, _compare, _true_or_not, _next, _count_up,
    _in_words, _how_many_kinds,
)  # fmt: skip
