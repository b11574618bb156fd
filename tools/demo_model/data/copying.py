# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Tasks whose answer stands in the request: repeat, reverse, sort, replace, pick, fill in."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.demo_model.data import lexicon
from tools.demo_model.data.documents import Split
from tools.demo_model.data.facts import NUMBER_WORDS
from tools.demo_model.data.grammar import capital, listing, write

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_SENTENCES = (
    "the {animal} sat {spot}",
    "{name} has a {colour} {thing}",
    "{name} found a {thing} {spot}",
    "the {job} likes {food}",
    "it is {weather} today",
    "a {animal} and a {animal2} live {home}",
    "{name} gave the {thing} to {name2}",
    "my {thing} is {colour}",
    "{name} wants to {skill}",
    "we ate {food} {spot}",
    "the {thing} of the {job} is {colour}",
    "please bring the {thing} to {name}",
    "{name} and {name2} went to the market",
    "there is a {animal} {spot}",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A request, its answer, and a thought that leads to it; an empty thought means there is none."""

    ask: str
    answer: str
    thought: str = ""


def copying_task(rng: Random, split: Split) -> Task:
    """Returns a task over random words."""
    return rng.choice(_TASKS)(rng, split)


def random_sentence(rng: Random, split: Split) -> str:
    """Returns a simple sentence without its full stop."""
    animals = lexicon.ANIMALS.sample(rng, split, 2)
    names = [*lexicon.GIRLS.sample(rng, split, 1), *lexicon.BOYS.sample(rng, split, 1)]
    rng.shuffle(names)
    slots = {
        "animal": animals[0],
        "animal2": animals[1],
        "name": names[0],
        "name2": names[1],
        "colour": lexicon.COLOURS.draw(rng, split),
        "thing": lexicon.THINGS.draw(rng, split),
        "job": lexicon.JOBS.draw(rng, split),
        "food": lexicon.MEALS.draw(rng, split),
        "weather": lexicon.WEATHERS.draw(rng, split),
        "home": lexicon.HOMES.draw(rng, split),
        "spot": lexicon.SPOTS.draw(rng, split),
        "skill": lexicon.SKILLS.draw(rng, split),
    }
    return write(rng, _SENTENCES, slots)


def _items(rng: Random, split: Split, least: int = 3, most: int = 5) -> list[str]:
    pool = rng.choice(
        (lexicon.PLAIN, lexicon.PLAIN, lexicon.PLAIN, lexicon.THINGS, lexicon.ANIMALS, lexicon.GIRLS, lexicon.BOYS)
    )
    return pool.sample(rng, split, rng.randint(least, most))


def _repeat(rng: Random, split: Split) -> Task:
    text = f"{random_sentence(rng, split)}." if rng.random() < 0.6 else " ".join(_items(rng, split))
    ask = rng.choice(
        (
            "Repeat after me: {}",
            "Say this: {}",
            "Please repeat: {}",
            "Copy this exactly: {}",
            "Repeat this sentence: {}",
            "Write this again: {}",
            "Say it after me. {}",
        )
    )
    return Task(ask=ask.format(text), answer=text, thought="I only have to repeat the words.")


def _quoted(rng: Random, split: Split) -> Task:
    text = rng.choice((random_sentence(rng, split), " ".join(_items(rng, split, 1, 3))))
    ask = rng.choice(('Say "{}".', 'Write "{}" and nothing else.', 'Answer only with "{}".', 'Just say "{}".'))
    return Task(ask=ask.format(text), answer=text)


def _upper(rng: Random, split: Split) -> Task:
    text = " ".join(_items(rng, split, 1, 3))
    ask = rng.choice(
        ("Write in capital letters: {}", "Make this upper case: {}", "{} in capital letters, please.", "Upper case: {}")
    )
    return Task(ask=ask.format(text), answer=text.upper())


def _lower(rng: Random, split: Split) -> Task:
    text = " ".join(_items(rng, split, 1, 3))
    ask = rng.choice(("Write in small letters: {}", "Make this lower case: {}", "Lower case: {}"))
    return Task(ask=ask.format(text.upper()), answer=text.lower())


def _spell(rng: Random, split: Split) -> Task:
    word = lexicon.PLAIN.draw(rng, split)
    ask = rng.choice(("Spell the word {}.", "How do you spell {}?", "Spell {}, please.", 'Spell "{}".'))
    return Task(ask=ask.format(word), answer="-".join(word))


def _reverse(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 2, 5)
    ask = rng.choice(
        (
            "Reverse this list: {}",
            "Write these in reverse order: {}",
            "Say this list backwards: {}",
            "Turn the order around: {}",
        )
    )
    thought = f"The last one is {items[-1]}, and the first one is {items[0]}. I start with {items[-1]}."
    return Task(ask=ask.format(", ".join(items)), answer=", ".join(reversed(items)), thought=thought)


def _pick(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 3, 6)
    index = rng.randrange(len(items))
    place = _ORDINALS[index]
    if index == len(items) - 1 and rng.random() < 0.7:
        place = "last"
    shown = rng.choice((", ".join(items), listing(items)))
    ask = write(
        rng,
        (
            "What is the {place} [word|item] in this list: {list}?",
            "Here is a list: {list}. What is the {place} one?",
            "{list}. Which one is the {place}?",
            "Give me the {place} of these: {list}",
        ),
        {"place": place, "list": shown},
    )
    answer = rng.choice((f"The {place} one is {items[index]}.", items[index], f"{items[index]}"))
    counted = ", ".join(f"{number} {item}" for number, item in enumerate(items[: index + 1], 1))
    return Task(ask=_uncapital(ask, shown), answer=answer, thought=f"I count: {counted}. The answer is {items[index]}.")


def _uncapital(text: str, shown: str) -> str:
    return text if text.lower().find(shown.lower()) else shown[0] + text[1:]


def _sort(rng: Random, split: Split) -> Task:
    if rng.random() < 0.35:
        numbers = rng.sample(range(1, 100), rng.randint(3, 5))
        ask = rng.choice(("Sort these numbers: {}", "Put these numbers in order: {}", "Order from small to big: {}"))
        ordered = sorted(numbers)
        return Task(
            ask=ask.format(", ".join(map(str, numbers))),
            answer=", ".join(map(str, ordered)),
            thought=f"The smallest is {ordered[0]}, and the biggest is {ordered[-1]}.",
        )
    pool = [word for word in _items(rng, split, 5, 8) if " " not in word]
    # One word a first letter keeps the order plain.
    by_letter = {word[0].lower(): word for word in pool}
    items = list(by_letter.values())[:5]
    rng.shuffle(items)
    ordered_words = sorted(items, key=str.lower)
    letters = listing(word[0].upper() for word in ordered_words)
    ask = rng.choice(
        (
            "Sort these words: {}",
            "Put these words in alphabetical order: {}",
            "Sort by the alphabet: {}",
            "Alphabetical order, please: {}",
        )
    )
    return Task(
        ask=ask.format(", ".join(items)),
        answer=", ".join(ordered_words),
        thought=f"The first letters in order are {letters}.",
    )


def _replace(rng: Random, split: Split) -> Task:
    old, new = lexicon.ANIMALS.sample(rng, split, 2)
    frame = rng.choice(
        (
            "The {} sat {spot}.",
            "{name} saw the {} {spot}.",
            "My {} likes {food}.",
            "The {} ate the {food}.",
            "{name} and the {} are friends.",
            "Where is the {}?",
        )
    )
    names = rng.choice((lexicon.GIRLS, lexicon.BOYS))
    slots = {
        "spot": lexicon.SPOTS.draw(rng, split),
        "food": lexicon.MEALS.draw(rng, split),
        "name": names.draw(rng, split),
    }
    before, after = frame.format(old, **slots), frame.format(new, **slots)
    ask = rng.choice(
        (
            'Replace "{old}" with "{new}": {text}',
            "Change {old} to {new} in this sentence: {text}",
            "{text} Write this with {new} instead of {old}.",
        )
    )
    return Task(ask=ask.format(old=old, new=new, text=before), answer=after)


def _count(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 2, 8)
    ask = rng.choice(
        (
            "How many words are in this list: {}?",
            "Count these: {}",
            "How many things are here: {}?",
            "{}: how many is that?",
        )
    )
    counted = ", ".join(f"{number} {item}" for number, item in enumerate(items, 1))
    word = NUMBER_WORDS[len(items)]
    answer = rng.choice((f"There are {word}.", str(len(items)), f"{capital(word)}."))
    return Task(
        ask=ask.format(", ".join(items)), answer=answer, thought=f"I count: {counted}. That makes {len(items)}."
    )


def _contains(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 3, 6)
    inside = rng.random() < 0.5
    word = rng.choice(items) if inside else rng.choice([word for word in lexicon.PLAIN.train if word not in items])
    ask = rng.choice(
        (
            'Is "{word}" in this list: {list}?',
            "Here is a list: {list}. Is {word} in it?",
            "Does this list have {word} in it? {list}",
        )
    )
    answer = f"Yes, {word} is in the list." if inside else f"No, {word} is not in the list."
    return Task(ask=ask.format(word=word, list=", ".join(items)), answer=answer)


def _change_list(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 4, 6)
    word = items.pop(rng.randrange(len(items)))
    if rng.random() < 0.5:
        ask = rng.choice(("Add {word} to the end of this list: {list}", "Put {word} at the end: {list}"))
        return Task(ask=ask.format(word=word, list=", ".join(items)), answer=", ".join([*items, word]))
    longer = items.copy()
    longer.insert(rng.randrange(len(longer) + 1), word)
    ask = rng.choice(
        (
            "Remove {word} from this list: {list}",
            "Take {word} out of this list: {list}",
            "This list without {word}: {list}",
        )
    )
    return Task(ask=ask.format(word=word, list=", ".join(longer)), answer=", ".join(items))


def _bullets(rng: Random, split: Split) -> Task:
    items = _items(rng, split, 3, 6)
    if rng.random() < 0.5:
        ask = rng.choice(("Write this as a list: {}", "Make a list of these: {}", "Put each on its own line: {}"))
        return Task(ask=ask.format(listing(items)), answer="\n".join(f"- {item}" for item in items))
    ask = rng.choice(("Number these: {}", "Make a numbered list: {}"))
    return Task(
        ask=ask.format(", ".join(items)), answer="\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))
    )


def _fill_in(rng: Random, split: Split) -> Task:
    name, thing = rng.choice((lexicon.GIRLS, lexicon.BOYS)).draw(rng, split), lexicon.THINGS.draw(rng, split)
    colour = lexicon.COLOURS.draw(rng, split)
    ask = rng.choice(
        (
            "Write one sentence with the words {name} and {thing}.",
            "Make a sentence with {name}, {colour} and {thing}.",
            "Use {thing} and {name} in a sentence.",
        )
    )
    frame = (
        "{name} has a {colour} {thing}."
        if "{colour}" in ask
        else rng.choice(
            (
                "{name} has a {thing}.",
                "{name} found a {thing}.",
                "The {thing} of {name} is new.",
                "{name} likes the {thing}.",
            )
        )
    )
    slots = {"name": name, "thing": thing, "colour": colour}
    return Task(ask=ask.format(**slots), answer=write(rng, frame, slots))


def _join(rng: Random, split: Split) -> Task:
    first, second = f"{random_sentence(rng, split)}", f"{random_sentence(rng, split)}"
    ask = rng.choice(
        (
            "Which sentence comes first? {a}. {b}.",
            "Give me only the first sentence: {a}. {b}.",
            "Give me only the last sentence: {a}. {b}.",
        )
    )
    answer = second if "last" in ask else first
    return Task(ask=ask.format(a=first, b=second), answer=f"{answer}.")


_TASKS: tuple[Callable[[Random, Split], Task], ...] = (
    _repeat, _repeat, _quoted, _upper, _lower, _spell, _reverse, _pick, _pick, _sort, _replace, _replace, _count, _contains,
    _change_list, _bullets, _fill_in, _join,
)  # fmt: skip
