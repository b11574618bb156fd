# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Casts a story: draws a hero, a friend, an elder, a thing and places that are all different from each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

from tools.demo_model.data import lexicon
from tools.demo_model.data.documents import Split
from tools.demo_model.data.grammar import Words, different, with_article, words
from tools.demo_model.data.plots import Plot

Gender = Literal["he", "she", "it"]
World = Literal["child", "wild", "grown", "sea"]

PRONOUNS: Mapping[Gender, tuple[str, str, str, str]] = {
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
}

_ONLY_HE = frozenset(
    words(
        "king, prince, wizard, fisherman, postman, milkman, night watchman, ferryman, bull, rooster, tomcat, ram, ox"
    ).train
)
_ONLY_SHE = frozenset(words("queen, princess, witch, fairy, mermaid, hen, cow, mare").train)

_SAD = ("sad", "very sad", "worried", "unhappy", "sad and tired", "miserable", "down", "quite upset")
_GLAD = ("happy", "glad", "very happy", "proud", "happy and proud", "full of joy", "happier than ever", "very glad")
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_JUNK = (
    "an old boot", "a dry leaf", "a rusty nail", "a sleeping cat", "an empty bottle", "a broken cup", "a grey stone",
    "a piece of string", "a worm", "a wet newspaper", "a lonely sock", "a pine cone", "a spider web", "an old newspaper",
    "a beetle", "a bent spoon", "some dust", "a puddle", "a lost button", "a toad",
)  # fmt: skip
_THING_LOOKS = words("small, new, beautiful, shiny, fine, old, big, lovely, simple, special, strange, tiny")
_EDIBLE_LOOKS = words("big, small, fresh, sweet, fine, round, lovely")
_EDIBLE = frozenset(
    words(
        "apple, pear, orange, lemon, peach, plum, melon, coconut, egg, loaf of bread, cake, pie, cookie, sandwich,"
        "pancake, jar of honey, pot of jam, bag of nuts, carrot, pumpkin, walnut"
    ).train
)
_OUTSIDE = words("""
in the garden, behind the barn, near the well, by the river, at the edge of the wood, on the green hill, beside the pond,
in the meadow, near the old mill, by the gate, under the oak tree, beside the stream, in the orchard, near the windmill,
in the wood, by the lake, in the park, at the foot of the hill, near the bridge, in the field, beside the old wall,
behind the school, near the beach, in the valley, by the crossroads, next to the fountain # in the vineyard""")
_FAMILY: tuple[tuple[str, Gender], ...] = (
    ("grandmother", "she"), ("grandfather", "he"), ("mother", "she"), ("father", "he"), ("Aunt Rosa", "she"),
    ("Uncle Ben", "he"), ("old Mr Green", "he"), ("old Mrs Hill", "she"), ("Mrs Brown", "she"), ("Mr Stone", "he"),
    ("Aunt May", "she"), ("Uncle Joe", "he"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Character:
    """Somebody in a story: a name, a kind such as "fox" or "girl", a look such as "shy", and a gender."""

    name: str
    kind: str
    look: str
    gender: Gender

    @property
    def intro(self) -> str:
        """Returns how a story brings the character in: "a shy fox named Pip"."""
        return f"{with_article(f'{self.look} {self.kind}'.strip())} [named|called|whose name was] {self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A cast with its slots; ``slots`` fits every template of the plot it was cast for."""

    plot: Plot
    hero: Character
    friend: Character
    world: World
    slots: Mapping[str, str]


def cast(rng: Random, plot: Plot, split: Split) -> Scene:
    """Returns a scene for the plot; hero, friend and elder differ in name and in kind."""
    world = _world(rng, plot)
    hero = _character(rng, split, world)
    friend = _friend_of(rng, hero, world)
    slots = _role_slots(hero, friend)
    slots.update(_elder_slots(rng, world, taken={hero.kind, friend.kind, hero.name, friend.name}))
    variant = rng.choice(plot.variants)
    slots.update(_thing_slots(rng, split, variant.get("t_pool") or plot.things))
    slots.update(_setting_slots(rng, split, world))
    slots.update(variant)
    slots["junk_animal"] = different(rng, ("squirrel", "sparrow", "snail", "mole", "goose"), than=hero.kind)
    return Scene(plot=plot, hero=hero, friend=friend, world=world, slots=slots)


def _world(rng: Random, plot: Plot) -> World:
    if plot.sea:
        return "sea"
    worlds: tuple[World, ...] = ("child", "wild", "grown")
    return rng.choices(worlds, weights=(34, 46, 20))[0]


def _character(rng: Random, split: Split, world: World) -> Character:
    look = lexicon.ADJECTIVES.draw(rng, split)
    if world == "child":
        gender: Gender = rng.choice(("he", "she"))
        names = lexicon.BOYS if gender == "he" else lexicon.GIRLS
        kind = "boy" if gender == "he" else "girl"
        if look == "old":
            look = "little"
        return Character(name=names.draw(rng, split), kind=kind, look=look, gender=gender)
    kinds: Words = {"wild": lexicon.ANIMALS, "sea": lexicon.SEA_ANIMALS}.get(world) or rng.choice(
        (lexicon.JOBS, lexicon.JOBS, lexicon.BEINGS)
    )
    kind = kinds.draw(rng, split)
    gender = _gender(rng, kind)
    if world == "grown":
        names = lexicon.BOYS if gender == "he" else lexicon.GIRLS
        look = "" if rng.random() < 0.5 or look == "little" else look
    else:
        names = rng.choice((lexicon.PET_NAMES, lexicon.BOYS if gender == "he" else lexicon.GIRLS))
        look = "" if kind.startswith(("baby", "bear cub", "kitten", "puppy")) and look in ("old", "young") else look
    return Character(name=names.draw(rng, split), kind=kind, look=look, gender=gender)


def _gender(rng: Random, kind: str) -> Gender:
    if kind in _ONLY_HE:
        return "he"
    if kind in _ONLY_SHE:
        return "she"
    return rng.choice(("he", "she"))


def _friend_of(rng: Random, hero: Character, world: World) -> Character:
    if world != "sea":
        world = rng.choice(("child", "wild")) if world in ("child", "grown") else "wild"
    while True:
        friend = _character(rng, "train", world)
        if friend.name != hero.name and friend.kind != hero.kind and friend.kind not in hero.kind.split():
            return friend


def _role_slots(hero: Character, friend: Character) -> dict[str, str]:
    he, him, his, himself = PRONOUNS[hero.gender]
    fhe, fhim, fhis, fhimself = PRONOUNS[friend.gender]
    return {
        "h": f"[{hero.name}|{hero.name}|{hero.name}|the {hero.kind}]",
        "hn": hero.name,
        "kind": hero.kind,
        "intro": hero.intro,
        "he": he,
        "him": him,
        "his": his,
        "himself": himself,
        "fn": friend.name,
        "fkind": friend.kind,
        "fhe": fhe,
        "fhim": fhim,
        "fhis": fhis,
        "fhimself": fhimself,
    }


def _elder_slots(rng: Random, world: World, taken: set[str]) -> dict[str, str]:
    while True:
        if world in ("wild", "sea"):
            pool = lexicon.ANIMALS if world == "wild" else lexicon.SEA_ANIMALS
            kind = rng.choice(pool.train)
            phrase, gender = f"the old {kind}", _gender(rng, kind)
        elif world == "child" and rng.random() < 0.7:
            phrase, gender = rng.choice(_FAMILY)
            kind = phrase.split()[-1]
            if phrase.islower():
                phrase = f"{{his}} {phrase}"
        else:
            kind = rng.choice(lexicon.JOBS.train)
            phrase, gender = f"the {kind}", _gender(rng, kind)
        if kind not in taken and not taken & set(phrase.split()) and not kind.startswith("baby"):
            break
    he, him, his, _ = PRONOUNS[gender]
    return {"g": phrase, "ghe": he, "ghim": him, "ghis": his}


def _thing_slots(rng: Random, split: Split, pool: str) -> dict[str, str]:
    thing = (words(pool) if pool else lexicon.THINGS).draw(rng, split)
    looks = _THING_LOOKS
    if len(thing.split()) == 1 and rng.random() < 0.6:
        looks = lexicon.COLOURS
    if thing in _EDIBLE:
        looks = _EDIBLE_LOOKS
    look = looks.draw(rng, split)
    return {"t": thing, "tt": f"{look} {thing}", "tt_adj": look}


def _setting_slots(rng: Random, split: Split, world: World) -> dict[str, str]:
    sea = world == "sea"
    homes = {"sea": lexicon.SEA_HOMES, "wild": lexicon.WILD_HOMES}.get(world, lexicon.HOMES)
    spots = (lexicon.SEA_SPOTS if sea else lexicon.SPOTS).sample(rng, split, 3)
    return {
        "home": homes.draw(rng, split),
        "outside": (lexicon.SEA_SPOTS if sea else _OUTSIDE).draw(rng, split),
        "spot": spots[0],
        "spot2": spots[1],
        "spot3": spots[2],
        "time": rng.choice(lexicon.TIMES.train),
        "weather": lexicon.WEATHERS.draw(rng, split),
        "food": lexicon.MEALS.draw(rng, split),
        "skill": (lexicon.SEA_SKILLS if sea else lexicon.SKILLS).draw(rng, split),
        "fear": (lexicon.SEA_FEARS if sea else lexicon.FEARS).draw(rng, split),
        "sad": rng.choice(_SAD),
        "glad": rng.choice(_GLAD),
        "number": rng.choice(_NUMBERS),
        "junk": rng.choice(_JUNK),
        "petname": rng.choice(("Bolt", "Spark", "Nut", "Tiko", "Rolo", "Beep", "Zig", "Momo", "Lulu", "Kiki")),
    }
