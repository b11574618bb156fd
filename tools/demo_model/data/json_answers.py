"""Answers in JSON: values picked out of a text, lists, nested objects, objects that follow a schema."""

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random

from tools.demo_model.data.documents import ChatDocument, Message, Split, Stage, assistant, chat_document, system, user
from tools.demo_model.data.tool_exchanges import draw_split
from tools.demo_model.data.tool_lexicon import Lexicon, lexicon
from tools.demo_model.data.tool_values import (
    Json,
    clock_time,
    code,
    date,
    email,
    path,
    person,
    place,
    sample,
    sentence,
    spoken,
    title,
    without_on,
)

SOURCE = "json_answers"

Fact = tuple[str, Json, str]
"""Key, value, and the sentence that says it."""

_SYSTEM = (
    "Answer in JSON only.",
    "You reply with one JSON value and nothing else.",
    "You turn text into JSON.",
    "You are a helpful assistant.",
    "Output valid JSON. No other text.",
)
_JOBS = ("teacher", "doctor", "baker", "driver", "nurse", "painter", "farmer", "pilot", "cook", "writer", "singer")


def to_json(value: Json) -> str:
    """Returns the value on one line, as the model is to write it."""
    return json.dumps(value, ensure_ascii=False)


def generate(rng: Random, count: int) -> Iterator[ChatDocument]:
    """Yields ``count`` short chats whose last answer is JSON, or a value read from JSON."""
    for _ in range(count):
        split = draw_split(rng)
        stage: Stage = "finish" if rng.random() < 0.5 else "pretrain"
        yield draw_answer(rng, split, stage, thinks=False, source=SOURCE)


def draw_answer(rng: Random, split: Split, stage: Stage, *, thinks: bool, source: str) -> ChatDocument:
    """Returns one request for JSON with its answer; with ``thinks`` the answer is reasoned for."""
    kind = rng.choices(_KINDS, weights=_WEIGHTS)[0]
    request, answer, thought = kind(rng, lexicon(split), split)
    messages: list[Message] = [system(rng.choice(_SYSTEM))] if rng.random() < 0.4 else []
    messages += [user(request), assistant(answer, reasoning=thought if thinks else None)]
    return chat_document(source, messages, enable_thinking=thinks, split=split, stage=stage)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _facts(rng: Random, words: Lexicon) -> list[Fact]:
    """Returns three to five facts about one subject, in the order of their sentences."""
    name = person(rng, words)
    age, city, job = rng.randint(3, 90), place(rng, words), rng.choice(_JOBS)
    noun, color, price = rng.choice(words.nouns), spoken(sample("color", rng, words)), sample("price", rng, words)
    day, hour, heading, number = date(rng, words), clock_time(rng, words), title(rng, words), code(rng, words)
    company, count = rng.choice(words.companies), rng.randint(2, 40)
    groups: tuple[list[Fact], ...] = (
        [
            ("name", name, f"{name} came by this morning."),
            ("age", age, f"{name} is {age} years old."),
            ("city", city, f"{name} lives in {city}."),
            ("job", job, f"{name} works as a {job}."),
        ],
        [
            ("item", noun, f"We sell a {noun}."),
            ("color", color, f"The {noun} is {color}."),
            ("price", price, f"The {noun} costs {spoken(price)} dollars."),
            ("seller", company, f"The {noun} is made by {company}."),
            ("in_stock", count, f"There are {count} of them left."),
        ],
        [
            ("title", heading, f"Our event is called {heading}."),
            ("date", day, without_on(f"It takes place on {day}.")),
            ("time", hour, f"It starts at {hour}."),
            ("place", city, f"Everybody meets in {city}."),
            ("host", name, f"The host is {name}."),
        ],
        [
            ("order_id", number, f"The order {number} has arrived."),
            ("customer", name, f"The customer is {name}."),
            ("quantity", count, f"It holds {count} pieces."),
            ("total", price, f"The total is {spoken(price)} dollars."),
            ("paid", rng.random() < 0.5, ""),
        ],
        [
            ("file", path_value := path(rng, words), f"The file is {path_value}."),
            ("size", size := rng.randint(1, 9000), f"It has {size} bytes."),
            ("owner", name, f"It belongs to {name}."),
        ],
    )
    facts = rng.choice(groups)
    facts = [
        (key, value, ("It is already paid." if value else "It is not paid yet.") if key == "paid" else text)
        for key, value, text in facts
    ]
    return facts[: rng.randint(2, len(facts))]


