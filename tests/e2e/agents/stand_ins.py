"""Requests of real agents without their words: the structure as recorded, every text replaced by one of its length.

An agent's instructions are other people's text, so none of it is kept.  Names of tools and of their fields stay, since
they are the shape of a request; a text is a mark that says how long it was, whether two sessions in different
directories had it in common, and up to which character.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

REQUESTS = Path(__file__).with_name("requests")
KEPT = re.compile(r"[A-Za-z0-9_./:*$-]{0,24}")
MARK = re.compile(r"\x01(\d+):(\d+):(\d+):([tw])")
WORDS = (
    "the",
    "a",
    "little",
    "fox",
    "hat",
    "was",
    "and",
    "she",
    "had",
    "said",
    "to",
    "it",
    "in",
    "of",
    "with",
    "that",
    "for",
    "his",
)


def without_words(first: Any, second: Any) -> Any:
    """Return the first of two sessions' requests as structure and marks; the second is one from another directory."""
    return _Marker().mark(first, second)


def filled(request: Any, *, session: int) -> Any:
    """Return a request with texts in the place of its marks; sessions of the same number have the same texts."""
    if isinstance(request, dict):
        return {key: filled(value, session=session) for key, value in request.items()}
    if isinstance(request, list):
        return [filled(value, session=session) for value in request]
    found = MARK.fullmatch(request) if isinstance(request, str) else None
    if found is None:
        return request
    seed, length, common = (int(number) for number in found.groups()[:3])
    text = _text(seed, common, words=found[4] == "t")
    return text + _text(seed + 1_000_000 * (session + 1), length - common, words=found[4] == "t")


def read_request(agent: str) -> dict[str, Any]:
    """Return an agent's first request with tools: `path`, `headers`, and a `body` with marks."""
    content: dict[str, Any] = json.loads((REQUESTS / f"{agent}.json").read_text(encoding="utf-8"))
    return content


class _Marker:
    """Replaces texts; the same text gets the same mark."""

    def __init__(self) -> None:
        self._seeds: dict[str, int] = {}

    def mark(self, one: Any, other: Any) -> Any:
        """Return `one` with marks, by comparison with `other`, which has the same structure."""
        if isinstance(one, dict) and isinstance(other, dict):
            return {key: self.mark(value, other.get(key)) for key, value in one.items()}
        if isinstance(one, list) and isinstance(other, list):
            return [self.mark(value, other[at] if at < len(other) else None) for at, value in enumerate(one)]
        if not isinstance(one, str) or (one == other and KEPT.fullmatch(one)):
            return one
        seed = self._seeds.setdefault(one, len(self._seeds))
        common = len(one) if one == other else _common(one, other if isinstance(other, str) else "")
        return f"\x01{seed}:{len(one)}:{common}:{'t' if ' ' in one else 'w'}"


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _text(seed: int, length: int, *, words: bool) -> str:
    """Return a text of exactly this many characters."""
    source, text = random.Random(seed), ""
    while len(text) < length:
        text += source.choice(WORDS) + (" " if words else "")
    return text[:length]
