"""Calls followed by their results: answers that quote them, parallel calls, several requests, several steps."""

from collections.abc import Callable, Iterator
from random import Random

from tools.demo_model.data.documents import ChatDocument, Split, Stage, Tool
from tools.demo_model.data.tool_calls import known_request, made_up_request
from tools.demo_model.data.tool_catalogue import ENTRIES, draw_distractors, draw_entry
from tools.demo_model.data.tool_chains import draw_chain
from tools.demo_model.data.tool_entries import draw_variant, exchange_with, parallel_exchange
from tools.demo_model.data.tool_exchanges import (
    MAX_CHARACTERS,
    Exchange,
    conversation,
    draw_split,
    draw_system,
    length_of,
)
from tools.demo_model.data.tool_refusals import ask_back, needless_request, unmet_request
from tools.demo_model.data.tool_schemas import draw_tool, exchange_for

SOURCE = "tool_dialogues"

Scene = tuple[list[Exchange], list[Tool]]
"""Exchanges in order, and tools to declare beside theirs."""


def generate(rng: Random, count: int) -> Iterator[ChatDocument]:
    """Yields ``count`` documents, every one with at least one result."""
    made = 0
    while made < count:
        split = draw_split(rng)
        stage: Stage = "finish" if rng.random() < 0.6 else "pretrain"
        document = draw_dialogue(rng, split, stage, thinks=False, source=SOURCE)
        if length_of(document) <= MAX_CHARACTERS:
            yield document
            made += 1


def draw_dialogue(rng: Random, split: Split, stage: Stage, *, thinks: bool, source: str) -> ChatDocument:
    """Returns a conversation of one of the kinds of this module."""
    scenes: tuple[Callable[[Random, Split], Scene], ...] = (_single, _parallel, _chain, _several, _after_question)
    scene = rng.choices(scenes, weights=(35, 17, 23, 15, 10))[0]
    exchanges, others = scene(rng, split)
    return conversation(
        source,
        exchanges,
        rng=rng,
        split=split,
        stage=stage,
        distractors=others,
        system_text=draw_system(rng),
        thinks=thinks,
    )


def _single(rng: Random, split: Split) -> Scene:
    exchange, others = (made_up_request if rng.random() < 0.45 else known_request)(rng, split)
    return [exchange], others


def _parallel(rng: Random, split: Split) -> Scene:
    entry = rng.choice([entry for entry in ENTRIES if entry.parallel])
    exchange = parallel_exchange(draw_variant(entry, rng), rng, split)
    return [exchange], draw_distractors(rng, split, rng.choice((0, 1, 1, 2)), apart_from=(entry,))


def _chain(rng: Random, split: Split) -> Scene:
    return draw_chain(rng, split), []


def _several(rng: Random, split: Split) -> Scene:
    """Two or three requests, some of which need no tool or one that is not there."""
    first = draw_entry(rng)
    variant = draw_variant(first, rng)
    exchanges = [exchange_with(variant, rng, split)]
    tools: list[Tool] = [variant.tool]
    for _ in range(rng.choice((1, 1, 2))):
        draw = rng.random()
        if draw < 0.3:
            exchanges.append(exchange_with(variant, rng, split))
        elif draw < 0.55:
            made_up = exchange_for(draw_tool(rng, split, largest=3), rng, split)
            exchanges.append(made_up)
            tools.extend(made_up.tools)
        elif draw < 0.85:
            exchanges.append(needless_request(rng, split, ()))
        else:
            others = [tool for exchange in exchanges for tool in exchange.tools]
            exchanges.append(unmet_request(rng, split, apart_from=others))
            return exchanges, []
    if rng.random() < 0.3:
        exchanges.insert(0, needless_request(rng, split, ()))
    return exchanges, draw_distractors(rng, split, rng.choice((0, 0, 1)), apart_from=(first,))


def _after_question(rng: Random, split: Split) -> Scene:
    first, second = ask_back(rng, split)
    return [first, second], []
