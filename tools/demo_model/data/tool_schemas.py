"""Made-up tools: a verb, a noun and one to five parameters, with a request that asks for exactly one of them."""

import json
import re
from dataclasses import dataclass
from random import Random

from tools.demo_model.data.documents import Split, Tool
from tools.demo_model.data.tool_exchanges import Call, Exchange, Round, make_tool
from tools.demo_model.data.tool_lexicon import Lexicon, lexicon
from tools.demo_model.data.tool_parameters import Parameter, draw_parameter, is_long, restyle
from tools.demo_model.data.tool_values import Json, code, sample, spoken

# A mark left alone by an empty part of a sentence; "./x" is a path.
_LOOSE_MARK = re.compile(r"[ ,]+([.?,])(?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class MadeUpTool:
    """One made-up tool, with values for the parameters that a request will mention."""

    name: str
    description: str
    verb: str
    """In plain words, for example ``turn on``."""
    noun: str
    """With its qualifier, for example ``remote camera``."""
    asks: bool
    """Whether it tells something, rather than does something."""
    parameters: tuple[Parameter, ...]

    def given(self, rng: Random) -> tuple[Parameter, ...]:
        """Returns the required parameters and some of the others, long values last."""
        chosen = [part for part in self.parameters if part.required or rng.random() < 0.5]
        return tuple(sorted(chosen, key=is_long))

    def declare(self) -> Tool:
        """Returns its declaration."""
        properties: dict[str, Json] = {part.name: part.schema for part in self.parameters}
        return make_tool(
            self.name, self.description, properties, [part.name for part in self.parameters if part.required]
        )


def draw_tool(rng: Random, split: Split, *, noun: str = "", largest: int = 5) -> MadeUpTool:
    """Returns a made-up tool for ``noun``, or for one that is drawn; with at most ``largest`` parameters."""
    words = lexicon(split)
    asks = rng.random() < 0.4
    verb = rng.choice(words.asking_verbs if asks else words.changing_verbs)
    noun = noun or rng.choice(words.nouns)
    qualifier = rng.choice(words.qualifiers) if rng.random() < 0.25 else ""
    thing = f"{qualifier}_{noun}" if qualifier else noun
    style = rng.choice(("snake",) * 7 + ("camel",) * 2 + ("kebab", "pascal"))
    taken: set[str] = set()
    parameter_style = "camel" if style in ("camel", "pascal") and rng.random() < 0.8 else "snake"
    held_out = split == "heldout"
    count = min(largest, rng.choice((1, 1, 2, 2, 2, 3, 3, 4, 5)))
    parameters = [
        draw_parameter(
            rng,
            words,
            style=parameter_style,
            taken=taken,
            held_out=held_out,
            natural={1: 0.7, 2: 0.5}.get(count, 0.2),
        )
        for _ in range(count)
    ]
    long_ones = [part for part in parameters if is_long(part)]
    plain_thing, plain_verb = thing.replace("_", " "), verb.replace("_", " ")
    return MadeUpTool(
        name=_name(rng, words, f"{verb}_{thing}" if rng.random() < 0.92 else f"{thing}_{verb}", style),
        description=_describe(rng, plain_verb, plain_thing),
        verb=plain_verb,
        noun=plain_thing,
        asks=asks,
        parameters=tuple(part for part in parameters if part not in long_ones[1:]),
    )


def _name(rng: Random, words: Lexicon, snake: str, style: str) -> str:
    name = restyle(snake, style)
    draw = rng.random()
    if draw < 0.75:
        return name
    space = rng.choice(words.namespaces)
    if draw < 0.83:
        return f"{space}.{name}"
    if draw < 0.88:
        return f"mcp__{space}__{name}"
    return f"{space}_{name}" if style == "snake" else f"{space}.{name}"


def third_person(verb: str) -> str:
    """Returns ``opens`` for ``open``, ``turns on`` for ``turn on``, ``copies`` for ``copy``."""
    head, _, tail = verb.partition(" ")
    if head.endswith(("s", "x", "ch", "sh", "z", "o")):
        head += "es"
    elif head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "ies"
    else:
        head += "s"
    return f"{head} {tail}" if tail else head


def with_article(noun: str) -> str:
    """Returns the noun after ``a`` or ``an``."""
    vowel = noun[0] in "aeiou" and not noun.startswith(("user", "uni", "one"))
    return f"{'an' if vowel else 'a'} {noun}"


def plural(noun: str) -> str:
    """Returns the plural of a regular noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    if noun.endswith("shelf"):
        return noun[:-1] + "ves"
    return noun + "s"


def _describe(rng: Random, verb: str, noun: str) -> str:
    one = with_article(noun)
    return rng.choice(
        (
            f"{third_person(verb).capitalize()} {one}.",
            f"{verb.capitalize()} {one}.",
            f"{verb.capitalize()} the given {noun}.",
            f"Use this to {verb} {one}.",
            f"{third_person(verb).capitalize()} {plural(noun)} for the user.",
            f"Tool that can {verb} {plural(noun)}",
            f"{verb} {noun}",
            f"Call this when the user wants to {verb} {one}.",
        )
    )


_OPENINGS = (
    "{Verb} {thing} {how}.",
    "{Verb} {thing} {how}",
    "Please {verb} {thing} {how}.",
    "please {verb} {thing} {how}",
    "Can you {verb} {thing} {how}?",
    "Could you {verb} {thing} {how}, please?",
    "I need you to {verb} {thing} {how}.",
    "I want to {verb} {thing} {how}.",
    "I'd like to {verb} {thing} {how}.",
    "Help me {verb} {thing} {how}.",
    "Hi! Please {verb} {thing} {how}. Thanks!",
    "{Verb} {thing} for me, {how}.",
    "Go ahead and {verb} {thing} {how}.",
)
_HELD_OUT_OPENINGS = (
    "It would be great if you could {verb} {thing} {how}.",
    "My next chore is to {verb} {thing} {how}; do it now.",
    "Would you mind helping: {verb} {thing} {how}.",
)


def _join(parts: list[str], rng: Random) -> str:
    if len(parts) < 2:
        return "".join(parts)
    draw = rng.random()
    if draw < 0.4:
        return ", ".join(parts[:-1]) + " and " + parts[-1]
    return ", ".join(parts) if draw < 0.7 else " ".join(parts)


def ask_for(tool: MadeUpTool, given: tuple[Parameter, ...], rng: Random, *, held_out: bool) -> str:
    """Returns a request that asks for the tool and mentions exactly the given parameters."""
    thing = f"{rng.choice(('the', 'the', 'a'))} {tool.noun}"
    if thing.startswith("a "):
        thing = with_article(tool.noun)
    tail = given[-1].mention if given and is_long(given[-1]) else ""
    short = [part for part in given if not is_long(part)]
    if rng.random() < 0.6 or held_out:
        opening = rng.choice(_HELD_OUT_OPENINGS if held_out else _OPENINGS)
        how = _join([part.mention for part in short], rng)
        text = opening.format(verb=tool.verb, Verb=tool.verb.capitalize(), thing=thing, how=how)
        text = _LOOSE_MARK.sub(r"\1", text).rstrip(" ,")
        text = _tidy_end(text)
    else:
        text = _ask_by_name(tool, short, thing, rng)
    if tail:
        text = text.rstrip(".? ") + (", " if short else " ") + tail
    return text


def _tidy_end(text: str) -> str:
    for quote in "\"'`":
        for mark in ".!":
            text = text.replace(f"{mark}{quote}.", f"{mark}{quote}")
    return text


def _ask_by_name(tool: MadeUpTool, short: list[Parameter], thing: str, rng: Random) -> str:
    verb = tool.verb.capitalize()
    draw = rng.random()
    if not short:
        return rng.choice((f"{verb} {thing}.", f"Call {tool.name}.", f"Use {tool.name}"))
    if draw < 0.25:
        return f"{verb} {thing}:\n" + "\n".join(f"- {part.label}: {part.quoted_value}" for part in short)
    if draw < 0.5:
        return f"{verb} {thing}. " + " ".join(_sentence_of(part, rng) for part in short)
    sign = rng.choice(("=", ": ", " = ", " "))
    listed = ", ".join(f"{part.name}{sign}{part.quoted_value}" for part in short)
    return rng.choice(
        (
            f"Call {tool.name} with {listed}",
            f"Use {tool.name} with {listed}.",
            f"Use the {tool.name} tool: {listed}",
            f"Run {tool.name}, {listed}",
        )
    )


def _sentence_of(part: Parameter, rng: Random) -> str:
    if isinstance(part.value, bool):
        return f"{part.label.capitalize()}: {part.quoted_value}."
    return rng.choice((f"The {part.label} is {part.quoted_value}.", f"{part.label.capitalize()}: {part.quoted_value}."))


def exchange_for(tool: MadeUpTool, rng: Random, split: Split) -> Exchange:
    """Returns a request for the tool, the call, its result and an answer that quotes the result."""
    given = tool.given(rng)
    arguments = {part.name: part.value for part in tool.parameters if part in given}
    result, reply, afterthought = _outcome(tool, given, rng, split)
    remark = rng.choice((f"I will {tool.verb} the {tool.noun}.", "One moment.")) if rng.random() < 0.08 else ""
    call = Call(name=tool.name, arguments=arguments, result=result)
    return Exchange(
        request=ask_for(tool, given, rng, held_out=split == "heldout"),
        reply=reply,
        afterthought=afterthought,
        tools=(tool.declare(),),
        rounds=(Round(calls=(call,), thought=think_of(tool, given, rng), remark=remark),),
    )


def think_of(tool: MadeUpTool, given: tuple[Parameter, ...], rng: Random) -> str:
    """Returns one to three sentences that choose the tool and its arguments."""
    first = rng.choice(
        (
            f"The user wants to {tool.verb} the {tool.noun}.",
            f"I need to {tool.verb} the {tool.noun}.",
            f"This is a request to {tool.verb} {with_article(tool.noun)}.",
            f"They ask me to {tool.verb} the {tool.noun}.",
        )
    )
    second = rng.choice(
        (f"The tool {tool.name} does that.", f"{tool.name} fits.", f"I will call {tool.name}.", f"Use {tool.name}.")
    )
    short = [part for part in given if not is_long(part) and len(spoken(part.value)) < 60]
    if not short or rng.random() < 0.2:
        return f"{first} {second}"
    listed = ", ".join(f"{part.name} is {spoken(part.value)}" for part in short)
    end = "" if listed.endswith((".", "!", "?")) else "."
    return f"{first} {second} So {listed}{end}"


def _outcome(tool: MadeUpTool, given: tuple[Parameter, ...], rng: Random, split: Split) -> tuple[str, str, str]:
    if rng.random() < 0.14:
        return _failure(tool, rng)
    return _finding(tool, rng, split) if tool.asks else _success(tool, given, rng, split)


def _failure(tool: MadeUpTool, rng: Random) -> tuple[str, str, str]:
    reason = rng.choice(
        (
            f"{tool.noun} not found",
            "permission denied",
            "request timed out",
            "service is not available",
            f"no such {tool.noun}",
            "quota exceeded",
            f"the {tool.noun} is locked",
            "connection refused",
            f"unknown {tool.noun}",
        )
    )
    result = rng.choice((f"Error: {reason}", f"error: {reason}", json.dumps({"error": reason}), f"Failed: {reason}"))
    reply = rng.choice(
        (
            f"That did not work: {reason}.",
            f"I could not {tool.verb} the {tool.noun}: {reason}.",
            f"Sorry, the tool reports an error: {reason}.",
            f"The call failed ({reason}). Shall I try again?",
        )
    )
    return result, reply, f"The tool returned an error: {reason}. I should tell the user."


def _success(tool: MadeUpTool, given: tuple[Parameter, ...], rng: Random, split: Split) -> tuple[str, str, str]:
    words = lexicon(split)
    reference = code(rng, words)
    thought = rng.choice(
        ("It worked. I will tell the user.", f"The {tool.noun} is done.", "The call succeeded; report the result.")
    )
    draw = rng.random()
    if draw < 0.35:
        key = rng.choice(("id", f"{tool.noun.split()[-1]}_id", "reference", "ref"))
        shown: dict[str, Json] = {"status": rng.choice(("ok", "success", "done")), key: reference}
        if given and not is_long(given[0]) and rng.random() < 0.4:
            shown[given[0].name] = given[0].value
        result = json.dumps(shown)
        reply = rng.choice(
            (f"Done. The {key.replace('_', ' ')} is {reference}.", f"It is done; {key.replace('_', ' ')} {reference}.")
        )
        return result, reply, thought
    if draw < 0.6:
        result = rng.choice(
            (f"OK: {tool.noun} {reference}", f"{tool.noun} {reference}: done", f"Success ({reference})")
        )
        reply = rng.choice((f"Done: {tool.noun} {reference}.", f"That worked. The reference is {reference}."))
        return result, reply, thought
    result = rng.choice(("ok", "OK", "done", '{"ok": true}', '{"success": true}', '{"status": "ok"}', "true"))
    named = [part for part in given if not is_long(part) and len(spoken(part.value)) < 30]
    detail = f" The {named[0].label} is {spoken(named[0].value).rstrip('.')}." if named and rng.random() < 0.5 else ""
    return result, rng.choice(("Done.", "All done.", "That worked.", "It is done.")) + detail, thought


def _finding(tool: MadeUpTool, rng: Random, split: Split) -> tuple[str, str, str]:
    words = lexicon(split)
    draw = rng.random()
    if draw < 0.25:
        number = rng.choice((rng.randint(0, 30), rng.randint(31, 4000)))
        key = rng.choice(("count", "total", "value", "result"))
        result = rng.choice((json.dumps({key: number}), str(number), f"{key}: {number}"))
        noun = "result" if result == str(number) else key
        return result, rng.choice((f"The {noun} is {number}.", f"It is {number}.")), f"The tool says {number}."
    if draw < 0.55:
        kind = rng.choice(("label", "person", "path", "item", "city"))
        found = [spoken(sample(kind, rng, words)) for _ in range(rng.choice((1, 2, 2, 3)))]
        result = rng.choice((json.dumps({"results": found}), json.dumps(found), "\n".join(found)))
        listed = found[0] if len(found) == 1 else ", ".join(found[:-1]) + " and " + found[-1]
        count = f"{len(found)} result{'s' if len(found) > 1 else ''}"
        return (
            result,
            rng.choice((f"I found {count}: {listed}.", f"Here is what I found: {listed}.")),
            f"I got {count}.",
        )
    if draw < 0.63:
        result = rng.choice(("[]", '{"results": []}', "no results", "nothing found"))
        return result, f"I found no matching {plural(tool.noun)}.", "The tool found nothing."
    facts: dict[str, Json] = {}
    for kind in rng.sample(
        ("tag", "city", "date", "person", "price", "count", "color", "code"), rng.choice((1, 2, 2, 3))
    ):
        facts[{"tag": "status", "person": "owner", "count": "amount", "code": "id"}.get(kind, kind)] = sample(
            kind, rng, words
        )
    result = json.dumps(facts) if rng.random() < 0.65 else "\n".join(f"{key}: {spoken(facts[key])}" for key in facts)
    listed = ", ".join(f"{key} {spoken(value)}" for key, value in facts.items())
    return result, rng.choice((f"The {tool.noun}: {listed}.", f"This is what I got: {listed}.")), "I have the details."
