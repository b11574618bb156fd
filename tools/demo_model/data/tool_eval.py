"""Held-out cases of tool calling, and a score for what a model wrote.

A case is a request with its tools and either the calls that are right or the fact that none is.  The cases are drawn
from the held-out half of the words and phrasings, so that a model cannot have seen their names or values.  Scoring is
strict: the same number of calls in any order, every name equal, every argument equal in type and value.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from tools.demo_model.data.documents import ChatDocument, Message, Tool, ToolCall
from tools.demo_model.data.errors import DataError
from tools.demo_model.data.tool_calls import known_request, made_up_request
from tools.demo_model.data.tool_catalogue import ENTRIES, draw_distractors, draw_entry
from tools.demo_model.data.tool_entries import draw_variant, exchange_with, parallel_exchange
from tools.demo_model.data.tool_exchanges import MAX_CHARACTERS, Exchange, conversation, length_of
from tools.demo_model.data.tool_refusals import ask_back, needless_request, unmet_request

Group = Literal["plain", "known", "made_up", "parallel", "none_fits", "none_needed", "missing_value"]

GROUP_SIZES: Mapping[Group, int] = {
    "plain": 30,
    "known": 26,
    "made_up": 44,
    "parallel": 12,
    "none_fits": 16,
    "none_needed": 10,
    "missing_value": 12,
}
"""Cases of every group in ``draw_cases``.

``plain`` asks for well-known tools in the phrasings of training with held-out values; ``known`` in held-out phrasings,
``made_up`` for tools whose very names are held out.  The last three groups expect no call.
"""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ParsedCall:
    """One call: its name, and its arguments typed by the declared schema."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class EvalCase:
    """One held-out case."""

    name: str
    group: Group
    messages: tuple[Message, ...]
    """Ends with the turn of the user."""
    tools: tuple[Tool, ...]
    expected: tuple[ParsedCall, ...]
    """The right calls; empty where the right thing is not to call."""


@dataclass(frozen=True, kw_only=True)
class CaseScore:
    """What was right about the calls made for one case."""

    case: EvalCase
    names_right: bool
    """The same calls by name; with none expected, that none was made."""
    exact: bool
    """Names and all arguments."""


@dataclass(frozen=True, kw_only=True)
class EvalReport:
    """Scores of all cases."""

    scores: tuple[CaseScore, ...]

    def share(self, group: Group | None = None, *, of: Literal["exact", "names"] = "exact") -> float:
        """Returns the share of right cases, from 0 to 1, of a group or of all; 0 without cases."""
        chosen = [score for score in self.scores if group is None or score.case.group == group]
        right = sum(score.exact if of == "exact" else score.names_right for score in chosen)
        return right / len(chosen) if chosen else 0.0

    def table(self) -> dict[str, dict[str, float | int]]:
        """Returns cases, names and exact by group and for ``all``."""
        groups: tuple[Group | None, ...] = (*GROUP_SIZES, None)
        return {
            group or "all": {
                "cases": sum(group in (None, score.case.group) for score in self.scores),
                "names": round(self.share(group, of="names"), 4),
                "exact": round(self.share(group), 4),
            }
            for group in groups
        }


def draw_cases(seed: int = 20) -> tuple[EvalCase, ...]:
    """Returns the held-out cases, the same ones for the same seed."""
    rng = Random(seed)
    return tuple(_draw_case(rng, group, number) for group, size in GROUP_SIZES.items() for number in range(1, size + 1))


def _draw_case(rng: Random, group: Group, number: int) -> EvalCase:
    while True:
        exchange, others = _DRAWS[group](rng)
        document = conversation(
            "tool_eval", [exchange], rng=rng, split="heldout", stage="finish", distractors=others, ends_at_call=True
        )
        if length_of(document) <= MAX_CHARACTERS:
            return _case_of(document, group, f"{group}-{number:02d}")


def _case_of(document: ChatDocument, group: Group, name: str) -> EvalCase:
    *messages, answer = document["messages"]
    return EvalCase(
        name=name,
        group=group,
        messages=tuple(messages),
        tools=tuple(document.get("tools", ())),
        expected=tuple(_parsed(call) for call in answer.get("tool_calls", ())),
    )


