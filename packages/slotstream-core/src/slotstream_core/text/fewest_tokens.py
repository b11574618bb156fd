"""How many tokens a text has at least, known in a hundredth of the time that making them takes.

Tokenizing 16 MB takes tens of seconds and gigabytes, so a prompt that cannot fit is refused by this bound.  It asks the
vocabulary alone, and holds for every way to spell a text with it:

- Two bytes that stand side by side in no token are parted, so a token ends between them.
- A byte is in a token of at most so many bytes as the longest token with that byte.  So where no byte is parted from
  the next, a token takes up at most one when each byte counts as 1 / (that length).
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import tokenizers

PIECE_CHARACTERS: Final = 2**16
"""A text is looked at in pieces of about so many characters, which take a few megabytes."""

_ASCII: Final = re.compile(r"[\x00-\x7f]")
_KEEPING: Final = frozenset({"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"})
"""What may be done with what splits a text; the one other way is to remove it."""


class FewestTokens:
    """A vocabulary's bound, for a tokenizer whose tokens spell a text out; instances are read-only.

    Args:
        spellings: The bytes of every token that a text may get.
        composes: Whether a text is brought into Unicode's form NFC first.
    """

    def __init__(self, spellings: Iterable[bytes], *, composes: bool) -> None:
        tokens = [spelling for spelling in spellings if spelling]
        self._composes = composes
        sizes = np.fromiter(map(len, tokens), np.int64, len(tokens))
        text = np.frombuffer(b"".join(tokens), np.uint8)
        longest = np.ones(256, np.int64)
        np.maximum.at(longest, text, np.repeat(sizes, sizes))
        self._share = 1 / longest  # [256] of a token that a byte takes up at least
        inside = np.ones(len(text), np.bool_)
        inside[np.cumsum(sizes) - 1] = False
        followed = np.flatnonzero(inside)
        self._parted = np.ones((256, 256), np.bool_)
        self._parted[text[followed], text[followed + 1]] = False

    @classmethod
    def of(cls, backing: tokenizers.Tokenizer) -> "FewestTokens | None":
        """Return the bound of a tokenizer; None of one that may drop, replace or cut off what it is given."""
        spellings = _spellings(backing)
        normalizer = _state(backing.normalizer)
        if spellings is None or normalizer.get("type") not in (None, "NFC"):
            return None
        if backing.truncation is not None or not _keeps_all(_state(backing.pre_tokenizer)):
            return None
        return cls(spellings, composes=bool(normalizer))

    def in_text(self, text: str) -> int:
        """Return a number of tokens that a text has or exceeds; 0 when nothing is known.

        Args:
            text: Text without lone surrogates.
        """
        # A token that lies across two pieces is counted in both.
        return sum(max(0, self._in_piece(piece) - 1) for piece in _pieces(text)) + bool(text)

    def _in_piece(self, piece: str) -> int:
        """How many tokens have a part in a piece, at least."""
        if self._composes and not _is_composed(piece):
            return 0
        data = np.frombuffer(piece.encode(), np.uint8)
        starts = np.flatnonzero(self._parted[data[:-1], data[1:]]) + 1
        shares = np.add.reduceat(self._share[data], np.concatenate(([0], starts)))
        return int(np.ceil(shares - 1e-6).sum())


def _pieces(text: str) -> Iterator[str]:
    """Cut a text before characters of ASCII, which no character before them composes with."""
    start = 0
    while start < len(text):
        found = _ASCII.search(text, start + PIECE_CHARACTERS)
        end = len(text) if found is None else found.start()
        yield text[start:end]
        start = end


def _is_composed(piece: str) -> bool:
    """Whether a text is in form NFC, in every version of Unicode.

    A version leaves alone what is in that form in another one and has only characters which the other knows.
    """
    if piece.isascii():
        return True
    known = all(unicodedata.category(character) != "Cn" for character in set(piece))
    return known and unicodedata.is_normalized("NFC", piece)


def _spellings(backing: tokenizers.Tokenizer) -> list[bytes] | None:
    """Return the bytes of every token; None where a byte may have no token, or one take in what it does not spell.

    In a byte-level vocabulary each character stands for a byte; tokens that were added later are written as they are.
    """
    model = backing.model
    if not isinstance(model, tokenizers.models.BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    added = backing.get_added_tokens_decoder().values()
    characters = _byte_characters()
    alphabet = frozenset(characters)
    vocabulary = backing.get_vocab(with_added_tokens=False)
    if any(t.lstrip or t.rstrip or not _is_composed(t.content) for t in added) or not vocabulary.keys() >= alphabet:
        return None
    to_latin = str.maketrans({character: chr(byte) for byte, character in enumerate(characters)})
    reachable = filter(alphabet.issuperset, vocabulary)
    return [token.translate(to_latin).encode("latin-1") for token in reachable] + [t.content.encode() for t in added]


def _byte_characters() -> list[str]:
    """Return the 256 characters that stand for bytes: themselves where printable in Latin-1, else from U+0100 on."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]


def _state(part: Any) -> dict[str, Any]:
    """Return the settings of a tokenizer's part, none of one that is not there."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _keeps_all(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer maps text to bytes, and loses none on the way."""
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    splits = [part for part in parts if part.get("type") == "Split"]
    others = [part.get("type") for part in parts if part.get("type") != "Split"]
    return others == ["ByteLevel"] and all(split.get("behavior") in _KEEPING for split in splits)
