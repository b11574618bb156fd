# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Short chats in simple English: greetings, small talk, advice, personas, and what a tiny model cannot know.

A chat is put together from exchanges of ``dialogue_lines``; what the user says about himself is asked again later.
"""

from collections.abc import Iterator, Mapping
from random import Random

from tools.demo_model.data import dialogue_lines as lines
from tools.demo_model.data import lexicon
from tools.demo_model.data.documents import Document, Message, Split, assistant, chat_document, system, user
from tools.demo_model.data.grammar import capital, with_article, words, write

SOURCE = "dialogues"
_HELDOUT_SHARE = 0.02
_CITIES = words("""
London, Paris, Berlin, Rome, Madrid, Lisbon, Vienna, Oslo, Athens, Dublin, Cairo, Delhi, Tokyo, Boston, Chicago, Toronto,
Sydney, Lima, Nairobi, Seoul, Prague, Warsaw, Helsinki, Zurich, Munich, Hamburg, Milan, Venice, Porto, Leeds, York, Bath
# Utrecht, Bergen""")
_PETS = words("""
dog, cat, rabbit, hamster, parrot, goldfish, turtle, pony, mouse, guinea pig, kitten, puppy, lizard, duck, hen, goat # ferret""")
_AGES = (
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "fifteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
)
_SURNAMES = words("""
Baker, Brook, Carter, Cole, Cook, Dale, Fisher, Ford, Gray, Hall, Hope, Lake, Lane, Marsh, Moss, North, Page, Park, Reed,
Rivers, Shaw, Snow, Stone, Swift, Wells, West, Winter, Wood, Young # Thorne""")
_SYLLABLES = ("bla", "cor", "dun", "fli", "gri", "hom", "jun", "kel", "lor", "mip", "nas", "obi", "pru", "quo", "rel", "sti", "tor", "vun", "wex", "zal")  # fmt: skip


def generate(rng: Random, count: int) -> Iterator[Document]:
    """Yields ``count`` chats of one to six exchanges."""
    forms = (_small_talk, _small_talk, _remembered, _remembered, _persona, _single, _single)
    for _ in range(count):
        split: Split = "heldout" if rng.random() < _HELDOUT_SHARE else "train"
        yield rng.choice(forms)(rng, split)


def _slots(rng: Random, split: Split) -> dict[str, str]:
    people = rng.choice((lexicon.GIRLS, lexicon.BOYS))
    name = people.draw(rng, split)
    friend = people.draw(rng, "train")
    while friend == name:
        friend = people.draw(rng, "train")
    animal = rng.choice(
        [
            animal
            for animal in lexicon.ANIMALS.train[:90]
            if not animal.endswith(("x", "ch", "s", "y", "f", "fly", "mouse", "goose", "sheep", "deer", "calf", "ox"))
        ]
    )
    food = lexicon.MEALS.draw(rng, split)
    pet = _PETS.draw(rng, split)
    age = rng.choice(_AGES)
    colour = lexicon.COLOURS.draw(rng, split)
    nonword = "".join(rng.sample(_SYLLABLES, rng.choice((2, 3))))
    return {
        "name": name,
        "friend": friend,
        "animal": animal,
        "a_animal": with_article(animal),
        "animals": f"{animal}s",
        "food": food,
        "food_cap": capital(food),
        "pet": pet,
        "a_pet": with_article(pet),
        "petname": lexicon.PET_NAMES.draw(rng, split),
        "age": age,
        "age_cap": capital(age),
        "colour": colour,
        "colour_cap": capital(colour),
        "city": _CITIES.draw(rng, split),
        "job": lexicon.JOBS.draw(rng, split),
        "thing": lexicon.THINGS.draw(rng, split),
        "skill": lexicon.SKILLS.draw(rng, split),
        "fear": lexicon.FEARS.draw(rng, split),
        "weather": lexicon.WEATHERS.draw(rng, split),
        "plain": lexicon.PLAIN.draw(rng, split),
        "person": f"{people.draw(rng, 'train')} {_SURNAMES.draw(rng, split)}",
        "bignum": str(rng.randrange(101, 9999)),
        "bignum2": str(rng.randrange(21, 999)),
        "nonword": nonword,
        "noplace": capital("".join(rng.sample(_SYLLABLES, 2)) + rng.choice(("ia", "land", "stan", "a"))),
    }


def _exchange(rng: Random, exchange: lines.Exchange, slots: Mapping[str, str]) -> list[Message]:
    ask, answer = write(rng, exchange[0], slots), write(rng, exchange[1], slots)
    return [user(_typed(rng, ask)), assistant(answer)]


def _typed(rng: Random, text: str) -> str:
    """Returns the text as a person may type it: now and then without capitals or without the last full stop."""
    if rng.random() < 0.07:
        return text.lower()
    if rng.random() < 0.07:
        return text.rstrip(".?!")
    return text


