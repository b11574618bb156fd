"""Tool schemas and requests of the Berkeley Function Calling Leaderboard as training documents.

Source: the package ``bfcl-eval``, Apache-2.0.  It is a benchmark: a model trained on it must not quote its scores.
Only rows that a small model can answer by copying are kept: every argument has to occur in the request or in the
schema.  Descriptions are cut to their first sentence and unneeded tools are left out until the row is short.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from tools.demo_model.data.corpus_rows import read_rows
from tools.demo_model.data.documents import ChatDocument, Tool, assistant, chat_document, tool_call, user
from tools.demo_model.data.tool_exchanges import length_of

SOURCE = "bfcl"
MAX_CHARACTERS = 2600
_REFUSAL_SHARE = 0.55
_TYPES = {
    "dict": "object",
    "object": "object",
    "hashmap": "object",
    "float": "number",
    "double": "number",
    "number": "number",
    "integer": "integer",
    "int": "integer",
    "long": "integer",
    "bigint": "integer",
    "boolean": "boolean",
    "string": "string",
    "char": "string",
    "any": "string",
    "array": "array",
    "tuple": "array",
    "list": "array",
    "arraylist": "array",
}
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    " seventeen eighteen nineteen twenty"
)
_REFUSALS = (
    "I have no tool for that.",
    "None of my tools can do that.",
    "Sorry, none of the tools I have fits this request.",
    "I can't help with that: I only have {names}.",
    "That is not something my tools can do.",
)


def generate_from(path: Path, rng: Random) -> Iterator[ChatDocument]:
    """Yields the usable rows as documents, in random order; about one in three is a refusal to call.

    Raises:
        CorpusError: the file cannot be read.
    """
    rows = list(read_rows(path))
    rng.shuffle(rows)
    for row in rows:
        if isinstance(row, dict):
            document = _rewrite(row, rng)
            if document is not None:
                yield document


def _rewrite(row: Mapping[str, object], rng: Random) -> ChatDocument | None:
    request = _request(row.get("question"))
    declared = row.get("tools")
    if request is None or not isinstance(declared, list):
        return None
    tools = [tool for tool in map(_tool, declared) if tool is not None]
    answer = row.get("answer")
    if answer is None:
        return _refusal(request, tools, rng) if rng.random() < _REFUSAL_SHARE else None
    if not isinstance(answer, list) or not answer:
        return None
    schemas = {tool["function"]["name"]: tool for tool in tools}
    calls: list[tuple[str, dict[str, object]]] = []
    for part in answer:
        name, options = next(iter(part.items()))
        if name not in schemas or not isinstance(options, dict):
            return None
        arguments = _arguments(options, schemas[name], request)
        if arguments is None:
            return None
        calls.append((name, arguments))
    if any(call in calls[:index] for index, call in enumerate(calls)):
        return None
    thinks = rng.random() < 0.2
    names = list(dict.fromkeys(name for name, _ in calls))
    thought = f"I should call {' and '.join(names)}." if thinks else None
    messages = [user(request), assistant("", reasoning=thought, calls=[tool_call(*call) for call in calls])]
    kept, spare = [schemas[name] for name in names], [tool for name, tool in schemas.items() if name not in names]
    rng.shuffle(spare)
    while True:
        shown = kept + spare[:4]
        rng.shuffle(shown)
        document = chat_document(SOURCE, messages, tools=shown, enable_thinking=thinks, stage="finish")
        if length_of(document) <= MAX_CHARACTERS:
            return document
        if not spare:
            return None
        spare = spare[: min(len(spare), 4) - 1]


def _refusal(request: str, tools: Sequence[Tool], rng: Random) -> ChatDocument | None:
    kept = list(tools[:3])
    if not kept:
        return None
    names = [tool["function"]["name"] for tool in kept]
    reply = rng.choice(_REFUSALS).format(names=" and ".join(names))
    document = chat_document(
        SOURCE, [user(request), assistant(reply)], tools=kept, enable_thinking=False, stage="finish"
    )
    return document if length_of(document) <= MAX_CHARACTERS else None


def _request(question: object) -> str | None:
    """Returns the only user turn in plain ASCII, or nothing where there are others."""
    try:
        turns = question[0]  # type: ignore[index]
        content = turns[0]["content"]
        role = turns[0]["role"]
    except (LookupError, TypeError):
        return None
    if len(turns) != 1 or role != "user" or not isinstance(content, str) or not content.isascii():
        return None
    return content.strip() or None


def _tool(declared: Mapping[str, object]) -> Tool | None:
    parameters = _schema(declared.get("parameters"))
    name, description = declared.get("name"), declared.get("description")
    if parameters is None or not isinstance(name, str) or not isinstance(description, str):
        return None
    return {
        "type": "function",
        "function": {"name": name, "description": _first_sentence(description), "parameters": parameters},
    }


def _first_sentence(text: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0][:160]
    return re.sub(r",?\s*\(?(e\.g\.|i\.e\.|such as)$", ".", sentence)


def _schema(given: object) -> dict[str, object] | None:
    """Returns the schema with the type names of JSON schema, or nothing where a type is unknown."""
    if not isinstance(given, dict):
        return None
    kind = _TYPES.get(str(given.get("type", "string")).lower())
    if kind is None:
        return None
    schema: dict[str, object] = {"type": kind}
    if isinstance(given.get("description"), str):
        schema["description"] = _first_sentence(given["description"])
    if given.get("enum"):
        schema["enum"] = given["enum"]
    if isinstance(given.get("properties"), dict):
        properties: dict[str, object] = {}
        for name, part in given["properties"].items():
            inner = _schema(part)
            if inner is None:
                return None
            properties[name] = inner
        schema["properties"] = properties
    if isinstance(given.get("items"), dict):
        items = _schema(given["items"])
        if items is None:
            return None
        schema["items"] = items
    if given.get("required"):
        schema["required"] = given["required"]
    return schema


def _arguments(options: Mapping[str, object], tool: Tool, request: str) -> dict[str, object] | None:
    """Returns one value an argument, or nothing where a value has to be guessed."""
    properties = tool["function"]["parameters"].get("properties")
    if not isinstance(properties, dict):
        return None
    required = tool["function"]["parameters"].get("required", [])
    arguments: dict[str, object] = {}
    for name in properties:
        if name not in options:
            continue
        choices = options[name]
        if not isinstance(choices, list) or not choices:
            return None
        found = [value for choice in choices if (value := _single(choice)) != "" and _is_said(value, request)]
        if found:
            value = _typed(found[0], properties[name])
            if value is None:
                return None
            arguments[name] = value
        elif "" not in choices or name in (required if isinstance(required, list) else ()):
            return None
    if set(options) - set(properties):
        return None
    return arguments


def _single(choice: object) -> object:
    """Returns a choice with the first alternative of every value inside an object."""
    if isinstance(choice, dict):
        return {key: _single(part[0]) if isinstance(part, list) and part else part for key, part in choice.items()}
    return [_single(part) for part in choice] if isinstance(choice, list) else choice


def _is_said(value: object, request: str) -> bool:
    """Returns whether every part of the value stands in the request."""
    if isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        shown = str(int(value)) if value == int(value) else str(value)
        words = _NUMBER_WORDS.split()
        spelled = words[int(value)] if value == int(value) and 0 <= value < len(words) else shown
        plain = request.replace(",", "")
        return bool(re.search(rf"(?<![\d.]){re.escape(shown)}(?!\d)|\b{spelled}\b", plain, re.IGNORECASE))
    if isinstance(value, str):
        return bool(value) and value in request
    if isinstance(value, dict):
        return all(_is_said(part, request) for part in value.values())
    return isinstance(value, list) and bool(value) and all(_is_said(part, request) for part in value)


def _typed(value: object, schema: object) -> object | None:
    """Returns the value as its schema types it, or nothing where it has another type."""
    if not isinstance(schema, dict):
        return None
    kind = schema["type"]
    if isinstance(value, float) and value == int(value):
        value = int(value)
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }[kind]
    if not fits or ("enum" in schema and value not in schema["enum"]):
        return None
    if isinstance(value, list) and "items" in schema:
        parts = [_typed(part, schema["items"]) for part in value]
        return None if any(part is None for part in parts) else parts
    return value
