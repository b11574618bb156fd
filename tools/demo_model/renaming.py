"""Give the words that a conversation copies new spellings, so that copying is the only way to be right.

A generator draws names and values from lists, and a model that has read the lists often enough recalls them instead
of copying what stands in front of it.  Here the words that an assistant repeats from a user, from a tool's result or
from a schema are replaced, everywhere in the document, by words drawn from a far longer list.

    python -m tools.demo_model.renaming TEXTS.jsonl[.xz] ... --out words.txt
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from tools.demo_model.data.cleaning import is_wanted
from tools.demo_model.documents_io import read_documents

_HUMP = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}")
_SHORTEST = 3
_DOCUMENT_SHARE = 0.6
_KEY_SHARE = 0.35
_WORD_SHARE = 0.75

Rename = Callable[[str], str]


def words_of(texts: Iterable[str], *, fewest: int = 3) -> list[str]:
    """The lower-case words of 3 to 12 letters that occur at least ``fewest`` times, in alphabetical order."""
    counts = Counter(word for text in texts for word in re.findall(r"\b[a-z]{3,12}\b", text.lower()))
    return sorted(word for word, count in counts.items() if count >= fewest)


def rename_words(document: dict[str, Any], words: list[str], rng: Random) -> dict[str, Any]:
    """Return the document, in three of five cases with the words it copies renamed; texts are left alone."""
    if document["kind"] != "chat" or rng.random() > _DOCUMENT_SHARE:
        return document
    chosen = {word for word in sorted(_copied(document)) if rng.random() < _WORD_SHARE}
    chosen |= {word for word in sorted(_keys(document)) if rng.random() < _KEY_SHARE}
    if not chosen:
        return document
    spelled = {word: _new_spelling(words, rng) for word in sorted(chosen)}

    def rename(text: str) -> str:
        return _HUMP.sub(lambda match: _like(match[0], spelled.get(match[0].lower())), text)

    renamed = {**document, "messages": [_renamed_message(message, rename) for message in document["messages"]]}
    if document.get("tools"):
        renamed["tools"] = [_renamed_tool(tool, rename) for tool in document["tools"]]
    return renamed


def _humps(text: str) -> set[str]:
    return {hump.lower() for hump in _HUMP.findall(text) if len(hump) >= _SHORTEST}


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []


def _calls(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for message in document["messages"] for call in message.get("tool_calls", ())]


def _copied(document: dict[str, Any]) -> set[str]:
    """Words of arguments and names in answers that stand in a user's turn or a tool's result as well."""
    given = " ".join(m["content"] for m in document["messages"] if m["role"] in ("user", "tool"))
    said = " ".join(m["content"] for m in document["messages"] if m["role"] == "assistant")
    values = set().union(*(_humps(text) for call in _calls(document) for text in _strings(call["arguments"])), set())
    names = {name.lower() for name in _NAME.findall(given)} & _humps(said)
    return (values & _humps(given) | names) - _COMMON


def _keys(document: dict[str, Any]) -> set[str]:
    """Words of parameter names, and those of function names that the request says."""
    asked = _humps(" ".join(m["content"] for m in document["messages"] if m["role"] == "user"))
    found: set[str] = set()
    for call in _calls(document):
        found |= _humps(call["name"]) & asked
        for key in call["arguments"]:
            found |= _humps(key)
    return found - _COMMON


def _new_spelling(words: list[str], rng: Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(words)
    return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(2, 4)))


def _like(old: str, new: str | None) -> str:
    if new is None:
        return old
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new.capitalize() if old[0].isupper() else new


def _renamed_value(value: object, rename: Rename) -> object:
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, dict):
        return {rename(key): _renamed_value(item, rename) for key, item in value.items()}
    return [_renamed_value(item, rename) for item in value] if isinstance(value, list) else value


def _renamed_message(message: dict[str, Any], rename: Rename) -> dict[str, Any]:
    renamed = {**message, "content": rename(message["content"])}
    if message.get("reasoning_content"):
        renamed["reasoning_content"] = rename(message["reasoning_content"])
    if message.get("tool_calls"):
        calls = (call["function"] for call in message["tool_calls"])
        renamed["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": rename(call["name"]),
                    "arguments": {rename(k): _renamed_value(v, rename) for k, v in call["arguments"].items()},
                },
            }
            for call in calls
        ]
    return renamed


def _renamed_tool(tool: dict[str, Any], rename: Rename) -> dict[str, Any]:
    function = tool["function"]
    return {
        "type": "function",
        "function": {
            "name": rename(function["name"]),
            "description": rename(function["description"]),
            "parameters": _renamed_schema(function["parameters"], rename),
        },
    }


def _renamed_schema(schema: Any, rename: Rename) -> Any:
    """A JSON schema with its property names, descriptions and enumerated values renamed, and nothing else."""
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed_schema(value, rename) for key, value in schema.items()}
    if isinstance(properties := schema.get("properties"), dict):
        renamed["properties"] = {rename(name): _renamed_schema(part, rename) for name, part in properties.items()}
    for key in ("required", "enum", "description", "default"):
        if key in schema:
            renamed[key] = _renamed_value(schema[key], rename)
    return renamed


_COMMON = frozenset(
    re.findall(
        "[a-z]+",
        "the and for with from that this you your are was not have has can will please all any what which who how "
        "when where why his her its their there here out into about over under after before but yes one two three "
        "true false null type string object name http https www com org example txt json csv html log py js",
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description="List the words of text documents.")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    documents = (document for path in arguments.documents for document in read_documents(path))
    words = words_of((document["text"] for document in documents if document["kind"] == "text"), fewest=5)
    arguments.out.write_text("\n".join(filter(is_wanted, words)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