def _parsed(call: ToolCall) -> ParsedCall:
    return ParsedCall(name=call["function"]["name"], arguments=call["function"]["arguments"])


def _plain(rng: Random) -> tuple[Exchange, list[Tool]]:
    entry = draw_entry(rng)
    variant = draw_variant(replace(entry, held_out_requests=entry.requests), rng)
    others = draw_distractors(rng, "heldout", rng.choice((0, 1, 2)), apart_from=(entry,))
    return exchange_with(variant, rng, "heldout"), others


def _parallel(rng: Random) -> tuple[Exchange, list[Tool]]:
    entry = rng.choice([entry for entry in ENTRIES if entry.parallel])
    others = draw_distractors(rng, "heldout", rng.choice((0, 1)), apart_from=(entry,))
    return parallel_exchange(draw_variant(entry, rng), rng, "heldout"), others


def _none_fits(rng: Random) -> tuple[Exchange, list[Tool]]:
    others = draw_distractors(rng, "heldout", rng.choice((1, 2, 3)))
    return unmet_request(rng, "heldout", apart_from=others), others


def _none_needed(rng: Random) -> tuple[Exchange, list[Tool]]:
    others = draw_distractors(rng, "heldout", rng.choice((1, 2, 3)))
    return needless_request(rng, "heldout", others), others


def _missing_value(rng: Random) -> tuple[Exchange, list[Tool]]:
    return ask_back(rng, "heldout")[0], draw_distractors(rng, "heldout", rng.choice((0, 1)))


_DRAWS: Mapping[Group, Callable[[Random], tuple[Exchange, list[Tool]]]] = {
    "plain": _plain,
    "known": lambda rng: known_request(rng, "heldout"),
    "made_up": lambda rng: made_up_request(rng, "heldout"),
    "parallel": _parallel,
    "none_fits": _none_fits,
    "none_needed": _none_needed,
    "missing_value": _missing_value,
}


def parse_calls(text: str, tools: Sequence[Tool]) -> tuple[ParsedCall, ...]:
    """Returns the complete calls in what a model wrote, typed by the declared schemas.

    A small reader for evaluation alone: it takes one framing newline off each end of a value, reads non-string values
    as JSON, and keeps a value that is not JSON as text.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls: list[ParsedCall] = []
    for block in _CALL.findall(text):
        found = _FUNCTION.search(block)
        if not found:
            continue
        name = found[1].strip()
        properties = schemas.get(name, {}).get("properties")
        arguments: dict[str, object] = {}
        for key, raw in _PARAMETER.findall(found[2]):
            value = raw.removeprefix("\n").removesuffix("\n")
            schema = properties.get(key) if isinstance(properties, dict) else None
            kind = schema.get("type") if isinstance(schema, dict) else None
            arguments[key] = value if kind == "string" else _from_json(value)
        calls.append(ParsedCall(name=name, arguments=arguments))
    return tuple(calls)


def _from_json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


def score_case(case: EvalCase, calls: Iterable[ParsedCall]) -> CaseScore:
    """Returns whether the calls are the expected ones, in any order."""
    made = list(calls)
    names_right = sorted(call.name for call in made) == sorted(call.name for call in case.expected)
    wanted = sorted(map(_key, case.expected))
    return CaseScore(case=case, names_right=names_right, exact=sorted(map(_key, made)) == wanted)


def _key(call: ParsedCall) -> str:
    """Returns a text that is equal for equal calls: ``1`` equals ``1.0``, but neither ``true`` nor ``"1"``."""
    return json.dumps([call.name, _without_whole_floats(dict(call.arguments))], sort_keys=True)


def _without_whole_floats(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_whole_floats(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_whole_floats(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def score_outputs(cases: Sequence[EvalCase], outputs: Sequence[str]) -> EvalReport:
    """Returns the scores of what a model wrote, one text a case in the same order.

    Raises:
        DataError: the numbers of cases and outputs differ.
    """
    if len(cases) != len(outputs):
        raise DataError(f"{len(outputs)} outputs for {len(cases)} cases; give one a case, in the same order")
    scores = (score_case(case, parse_calls(text, case.tools)) for case, text in zip(cases, outputs, strict=True))
    return EvalReport(scores=tuple(scores))