def _body(rng: Random, count: int) -> list[lines.Exchange]:
    """Returns exchanges without repetition, most of them from one topic."""
    topic = rng.choice(tuple(lines.TOPICS.values()))
    near = (
        list(topic)
        + list(rng.sample(lines.FEELINGS, 4))
        + list(rng.sample(lines.IDENTITY, 4))
        + list(rng.sample(lines.UNKNOWN, 4))
    )
    return rng.sample(near, count)


def _head(rng: Random) -> list[Message]:
    return [system(rng.choice(lines.NEUTRAL_SYSTEMS))] if rng.random() < 0.2 else []


def _small_talk(rng: Random, split: Split) -> Document:
    slots = _slots(rng, split)
    exchanges = _body(rng, rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.55:
        exchanges.insert(0, rng.choice(lines.GREETINGS))
    if rng.random() < 0.45:
        exchanges.append(rng.choice(lines.CLOSINGS))
    turns = _head(rng)
    for exchange in exchanges:
        turns += _exchange(rng, exchange, slots)
        if rng.random() < 0.3:
            slots = _slots(rng, split)
    return chat_document(SOURCE, turns, split=split)


def _single(rng: Random, split: Split) -> Document:
    pools = (lines.IDENTITY, lines.UNKNOWN, lines.FEELINGS, lines.GREETINGS, *lines.TOPICS.values())
    exchange = rng.choice(rng.choice(pools))
    return chat_document(SOURCE, [*_head(rng), *_exchange(rng, exchange, _slots(rng, split))], split=split)


def _remembered(rng: Random, split: Split) -> Document:
    """Returns a chat in which one or two things the user said are asked again after other talk."""
    slots = _slots(rng, split)
    memories = [rng.choice(lines.MEMORIES)]
    if rng.random() < 0.5:
        second = rng.choice(lines.MEMORIES)
        # The same slot must not be told twice, or the later question would have two answers.
        if not _slot_names(second[0]) & _slot_names(memories[0][0]):
            memories.append(second)
    turns = _head(rng)
    for told, reply, _, _ in memories:
        turns += _exchange(rng, (told, reply), slots)
    others = [exchange for exchange in _body(rng, 3) if not _slot_names(exchange[0])]
    for exchange in others[: rng.choice((0, 0, 1, 1, 2))]:
        turns += _exchange(rng, exchange, slots)
    rng.shuffle(memories)
    for _, _, ask, answer in memories:
        turns += _exchange(rng, (ask, answer), slots)
    return chat_document(SOURCE, turns, split=split)


def _slot_names(template: str) -> set[str]:
    return {part.split("}")[0] for part in template.split("{")[1:]}


def _persona(rng: Random, split: Split) -> Document:
    slots = _slots(rng, split)
    if rng.random() < 0.3:
        return _named(rng, split, slots)
    prompt, opening, closing = rng.choice(lines.PERSONAS)
    turns = [system(write(rng, prompt, slots))]
    pool = [*lines.GREETINGS, *(exchange for topic in lines.TOPICS.values() for exchange in topic)]
    for exchange in rng.sample(pool, rng.choice((1, 2, 2, 3))):
        ask, answer = write(rng, exchange[0], slots), write(rng, exchange[1], slots)
        if opening.endswith(", ") and answer.split()[0] != "I":
            answer = answer[:1].lower() + answer[1:]
        turns += [user(_typed(rng, ask)), assistant(f"{opening}{answer}{closing}")]
    return chat_document(SOURCE, turns, split=split)


def _named(rng: Random, split: Split, slots: Mapping[str, str]) -> Document:
    """Returns a chat in which the system prompt gives the model a name and perhaps a place."""
    prompt = rng.choice(
        (
            "Your name is {name}.",
            "You are {name}, a friendly assistant.",
            "You are {name}, the assistant of a small shop in {city}.",
            "You are {name}, a {job} who likes to help.",
        )
    )
    exchanges: list[lines.Exchange] = [
        (
            "[What is your name?|Who are you?|What are you called?]",
            "[My name is {name}.|I am {name}.] [How can I help you?|]",
        ),
    ]
    if "{city}" in prompt:
        exchanges.append(("Where is your shop?", "Our shop is in {city}."))
    if "{job}" in prompt:
        exchanges.append(("What do you do?", "I am a {job}, and I like to help."))
    rng.shuffle(exchanges)
    turns = [system(write(rng, prompt, slots))]
    if rng.random() < 0.4:
        turns += _exchange(rng, rng.choice(lines.GREETINGS), slots)
    for exchange in exchanges:
        turns += _exchange(rng, exchange, slots)
    if rng.random() < 0.4:
        turns += _exchange(rng, rng.choice(lines.CLOSINGS), slots)
    return chat_document(SOURCE, turns, split=split)
