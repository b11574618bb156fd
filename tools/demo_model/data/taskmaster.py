"""Coffee-shop dialogues of Taskmaster TM-4 as training documents.

Source: Taskmaster, TM-4, CC BY 4.0.  Every call of the source becomes a round of its own with its result; the tools
get schemas and varied names here, as the source has none.  The dialogues resemble each other, so a share is enough.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from tools.demo_model.data.corpus_rows import read_rows
from tools.demo_model.data.documents import (
    ChatDocument,
    Message,
    Tool,
    assistant,
    chat_document,
    tool_call,
    tool_result,
    user,
)
from tools.demo_model.data.tool_exchanges import MAX_CHARACTERS, length_of, make_tool
from tools.demo_model.data.tool_parameters import restyle
from tools.demo_model.data.tool_values import Json

SOURCE = "taskmaster"
_ID: dict[str, Json] = {"type": "string"}
_LIST: dict[str, Json] = {"type": "array", "items": {"type": "object"}}
_TOOLS: Mapping[str, tuple[str, dict[str, Json], tuple[str, ...]]] = {
    "get_menu_items": (
        "Find drinks on the menu.",
        {"query": {"type": "string"}, "fields": {"type": "array", "items": {"type": "string"}}},
        ("query",),
    ),
    "add_order_item": (
        "Add a drink to the order.",
        {
            "menu_item_id": _ID,
            "quantity": {"type": "integer"},
            "attributes": _LIST,
            "addons": _LIST,
            "notes": {"type": "string"},
            "order_id": _ID,
        },
        ("menu_item_id", "quantity"),
    ),
    "get_order_details": ("Show an order.", {"order_id": _ID}, ("order_id",)),
    "finish_order": ("Send an order to be made.", {"order_id": _ID}, ("order_id",)),
    "get_addons": (
        "Find options of a drink.",
        {"query": {"type": "string"}, "menu_item_id": _ID, "scope": {"type": "string"}},
        ("query",),
    ),
    "update_order": ("Change an order.", {"order_id": _ID, "attributes": _LIST}, ("order_id", "attributes")),
    "update_order_item": (
        "Change a drink of the order.",
        {"order_item_id": _ID, "attributes": _LIST, "addons": _LIST},
        ("order_item_id",),
    ),
    "show_menu": ("Show the menu on the screen.", {}, ()),
}


def generate_from(path: Path, rng: Random, *, share: float = 0.5) -> Iterator[ChatDocument]:
    """Yields a share of the dialogues as documents.

    Raises:
        CorpusError: the file cannot be read.
    """
    for row in read_rows(path):
        if rng.random() >= share or not isinstance(row, dict):
            continue
        style = rng.choice(("snake", "snake", "camel", "kebab"))
        document = _rewrite(row.get("turns"), style, rng)
        if document is not None:
            yield document


def _rewrite(turns: object, style: str, rng: Random) -> ChatDocument | None:
    if not isinstance(turns, list):
        return None
    messages: list[Message] = []
    used: dict[str, None] = {}
    best: ChatDocument | None = None
    for turn in turns:
        text = str(turn.get("text", "")).strip()
        expected = "user" if not messages or messages[-1]["role"] == "assistant" else "assistant"
        if turn.get("role") != expected or not text:
            break
        if expected == "assistant":
            messages.append(assistant(text))
            document = _document(messages, list(used), style, rng)
            if length_of(document) > MAX_CHARACTERS:
                break
            best = document
            continue
        messages.append(user(text))
        rounds = _rounds(turn.get("api") or [], style, messages)
        if rounds is None:
            break
        for name, pair in rounds:
            used[name] = None
            messages.extend(pair)
    return best if best is not None and "tools" in best else None


def _document(messages: Sequence[Message], used: list[str], style: str, rng: Random) -> ChatDocument:
    spare = [name for name in _TOOLS if name not in used]
    names = used + spare[:1] if used else []
    rng.shuffle(names)
    tools: list[Tool] = [make_tool(restyle(name, style), *_TOOLS[name]) for name in names]
    return chat_document(SOURCE, messages, tools=tools, enable_thinking=False, stage="pretrain")


def _rounds(
    api: Sequence[Sequence[str]], style: str, messages: Sequence[Message]
) -> list[tuple[str, tuple[Message, Message]]] | None:
    """Returns the calls of one turn with their results, or nothing where one is broken or guessed."""
    rounds: list[tuple[str, tuple[Message, Message]]] = []
    said = " ".join(message["content"] for message in messages)
    name, arguments = "", dict[str, object]()
    for kind, text in api:
        if kind == "api_call":
            name, arguments = text, {}
        elif kind == "request":
            found = _arguments(name, text, said)
            if found is None:
                return None
            arguments = found
        elif name in _TOOLS:
            try:
                result = json.dumps(json.loads(text))
            except ValueError:
                return None
            call = tool_call(restyle(name, style), arguments)
            rounds.append((name, (assistant("", calls=[call]), tool_result(result))))
            said += " " + result
        else:
            return None
    return rounds


def _arguments(name: str, text: str, said: str) -> dict[str, object] | None:
    """Returns the arguments of a call, or nothing where they are broken or were not said before."""
    if name not in _TOOLS:
        return None
    _, properties, required = _TOOLS[name]
    try:
        given = json.loads(text)
    except ValueError:
        return None
    if not isinstance(given, dict) or not set(required) <= set(given) <= set(properties):
        return None
    if "quantity" in given:
        if not str(given["quantity"]).isdigit():
            return None
        given["quantity"] = int(given["quantity"])
    for key, value in given.items():
        schema = properties[key]
        kind = schema["type"] if isinstance(schema, dict) else ""
        if not isinstance(value, {"string": str, "integer": int, "array": list}[str(kind)]):
            return None
        if isinstance(value, str) and value.lower() not in said.lower():
            return None
        if key == "fields" and not all(isinstance(part, str) for part in given[key]):
            return None
    return {key: given[key] for key in properties if key in given}
