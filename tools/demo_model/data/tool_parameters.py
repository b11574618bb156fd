"""Kinds of parameters of made-up tools: what they are called, their schema, and how a request mentions their value."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tools.demo_model.data.tool_lexicon import Lexicon
from tools.demo_model.data.tool_values import Json, has_sampler, sample, spoken, without_on

SchemaType = Literal["string", "integer", "number", "boolean", "array"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of parameter: the names it goes by, and how its value is drawn and said."""

    names: tuple[str, ...]
    """In snake_case."""
    slot: str
    """The sampler of its value; empty for a boolean."""
    type: SchemaType = "string"
    phrases: tuple[str, ...] = ()
    """How a request mentions it; ``<v>`` stands for the value."""
    descriptions: tuple[str, ...] = ()
    quoted: float = 0.0
    """How often the value is put in quotation marks."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of one tool, with the value that the request gives it."""

    name: str
    label: str
    """The name in plain words."""
    schema: dict[str, Json]
    value: Json
    mention: str
    """The value within the request, for example ``in Paris``."""
    quoted_value: str
    """The value alone, as the request writes it."""
    required: bool


def _kind(
    names: str,
    slot: str,
    phrases: str = "",
    *,
    kind: SchemaType = "string",
    about: str = "",
    quoted: float = 0.0,
) -> Kind:
    return Kind(
        names=tuple(names.split()),
        slot=slot,
        type=kind,
        phrases=tuple(part for part in phrases.split("|") if part),
        descriptions=tuple(part for part in about.split("|") if part),
        quoted=quoted,
    )


