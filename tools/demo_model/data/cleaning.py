"""Cleans public texts: plain characters, paragraphs, no contents tables, no slurs, no addresses."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from tools.demo_model.data.grammar import words

_PLAIN = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201b": "'", "\u2032": "'", "\u00b4": "'", "`": "'",
        "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u00ab": '"', "\u00bb": '"',
        "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": " - ", "\u2015": " - ",
        "\u2026": "...", "\u00a0": " ", "\u00ad": "", "\ufeff": "", "\u200b": "", "\t": " ",
        "\u00e6": "ae", "\u0153": "oe",
    }
)  # fmt: skip
_SPACES = re.compile(r" {2,}")
_DASHES = re.compile(r" ?-{2,} ?")
_NOTE = re.compile(r"\[(?:Illustration|Footnote|Transcriber)[^\]]*\]|\[\d+\]|\{\d+\}")
_EMPHASIS = re.compile(r"(?<!\w)_|_(?!\w)")
_ADDRESS = re.compile(r"https?:|www\.|@\w+\.|\b\d{3}[-. ]\d{3,4}[-. ]\d{4}\b|\b\d{3}-\d{4}\b")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"']? (?=[A-Z\"'])")
_FOREIGN = re.compile(
    "[^\n -~\u00e9\u00e8\u00ea\u00eb\u00e0\u00e2\u00e4\u00e7\u00f4\u00f6\u00fb\u00fc\u00ee\u00ef\u00a3\u00c9]"
)
_WORD = re.compile(r"[a-z]+")
# Slurs, coarse words and subjects that a small demo should not bring up; then stems of such words.
_UNWANTED_WORDS = frozenset(
    words("""
    darky, darkie, darkies, coon, coons, chink, chinks, jap, japs, kike, spic, wop, dago, dagoes, injun,
    injuns, redskin, redskins, savage, savages, squaw, squaws, breed, kaffir, mulatto, jewess, bitch, bastard,
    whore, harlot, slut, dick, penis, vagina, porn, sex, sexy, sexual, rape, raped, rapist, nude, naked,
    fag, retard, damn, damned, goddam,
    goddamned, crap, ass, asshole, boob, boobs, tits, horny, drunk, drunken, weed, cocaine,
    heroin, nazi, nazis, hitler
    """).train
)
_UNWANTED_STEMS = ("nigg", "negr", "fuck", "shit", "fagg", "suic", "chinam", "pickan", "gyps")
_STEM_LETTERS = 4
_STEMS = frozenset(stem[:_STEM_LETTERS] for stem in _UNWANTED_STEMS)


def plain(text: str) -> str:
    """Returns the text with plain quotes, dashes and spaces, in Latin letters only."""
    text = unicodedata.normalize("NFC", text).translate(_PLAIN)
    text = _EMPHASIS.sub("", text)
    # Runs of spaces go first: the dash pattern would try every start within them.
    text = _DASHES.sub(" - ", _NOTE.sub("", _SPACES.sub(" ", text)))
    text = _FOREIGN.sub("", text)
    return _SPACES.sub(" ", text).strip()


def is_wanted(text: str) -> bool:
    """Returns whether the text has no slur, no coarse word, no address and no telephone number."""
    said = set(_WORD.findall(text.lower()))
    if said & _UNWANTED_WORDS or _ADDRESS.search(text):
        return False
    return not any(word[:_STEM_LETTERS] in _STEMS and word.startswith(_UNWANTED_STEMS) for word in said)


_SURELY_PROSE_CHARS = 400


def is_prose(paragraph: str) -> bool:
    """Returns whether a paragraph is running text, rather than a heading, a table or a list of contents."""
    if len(paragraph) > _SURELY_PROSE_CHARS:
        return True
    letters = sum(map(str.isalpha, paragraph))
    capitals = sum(map(str.isupper, paragraph))
    if letters < 0.7 * len(paragraph.replace(" ", "")) or capitals > 0.3 * letters:
        return False
    return paragraph[-1:] in "\"'.!?:;,-" or len(paragraph) > 200


def reflow(lines: Iterable[str]) -> Iterator[str]:
    """Yields paragraphs of hard-wrapped lines; an empty line ends a paragraph."""
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line.strip())
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)


def split_long(paragraph: str, limit_chars: int) -> Iterator[str]:
    """Yields pieces of a paragraph that end at sentence ends and are not much longer than the limit."""
    if len(paragraph) <= limit_chars:
        yield paragraph
        return
    piece: list[str] = []
    length = 0
    for sentence in _SENTENCE_END.split(paragraph):
        piece.append(sentence)
        length += len(sentence) + 1
        if length > limit_chars:
            yield " ".join(piece)
            piece, length = [], 0
    if piece:
        yield " ".join(piece)


def pack(paragraphs: Iterable[str], limit_chars: int) -> Iterator[str]:
    """Yields texts of whole paragraphs, each about as long as the limit."""
    text: list[str] = []
    length = 0
    for paragraph in paragraphs:
        for piece in split_long(paragraph, limit_chars // 4):
            text.append(piece)
            length += len(piece)
            if length > limit_chars:
                yield "\n\n".join(text)
                text, length = [], 0
    if length > limit_chars // 20:
        yield "\n\n".join(text)