_ASK = (
    "Answer in JSON with the keys {keys}.",
    "Give me a JSON object with {keys}.",
    "Extract {keys} as JSON.",
    "Return JSON with the keys {keys}",
    "Turn this into JSON with the keys {keys}.",
    "Write {keys} as a JSON object.",
)
_ASK_HELD_OUT = ("I want a JSON object that holds {keys} and no more.", "Condense the above to JSON, fields: {keys}")


def _place_request(text: str, ask: str, rng: Random) -> str:
    return rng.choice((f"{text}\n\n{ask}", f"{text} {ask}", f"{ask}\n\n{text}", f"Text: {text}\n{ask}"))


def _ask(keys: Sequence[str], rng: Random, split: Split) -> str:
    shown = _listed(list(keys)) if rng.random() < 0.6 else ", ".join(f'"{key}"' for key in keys)
    return rng.choice(_ASK_HELD_OUT if split == "heldout" else _ASK).format(keys=shown)


def _extraction(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    facts = _facts(rng, words)
    text = " ".join(sentence_text for _, _, sentence_text in facts)
    if rng.random() < 0.3:
        text += " " + sentence(rng, words)
    wanted = facts if rng.random() < 0.6 else rng.sample(facts, rng.randint(1, len(facts)))
    answer: dict[str, Json] = {key: value for key, value, _ in wanted}
    if rng.random() < 0.12:
        extra = rng.choice(("email", "phone", "country"))
        answer[extra] = None  # type: ignore[assignment]
        ask = _ask(list(answer), rng, split) + " Use null for what is not said."
    else:
        ask = _ask(list(answer), rng, split)
    return _place_request(text, ask, rng), to_json(answer), f"The keys are {_listed(list(answer))}. I copy the values."


def _array(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    kind = rng.choice(("items", "names", "places", "tags"))
    values = sample(kind, rng, words)
    if not isinstance(values, list):
        values = [values]
    listed = _listed([spoken(value) for value in values])
    name = rng.choice(words.first_names)
    text = {
        "items": f"{name} bought {listed}.",
        "names": f"{listed} came to the party.",
        "places": f"{name} went to {listed}.",
        "tags": f"The tags are {listed}.",
    }[kind]
    if rng.random() < 0.3:
        key = {"items": "items", "names": "guests", "places": "cities", "tags": "tags"}[kind]
        return (
            _place_request(text, _ask([key], rng, split), rng),
            to_json({key: values}),
            f"One key, {key}, with a list.",
        )
    noun = {"items": "things", "names": "people", "places": "cities", "tags": "tags"}[kind]
    ask = rng.choice(
        (
            f"List the {noun} as a JSON array.",
            f"Which {noun} are there? Answer with a JSON array.",
            f"JSON array of the {noun}:",
        )
    )
    return _place_request(text, ask, rng), to_json(values), f"I list the {noun} in order."


def _nested(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    name, address, city = person(rng, words), email(rng, words), place(rng, words)
    first, second = rng.sample(words.items, 2)
    many, few = rng.randint(2, 12), rng.randint(1, 9)
    text = f"{name} ({address}) from {city} orders {many} times {first} and {few} times {second}."
    answer: dict[str, Json]
    if rng.random() < 0.5:
        answer = {
            "customer": {"name": name, "email": address},
            "items": [{"name": first, "quantity": many}, {"name": second, "quantity": few}],
        }
        ask = "JSON with customer (name, email) and items (a list of name and quantity)."
    else:
        answer = {"name": name, "address": {"email": address, "city": city}, "items": [first, second]}
        ask = "JSON with name, address (email, city) and items (a list of names)."
    ask = rng.choice(("Answer in ", "Write ", "Give me ")) + ask if split == "train" else "Shape it as " + ask
    return _place_request(text, ask, rng), to_json(answer), "I fill the nested object from the text."


def _lines(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    facts = _facts(rng, words)
    answer: dict[str, Json] = {key: value for key, value, _ in facts}
    sign = rng.choice((": ", " = ", ":", " - "))
    text = "\n".join(f"{key}{sign}{spoken(value)}" for key, value in answer.items())
    ask = rng.choice(("Convert this to JSON:", "Write this as JSON:", "As JSON, please:", "JSON:"))
    if split == "heldout":
        ask = "Recast these lines in JSON:"
    return f"{ask}\n\n{text}", to_json(answer), "Every line becomes one key."


def _schema(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    facts = _facts(rng, words)
    answer: dict[str, Json] = {key: value for key, value, _ in facts}
    properties: dict[str, Json] = {key: {"type": _type_of(value)} for key, value in answer.items()}
    schema: dict[str, Json] = {"type": "object", "properties": properties, "required": list(answer)}
    text = " ".join(sentence_text for _, _, sentence_text in facts)
    ask = rng.choice(
        (
            "Answer with JSON that matches this schema:",
            "Reply with a JSON object for this schema:",
            "Use this JSON schema for your answer:",
        )
    )
    if split == "heldout":
        ask = "Your reply has to validate against:"
    return f"{text}\n\n{ask}\n{to_json(schema)}", to_json(answer), f"The schema asks for {_listed(list(answer))}."


def _type_of(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _reading(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    """Reads one value out of an object."""
    facts = _facts(rng, words)
    answer: dict[str, Json] = {key: value for key, value, _ in facts}
    key = rng.choice(list(answer))
    value = spoken(answer[key])
    label = key.replace("_", " ")
    question = rng.choice((f"What is the {label}?", f"Give me the value of {key}.", f"{key}?"))
    if split == "heldout":
        question = f"Which value stands at {key}?"
    reply = value if rng.random() < 0.5 else f"The {label} is {value.rstrip('.')}."
    return f"{to_json(answer)}\n\n{question}", reply, f"The key {key} holds {value}."


def _label(rng: Random, words: Lexicon, split: Split) -> tuple[str, str, str]:
    noun, name = rng.choice(words.nouns), rng.choice(words.first_names)
    choice, text = rng.choice(
        (
            ("positive", f"I love this {noun}, it works so well!"),
            ("positive", f"{name} was very happy with the {noun}."),
            ("positive", f"What a wonderful {noun}, thank you."),
            ("negative", f"The {noun} broke after one day."),
            ("negative", f"I am very angry about the {noun}."),
            ("negative", f"{name} hated the {noun} and sent it back."),
            ("neutral", f"The {noun} is in the kitchen."),
            ("neutral", f"{name} has a {noun}."),
        )
    )
    key = rng.choice(("sentiment", "mood", "label"))
    ask = f'Is this positive, negative or neutral? Answer in JSON with the key "{key}".'
    if split == "heldout":
        ask = f"Judge the tone (positive, negative, neutral) as JSON, key {key}."
    return _place_request(text, ask, rng), to_json({key: choice}), f"This sounds {choice}."


_KINDS: tuple[Callable[[Random, Lexicon, Split], tuple[str, str, str]], ...] = (
    _extraction,
    _array,
    _nested,
    _lines,
    _schema,
    _reading,
    _label,
)
_WEIGHTS = (34, 14, 10, 12, 14, 10, 6)
