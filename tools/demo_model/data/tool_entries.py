"""How a well-known tool is described: the names it goes by, what is asked of it, and what it answers."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tools.demo_model.data.documents import Split, Tool
from tools.demo_model.data.tool_exchanges import Call, Exchange, Round, make_tool
from tools.demo_model.data.tool_lexicon import lexicon, words_of
from tools.demo_model.data.tool_values import Json, evaluate, fill, has_sampler, sample, slots, spoken

ValueType = Literal["string", "integer", "number", "boolean", "array"]
_CASUAL_SHARE = 0.12
"""Share of the requests that are typed without capitals, names included."""
_LOWERED_SLOTS = {"city", "person", "title", "topic", "item", "company", "date", "name", "language"}
NUMBER_WORDS = words_of("zero one two three four five six seven eight nine ten eleven twelve")
_SPELLED_SHARE = 0.15
"""Share of the small numbers that are written as words."""
_SPELLED_SLOTS = {"count", "minutes"}
_CHATTY_SHARE = 0.08
_CHATTY = (
    "I just came back from {city}.",
    "My sister {name} is here.",
    "It has been a long day.",
    "{name} told me that you can help.",
    "Sorry to bother you again.",
    "I am at home in {city}.",
    "Quick question.",
    "{name} and I are working on something.",
    "Ok, next one.",
    "Forget what I said before.",
)
"""What some requests start with, to be ignored."""
_FIXED = re.compile(r"\s*\{([a-z_]+=[^{}]*)\}$")


@dataclass(frozen=True, kw_only=True)
class EntryParameter:
    """One parameter of a well-known tool."""

    slot: str
    """The slot that holds its value."""
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    type: ValueType
    enum: tuple[str, ...]
    required: bool


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One well-known tool.

    Requests are templates; what follows in braces at the end fixes values that the text says in other words, for
    example ``How warm is <city> in Celsius? {unit=celsius}``.  Outcomes are pairs of a result and a reply.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[EntryParameter, ...]
    requests: tuple[str, ...]
    held_out_requests: tuple[str, ...]
    outcomes: tuple[tuple[str, str], ...]
    failures: tuple[str, ...]
    purpose: str
    """What it is for, after ``to``."""
    parallel: tuple[str, ...] = ()
    """Requests that need two calls, one with every numbered slot ``<city2>`` in place of ``<city>``."""


def parameter(
    slot: str,
    names: str,
    about: str = "",
    *,
    kind: ValueType = "string",
    enum: Sequence[str] = (),
    required: bool = True,
) -> EntryParameter:
    """Returns a parameter; ``names`` are separated by blanks, descriptions by bars."""
    return EntryParameter(
        slot=slot,
        names=tuple(names.split()),
        descriptions=tuple(about.split("|")) if about else (),
        type=kind,
        enum=tuple(enum),
        required=required,
    )


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An entry under one of its names, as a conversation declares it."""

    entry: Entry
    tool: Tool
    argument_names: Mapping[str, str]
    """Slot to parameter name."""

    @property
    def name(self) -> str:
        """The name it is declared under."""
        return self.tool["function"]["name"]


def draw_variant(entry: Entry, rng: Random) -> Variant:
    """Returns the entry under a random choice of its names and descriptions."""
    names: dict[str, str] = {}
    properties: dict[str, Json] = {}
    required: list[str] = []
    for part in entry.parameters:
        if not part.required and rng.random() < 0.2:
            continue
        name = rng.choice(part.names)
        names[part.slot] = name
        schema: dict[str, Json] = {"type": part.type}
        if part.enum:
            schema["enum"] = list(part.enum)
        if part.type == "array":
            schema["items"] = {"type": "string"}
        if part.descriptions and rng.random() < 0.65:
            schema["description"] = rng.choice(part.descriptions)
        properties[name] = schema
        if part.required:
            required.append(name)
    tool = make_tool(rng.choice(entry.names), rng.choice(entry.descriptions), properties, required)
    return Variant(entry=entry, tool=tool, argument_names=names)


def _split_fixed(template: str) -> tuple[str, dict[str, str]]:
    hit = _FIXED.search(template)
    if not hit:
        return template, {}
    pairs = (pair.split("=", 1) for pair in hit[1].split(";"))
    return template[: hit.start()], dict(pairs)


def _usable(template: str, variant: Variant) -> bool:
    text, fixed = _split_fixed(template)
    mentioned = {slot for slot in slots(text) if slot in {part.slot for part in variant.entry.parameters}}
    return (mentioned | set(fixed)) <= set(variant.argument_names)


