"""JSON documents of other people, changed in place: what is not asked for keeps every byte it has.

A document is parsed into spans of its own text; a change replaces the span of one value, or inserts a member in the
style of its neighbours.  Order, spelling of numbers, escapes, blank lines and line ends stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from json import decoder
from typing import Any

from slotstream_cli.launching.errors import NotPlainJson

__all__ = ["ABSENT", "Absent", "JsonText"]

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_INDENT = "  "
_MOST_DEPTH = 200


class Absent:
    """The type of `ABSENT`, which stands for a value that a document does not have."""


ABSENT = Absent()


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A value's span in the text, its parts when it has any, and where the first of them begins."""

    start: int
    end: int
    members: dict[str, _Node] = field(default_factory=dict)
    elements: list[_Node] = field(default_factory=list)
    first: int | None = None
    last: int = 0


class JsonText:
    """One JSON document; immutable, every change returns a new one.

    Attributes:
        text: The document.
    """

    def __init__(self, text: str) -> None:
        """Parse a document.

        Raises:
            NotPlainJson: It is not JSON, for example because it has comments or trailing commas.
        """
        self.text = text
        scanner = _Scanner(text)
        self._root = scanner.value(scanner.skip(0), 0)
        rest = scanner.skip(self._root.end)
        if rest != len(text):
            raise scanner.wrong(rest)

    def get(self, *path: str | int) -> Any:
        """Return the value at a path of member names and element positions, or `ABSENT`."""
        node = self._find(path)
        return ABSENT if node is None else json.loads(self.text[node.start : node.end])

    def source(self, *path: str | int) -> str | None:
        """Return the value at a path as it is written, or None."""
        node = self._find(path)
        return None if node is None else self.text[node.start : node.end]

    def with_value(self, path: Iterable[str | int], value: object) -> JsonText:
        """Return the document with a value at a path; an equal value keeps its spelling, missing objects are made.

        Raises:
            NotPlainJson: Something on the path is not an object.
        """
        steps = tuple(path)
        node = self._find(steps)
        if node is not None:
            if _same(json.loads(self.text[node.start : node.end]), value):
                return self
            return self._spliced(node.start, node.end, self._written(value, self._indent_at(node.start)))
        known = len(steps) - 1
        while known and self._find(steps[:known]) is None:
            known -= 1
        for step in reversed(steps[known + 1 :]):
            value = {str(step): value}
        holder = self._find(steps[:known]) or self._root
        self._require(holder, "{", steps[:known], "an object")
        return self._with_part(holder, f"{json.dumps(str(steps[known]), ensure_ascii=False)}: ", value)

    def with_element(self, path: Iterable[str | int], value: object) -> JsonText:
        """Return the document with a value appended to the array at a path, which is made when it is missing.

        Raises:
            NotPlainJson: The value at the path is not an array.
        """
        steps = tuple(path)
        node = self._find(steps)
        if node is None:
            return self.with_value(steps, [value])
        self._require(node, "[", steps, "an array")
        return self._with_part(node, "", value)

    def _find(self, path: tuple[str | int, ...]) -> _Node | None:
        node: _Node | None = self._root
        for step in path:
            if node is None:
                return None
            if isinstance(step, int):
                node = node.elements[step] if 0 <= step < len(node.elements) else None
            else:
                node = node.members.get(step)
        return node

    def _require(self, node: _Node, opening: str, path: tuple[str | int, ...], kind: str) -> None:
        if self.text[node.start] != opening:
            names = tuple(str(step) for step in path)
            raise NotPlainJson(f"{'.'.join(names) or 'the document'} is not {kind}", path=names)

    def _with_part(self, holder: _Node, prefix: str, value: object) -> JsonText:
        """Return the document with a new last part of an object or array."""
        outer = self._indent_at(holder.start)
        if holder.first is None:
            if self._is_one_line():
                piece = prefix + self._written(value, outer)
            else:
                inner = outer + _INDENT
                piece = f"\n{inner}{prefix}{self._written(value, inner)}\n{outer}"
            return self._spliced(holder.start + 1, holder.end - 1, piece)
        lead = self.text[holder.start + 1 : holder.first]
        if "\n" in lead:
            inner = lead[lead.rindex("\n") + 1 :]
            piece = f",\n{inner}{prefix}{self._written(value, inner)}"
        else:
            piece = f", {prefix}{json.dumps(value, ensure_ascii=False)}"
        return self._spliced(holder.last, holder.last, piece)

    def _spliced(self, start: int, end: int, piece: str) -> JsonText:
        if "\r\n" in self.text:
            piece = piece.replace("\n", "\r\n")
        return JsonText(self.text[:start] + piece + self.text[end:])

    def _written(self, value: object, indent: str) -> str:
        if self._is_one_line():
            return json.dumps(value, ensure_ascii=False)
        return json.dumps(value, ensure_ascii=False, indent=_INDENT).replace("\n", f"\n{indent}")

    def _indent_at(self, position: int) -> str:
        line = self.text[self.text.rfind("\n", 0, position) + 1 : position]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def _is_one_line(self) -> bool:
        return self._root.first is not None and "\n" not in self.text[self._root.start : self._root.end]


class _Scanner:
    """Finds the spans of a document's values."""

    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        """Return the position after white space."""
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def wrong(self, at: int) -> NotPlainJson:
        """Return the error for a position."""
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return NotPlainJson(f"it is not plain JSON at line {line}, column {column}")

    def value(self, at: int, depth: int) -> _Node:
        """Return the value that begins at a position."""
        if depth > _MOST_DEPTH:
            raise NotPlainJson(f"it is nested more than {_MOST_DEPTH} deep")
        opening = self._text[at : at + 1]
        if opening == "{" or opening == "[":
            return self._container(at, depth, closing="}" if opening == "{" else "]")
        if opening == '"':
            return _Node(start=at, end=self._string(at)[1])
        found = _SCALAR.match(self._text, at)
        if found is None:
            raise self.wrong(at)
        return _Node(start=at, end=found.end())

    def _container(self, start: int, depth: int, *, closing: str) -> _Node:
        members: dict[str, _Node] = {}
        elements: list[_Node] = []
        first: int | None = None
        last = start
        at = self.skip(start + 1)
        while self._text[at : at + 1] != closing or last > start:
            if first is None:
                first = at
            key: str | None = None
            if closing == "}":
                key, at = self._string(at)
                at = self._after(at, ":")
            node = self.value(at, depth + 1)
            if key is None:
                elements.append(node)
            else:
                members[key] = node
            last = node.end
            at = self.skip(last)
            if self._text[at : at + 1] == closing:
                break
            at = self._after(at, ",")
        return _Node(start=start, end=at + 1, members=members, elements=elements, first=first, last=last)

    def _after(self, at: int, mark: str) -> int:
        at = self.skip(at)
        if self._text[at : at + 1] != mark:
            raise self.wrong(at)
        return self.skip(at + 1)

    def _string(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] != '"':
            raise self.wrong(at)
        try:
            value, end = decoder.scanstring(self._text, at + 1, True)  # type: ignore[attr-defined]
        except ValueError:
            raise self.wrong(at) from None
        return value, end


def _same(one: object, other: object) -> bool:
    """Whether two values are equal as JSON, where true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
