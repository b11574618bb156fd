"""Values for the parameters of tools, drawn by kind: places, people, paths, numbers, sentences, code.

Every sampler takes the random generator and one half of the words, and returns a JSON value.  Templates name the
kind of a slot, with an optional digit to tell two of a kind apart: ``<city>``, ``<city2>``.
"""

import json
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from tools.demo_model.data.tool_lexicon import Lexicon, words_of

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json]"
Sampler: TypeAlias = Callable[[Random, Lexicon], Json]

_SLOT = re.compile(r"<([a-z_]+[0-9]?)>")
_ON_RELATIVE = re.compile(r"\bon (today|tomorrow|next [A-Z])")
_MONTHS = words_of("January February March April May June July August September October November December")
_DAYS = words_of("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_ENDINGS = words_of("txt md py rs js ts json csv html css toml yaml sh go c log sql xml")
_LANGUAGES = words_of("French German Spanish Italian Dutch Polish Swedish Danish Greek Turkish Japanese Korean Hindi")
_CURRENCIES = words_of("USD EUR GBP JPY CHF SEK NOK DKK PLN CZK INR BRL CAD AUD NZD MXN")
_UNITS = words_of("miles kilometers meters feet inches centimeters pounds kilograms grams ounces liters gallons")
_COLORS = words_of("red blue green yellow black white orange purple pink brown gray teal gold silver")
_LOWER_ADJECTIVES = words_of("small big old new quiet bright warm cold long short happy tired soft tall round clean")


def spoken(value: Json) -> str:
    """Returns a value as it is written into a request: lists with commas, numbers and booleans as in JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(spoken(part) for part in value)
    return json.dumps(value)


def slots(template: str) -> list[str]:
    """Returns the slot names of a template, in order, each once."""
    return list(dict.fromkeys(_SLOT.findall(template)))


def fill(template: str, values: Mapping[str, Json]) -> str:
    """Returns the template with its slots replaced; a slot without a value is left as it stands."""
    return without_on(_SLOT.sub(lambda hit: spoken(values[hit[1]]) if hit[1] in values else hit[0], template))


def without_on(text: str) -> str:
    """Returns the text with ``on tomorrow`` and the like turned into ``tomorrow``."""
    return _ON_RELATIVE.sub(r"\1", text)


def sample(slot: str, rng: Random, words: Lexicon) -> Json:
    """Returns a value for a slot such as ``city`` or ``city2``."""
    return SAMPLERS[slot.rstrip("0123456789")](rng, words)


def has_sampler(slot: str) -> bool:
    """Returns whether ``sample`` knows the kind of this slot."""
    return slot.rstrip("0123456789") in SAMPLERS


def made_up_name(rng: Random, words: Lexicon) -> str:
    """Returns a capitalised name that means nothing, such as ``Torvali``."""
    return "".join(rng.choice(words.syllables) for _ in range(rng.choice((2, 3, 3, 4)))).capitalize()


def person(rng: Random, words: Lexicon) -> str:
    """Returns a first name, a full name or a made-up one."""
    draw = rng.random()
    if draw < 0.35:
        return rng.choice(words.first_names)
    if draw < 0.8:
        return f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}"
    return made_up_name(rng, words)


def place(rng: Random, words: Lexicon) -> str:
    """Returns a city, sometimes one that does not exist."""
    return rng.choice(words.cities) if rng.random() < 0.85 else made_up_name(rng, words)


def path(rng: Random, words: Lexicon) -> str:
    """Returns a file path of one to three parts."""
    name = f"{_stem(rng, words)}.{rng.choice(_ENDINGS)}"
    depth = rng.choice((0, 0, 0, 1, 1, 1, 2))
    parts = [rng.choice(words.folders) for _ in range(depth)]
    prefix = rng.choice(("", "", "", "", "./", "/", "~/")) if parts else ""
    return prefix + "/".join([*parts, name])


def _stem(rng: Random, words: Lexicon) -> str:
    draw = rng.random()
    if draw < 0.6:
        return rng.choice(words.stems)
    if draw < 0.75:
        return f"{rng.choice(words.stems)}_{rng.choice(words.nouns)}"
    if draw < 0.85:
        return f"{rng.choice(words.nouns)}-{rng.randint(1, 40)}"
    return made_up_name(rng, words).lower()


def folder(rng: Random, words: Lexicon) -> str:
    """Returns a folder path of one or two parts."""
    parts = [rng.choice(words.folders) for _ in range(rng.choice((1, 1, 2)))]
    return "/".join(parts) + rng.choice(("", "", "", "/"))


def url(rng: Random, words: Lexicon) -> str:
    """Returns an address under a reserved example domain."""
    host = rng.choice(("example.com", "example.org", "www.example.com", f"{rng.choice(words.nouns)}.example"))
    return f"https://{host}/{rng.choice(words.nouns)}/{_stem(rng, words)}"


def email(rng: Random, words: Lexicon) -> str:
    """Returns a mail address under a reserved example domain."""
    name = rng.choice(words.first_names).lower()
    if rng.random() < 0.5:
        name += rng.choice(".-_") + rng.choice(words.last_names).lower()
    return f"{name}@{rng.choice(('example.com', 'example.org', rng.choice(words.nouns) + '.example'))}"


def date(rng: Random, _words: Lexicon) -> str:
    """Returns a day, as an ISO date or in words."""
    year, month, day = rng.randint(2019, 2031), rng.randint(1, 12), rng.randint(1, 28)
    draw = rng.random()
    if draw < 0.45:
        return f"{year}-{month:02d}-{day:02d}"
    if draw < 0.65:
        return f"{_MONTHS[month - 1]} {day}"
    if draw < 0.75:
        return f"{day} {_MONTHS[month - 1]} {year}"
    if draw < 0.85:
        return rng.choice(("today", "tomorrow"))
    return f"next {rng.choice(_DAYS)}" if draw < 0.93 else rng.choice(_DAYS)


def clock_time(rng: Random, _words: Lexicon) -> str:
    """Returns a time of day."""
    minute = rng.choice((0, 0, 15, 30, 30, 45, rng.randint(0, 59)))
    if rng.random() < 0.6:
        return f"{rng.randint(0, 23):02d}:{minute:02d}"
    return f"{rng.randint(1, 12)}{f':{minute:02d}' if minute else ''} {rng.choice(('am', 'pm'))}"


def code(rng: Random, words: Lexicon) -> str:
    """Returns an identifier such as ``TCK-4821`` or ``a91f03``."""
    draw = rng.random()
    if draw < 0.4:
        letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(rng.choice((2, 3))))
        return f"{letters}-{rng.randint(10, 9999)}"
    if draw < 0.65:
        return f"{rng.choice(words.nouns)}_{rng.randint(1, 999)}"
    if draw < 0.85:
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.choice((6, 8))))
    return str(rng.randint(1000, 999999))


def title(rng: Random, words: Lexicon) -> str:
    """Returns a short title."""
    noun, other = rng.choice(words.nouns), rng.choice(words.nouns)
    adjective = rng.choice(_LOWER_ADJECTIVES)
    return rng.choice(
        (
            f"The {adjective.capitalize()} {noun.capitalize()}",
            f"{noun.capitalize()} and {other}",
            f"{rng.choice(words.first_names)}'s {noun}",
            f"{adjective.capitalize()} {noun} {rng.choice(('plan', 'review', 'meeting', 'notes', 'party'))}",
            f"{noun.capitalize()} {rng.choice(('planning', 'update', 'check', 'lunch', 'demo'))}",
            f"{made_up_name(rng, words)} {noun}",
        )
    )


def sentence(rng: Random, words: Lexicon) -> str:
    """Returns a sentence of five to fifteen words, as a message or a note would hold."""
    name, noun, item = rng.choice(words.first_names), rng.choice(words.nouns), rng.choice(words.items)
    adjective, city, other = rng.choice(_LOWER_ADJECTIVES), rng.choice(words.cities), rng.choice(words.nouns)
    hour = clock_time(rng, words)
    return rng.choice(
        (
            f"I will be late, please start the {noun} without me.",
            f"The {noun} is ready, you can pick it up at {hour}.",
            f"{name} needs the {adjective} {noun} by {rng.choice(_DAYS)}.",
            f"Please bring {item} and {rng.choice(words.items)}.",
            f"Don't forget {item} for {name}!",
            f"We moved the {noun} next to the {other}.",
            f"Happy birthday, {name}!",
            f"The train to {city} leaves at {hour}",
            f"{name} said the {noun} was too {adjective}",
            f"Meet me at the {noun} at {hour}",
            f"Thanks for the {adjective} {noun}, it works very well.",
            f"Can you water the {adjective} plant in the {noun}?",
            f"The {noun} costs {rng.randint(2, 90)} dollars",
            f"Once there was a {adjective} {noun} in {city}.",
            f"The {adjective} {noun} sat near the {other}.",
            f"{name} and {rng.choice(words.first_names)} found a {noun} in the {other}.",
            f"All {rng.randint(2, 30)} of the {adjective} boxes went to {city}.",
            f"{adjective} {noun}",
            f"call {name} about the {noun}",
            f"buy {item} and {rng.choice(words.items)}",
            f"fix the {adjective} {noun}",
            f"Hello, {made_up_name(rng, words)}!",
            f"Hello from {city}",
        )
    )


def _identifier(rng: Random, words: Lexicon) -> str:
    return f"{rng.choice(words.nouns)}_{rng.choice(('total', 'count', 'name', 'size', 'list', 'value', 'id'))}"


def code_line(rng: Random, words: Lexicon) -> str:
    """Returns one line of source text."""
    name, number = _identifier(rng, words), rng.randint(0, 99)
    return rng.choice(
        (
            f"{name} = {number}",
            f'print("{sentence(rng, words)}")',
            f"return {name} + {number}",
            f"if {name} > {number}:",
            f"import {rng.choice(words.stems)}",
            f"const {name} = {number};",
            f'console.log("{rng.choice(words.nouns)}");',
            f"let mut {name} = {number};",
            f"for {rng.choice('ijkn')} in range({number}):",
            f"# TODO: check the {rng.choice(words.nouns)}",
            f"def {rng.choice(words.nouns)}_{rng.choice(words.stems)}(x):",
        )
    )


def text_block(rng: Random, words: Lexicon) -> str:
    """Returns two to five lines: prose, a list, source text, JSON, settings or a page."""
    nouns = [rng.choice(words.nouns) for _ in range(4)]
    number, other = rng.randint(1, 50), rng.randint(1, 50)
    name = rng.choice(words.first_names)
    kind = rng.randrange(9)
    if kind == 0:
        return "\n".join(sentence(rng, words) for _ in range(rng.randint(2, 4)))
    if kind == 1:
        mark = rng.choice(("- ", "* ", "- [ ] "))
        return "\n".join(mark + rng.choice(words.items) for _ in range(rng.randint(2, 5)))
    if kind == 2:
        return f"def {nouns[0]}_{nouns[1]}(x):\n    {nouns[2]} = {number}\n    return x + {nouns[2]}"
    if kind == 3:
        return json.dumps({nouns[0]: number, nouns[1]: name}, indent=rng.choice((2, 4)))
    if kind == 4:
        return f"#!/bin/sh\necho {nouns[0]}\nls {folder(rng, words)}"
    if kind == 5:
        return f"# {title(rng, words)}\n\n{sentence(rng, words)}"
    if kind == 6:
        return f"<html>\n<body>\n<h1>{title(rng, words)}</h1>\n</body>\n</html>"
    if kind == 7:
        return f"[{nouns[0]}]\n{nouns[1]} = {number}\n{nouns[2]} = {other}"
    return f'fn main() {{\n    let {nouns[0]} = {number};\n    println!("{{}}", {nouns[0]});\n}}'


def content(rng: Random, words: Lexicon) -> str:
    """Returns one line of text or source, for a small file."""
    return sentence(rng, words) if rng.random() < 0.7 else code_line(rng, words)


def command(rng: Random, words: Lexicon) -> str:
    """Returns a shell command."""
    return rng.choice(
        (
            f"ls {folder(rng, words)}",
            "ls -la",
            f"cat {path(rng, words)}",
            f"python {rng.choice(words.stems)}.py",
            f"python {path(rng, words)} --{rng.choice(words.nouns)} {rng.randint(1, 99)}",
            f"grep -rn {rng.choice(words.nouns)} {folder(rng, words)}",
            f"mkdir -p {folder(rng, words)}",
            f"rm {path(rng, words)}",
            f"cp {path(rng, words)} {path(rng, words)}",
            f"wc -l {path(rng, words)}",
            f"git checkout {branch(rng, words)}",
            f"git log -{rng.randint(1, 20)}",
            "git status",
            "git diff",
            f"make {rng.choice(words.nouns)}",
            f"npm run {rng.choice(words.nouns)}",
            "npm test",
            "cargo build --release",
            "cargo test",
            f"pytest {folder(rng, words)}",
            "pytest -q",
            f"echo {rng.choice(words.nouns)}",
            f"./{rng.choice(words.stems)}.sh {rng.choice(words.nouns)}",
            f"tail -n {rng.randint(2, 60)} {path(rng, words)}",
            f"du -sh {folder(rng, words)}",
        )
    )


def branch(rng: Random, words: Lexicon) -> str:
    """Returns the name of a branch."""
    return f"{rng.choice(('feature/', 'fix/', '', '', 'release-'))}{rng.choice(words.nouns)}-{rng.choice(words.stems)}"


def expression(rng: Random, _words: Lexicon) -> str:
    """Returns a sum or product of small numbers."""
    left, right, third = rng.randint(1, 99), rng.randint(1, 99), rng.randint(1, 20)
    sign, other = rng.choice("+-*/"), rng.choice("+-*")
    return rng.choice((f"{left} {sign} {right}", f"{left}{sign}{right}", f"({left} {other} {right}) * {third}"))


def _sql(rng: Random, words: Lexicon) -> str:
    table, column, number = rng.choice(words.nouns) + "s", rng.choice(words.nouns), rng.randint(1, 99)
    return rng.choice(
        (
            f"SELECT * FROM {table}",
            f"SELECT COUNT(*) FROM {table}",
            f"SELECT {column} FROM {table} WHERE id = {number}",
            f"SELECT {column} FROM {table} LIMIT {number}",
            f"DELETE FROM {table} WHERE {column} = {number}",
        )
    )


_SUM = re.compile(r"\(?(\d+) ?([-+*/]) ?(\d+)\)?(?: \* (\d+))?")


def evaluate(text: str) -> int | float:
    """Returns the value of what ``expression`` draws, to four decimals; zero for anything else."""
    hit = _SUM.fullmatch(text)
    if not hit:
        return 0
    left, right, third = int(hit[1]), int(hit[3]), int(hit[4] or 1)
    results: dict[str, int | float] = {"+": left + right, "-": left - right, "*": left * right}
    if hit[2] == "/":
        quotient = round(left / right, 4) if right else 0
        return int(quotient) if quotient == int(quotient) else quotient
    return results[hit[2]] * third


def label(rng: Random, words: Lexicon) -> str:
    """Returns a short name for a thing: a made-up word, a title, a code or two words."""
    draw = rng.random()
    if draw < 0.3:
        return made_up_name(rng, words)
    if draw < 0.55:
        return title(rng, words)
    if draw < 0.75:
        return code(rng, words)
    return f"{rng.choice(_LOWER_ADJECTIVES)} {rng.choice(words.nouns)}"


def _several(sampler: Sampler) -> Sampler:
    def draw(rng: Random, words: Lexicon) -> Json:
        found: dict[str, None] = {}
        for _ in range(rng.choice((2, 2, 3, 3, 4))):
            found[spoken(sampler(rng, words))] = None
        return list(found)

    return draw


def _one_of(*choices: Json) -> Sampler:
    return lambda rng, _words: rng.choice(choices)


def _whole(low: int, high: int) -> Sampler:
    return lambda rng, _words: rng.randint(low, high)


def _decimal(low: float, high: float, digits: int) -> Sampler:
    return lambda rng, _words: round(rng.uniform(low, high), digits)


SAMPLERS: Mapping[str, Sampler] = {
    "branch": branch,
    "city": place,
    "code": code,
    "code_line": code_line,
    "color": _one_of(*_COLORS),
    "command": command,
    "company": lambda rng, words: rng.choice(words.companies),
    "content": content,
    "count": _whole(1, 12),
    "currency": _one_of(*_CURRENCIES),
    "date": date,
    "email": email,
    "expression": expression,
    "first": lambda rng, words: rng.choice(words.first_names),
    "folder": folder,
    "item": lambda rng, words: rng.choice(words.items),
    "items": _several(lambda rng, words: rng.choice(words.items)),
    "label": label,
    "language": _one_of(*_LANGUAGES),
    "latitude": _decimal(-60, 70, 2),
    "minutes": _one_of(1, 2, 3, 5, 10, 12, 15, 20, 25, 30, 40, 45, 60, 90),
    "name": made_up_name,
    "names": _several(lambda rng, words: rng.choice(words.first_names)),
    "noun": lambda rng, words: rng.choice(words.nouns),
    "number": _whole(1, 2000),
    "path": path,
    "percent": _whole(0, 100),
    "person": person,
    "places": _several(lambda rng, words: rng.choice(words.cities)),
    "price": _decimal(0.5, 400, 2),
    "sentence": sentence,
    "size": _whole(1, 5000),
    "sky": _one_of("sunny", "cloudy", "rainy", "clear", "windy", "foggy", "snowing", "partly cloudy", "light rain"),
    "sql": _sql,
    "stem": lambda rng, words: _stem(rng, words),
    "tag": lambda rng, words: rng.choice(words.tags),
    "tags": _several(lambda rng, words: rng.choice(words.tags)),
    "temp": _whole(-15, 38),
    "text_block": text_block,
    "time": clock_time,
    "title": title,
    "topic": lambda rng, words: rng.choice(words.topics),
    "unit": _one_of(*_UNITS),
    "url": url,
    "year": _whole(1950, 2035),
}
