"""Building the data, and cleaning and reading public texts."""

import json
import lzma
from pathlib import Path
from random import Random

import pytest

from tools.demo_model.data import build
from tools.demo_model.data.cleaning import is_prose, is_wanted, pack, plain, reflow
from tools.demo_model.data.corpora import CORPORA, read_corpus


def write_corpus(folder: Path, file: str, text: str) -> None:
    with lzma.open(folder / file, "wt", encoding="utf-8") as stream:
        stream.write(text)


def test_a_smoke_build_writes_every_generator_and_a_summary(tmp_path: Path) -> None:
    assert build.main(["--out", str(tmp_path), "--smoke", "--workers", "1"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [entry["name"] for entry in summary] == [recipe.name for recipe in build.GENERATORS]
    for entry in summary:
        lines = (tmp_path / f"{entry['name']}.jsonl").read_text().splitlines()
        assert len(lines) == entry["documents"] > 0
    assert not list(tmp_path.glob(".*"))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        arguments = ["--out", str(tmp_path / name), "--smoke", "--workers", "1", "--only", "stories", "--seed", seed]
        assert build.main(arguments) == 0
    first, second, third = ((tmp_path / name / "stories.jsonl").read_bytes() for name in "abc")
    assert first == second != third


def test_an_unknown_source_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--out", str(tmp_path), "--only", "poems"]) == 1
    assert "poems" in capsys.readouterr().err


def test_a_missing_corpus_says_where_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--corpus", str(tmp_path), "--out", str(tmp_path / "out"), "--only", "eltec", "--workers", "1"]
    assert build.main(arguments) == 1
    assert "COST-ELTeC" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_a_damaged_corpus_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wordnet.jsonl.xz").write_bytes(b"not xz")
    arguments = ["--corpus", str(tmp_path), "--out", str(tmp_path / "out"), "--only", "word_meanings", "--workers", "1"]
    assert build.main(arguments) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_short_stories_keep_their_title_and_leave_out_bad_ones(tmp_path: Path) -> None:
    good = "The fox looked at the moon for a long time and was glad. " * 20
    text = f"Grimm - The Fox\n{good}\n{good}\n\nThe Other\nHe was drunk. {good}\n"
    write_corpus(tmp_path, "lcats_short_stories.txt.xz", text)
    entry = next(entry for entry in CORPORA if entry.name == "short_stories")
    documents = list(read_corpus(entry, tmp_path, Random(1)))
    assert len(documents) == 1
    assert documents[0]["kind"] == "text"
    assert documents[0]["text"].startswith("The Fox\n\nThe fox looked")


def test_small_talk_is_spelled_out_and_ends_before_the_first_unsuitable_turn(tmp_path: Path) -> None:
    turns = ["hi, im happy today", "why is that?", "i got a dog haha", "im glad", "mail me at a@b.org", "ok"]
    write_corpus(tmp_path, "chitchat.jsonl.xz", json.dumps({"turns": turns}) + "\n")
    entry = next(entry for entry in CORPORA if entry.name == "small_talk")
    (document,) = read_corpus(entry, tmp_path, Random(1))
    assert document["kind"] == "chat"
    said = [message["content"] for message in document["messages"]]
    assert said == ["Hi, I'm happy today.", "Why is that?", "I got a dog.", "I'm glad."]


def test_only_words_with_one_meaning_are_taught(tmp_path: Path) -> None:
    def row(word: str, gloss: str) -> str:
        entry = {"word": word, "pos": "noun", "synonyms": [], "definition": gloss, "examples": [f"{word} and {word}"]}
        return json.dumps(entry) + "\n"

    text = row("bank", "a place for money") + row("bank", "the side of a river") + row("teapot", "a vessel for tea")
    write_corpus(tmp_path, "wordnet.jsonl.xz", text.replace("vessel for tea", "pot with a spout"))
    entry = next(entry for entry in CORPORA if entry.name == "word_meanings")
    documents = list(read_corpus(entry, tmp_path, Random(1)))
    assert documents
    assert all("bank" not in str(document).lower() for document in documents)


def test_plain_text_has_plain_quotes_and_dashes() -> None:
    assert plain("\u201cIt\u2019s late\u2014go\u2026\u201d _now_ a_b") == '"It\'s late - go..." now a_b'


def test_a_long_run_of_spaces_becomes_one() -> None:
    assert plain("a" + " " * 100_000 + "b -- c") == "a b - c"


def test_reflow_joins_wrapped_lines() -> None:
    assert list(reflow(["one", "two", "", "", "three"])) == ["one two", "three"]


def test_packing_loses_no_sentence() -> None:
    sentences = [f"This is sentence number {number}." for number in range(200)]
    packed = " ".join(pack([" ".join(sentences)], 500)).replace("\n\n", " ")
    assert all(sentence in packed for sentence in sentences[:-5])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("A quiet day.", True), ("That damn dog!", False), ("Call 555-1234.", False), ("See www.example.org", False)],
)
def test_coarse_words_and_addresses_are_not_wanted(text: str, wanted: bool) -> None:
    assert is_wanted(text) is wanted


def test_headings_are_not_prose() -> None:
    assert not is_prose("CHAPTER IV.")
    assert not is_prose("Contents 1 2 3 4")
    assert is_prose("He went home and slept.")