_KINDS = (
    _kind("city location town place", "city", "in <v>|for <v>|at <v>|near <v>", about="Name of the city.|City name"),
    _kind("destination target_city to_city", "city", "to <v>|going to <v>", about="Where it goes.|Destination city."),
    _kind("origin from_city start", "city", "from <v>|starting in <v>", about="Where it starts."),
    _kind("name owner customer guest author user", "person", "for <v>", about="Full name.|Who it is for."),
    _kind("assignee recipient contact member", "person", "for <v>|and give it to <v>", about="Person in charge."),
    _kind("email email_address", "email", "for <v>|with the email <v>|using <v>", about="Email address."),
    _kind("date day due_date start_date", "date", "on <v>|for <v>|dated <v>", about="Day, as given by the user."),
    _kind("time start_time", "time", "at <v>", about="Time of day.|When."),
    _kind("path file file_path filename", "path", "from <v>|in <v>|at <v>", about="Path of the file.", quoted=0.2),
    _kind("folder directory output_dir", "folder", "in <v>|under <v>", about="Folder to use.", quoted=0.2),
    _kind("url link address", "url", "at <v>|from <v>", about="Full URL."),
    _kind("id code reference number_id", "code", "with id <v>|<v>|number <v>", about="Its identifier.", quoted=0.1),
    _kind("order_id ticket_id user_id item_id", "code", "<v>|with the id <v>", about="Unique identifier."),
    _kind("title subject heading", "title", "titled <v>|called <v>|with the title <v>", about="Title.", quoted=0.8),
    _kind("label name key", "label", "called <v>|named <v>|with the name <v>", about="What to call it.", quoted=0.5),
    _kind("message text note body comment", "sentence", "saying <v>|with the text <v>", about="Text.", quoted=1.0),
    _kind("query keyword search_term", "topic", "about <v>|matching <v>", about="What to look for.", quoted=0.3),
    _kind("topic category_name theme", "topic", "about <v>|on <v>", about="The topic."),
    _kind("item product article", "item", "for <v>|with <v>", about="The item."),
    _kind("color", "color", "in <v>|painted <v>", about="Color name."),
    _kind("company supplier vendor", "company", "from <v>|for <v>", about="Name of the company."),
    _kind("language target_language", "language", "in <v>|into <v>", about="Language."),
    _kind("currency", "currency", "in <v>", about="Three-letter code."),
    _kind("branch", "branch", "on branch <v>|on <v>", about="Branch name."),
    _kind("command script", "command", "with the command <v>|running <v>", about="Shell command.", quoted=0.8),
    _kind("expression formula", "expression", "for <v>|using <v>", about="Arithmetic expression.", quoted=0.3),
    _kind("tag status_tag", "tag", "with the tag <v>|tagged <v>", about="One tag.", quoted=0.3),
    _kind("code_name token nickname", "name", "under the name <v>|called <v>", about="A short name.", quoted=0.3),
    _kind("count quantity guests seats copies", "count", "", kind="integer", about="How many."),
    _kind("limit max_results page top_k", "count", "", kind="integer", about="Upper bound.|Most to return."),
    _kind("duration minutes timeout", "minutes", "for <v> minutes", kind="integer", about="In minutes."),
    _kind("year", "year", "from <v>|in <v>|of <v>", kind="integer", about="Four-digit year."),
    _kind("size width height length", "size", "", kind="integer", about="In pixels.|Size."),
    _kind("number room_number index line", "number", "", kind="integer", about="Which one."),
    _kind("percent level brightness volume", "percent", "at <v> percent", kind="integer", about="From 0 to 100."),
    _kind("price amount budget max_price", "price", "for <v> dollars", kind="number", about="In dollars.|Amount."),
    _kind("latitude longitude temperature", "latitude", "", kind="number", about="In degrees."),
    _kind("weight distance rate factor", "price", "", kind="number", about="A number."),
    _kind("tags labels", "tags", "tagged <v>|with the tags <v>", kind="array", about="List of tags."),
    _kind("names members attendees guests", "names", "for <v>|with <v>", kind="array", about="Who takes part."),
    _kind("items products ingredients", "items", "with <v>|for <v>", kind="array", about="List of items."),
    _kind("cities stops locations", "places", "for <v>|in <v>", kind="array", about="List of cities."),
    _kind("urgent express public private recursive overwrite dry_run verbose", "", kind="boolean"),
    _kind("notify include_images gift_wrap send_receipt force backup archived exact_match", "", kind="boolean"),
)
_CONTENT = _kind(
    "content text body data source", "text_block", kind="string", about="Text to store.|The full text.|Content."
)
_ENUMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("priority", ("low", "medium", "high")),
    ("priority", ("low", "normal", "high", "urgent")),
    ("size", ("small", "medium", "large")),
    ("format", ("pdf", "csv", "json", "html")),
    ("format", ("png", "jpeg", "webp")),
    ("unit", ("celsius", "fahrenheit")),
    ("units", ("metric", "imperial")),
    ("mode", ("fast", "normal", "careful")),
    ("mode", ("read", "write", "append")),
    ("order", ("asc", "desc")),
    ("status", ("open", "closed", "pending")),
    ("status", ("draft", "ready", "done")),
    ("level", ("debug", "info", "warning", "error")),
    ("frequency", ("daily", "weekly", "monthly")),
    ("class", ("economy", "business", "first")),
    ("direction", ("north", "south", "east", "west")),
    ("season", ("spring", "summer", "autumn", "winter")),
    ("method", ("card", "cash", "transfer")),
    ("type", ("single", "double", "family")),
)
_GENERIC_PHRASES = ("with <l> <v>", "with the <l> <v>", "<l> <v>", "with <v> as the <l>", "using <v> as <l>")
_HELD_OUT_PHRASES = ("where the <l> equals <v>", "taking <v> for its <l>", "whose <l> should read <v>")
_TRUE_PHRASES = ("with <l> on", "with <l> set to true", "and set <l> to true", "with <l> turned on", "<l>: yes")
_FALSE_PHRASES = ("with <l> off", "with <l> set to false", "and set <l> to false", "without <l>", "<l>: no")


def restyle(snake: str, style: str) -> str:
    """Returns a snake_case name in ``snake``, ``camel``, ``pascal`` or ``kebab`` style."""
    parts = snake.split("_")
    if style == "camel":
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if style == "pascal":
        return "".join(part.capitalize() for part in parts)
    return "-".join(parts) if style == "kebab" else snake


def draw_parameter(
    rng: Random, words: Lexicon, *, style: str, taken: set[str], held_out: bool, natural: float
) -> Parameter:
    """Returns a parameter whose name is not in ``taken``, which it joins.

    Args:
        rng: where every choice comes from.
        words: the half of the words that names and values are drawn from.
        style: how to write its name, see ``restyle``.
        taken: snake_case names in use.
        held_out: use the held-out phrasings.
        natural: how often a value is mentioned without the name of its parameter, as in ``to Paris``.
    """
    while True:
        draw = rng.random()
        if draw < 0.1:
            name, schema, value = _enum(rng)
            kind = Kind(names=(name,), slot="tag")
        elif draw < 0.15:
            name, schema, value = _object(rng, words)
            kind = Kind(names=(name,), slot="tag")
        else:
            kind = _CONTENT if draw < 0.18 else rng.choice(_KINDS)
            name = _name(rng, words, kind)
            schema, value = _schema(rng, words, kind)
        if name not in taken:
            break
    taken.add(name)
    label = name.replace("_", " ")
    if "description" not in schema and rng.random() < 0.55:
        schema["description"] = rng.choice((*kind.descriptions, f"The {label}.", f"{label.capitalize()} to use."))
    quoted_value = _quote(rng, value, kind)
    return Parameter(
        name=restyle(name, style),
        label=label,
        schema=schema,
        value=value,
        mention=_mention(rng, kind, label, value, quoted_value, held_out=held_out, natural=natural),
        quoted_value=quoted_value,
        required=rng.random() < 0.7,
    )


