"""Brief thinking: one to three sentences before a call, before an answer, or before saying that no tool fits."""

from collections.abc import Iterator
from random import Random

from tools.demo_model.data.documents import ChatDocument, Split, Stage, assistant, chat_document, user
from tools.demo_model.data.json_answers import draw_answer
from tools.demo_model.data.tool_calls import draw_request
from tools.demo_model.data.tool_dialogues import draw_dialogue
from tools.demo_model.data.tool_exchanges import MAX_CHARACTERS, draw_split, draw_system, length_of
from tools.demo_model.data.tool_lexicon import lexicon
from tools.demo_model.data.tool_refusals import needless_request

SOURCE = "thinking"


def generate(rng: Random, count: int) -> Iterator[ChatDocument]:
    """Yields ``count`` documents with thinking on, six in ten of them with tools."""
    made = 0
    while made < count:
        split = draw_split(rng)
        stage: Stage = "finish" if rng.random() < 0.6 else "pretrain"
        draw = rng.random()
        if draw < 0.38:
            document = draw_request(rng, split, stage, thinks=True, source=SOURCE)
        elif draw < 0.62:
            document = draw_dialogue(rng, split, stage, thinks=True, source=SOURCE)
        elif draw < 0.7:
            document = draw_answer(rng, split, stage, thinks=True, source=SOURCE)
        else:
            document = _without_tools(rng, split, stage)
        if length_of(document) <= MAX_CHARACTERS:
            yield document
            made += 1


def _without_tools(rng: Random, split: Split, stage: Stage) -> ChatDocument:
    if rng.random() < 0.4:
        exchange = needless_request(rng, split, ())
        request, thought, reply = (
            exchange.request,
            exchange.afterthought.removesuffix(" No tool is needed."),
            exchange.reply,
        )
    else:
        request, thought, reply = _puzzle(rng, split)
    text = draw_system(rng) if rng.random() < 0.3 else ""
    messages = [user(request), assistant(reply, reasoning=thought)]
    if text and "tool" not in text and "function" not in text:
        messages.insert(0, {"role": "system", "content": text})
    return chat_document(SOURCE, messages, enable_thinking=True, split=split, stage=stage)


def _puzzle(rng: Random, split: Split) -> tuple[str, str, str]:
    """Returns a small question, how it is thought through, and the answer."""
    words = lexicon(split)
    first, second = rng.sample(words.first_names, 2)
    noun, item = rng.choice(words.nouns), rng.choice(words.nouns)
    few, more = rng.randint(1, 9), rng.randint(1, 10)
    total = few + more
    kind = rng.randrange(8)
    if kind == 0:
        return (
            f"{first} has {few} {noun}{_s(few)} and gets {more} more. How many does {first} have now?",
            f"{few} plus {more} is {total}.",
            f"{first} has {total} now.",
        )
    if kind == 1:
        return (
            f"There are {total} {noun}s. {first} takes {few} away. How many are left?",
            f"{total} minus {few} is {more}.",
            f"{more} {'is' if more == 1 else 'are'} left.",
        )
    if kind == 2:
        return (
            f"{first} is taller than {second}. Who is shorter?",
            f"If {first} is taller, then {second} is shorter.",
            f"{second} is shorter.",
        )
    if kind == 3:
        low, high = sorted(rng.sample(range(1, 100), 2))
        return (
            f"Which number is larger, {rng.choice((f'{low} or {high}', f'{high} or {low}'))}?",
            f"{high} is more than {low}.",
            f"{high} is larger.",
        )
    if kind == 4:
        where = rng.choice(words.cities)
        return (
            f"{first} put the {noun} in the {item}. Then {first} went to {where}. Where is the {noun}?",
            f"The {noun} was put in the {item}, and nobody moved it.",
            f"The {noun} is in the {item}.",
        )
    if kind == 5:
        word = noun
        return (
            f"What is the first letter of the word {word}?",
            f"{word} starts with {word[0]}.",
            f"The first letter is {word[0]}.",
        )
    if kind == 6:
        names = rng.sample(words.first_names, 3)
        last = rng.random() < 0.5
        return (
            f"{names[0]} came first, then {names[1]}, then {names[2]}. Who came {'last' if last else 'first'}?",
            f"The order is {names[0]}, {names[1]}, {names[2]}.",
            f"{names[2] if last else names[0]} came {'last' if last else 'first'}.",
        )
    return (
        f"What will {first} have in the {noun} tomorrow?",
        f"Nobody told me about the {noun} of {first}. I cannot know this.",
        f"I do not know what {first} will have in the {noun}.",
    )


def _s(number: int) -> str:
    return "" if number == 1 else "s"
