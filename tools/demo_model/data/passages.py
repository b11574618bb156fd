# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Short made-up passages with questions that only the passage can answer."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.demo_model.data import lexicon
from tools.demo_model.data.documents import Split
from tools.demo_model.data.facts import DAYS, NUMBER_WORDS
from tools.demo_model.data.grammar import repair, with_article, write

_UNKNOWN = (
    "The text does not say.",
    "I do not know. The text does not say that.",
    "That is not in the text.",
    "The text does not tell us.",
)
_DEEDS = (
    "swept the floor", "watered the flowers", "wrote a letter", "baked bread", "fed the hens", "mended a chair",
    "went to the market", "visited {his} aunt", "painted the door", "read a book", "washed the windows", "went swimming",
    "cut the grass", "cooked soup", "cleaned the cellar", "played chess", "picked apples", "fixed the bicycle", "slept all day",
    "planted a tree", "called a friend", "packed a bag", "made a cake", "walked the dog",
)  # fmt: skip
_HOURS = ("seven", "eight", "nine", "ten", "eleven")
_LATE = ("two", "three", "four", "five", "six")


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A text and questions with their answers; ``unknown`` are questions it cannot answer."""

    text: str
    questions: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def passage(rng: Random, split: Split) -> Passage:
    """Returns a passage over random words."""
    return rng.choice(_KINDS)(rng, split)


def ask_passage(rng: Random, told: Passage) -> list[tuple[str, str]]:
    """Returns one to three exchanges; the first question brings the passage with it."""
    asked = rng.sample(told.questions, min(len(told.questions), rng.choice((1, 1, 2, 3))))
    if told.unknown and rng.random() < 0.15:
        asked.insert(rng.randrange(len(asked) + 1), (rng.choice(told.unknown), rng.choice(_UNKNOWN)))
    frame = rng.choice(
        (
            "{t} {q}",
            "{t}\n\n{q}",
            "{q}\n\n{t}",
            "Text: {t}\nQuestion: {q}",
            "Read this: {t} {q}",
            "Answer from the text. {t} {q}",
        )
    )
    first, answer = asked[0]
    return [(frame.format(t=told.text, q=first), answer), *asked[1:]]


def _people(rng: Random, split: Split, count: int) -> list[tuple[str, str]]:
    """Returns different names, each with its pronoun."""
    girls = [(name, "she") for name in lexicon.GIRLS.sample(rng, split, count)]
    boys = [(name, "he") for name in lexicon.BOYS.sample(rng, split, count)]
    return rng.sample(girls + boys, count)


def _owners(rng: Random, split: Split) -> Passage:
    people = _people(rng, split, rng.choice((2, 2, 3)))
    things = lexicon.THINGS.sample(rng, split, len(people))
    colours = rng.sample(lexicon.COLOURS.train, len(people))
    sentences, questions = [], []
    for (name, _), thing, colour in zip(people, things, colours, strict=True):
        item = f"{colour} {thing}"
        sentences.append(
            write(rng, ("{n} has a {i}.", "{n} owns a {i}.", "The {i} belongs to {n}."), {"n": name, "i": item})
        )
        questions += [
            (f"What does {name} have?", f"{name} has {with_article(item)}."),
            (f"Who has the {thing}?", f"{name} has the {thing}."),
            (f"What colour is the {thing}?", f"The {thing} is {colour}."),
            (f"Which thing is {colour}?", f"The {thing} is {colour}."),
        ]
    unknown = tuple(f"How old is {name}?" for name, _ in people)
    return Passage(text=" ".join(sentences), questions=tuple(questions), unknown=unknown)


def _places(rng: Random, split: Split) -> Passage:
    count = rng.choice((2, 3, 3, 4))
    things, spots = lexicon.THINGS.sample(rng, split, count), lexicon.SPOTS.sample(rng, split, count)
    sentences = [f"The {thing} is {spot}." for thing, spot in zip(things, spots, strict=True)]
    questions = []
    for thing, spot in zip(things, spots, strict=True):
        questions += [
            (f"Where is the {thing}?", f"The {thing} is {spot}."),
            (f"What is {spot}?", f"The {thing} is {spot}."),
        ]
    other = rng.choice([thing for thing in lexicon.THINGS.train if thing not in things])
    return Passage(text=" ".join(sentences), questions=tuple(questions), unknown=(f"Where is the {other}?",))


def _jobs(rng: Random, split: Split) -> Passage:
    people = _people(rng, split, rng.choice((2, 2, 3)))
    jobs, foods = lexicon.JOBS.sample(rng, split, len(people)), lexicon.MEALS.sample(rng, split, len(people))
    homes = lexicon.HOMES.sample(rng, split, len(people))
    sentences, questions = [], []
    for (name, he), job, food, home in zip(people, jobs, foods, homes, strict=True):
        frames = (
            "{n} is a {j}. {he} lives {h} and likes {f}.",
            "{n} lives {h}. {he} is a {j} and likes {f}.",
            "{n} the {j} lives {h}. {he} likes {f}.",
        )
        sentences.append(write(rng, frames, {"n": name, "j": job, "he": he, "h": home, "f": food}))
        questions += [
            (f"What is {name}'s job?", f"{name} is {with_article(job)}."),
            (f"Where does {name} live?", f"{name} lives {home}."),
            (f"What does {name} like?", f"{name} likes {food}."),
            (f"Who is the {job}?", f"{name} is the {job}."),
            (f"Who likes {food}?", f"{name} likes {food}."),
            (f"Does {name} like {food}?", f"Yes, {name} likes {food}."),
        ]
    unknown = tuple(f"What is the name of {name}'s mother?" for name, _ in people)
    return Passage(text=" ".join(sentences), questions=tuple(questions), unknown=unknown)


def _week(rng: Random, split: Split) -> Passage:
    ((name, he),) = _people(rng, split, 1)
    count = rng.choice((3, 3, 4))
    days = sorted(rng.sample(DAYS, count), key=DAYS.index)
    deeds = [deed.replace("{his}", "his" if he == "he" else "her") for deed in rng.sample(_DEEDS, count)]
    sentences = [
        f"On {day}, {name if not index else he} {deed}."
        for index, (day, deed) in enumerate(zip(days, deeds, strict=True))
    ]
    questions = []
    for day, deed in zip(days, deeds, strict=True):
        questions += [
            (f"What did {name} do on {day}?", f"On {day}, {name} {deed}."),
            (f"When was it that {name} {deed}?", f"{name} {deed} on {day}."),
        ]
    other = rng.choice([day for day in DAYS if day not in days])
    return Passage(text=" ".join(sentences), questions=tuple(questions), unknown=(f"What did {name} do on {other}?",))


def _steps(rng: Random, split: Split) -> Passage:
    ((name, he),) = _people(rng, split, 1)
    first, second, third = [deed.replace("{his}", "his" if he == "he" else "her") for deed in rng.sample(_DEEDS, 3)]
    text = f"First {name} {first}. Then {he} {second}. Last of all, {he} {third}."
    questions = (
        (f"What did {name} do first?", f"First {name} {first}."),
        (f"What did {name} do last?", f"Last of all, {name} {third}."),
        (f"What happened before {name} {third}?", f"Before that, {name} {second}."),
        (f"What happened after {name} {first}?", f"After that, {name} {second}."),
    )
    return Passage(text=text, questions=questions, unknown=(f"Where does {name} live?",))


def _notice(rng: Random, split: Split) -> Passage:
    thing, price = lexicon.THINGS.draw(rng, split), rng.randint(2, 20)
    ((name, _),) = _people(rng, split, 1)
    day, spot = rng.choice(DAYS), lexicon.SPOTS.draw(rng, split)
    opens, closes = rng.choice(_HOURS), rng.choice(_LATE)
    text = repair(
        f"{name}'s shop is {spot}. It opens at {opens} in the morning and closes at {closes} in the afternoon."
        f" It is closed on {day}. A {thing} costs {price} coins there."
    )
    questions = (
        ("When does the shop open?", f"The shop opens at {opens} in the morning."),
        ("When does the shop close?", f"The shop closes at {closes} in the afternoon."),
        ("On which day is the shop closed?", f"The shop is closed on {day}."),
        (f"How much is the {thing}?", f"The {thing} costs {price} coins."),
        ("Where is the shop?", f"The shop is {spot}."),
        ("Whose shop is it?", f"It is {name}'s shop."),
    )
    return Passage(
        text=text, questions=questions, unknown=("How big is the shop?", "What is the phone number of the shop?")
    )


def _numbers(rng: Random, split: Split) -> Passage:
    people = _people(rng, split, 2)
    thing = rng.choice(
        [
            "apple",
            "ball",
            "book",
            "coin",
            "stone",
            "shell",
            "egg",
            "pencil",
            "button",
            "card",
            "nut",
            "key",
        ]
    )
    counts = rng.sample(range(2, 11), 2)
    (one, _), (two, _) = people
    words = [NUMBER_WORDS[count] for count in counts]
    text = f"{one} has {words[0]} {thing}s. {two} has {words[1]} {thing}s."
    more, fewer = (one, two) if counts[0] > counts[1] else (two, one)
    questions = (
        (f"How many {thing}s does {one} have?", f"{one} has {words[0]} {thing}s."),
        (f"How many {thing}s does {two} have?", f"{two} has {words[1]} {thing}s."),
        (f"Who has more {thing}s?", f"{more} has more {thing}s."),
        (f"Who has fewer {thing}s?", f"{fewer} has fewer {thing}s."),
        (f"How many {thing}s do they have together?", f"Together they have {NUMBER_WORDS[sum(counts)]} {thing}s."),
    )
    return Passage(text=text, questions=questions, unknown=(f"How many friends does {one} have?",))


def _message(rng: Random, split: Split) -> Passage:
    (sender, _), (reader, _) = _people(rng, split, 2)
    thing, spot = lexicon.THINGS.draw(rng, split), lexicon.SPOTS.draw(rng, split)
    day, hour = rng.choice(DAYS), rng.choice(_LATE)
    text = f"Dear {reader}, please meet me {spot} on {day} at {hour}. Bring the {thing}. Your friend {sender}."
    questions = (
        ("Who wrote the letter?", f"{sender} wrote the letter."),
        ("Who is the letter for?", f"The letter is for {reader}."),
        (f"Where should {reader} go?", f"{reader} should go to a place {spot}."),
        ("When do they meet?", f"They meet on {day} at {hour}."),
        (f"What should {reader} bring?", f"{reader} should bring the {thing}."),
    )
    return Passage(text=text, questions=questions, unknown=(f"Why does {sender} want to meet?",))


_KINDS: tuple[Callable[[Random, Split], Passage], ...] = (
    _owners, _owners, _places, _jobs, _week, _steps, _notice, _numbers, _message,
)  # fmt: skip
