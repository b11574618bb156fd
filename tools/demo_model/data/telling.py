"""Tells a cast story: opening, beats, ending, title, summary, questions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from tools.demo_model.data.casting import Scene
from tools.demo_model.data.grammar import capital, repair, write

Length = Literal["short", "medium", "long"]

# Stand-ins for the friend until it is known which mention comes first.
_PLAIN_MENTION = "\x01"
_INTRO_MENTION = "\x02"
_MENTION = re.compile("[\x01\x02]")
_SMALL_WORDS = frozenset(["of", "the", "a", "an", "and", "in", "to", "for", "with", "from"])

_OPENINGS = (
    "[Once upon a time|Long ago|Once|There was a time when] there [was|lived] {intro}.",
    "Once upon a time, {intro} lived {home}.",
    "Once upon a time there was {intro}, who lived {home}.",
    "There was once {intro}. {hn} lived {home}.",
    "{home}, there lived {intro}.",
    "This is the story of {intro}, who lived {home}.",
    "Not so long ago, {intro} lived {home}.",
    "{intro} lived {home}.",
    "Far away, {home}, lived {intro}.",
    "{hn} was {plain_intro} who lived {home}.",
    "In a time that nobody remembers, {home}, there was {intro}.",
    "Do you know {hn}? {hn} was {plain_intro} who lived {home}.",
)
_TRAITS = (
    "{h} liked {food} and long walks.",
    "Every morning {h} looked out at the {weather} sky and smiled.",
    "Everybody there knew {h}.",
    "{h} was not big and not strong, but {he} had good ideas.",
    "There was always something to do.",
    "{h} liked {food}, but most of all {he} liked stories.",
    "{he} got up with the sun and went to bed with the moon.",
    "{h} knew every tree and every stone.",
    "Most days were quiet, and {h} liked quiet days.",
    "{h} could laugh about almost everything.",
    "Nothing much ever happened there, until this story began.",
    "{he} had a warm bed, a good window and a full plate of {food}.",
)
_ENDINGS = (
    "{lesson}.",
    "And that is how {h} learned something: {lesson_low}.",
    "The end.",
    "And if you pass by there today, you may still see {h} and {fn} [together|laughing|in the sun].",
    "{h} never forgot that day.",
    "And {he} told the story again and again, to everyone who wanted to hear it.",
    "And so the day ended well for {hn} [the {kind}|and {fn}].",
    "Since then, {h} often says: {lesson_low}.",
    "",
    "",
)
_SUMMARIES = (
    "{hn} the {kind} {clause}. {outcome}.",
    "{intro} {clause}. In the end, {outcome}.",
    "[There was once|Once there was] {intro}, who {clause}. [At last|In the end|Finally], {outcome}.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A told story with what may be said about it."""

    scene: Scene
    title: str
    paragraphs: tuple[str, ...]
    summary: str
    lesson: str
    questions: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """Returns the story without its title."""
        return "\n\n".join(self.paragraphs)


def tell(rng: Random, scene: Scene, length: Length = "medium") -> Story:
    """Returns the story of a scene; the friend is introduced at the first mention and only there."""
    plain = plain_slots(scene)
    slots = {**scene.slots, "f": _PLAIN_MENTION, "fintro": _INTRO_MENTION}
    slots["plain_intro"] = scene.hero.intro.rsplit(" [", 1)[0]
    lesson = write(rng, scene.plot.lesson, plain)
    slots["lesson"] = lesson
    slots["lesson_low"] = lesson[:1].lower() + lesson[1:]
    parts = _parts(rng, scene, slots, length)
    return Story(
        scene=scene,
        title=title_of(rng, scene),
        paragraphs=tuple(_introduce(rng, scene, _paragraphs(rng, parts, length))),
        summary=write(rng, _SUMMARIES, plain),
        lesson=f"{capital(lesson)}.",
        questions=tuple((write(rng, ask, plain), write(rng, answer, plain)) for ask, answer in scene.plot.questions),
    )


def plain_slots(scene: Scene) -> dict[str, str]:
    """Returns the slots with names in place of running mentions, for text outside the story."""
    slots = {**scene.slots, "h": scene.hero.name, "f": scene.friend.name}
    slots["fintro"] = scene.friend.intro
    slots["clause"] = scene.plot.clause
    slots["outcome"] = scene.plot.outcome
    return slots


def title_of(rng: Random, scene: Scene) -> str:
    """Returns a title for the scene."""
    slots = plain_slots(scene)
    slots["h"] = scene.hero.name
    titled = {
        "T": slots["t"],
        "Kind": slots["kind"],
        "G": slots["g"],
        "Skill_title": slots["skill"],
        "Food_title": slots["food"],
        "Pet_title": slots.get("pet", ""),
        "Last_title": slots.get("last_title", ""),
    }
    slots.update({key: title_case(value) for key, value in titled.items()})
    slots["Hn"] = scene.hero.name
    slots["Fn"] = scene.friend.name
    slots["Petname"] = slots["petname"]
    return title_case(write(rng, scene.plot.titles, slots))


def title_case(text: str) -> str:
    """Returns the text with capital letters on all but the small words."""
    parts = [word if word in _SMALL_WORDS else capital(word) for word in text.split()]
    return capital(" ".join(parts))


def _parts(rng: Random, scene: Scene, slots: dict[str, str], length: Length) -> list[str]:
    chance = {"short": 0.0, "medium": 0.6, "long": 1.0}[length]
    parts = [write(rng, _OPENINGS, slots)]
    if rng.random() < chance * 0.8:
        parts.append(write(rng, _TRAITS, slots))
    for beat in scene.plot.beats:
        if not beat.optional or rng.random() < chance:
            parts.append(write(rng, beat.wordings, slots))
    if length != "short" or rng.random() < 0.3:
        parts.append(write(rng, _ENDINGS, slots))
    return [part for part in parts if part]


def _paragraphs(rng: Random, parts: Sequence[str], length: Length) -> list[str]:
    if length == "short":
        return [" ".join(parts)]
    paragraphs: list[list[str]] = [[]]
    for part in parts:
        if len(paragraphs[-1]) >= rng.choice((1, 2, 2, 3)):
            paragraphs.append([])
        paragraphs[-1].append(part)
    return [" ".join(paragraph) for paragraph in paragraphs]


def _introduce(rng: Random, scene: Scene, paragraphs: Sequence[str]) -> list[str]:
    friend = scene.friend
    mentions = (friend.name, friend.name, friend.name, f"the {friend.kind}")
    known = False

    def mention(match: re.Match[str]) -> str:
        nonlocal known
        if known:
            return rng.choice(mentions)
        known = True
        if match.group() == _INTRO_MENTION:
            return write(rng, scene.friend.intro, {}).replace("A ", "a ", 1).replace("An ", "an ", 1)
        kind = "" if friend.kind in ("boy", "girl") else f" the {friend.kind}"
        return f"{scene.slots['his']} friend {friend.name}{kind}"

    return [repair(_MENTION.sub(mention, paragraph)) for paragraph in paragraphs]
