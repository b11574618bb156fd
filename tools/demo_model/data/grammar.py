"""A very small template language, and the repairs that keep what it writes in correct English.

``[a|b|c]`` chooses one alternative (alternatives may nest and may be empty), ``{key}`` takes a slot's value
and ``{Key}`` the same with a capital.  After filling, "a" and "an" are set by the sound of the next word and
sentences get a capital first letter.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tools.demo_model.data.documents import Split

Item = TypeVar("Item")

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{([^{}]+)\}")
_ARTICLE = re.compile(r"\b([Aa])n? (?=([A-Za-z]+))")
_SENTENCE = re.compile(r"((?:^|[.!?] |\.\" |\n)\"?)([a-z])")
_SPACES = re.compile(r" {2,}")
_VOWEL_SOUND = ("hour", "honest", "heir", "honour", "honor")
_CONSONANT_SOUND = ("uni", "use", "usu", "eu", "one", "once", "ukulele", "uku")
# Part of the held-out documents that use training words, so that a held-out plot is also seen with known words.
_KNOWN_WORD_SHARE = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """A word list in two parts; no training document uses a word of the held-out part."""

    train: tuple[str, ...]
    heldout: tuple[str, ...] = ()

    def draw(self, rng: Random, split: Split) -> str:
        """Returns one word that the split may use."""
        if split == "heldout" and self.heldout and rng.random() > _KNOWN_WORD_SHARE:
            return rng.choice(self.heldout)
        return rng.choice(self.train)

    def sample(self, rng: Random, split: Split, count: int) -> list[str]:
        """Returns ``count`` different words that the split may use."""
        pool = self.train if split == "train" or len(self.heldout) < count else self.heldout + self.train[: 2 * count]
        return rng.sample(pool, count)


def words(listing: str) -> Words:
    """Returns the words of a comma-separated listing; those after a ``#`` are held out."""
    train, _, heldout = listing.partition("#")
    return Words(train=_listed(train), heldout=_listed(heldout))


def _listed(listing: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in listing.split(",") if word.strip())


def choose(rng: Random, template: str) -> str:
    """Returns the template with every ``[a|b]`` decided, inner choices first."""
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match.group(1).split("|")), template)
    return template


def fill(template: str, slots: Mapping[str, str]) -> str:
    """Returns the template with its slots filled; a key that starts with a capital capitalises the value.

    Slot values may hold slots themselves.

    Raises:
        KeyError: the template names a slot that ``slots`` does not have.
    """

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key in slots:
            return slots[key]
        return capital(slots[key[0].lower() + key[1:]])

    while "{" in template:
        template = _SLOT.sub(value, template)
    return template


def write(rng: Random, templates: str | Sequence[str], slots: Mapping[str, str]) -> str:
    """Returns one of the templates, decided, filled and repaired."""
    template = templates if isinstance(templates, str) else rng.choice(templates)
    # A filled slot may bring choices of its own.
    for _ in range(4):
        template = fill(choose(rng, template), slots)
        if "[" not in template and "{" not in template:
            break
    return repair(template)


def capital(text: str) -> str:
    """Returns the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(word: str) -> str:
    """Returns "a" or "an", by the sound the word starts with."""
    lower = word.lower()
    if lower.startswith(_VOWEL_SOUND):
        return "an"
    if lower.startswith(_CONSONANT_SOUND):
        return "a"
    return "an" if lower[:1] in "aeiou" else "a"


def with_article(phrase: str) -> str:
    """Returns the phrase after "a" or "an"."""
    return f"{article(phrase)} {phrase}"


def repair(text: str) -> str:
    """Sets "a" and "an", capital letters at sentence starts, and single spaces."""
    text = _SPACES.sub(" ", text).replace(" ,", ",").replace(" .", ".").strip()
    text = _ARTICLE.sub(lambda match: _with_case(match.group(1), article(match.group(2))) + " ", text)
    return _SENTENCE.sub(lambda match: match.group(1) + match.group(2).upper(), text)


def _with_case(letter: str, replacement: str) -> str:
    return capital(replacement) if letter.isupper() else replacement


def listing(items: Iterable[str], *, final: str = "and") -> str:
    """Returns "x", "x and y", or "x, y and z"."""
    parts = list(items)
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {final} {parts[-1]}"


def different(rng: Random, pool: Sequence[Item], *, than: Item) -> Item:
    """Returns an item of the pool that is not ``than``."""
    while True:
        item = rng.choice(pool)
        if item != than:
            return item
