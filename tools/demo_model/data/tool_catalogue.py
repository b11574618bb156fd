"""All well-known tools, and tools drawn to stand beside the ones that a request needs."""

from collections.abc import Iterable
from random import Random

from tools.demo_model.data.documents import Split, Tool
from tools.demo_model.data.tool_entries import Entry, draw_variant
from tools.demo_model.data.tool_entries_code import CODE_ENTRIES
from tools.demo_model.data.tool_entries_daily import DAILY_ENTRIES
from tools.demo_model.data.tool_schemas import draw_tool

ENTRIES: tuple[Entry, ...] = CODE_ENTRIES + DAILY_ENTRIES


def draw_entry(rng: Random) -> Entry:
    """Returns a well-known tool, one of a coding agent as often as one of an assistant."""
    return rng.choice(CODE_ENTRIES if rng.random() < 0.5 else DAILY_ENTRIES)


SHELL_PURPOSE = "run a command"
_SHELL_RIVALS = {"run the tests", "list a folder", "commit the changes", "switch the branch"}


def competing_purposes(entry: Entry) -> set[str]:
    """Returns the purposes of tools that could serve a request for this entry as well."""
    if entry.purpose == SHELL_PURPOSE:
        return {entry.purpose} | _SHELL_RIVALS
    return {entry.purpose, SHELL_PURPOSE} if entry.purpose == "run the tests" else {entry.purpose}


def purposes_of(tools: Iterable[Tool]) -> set[str]:
    """Returns what the well-known ones among the tools are for; a shell is for everything a coding agent does."""
    names = {tool["function"]["name"] for tool in tools}
    purposes = {entry.purpose for entry in ENTRIES if names & set(entry.names)}
    if SHELL_PURPOSE in purposes:
        purposes |= {entry.purpose for entry in CODE_ENTRIES}
    return purposes


def draw_distractors(
    rng: Random, split: Split, count: int, *, apart_from: tuple[Entry, ...] = (), nouns: tuple[str, ...] = ()
) -> list[Tool]:
    """Returns ``count`` tools that do something else than the entries and the nouns given."""
    purposes = {purpose for entry in apart_from for purpose in competing_purposes(entry)}
    tools: list[Tool] = []
    while len(tools) < count:
        if rng.random() < 0.55:
            entry = draw_entry(rng)
            if entry.purpose in purposes:
                continue
            tools.append(draw_variant(entry, rng).tool)
        else:
            made_up = draw_tool(rng, split, largest=2)
            if made_up.noun.split()[-1] in nouns:
                continue
            tools.append(made_up.declare())
    return tools


def draw_neighbour(rng: Random, split: Split, noun: str, *, apart_from: str) -> Tool | None:
    """Returns a made-up tool that does something else to the same noun, or nothing if the draw failed."""
    made_up = draw_tool(rng, split, noun=noun.split()[-1], largest=2)
    return None if made_up.verb == apart_from else made_up.declare()