def _draw(template: str, variant: Variant, rng: Random, split: Split) -> tuple[str, dict[str, Json]]:
    """Returns the request and the value of every slot in it."""
    text, fixed = _split_fixed(template)
    words = lexicon(split)
    casual = rng.random() < _CASUAL_SHARE
    if casual:
        text = text.lower().replace("'s", rng.choice(("s", "'s"))).rstrip(".?")
    values: dict[str, Json] = {}
    for slot in slots(text):
        value = sample(slot, rng, words)
        while value in values.values():
            value = sample(slot, rng, words)
        if casual and isinstance(value, str) and slot.rstrip("23") in _LOWERED_SLOTS:
            value = value.lower()
        values[slot] = value
    shown = dict(values)
    for slot, value in values.items():
        if slot.rstrip("23") in _SPELLED_SLOTS and value in range(1, 13) and rng.random() < _SPELLED_SHARE:
            shown[slot] = NUMBER_WORDS[int(str(value))]
    request = fill(text, shown)
    if rng.random() < _CHATTY_SHARE:
        opening = rng.choice(_CHATTY).format(name=rng.choice(words.first_names), city=rng.choice(words.cities))
        request = f"{opening.lower() if casual else opening} {request}"
    types = {part.slot: part.type for part in variant.entry.parameters}
    for slot, value_text in fixed.items():
        values[slot] = value_text if types[slot] == "string" else json.loads(value_text)
    return request, values


def _arguments(variant: Variant, values: Mapping[str, Json]) -> dict[str, Json]:
    return {name: values[slot] for slot, name in variant.argument_names.items() if slot in values}


def _outcome(
    variant: Variant, values: Mapping[str, Json], rng: Random, split: Split, *, naming: str = ""
) -> tuple[str, str, str]:
    """Returns result, reply and what is thought between; the reply mentions the slot ``naming`` if one can."""
    if rng.random() < 0.13:
        failure = fill(rng.choice(variant.entry.failures), values)
        result = rng.choice((f"Error: {failure}", f"error: {failure}", json.dumps({"error": failure})))
        reply = rng.choice(
            (
                f"That did not work: {failure}.",
                f"I got an error: {failure}.",
                f"Sorry, I could not do that. The tool says: {failure}.",
            )
        )
        return result, reply, "The tool returned an error. I should say so."
    outcomes = variant.entry.outcomes
    naming_ones = [pair for pair in outcomes if naming and f"<{naming}>" in pair[1]]
    result, reply = rng.choice(naming_ones or outcomes)
    shown = dict(values)
    if isinstance(shown.get("expression"), str):
        shown["computed"] = evaluate(str(shown["expression"]))
    for slot in slots(result):
        if slot not in shown and has_sampler(slot):
            shown[slot] = sample(slot, rng, lexicon(split))
    afterthought = rng.choice(("I have the result and can answer.", "The call worked.", "Now I can answer."))
    return fill(result, shown), fill(reply, shown), afterthought


def _think(variant: Variant, values: Mapping[str, Json], rng: Random) -> str:
    arguments = _arguments(variant, values)
    short = [f"{name} {spoken(value)}" for name, value in arguments.items() if len(spoken(value)) < 50]
    short = [text for text in short if "\n" not in text]
    purpose = variant.entry.purpose
    first = rng.choice((f"The user wants to {purpose}.", f"I need to {purpose}.", f"This asks to {purpose}."))
    if not short:
        return rng.choice((f"{first} I will call {variant.name}.", f"{first} {variant.name} does that."))
    listed = " and ".join(short)
    end = "" if listed.endswith((".", "!", "?")) else "."
    return rng.choice(
        (
            f"{first} I will call {variant.name} with {listed}{end}",
            f"{first} {variant.name} fits, with {listed}{end}",
            f"I should use {variant.name}: {listed}{end}",
        )
    )


def exchange_with(variant: Variant, rng: Random, split: Split) -> Exchange:
    """Returns a request for this tool, the call, its result and an answer that quotes the result."""
    entry = variant.entry
    pool = entry.held_out_requests if split == "heldout" else entry.requests
    template = rng.choice([text for text in pool if _usable(text, variant)] or [pool[0]])
    request, values = _draw(template, variant, rng, split)
    result, reply, afterthought = _outcome(variant, values, rng, split)
    call = Call(name=variant.name, arguments=_arguments(variant, values), result=result)
    step = Round(calls=(call,), thought=_think(variant, values, rng))
    return Exchange(request=request, reply=reply, afterthought=afterthought, tools=(variant.tool,), rounds=(step,))


def parallel_exchange(variant: Variant, rng: Random, split: Split) -> Exchange:
    """Returns a request that needs two or three calls of this tool at once; the entry has ``parallel`` requests."""
    usable = [text for text in variant.entry.parallel if _usable(text, variant)] or [variant.entry.parallel[0]]
    request, values = _draw(rng.choice(usable), variant, rng, split)
    numbers = sorted({slot[-1] if slot[-1].isdigit() else "" for slot in values if slot.rstrip("23") != slot} | {""})
    calls, replies = [], []
    for number in numbers:
        own = {slot: values.get(slot + number, values.get(slot, "")) for slot in variant.argument_names}
        own = {slot: value for slot, value in own.items() if value != ""}
        result, reply, _ = _outcome(variant, own, rng, split, naming=variant.entry.parameters[0].slot)
        calls.append(Call(name=variant.name, arguments=_arguments(variant, own), result=result))
        replies.append(reply)
    count = {2: "twice", 3: "three times"}[len(calls)]
    step = Round(calls=tuple(calls), thought=f"I need to {variant.entry.purpose} {count}, once for each.")
    return Exchange(
        request=request,
        reply="\n".join(replies) if any("\n" in text for text in replies) else " ".join(replies),
        afterthought="I have all results.",
        tools=(variant.tool,),
        rounds=(step,),
    )