def is_long(parameter: Parameter) -> bool:
    """Returns whether the value has several lines, so that it has to stand at the end of a request."""
    return isinstance(parameter.value, str) and "\n" in parameter.value


def _name(rng: Random, words: Lexicon, kind: Kind) -> str:
    name = rng.choice(kind.names)
    if rng.random() < 0.25 and kind.slot not in ("currency", "color", "text_block", ""):
        return f"{rng.choice(words.nouns)}_{name}"
    return name


def _schema(rng: Random, words: Lexicon, kind: Kind) -> tuple[dict[str, Json], Json]:
    if kind.type == "boolean":
        return {"type": "boolean"}, rng.random() < 0.6
    if not has_sampler(kind.slot):
        raise KeyError(kind.slot)
    value = sample(kind.slot, rng, words)
    if kind.type == "array":
        return {"type": "array", "items": {"type": "string"}}, value
    return {"type": kind.type}, value


def _enum(rng: Random) -> tuple[str, dict[str, Json], Json]:
    name, options = rng.choice(_ENUMS)
    shuffled: list[Json] = list(options)
    if rng.random() < 0.4:
        rng.shuffle(shuffled)
    return name, {"type": "string", "enum": shuffled}, rng.choice(options)


def _object(rng: Random, words: Lexicon) -> tuple[str, dict[str, Json], Json]:
    draw = rng.randrange(4)
    value: dict[str, Json]
    if draw == 0:
        name, value = "size", {"width": rng.randint(1, 900), "height": rng.randint(1, 900)}
    elif draw == 1:
        name, value = rng.choice(("position", "point")), {"x": rng.randint(0, 99), "y": rng.randint(0, 99)}
    elif draw == 2:
        name = rng.choice(("filter", "options", "fields", "metadata"))
        keys = rng.sample(words.nouns, rng.choice((1, 2, 2)))
        value = {key: rng.choice((rng.randint(1, 99), rng.choice(words.tags), rng.random() < 0.5)) for key in keys}
    else:
        name = "address"
        street = f"{rng.randint(1, 99)} {rng.choice(words.last_names)} Street"
        value = {"street": street, "city": rng.choice(words.cities)}
    properties: dict[str, Json] = {key: {"type": _json_type(part)} for key, part in value.items()}
    schema: dict[str, Json] = {"type": "object"}
    if name not in ("filter", "options", "fields", "metadata") or rng.random() < 0.3:
        schema["properties"] = properties
    return name, schema, value


def _json_type(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "string"


def _quote(rng: Random, value: Json, kind: Kind) -> str:
    if isinstance(value, list):
        parts: Sequence[str] = [spoken(part) for part in value]
        if rng.random() < 0.6:
            return f"{', '.join(parts[:-1])} and {parts[-1]}"
        return ", ".join(parts)
    if isinstance(value, dict):
        if rng.random() < 0.5:
            return ", ".join(f"{key} {spoken(part)}" for key, part in value.items())
        return json.dumps(value)
    text = spoken(value)
    if isinstance(value, str) and "\n" not in value and rng.random() < kind.quoted:
        mark = '"' if '"' not in text and rng.random() < 0.6 else "`" if rng.random() < 0.4 else "'"
        if mark in text:
            mark = "`"
        return f"{mark}{text}{mark}"
    return text


def _mention(
    rng: Random, kind: Kind, label: str, value: Json, quoted_value: str, *, held_out: bool, natural: float
) -> str:
    if isinstance(value, str) and "\n" in value:
        if rng.random() < 0.35:
            return f"with this {label}:\n```\n{value}\n```"
        return f"with this {label}:\n{value}" if rng.random() < 0.6 else f"with the {label}\n\n{value}"
    if isinstance(value, bool):
        phrase = rng.choice(_TRUE_PHRASES if value else _FALSE_PHRASES)
    elif held_out:
        phrase = rng.choice(_HELD_OUT_PHRASES)
    elif kind.phrases and rng.random() < natural:
        phrase = rng.choice(kind.phrases)
    else:
        phrase = rng.choice(_GENERIC_PHRASES)
    return without_on(phrase.replace("<l>", label).replace("<v>", quoted_value))
