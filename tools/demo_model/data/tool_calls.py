"""Single requests with tools: the right call, or no call where none fits, is needed or is complete."""

from collections.abc import Iterator
from random import Random

from tools.demo_model.data.documents import ChatDocument, Split, Stage, Tool
from tools.demo_model.data.tool_catalogue import draw_distractors, draw_entry, draw_neighbour
from tools.demo_model.data.tool_entries import draw_variant, exchange_with
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

SOURCE = "tool_calls"


def generate(rng: Random, count: int) -> Iterator[ChatDocument]:
    """Yields ``count`` documents: six in ten call a made-up tool or a well-known one, the others call none."""
    made = 0
    while made < count:
        split = draw_split(rng)
        stage: Stage = "finish" if rng.random() < 0.5 else "pretrain"
        document = draw_request(rng, split, stage, thinks=False, source=SOURCE)
        if length_of(document) <= MAX_CHARACTERS:
            yield document
            made += 1


def draw_request(rng: Random, split: Split, stage: Stage, *, thinks: bool, source: str) -> ChatDocument:
    """Returns one request with its call or its direct answer."""
    draw = rng.random()
    if draw < 0.4:
        exchange, others = made_up_request(rng, split)
    elif draw < 0.72:
        exchange, others = known_request(rng, split)
    elif draw < 0.83:
        others = draw_distractors(rng, split, _how_many(rng))
        exchange = unmet_request(rng, split, apart_from=others)
    elif draw < 0.85:
        others, exchange = [], unmet_request(rng, split)
    elif draw < 0.93:
        others = draw_distractors(rng, split, _how_many(rng))
        exchange = needless_request(rng, split, others)
    else:
        exchange, _ = ask_back(rng, split)
        others = draw_distractors(rng, split, rng.choice((0, 0, 1, 2)))
    return conversation(
        source,
        [exchange],
        rng=rng,
        split=split,
        stage=stage,
        distractors=others,
        system_text=draw_system(rng),
        thinks=thinks,
        ends_at_call=True,
    )


def _how_many(rng: Random) -> int:
    return rng.choice((1, 1, 2, 2, 3, 4, 5))


def made_up_request(rng: Random, split: Split) -> tuple[Exchange, list[Tool]]:
    """Returns a request for a made-up tool, and tools to declare beside it."""
    tool = draw_tool(rng, split)
    others = draw_distractors(rng, split, rng.choice((0, 0, 1, 1, 2, 2, 3, 4)), nouns=(tool.noun.split()[-1],))
    if rng.random() < 0.3:
        neighbour = draw_neighbour(rng, split, tool.noun, apart_from=tool.verb)
        if neighbour:
            others = [*others[1:], neighbour]
    return exchange_for(tool, rng, split), others


def known_request(rng: Random, split: Split) -> tuple[Exchange, list[Tool]]:
    """Returns a request for a well-known tool, and tools to declare beside it."""
    entry = draw_entry(rng)
    others = draw_distractors(rng, split, rng.choice((0, 0, 1, 1, 2, 2, 3, 4)), apart_from=(entry,))
    return exchange_with(draw_variant(entry, rng), rng, split), others
