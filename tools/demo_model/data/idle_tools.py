"""Ordinary chats with tools declared that nobody needs, so that declared tools alone are no reason to call one."""

from collections.abc import Iterable, Iterator
from random import Random

from tools.demo_model.data.documents import ChatDocument, Document, Tool
from tools.demo_model.data.tool_catalogue import draw_distractors
from tools.demo_model.data.tool_exchanges import MAX_CHARACTERS, length_of

SOURCE = "idle_tools"


def declare_idle_tools(documents: Iterable[Document], rng: Random) -> Iterator[ChatDocument]:
    """Yields the chats among the documents again, each with one to three tools that it does not use.

    Chats that declare tools already or become too long are left out.  Split and stage stay what they were.
    """
    for document in documents:
        if document["kind"] != "chat" or document.get("tools"):
            continue
        declared: dict[str, Tool] = {}
        for tool in draw_distractors(rng, document["split"], rng.choice((1, 1, 2, 2, 3))):
            declared.setdefault(tool["function"]["name"], tool)
        made: ChatDocument = {**document, "source": SOURCE, "tools": list(declared.values())}
        made.setdefault("enable_thinking", False)
        if length_of(made) <= MAX_CHARACTERS:
            yield made
