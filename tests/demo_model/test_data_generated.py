"""The generated texts: deterministic, in correct English, tied to their requests, with held-out words held out."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from random import Random

import pytest

from tools.demo_model.data import dialogues, idle_chats, lexicon, questions, stories
from tools.demo_model.data.arithmetic import difference_thought, sum_thought
from tools.demo_model.data.casting import cast
from tools.demo_model.data.documents import Document, Split, check_document
from tools.demo_model.data.grammar import Words, repair, with_article, write
from tools.demo_model.data.telling import tell

Generate = Callable[[Random, int], Iterator[Document]]
GENERATORS: dict[str, Generate] = {
    "stories": stories.generate,
    "dialogues": dialogues.generate,
    "questions": questions.generate,
}
COUNT = 400
LEXICON = [value for value in vars(lexicon).values() if isinstance(value, Words)]


@cache
def documents_of(name: str) -> tuple[Document, ...]:
    return tuple(GENERATORS[name](Random(7), COUNT))


def texts_of(document: Document) -> list[str]:
    if document["kind"] == "text":
        return [document["text"]]
    return [message["content"] + message.get("reasoning_content", "") for message in document["messages"]]


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_the_same_documents_again(name: str) -> None:
    assert tuple(GENERATORS[name](Random(7), COUNT)) == documents_of(name)
    assert tuple(GENERATORS[name](Random(8), COUNT)) != documents_of(name)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_document_has_the_right_shape(name: str) -> None:
    for document in documents_of(name):
        check_document(document)


@pytest.mark.parametrize("name", GENERATORS)
def test_no_slot_and_no_choice_is_left_open(name: str) -> None:
    for document in documents_of(name):
        for text in texts_of(document):
            assert not re.search(r"[\[\]{}\x01\x02]", text), text


@pytest.mark.parametrize("name", ["stories", "dialogues"])
def test_articles_agree_with_the_next_word(name: str) -> None:
    for document in documents_of(name):
        for text in texts_of(document):
            assert not re.search(r"\ba [aeio]\w", text.replace("a one", "")), text
            assert not re.search(r"\b[Aa]n [bcdfgjklmnpqrstvwxyz]", text), text


@pytest.mark.parametrize("name", ["stories", "dialogues"])
def test_no_word_and_no_name_is_doubled(name: str) -> None:
    for document in documents_of(name):
        for text in texts_of(document):
            assert not re.search(r"\b(?!bye)([a-z]{2,}) \1\b", text), text
            assert not re.search(r"\b([A-Z][a-z]+),? and \1\b", text), text


@pytest.mark.parametrize("name", GENERATORS)
def test_training_documents_have_no_held_out_word(name: str) -> None:
    held_out = re.compile("|".join(rf"\b{re.escape(word)}\b" for group in LEXICON for word in group.heldout))
    seen: set[Split] = set()
    for document in documents_of(name):
        seen.add(document["split"])
        if document["split"] == "train":
            for text in texts_of(document):
                assert not held_out.search(text), text
    assert seen == {"train", "heldout"}


def test_no_word_is_both_for_training_and_held_out() -> None:
    trained = {word for group in LEXICON for word in group.train}
    assert not trained & {word for group in LEXICON for word in group.heldout}


def test_hero_friend_and_elder_are_different_in_every_plot() -> None:
    rng = Random(3)
    for plot in stories.ALL_PLOTS:
        for _ in range(30):
            scene = cast(rng, plot, "train")
            assert scene.hero.name != scene.friend.name
            assert scene.hero.kind != scene.friend.kind
            assert not {scene.hero.kind, scene.friend.kind, scene.hero.name, scene.friend.name} & set(
                scene.slots["g"].split()
            )


def test_a_story_is_about_whom_the_request_asked_for() -> None:
    asked = re.compile(r"about an? (?:\w+ )?(\w+) who ")
    checked = 0
    for document in documents_of("stories"):
        if document["kind"] == "chat":
            request, story = [turn["content"] for turn in document["messages"] if turn["role"] != "system"][:2]
            match = asked.search(request)
            if match:
                checked += 1
                assert match.group(1) in story, (request, story)
    assert checked > 20


def test_every_variant_of_every_plot_can_be_told() -> None:
    rng = Random(5)
    for plot in stories.ALL_PLOTS:
        for _ in range(8 * len(plot.variants)):
            scene = cast(rng, plot, "train")
            told = tell(rng, scene, "long")
            assert scene.hero.name in told.text
            assert told.text[0].isupper()
            assert all(answer.endswith((".", '."', '.".')) for _, answer in told.questions), told.questions


def test_the_friend_is_introduced_once() -> None:
    rng = Random(6)
    for plot in stories.ALL_PLOTS:
        scene = cast(rng, plot, "train")
        told = tell(rng, scene, "long").text
        intros = re.findall(rf"(?:named|[a-z] called|name was|friend) {re.escape(scene.friend.name)}\b", told)
        assert len(intros) <= 1, told


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("owl", "an owl"),
        ("unicorn", "a unicorn"),
        ("hour", "an hour"),
        ("fox", "a fox"),
        ("one-eyed cat", "a one-eyed cat"),
    ],
)
def test_the_article_follows_the_sound(phrase: str, expected: str) -> None:
    assert with_article(phrase) == expected


def test_repair_sets_articles_and_capitals_but_not_after_a_question_in_quotes() -> None:
    assert repair('a owl sat.  it said, "who?" asked the fox.') == 'An owl sat. It said, "who?" asked the fox.'


def test_write_decides_choices_inside_slots() -> None:
    assert write(Random(1), "{Who} ran.", {"who": "[fox|fox]"}) == "Fox ran."


def test_the_steps_of_sums_and_differences_are_right() -> None:
    for first in range(21):
        for second in range(21 - first):
            assert sum_thought(first, second).rstrip(".").endswith(str(first + second))
            assert str(first) in difference_thought(first + second, second)


def test_sums_in_answers_are_right() -> None:
    checked = 0
    for document in documents_of("questions"):
        for text in texts_of(document):
            match = re.fullmatch(r"(\d+) (?:plus|\+) (\d+) (?:is|=) (\d+)\.?", text)
            if match:
                checked += 1
                assert int(match[1]) + int(match[2]) == int(match[3])
    assert checked > 5


def test_idle_chats_declare_tools_and_call_none() -> None:
    for document in idle_chats.generate(Random(2), 20):
        assert document["kind"] == "chat"
        assert document["tools"]
        assert not any("tool_calls" in message for message in document["messages"])
