"""Questions: over a given passage, over small numbers, over words to copy, and over a short table of facts."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from tools.demo_model.data import facts
from tools.demo_model.data.arithmetic import arithmetic_task
from tools.demo_model.data.copying import Task, copying_task
from tools.demo_model.data.dialogue_lines import NEUTRAL_SYSTEMS
from tools.demo_model.data.documents import Document, Message, Split, assistant, chat_document, system, user
from tools.demo_model.data.grammar import capital, different, with_article
from tools.demo_model.data.passages import ask_passage, passage

SOURCE = "questions"
_HELDOUT_SHARE = 0.02
_THINK_SHARE = 0.3


def generate(rng: Random, count: int) -> Iterator[Document]:
    """Yields ``count`` chats of one to four questions."""
    kinds = (
        _over_passage,
        _over_passage,
        _over_passage,
        _over_tasks,
        _over_tasks,
        _over_tasks,
        _over_facts,
        _over_facts,
        _mixed,
    )
    for _ in range(count):
        split: Split = "heldout" if rng.random() < _HELDOUT_SHARE else "train"
        yield rng.choice(kinds)(rng, split)


def _head(rng: Random) -> list[Message]:
    return [system(rng.choice(NEUTRAL_SYSTEMS))] if rng.random() < 0.12 else []


def _over_passage(rng: Random, split: Split) -> Document:
    told = passage(rng, split)
    exchanges = ask_passage(rng, told)
    thinks = len(exchanges) == 1 and rng.random() < 0.15
    ask, answer = exchanges[0]
    turns = [*_head(rng), user(ask), assistant(answer, reasoning=_passage_thought(rng, answer) if thinks else None)]
    for more, reply in exchanges[1:]:
        turns += [user(more), assistant(reply)]
    return chat_document(SOURCE, turns, split=split, enable_thinking=True if thinks else None)


def _passage_thought(rng: Random, answer: str) -> str:
    if "text" in answer:
        return "I look for it in the text. It is not there, so I say that."
    return rng.choice(
        ("I look for it in the text. It says: {}", "The text tells me this: {}", "I find it in the text. {}")
    ).format(answer)


def _chat_of(rng: Random, tasks: Sequence[Task], split: Split) -> Document:
    thinks = all(task.thought for task in tasks) and rng.random() < _THINK_SHARE
    turns = _head(rng)
    for task in tasks:
        turns += [user(task.ask), assistant(task.answer, reasoning=task.thought if thinks else None)]
    return chat_document(SOURCE, turns, split=split, enable_thinking=True if thinks else None)


def _over_tasks(rng: Random, split: Split) -> Document:
    make = rng.choice((arithmetic_task, copying_task))
    return _chat_of(rng, [make(rng, split) for _ in range(rng.choice((1, 1, 1, 2, 3)))], split)


def _over_facts(rng: Random, split: Split) -> Document:
    return _chat_of(rng, [fact_task(rng) for _ in range(rng.choice((1, 1, 2, 3)))], split)


def _mixed(rng: Random, split: Split) -> Document:
    makers: tuple[Callable[[], Task], ...] = (
        lambda: arithmetic_task(rng, split),
        lambda: copying_task(rng, split),
        lambda: fact_task(rng),
    )
    return _chat_of(rng, [rng.choice(makers)() for _ in range(rng.choice((2, 3, 4)))], split)


def fact_task(rng: Random) -> Task:
    """Returns a question over the tables of ``facts``."""
    return rng.choice(_FACT_TASKS)(rng)


def _opposite(rng: Random) -> Task:
    word, other = rng.choice(tuple(facts.OPPOSITES.items()))
    ask = rng.choice(
        (
            "What is the opposite of {}?",
            "What is the opposite of the word {}?",
            "Opposite of {}?",
            "Give me the opposite of {}.",
            'What is the opposite of "{}"?',
        )
    )
    answer = rng.choice((f"The opposite of {word} is {other}.", capital(other), f"{capital(other)}."))
    return Task(ask=ask.format(word), answer=answer)


def _sound(rng: Random) -> Task:
    animal, sound = rng.choice(tuple(facts.SOUNDS.items()))
    if rng.random() < 0.25:
        return Task(ask=f'Which animal says "{sound}"?', answer=f'{capital(with_article(animal))} says "{sound}".')
    ask = rng.choice(("What does {} say?", "What sound does {} make?", "What noise does {} make?"))
    return Task(ask=ask.format(with_article(animal)), answer=f'{capital(with_article(animal))} says "{sound}".')


def _animal_home(rng: Random) -> Task:
    animal, home = rng.choice(tuple(facts.ANIMAL_HOMES.items()))
    answer = f"{capital(with_article(animal))} lives in {home}."
    return Task(
        ask=rng.choice(("Where does {} live?", "What is the home of {}?")).format(with_article(animal)), answer=answer
    )


def _baby(rng: Random) -> Task:
    animal, young = rng.choice(tuple(facts.BABIES.items()))
    ask = rng.choice(("What is a baby {} called?", "What do you call a baby {}?", "What is the young of {a} called?"))
    return Task(
        ask=ask.format(animal, a=with_article(animal)), answer=f"A baby {animal} is called {with_article(young)}."
    )


def _colour(rng: Random) -> Task:
    thing, colour = rng.choice(tuple(facts.COLOURS_OF.items()))
    ask = rng.choice(("What colour is {}?", "Which colour is {}?", "What is the colour of {}?"))
    return Task(ask=ask.format(thing), answer=rng.choice((f"{capital(thing)} is {colour}.", capital(colour))))


def _capital_city(rng: Random) -> Task:
    country, city = rng.choice(tuple(facts.CAPITALS.items()))
    if rng.random() < 0.25:
        ask = rng.choice(
            (
                "What country is {} the capital of?",
                "{} is the capital of which country?",
                "Of which country is {} the capital?",
            )
        )
        return Task(ask=ask.format(city), answer=f"{city} is the capital of {country}.")
    ask = rng.choice(
        (
            "What is the capital of {}?",
            "Which city is the capital of {}?",
            "Capital of {}?",
            "Name the capital of {}.",
            "Do you know the capital of {}?",
            "Tell me the capital of {}.",
        )
    )
    answer = rng.choice(
        (
            f"The capital of {country} is {city}.",
            f"The capital of {country} is {city}.",
            f"{city} is the capital of {country}.",
            city,
        )
    )
    return Task(ask=ask.format(country), answer=answer, thought=f"The country is {country}. Its capital is {city}.")


def _continent(rng: Random) -> Task:
    country, continent = rng.choice(tuple(facts.CONTINENTS.items()))
    verb = "are" if country in ("the Netherlands", "the United States") else "is"
    answer = f"{capital(country)} {verb} in {continent}."
    return Task(ask=f"On which continent {verb} {country}?", answer=answer)


def _language(rng: Random) -> Task:
    country, language = rng.choice(tuple(facts.LANGUAGES.items()))
    ask = rng.choice(("What language do people speak in {}?", "Which language is spoken in {}?"))
    return Task(ask=ask.format(country), answer=f"People in {country} speak {language}.")


def _calendar(rng: Random) -> Task:
    names = rng.choice((facts.DAYS, facts.DAYS, facts.MONTHS, facts.SEASONS))
    index = rng.randrange(len(names))
    name = names[index]
    kind = {facts.DAYS: "day", facts.MONTHS: "month", facts.SEASONS: "season"}[names]
    if rng.random() < 0.5:
        after = names[(index + 1) % len(names)]
        ask = rng.choice(
            (f"What {kind} comes after {name}?", f"Which {kind} comes after {name}?", f"What comes after {name}?")
        )
        return Task(
            ask=ask, answer=rng.choice((f"{capital(after)} comes after {name}.", f"After {name} comes {after}."))
        )
    if rng.random() < 0.8:
        before = names[(index - 1) % len(names)]
        ask = rng.choice((f"What {kind} comes before {name}?", f"Which {kind} comes before {name}?"))
        return Task(ask=ask, answer=f"{capital(before)} comes before {name}.")
    return Task(ask=rng.choice((f"Name all {kind}s in order.", f"List the {kind}s.")), answer=", ".join(names))


def _meaning(rng: Random) -> Task:
    word, meaning = rng.choice(tuple(facts.MEANINGS.items()))
    # "A fox is ..." asks for "a fox", "Rain is ..." for "rain".
    first = meaning.split()[0]
    phrase = f"{first.lower()} {word}" if first in ("A", "An", "The") else word
    ask = rng.choice(
        (
            'What does "{w}" mean?',
            "What is {p}?",
            "What does the word {w} mean?",
            "Explain the word {w}.",
            "Tell me what {p} is.",
        )
    )
    return Task(ask=ask.format(w=word, p=phrase), answer=meaning)


def _single(rng: Random) -> Task:
    ask, answer = rng.choice(facts.SINGLE)
    return Task(ask=ask, answer=answer)


def _plural_kind(kind: str) -> str:
    return kind.replace("piece", "pieces") if "piece" in kind else f"{kind}s"


def _category(rng: Random) -> Task:
    kind, members = rng.choice(tuple(facts.CATEGORIES.items()))
    word = rng.choice(members)
    if rng.random() < 0.4:
        other = different(rng, tuple(facts.CATEGORIES), than=kind)
        stranger = rng.choice(facts.CATEGORIES[other])
        row = [*rng.sample([member for member in members if member != word], 2), word, stranger]
        rng.shuffle(row)
        ask = rng.choice(("Which word does not fit: {}?", "Which one is different: {}?", "Odd one out: {}"))
        return Task(
            ask=ask.format(", ".join(row)),
            answer=f"{capital(stranger)}. It is {with_article(other)}, and the others are {_plural_kind(kind)}.",
        )
    if rng.random() < 0.5:
        return Task(ask=f"Name {with_article(kind)}.", answer=capital(word))
    strangers = [rng.choice(other) for name, other in facts.CATEGORIES.items() if name != kind]
    row = [*rng.sample(strangers, 2), word]
    rng.shuffle(row)
    return Task(
        ask=f"Which of these is {with_article(kind)}: {', '.join(row)}?",
        answer=f"{capital(word)} is {with_article(kind)}.",
    )


_FACT_TASKS: tuple[Callable[[Random], Task], ...] = (
    _opposite, _opposite, _sound, _animal_home, _baby, _colour, _capital_city, _capital_city, _continent, _language,
    _calendar, _calendar, _meaning, _meaning, _single, _single, _category,
)  # fmt: skip
