"""Stories, chats and questions of the other generators once more, with tools declared that nobody needs."""

from collections.abc import Iterator
from itertools import islice
from random import Random

from tools.demo_model.data import dialogues, questions, stories
from tools.demo_model.data.documents import Document
from tools.demo_model.data.idle_tools import declare_idle_tools

# Documents that are text, or too long with tools, are left out, so more are drawn than asked for.
_SURPLUS = 4


def generate(rng: Random, count: int) -> Iterator[Document]:
    """Yields up to ``count`` chats with idle tools, most of them short."""
    yield from islice(declare_idle_tools(_ordinary(rng, count * _SURPLUS), rng), count)


def _ordinary(rng: Random, count: int) -> Iterator[Document]:
    sources = (dialogues.generate, dialogues.generate, questions.generate, stories.generate)
    for _ in range(count):
        yield from rng.choice(sources)(rng, 1)
