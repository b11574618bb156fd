# ruff: noqa: E501  (sentences and word lists are easier to read unbroken)
"""Short stories tied to the request in front of them, as running text and as chats.

The request names who, what or where, and the story keeps to it.  Follow-ups (a question, a title, a shorter
version, another name) are answered from the story that was told.
"""

import re
from collections.abc import Callable, Iterator
from random import Random

from tools.demo_model.data import plots_friends, plots_journeys, plots_things, plots_wonders
from tools.demo_model.data.casting import Scene, cast
from tools.demo_model.data.documents import (
    Document,
    Message,
    Split,
    assistant,
    chat_document,
    system,
    text_document,
    user,
)
from tools.demo_model.data.grammar import capital, different, repair, with_article, write
from tools.demo_model.data.lexicon import ANIMALS, BOYS, GIRLS
from tools.demo_model.data.telling import Length, Story, plain_slots, tell

SOURCE = "stories"
ALL_PLOTS = plots_things.PLOTS + plots_friends.PLOTS + plots_journeys.PLOTS + plots_wonders.PLOTS
# The lost thing is the model's best-known request, so its plot comes more often.
_TRAINING_PLOTS = (*(plot for plot in ALL_PLOTS if not plot.heldout), plots_things.LOST, plots_things.LOST)
_HELDOUT_PLOTS = tuple(plot for plot in ALL_PLOTS if plot.heldout)
_HELDOUT_SHARE = 0.02
_TEXT_SHARE = 0.4
_THINK_SHARE = 0.12

_ASKS = (
    "[Tell me|Please tell me|Can you tell me|Write|Write me|I would like|Give me] a {size}story about {about}[.|, please.|]",
    "[Tell|Write] a {size}story [about|on] {about}.",
    "[Could you|Can you|Will you] [tell me|write] a {size}story about {about}?",
    "I want [to hear |]a {size}story about {about}.",
    "A {size}story about {about}, please.",
    "Story about {about}",
    "Make up a {size}story about {about}.",
    "Do you know a {size}story about {about}?",
)
_ABOUTS = (
    "{a_kind} who {clause}",
    "{a_kind} who {clause}",
    "{a_kind} [named|called] {hn}",
    "{a_kind} [named|called] {hn} who {clause}",
    "{a_kind}",
    "{look_kind}",
    "{a_kind} and {a_fkind}",
    "{look_kind} and {theme}",
    "{a_kind} who lived {home}",
    "{theme}",
)
_THING_ABOUTS = ("{a_kind} and a {t}", "{a_kind} and a {tt}", "a {tt}", "{hn}, {fn} and a {t}")
_FREE_ASKS = (
    "Tell me a story.",
    "Can you tell me a story?",
    "I'm bored. Tell me a story.",
    "Tell me a bedtime story, please.",
    "Write a short story.",
    "Do you know any stories?",
    "Please tell me something nice before I sleep.",
    "I would like to hear a story.",
)
_LEADS = ("", "", "", "", "", "[Of course.|Sure.|Here is a story.|Gladly.|Here you are.|Yes, I can.] ")
_SYSTEMS = (
    "You are a storyteller for children.",
    "You tell short stories in simple words.",
    "You are a helpful assistant.",
    "You are a kind assistant who likes to tell stories.",
    "Answer with a story.",
)
_THOUGHTS = (
    "The user wants a story about {about}. The hero is {hn} the {kind}. {capital_he} {clause}. In the end {outcome}.",
    "I need a story with {about}. I will call the hero {hn}. First {he} {clause}. Then {outcome}.",
    "Story: {about}. Hero: {hn}. Problem: {he} {clause}. Ending: {outcome}.",
    "The story should be about {about}. {hn} meets {fn}. At the end, {outcome}.",
)


def generate(rng: Random, count: int) -> Iterator[Document]:
    """Yields ``count`` stories: two in five as text, the rest as chats."""
    for _ in range(count):
        split: Split = "heldout" if rng.random() < _HELDOUT_SHARE else "train"
        plot_pool = _HELDOUT_PLOTS if split == "heldout" and rng.random() < 0.5 else _TRAINING_PLOTS
        scene = cast(rng, rng.choice(plot_pool), split)
        if rng.random() < _TEXT_SHARE:
            yield _text(rng, scene, split)
        else:
            form = rng.choices(tuple(_FORMS), weights=tuple(_FORMS.values()))[0]
            yield form(rng, scene, split)


def _length(rng: Random) -> Length:
    lengths: tuple[Length, ...] = ("short", "medium", "medium", "long")
    return rng.choice(lengths)


def _text(rng: Random, scene: Scene, split: Split) -> Document:
    story = tell(rng, scene, _length(rng))
    text = story.text
    if rng.random() < 0.4:
        text = f"{story.title}\n\n{text}"
    return text_document(SOURCE, text, split=split)


def _about(rng: Random, scene: Scene) -> str:
    hero = scene.hero
    slots = plain_slots(scene)
    if scene.world in ("wild", "sea") and rng.random() < 0.4:
        slots.update(he="it", him="it", his="its", himself="itself")
    slots["a_kind"] = with_article(hero.kind)
    slots["look_kind"] = with_article(f"{hero.look} {hero.kind}".strip())
    slots["a_fkind"] = with_article(scene.friend.kind)
    slots["theme"] = scene.plot.theme
    wordings = _ABOUTS + (_THING_ABOUTS if _uses_thing(scene) else ())
    return _lower_first(write(rng, wordings, slots), hero.name)


def _uses_thing(scene: Scene) -> bool:
    required = " ".join(word for beat in scene.plot.beats if not beat.optional for word in beat.wordings[:1])
    return "{t}" in required or "{tt}" in required


def _lower_first(text: str, name: str) -> str:
    return text if text.startswith(name) else text[:1].lower() + text[1:]


def _request(rng: Random, scene: Scene, length: Length) -> tuple[str, str]:
    """Returns what the user asks and what the story shall be about; the latter is empty when anything will do."""
    if rng.random() < 0.08:
        return rng.choice(_FREE_ASKS), ""
    about = _about(rng, scene)
    size = rng.choice(
        {"short": ("short ", "short ", "very short "), "medium": ("", "", "short "), "long": ("", "long ")}[length]
    )
    ask = write(rng, _ASKS, {"about": about, "size": size})
    if scene.plot.name == "sleep" and rng.random() < 0.5:
        ask = ask.replace("story", "bedtime story", 1)
    return (ask.lower() if rng.random() < 0.04 else ask), about


def _opening_turns(rng: Random, scene: Scene, length: Length | None = None) -> tuple[list[Message], Story, bool]:
    """Returns the request and the story as turns, the story, and whether the assistant thought first."""
    length = length or _length(rng)
    story = tell(rng, scene, length)
    ask, about = _request(rng, scene, length)
    turns = [system(rng.choice(_SYSTEMS))] if rng.random() < 0.12 else []
    text = story.text
    text = f"{story.title}\n\n{text}" if rng.random() < 0.12 else f"{write(rng, _LEADS, {})} {text}".strip()
    thinks = bool(about) and rng.random() < _THINK_SHARE
    reasoning = None
    if thinks:
        slots = {**plain_slots(scene), "about": about, "capital_he": capital(scene.slots["he"])}
        reasoning = write(rng, _THOUGHTS, slots)
    return [*turns, user(ask), assistant(text, reasoning=reasoning)], story, thinks


def _chat(turns: list[Message], split: Split, *, thinks: bool = False) -> Document:
    return chat_document(SOURCE, turns, split=split, enable_thinking=True if thinks else None)


def _plain(rng: Random, scene: Scene, split: Split) -> Document:
    turns, _, thinks = _opening_turns(rng, scene)
    return _chat(turns, split, thinks=thinks)


def _asked_about(rng: Random, scene: Scene, split: Split) -> Document:
    turns, story, _ = _opening_turns(rng, scene)
    turns = [_without_thought(turn) for turn in turns]
    turns += _question_turns(rng, story)
    return _chat(turns, split)


def _without_thought(turn: Message) -> Message:
    return {"role": turn["role"], "content": turn["content"]}


def _question_turns(rng: Random, story: Story) -> list[Message]:
    scene = story.scene
    name, kind = scene.hero.name, scene.hero.kind
    known = [(ask, answer) for ask, answer in story.questions if _is_told(story, answer)]
    known += [
        ("Who is the story about?", f"The story is about {name}, {with_article(kind)}."),
        (f"What kind of {_sort_of(scene)} is {name}?", f"{name} is {with_article(kind)}."),
        ("What do we learn from the story?", story.lesson),
        ("What is the name of the hero?", f"The name of the hero is {name}."),
    ]
    if scene.slots["home"] in story.text.lower():
        known.append((f"Where did {name} live?", f"{name} lived {scene.slots['home']}."))
    if f"felt {scene.slots['glad']}" in story.paragraphs[-1]:
        known.append((f"How did {name} feel at the end?", f"At the end {name} felt {scene.slots['glad']}."))
    if story.scene.friend.name in story.text:
        friend = story.scene.friend
        known.append((f"Who is {friend.name}?", f"{friend.name} is {with_article(friend.kind)}."))
    unknown = (
        (f"How old is {name}?", f"The story does not say how old {name} is."),
        (f"What is the name of {name}'s sister?", f"I do not know. The story does not mention a sister of {name}."),
        ("What day of the month was it?", "The story does not say that."),
    )
    asked = rng.sample(known, min(len(known), rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.12:
        asked.append(rng.choice(unknown))
    return [turn for ask, answer in asked for turn in (user(ask), assistant(answer))]


def _sort_of(scene: Scene) -> str:
    return "animal" if scene.world in ("wild", "sea") else "character"


def _is_told(story: Story, answer: str) -> bool:
    """Returns whether the answer's longest words all stand in the story, so that it can be answered from it."""
    told = story.text.lower()
    return all(word in told for word in re.findall(r"[a-z]{5,}", answer.lower()) if word not in _ANSWER_WORDS)


_ANSWER_WORDS = frozenset(
    [
        "story",
        "there",
        "about",
        "quarrelled",
        "thought",
        "showed",
        "danger",
        "place",
        "friend",
        "became",
        "helped",
        "first",
        "wanted",
        "would",
    ]
)


def _shorter(rng: Random, scene: Scene, split: Split) -> Document:
    turns, story, _ = _opening_turns(rng, scene, "medium")
    ask = rng.choice(
        ("Make it shorter.", "Can you make it shorter?", "Tell it in two sentences.", "Shorter, please.", "Sum it up.")
    )
    return _chat([*map(_without_thought, turns), user(ask), assistant(story.summary)], split)


def _titled(rng: Random, scene: Scene, split: Split) -> Document:
    turns, story, _ = _opening_turns(rng, scene, rng.choice(("short", "medium")))
    turns[-1] = assistant(story.text)
    ask = rng.choice(
        ("Give it a title.", "What would be a good title?", "What is the story called?", "Now a title, please.")
    )
    answer = write(
        rng,
        ('"{title}"', "{title}", '[A good title would be|I would call it|The title is] "{title}".'),
        {"title": story.title},
    )
    return _chat([*map(_without_thought, turns), user(ask), assistant(answer)], split)


def _renamed(rng: Random, scene: Scene, split: Split) -> Document:
    turns, _story, _ = _opening_turns(rng, scene, rng.choice(("short", "medium")))
    turns = [_without_thought(turn) for turn in turns]
    hero = scene.hero
    pool = BOYS if hero.gender == "he" else GIRLS
    new = different(rng, [name for name in pool.train if name != scene.friend.name], than=hero.name)
    ask = rng.choice(
        (
            f"Change the name of the {hero.kind} to {new}.",
            f"Tell it again, but call the {hero.kind} {new}.",
            f"Please use the name {new} instead of {hero.name}.",
        )
    )
    text = re.sub(rf"\b{re.escape(hero.name)}\b", new, turns[-1]["content"])
    return _chat([*turns, user(ask), assistant(text)], split)


def _recast(rng: Random, scene: Scene, split: Split) -> Document:
    if scene.world != "wild":
        return _renamed(rng, scene, split)
    turns, _, _ = _opening_turns(rng, scene, "short")
    turns = [_without_thought(turn) for turn in turns]
    kind = scene.hero.kind
    taken = turns[-1]["content"]
    new = rng.choice([word for word in ANIMALS.train if word not in taken])
    ask = rng.choice(
        (
            f"Now tell it about {with_article(new)}.",
            f"The same story, but with {with_article(new)} instead of the {kind}.",
        )
    )
    text = repair(re.sub(rf"\b{re.escape(kind)}\b", new, taken))
    return _chat([*turns, user(ask), assistant(text)], split)


_NEXT = (
    "The next day, {hn} and {fn} met again {spot2}. They talked about what had happened and laughed. Then they ate {food} together.",
    '{hn} slept long and well. In the morning {fn} stood at the door. "What shall we do today?" asked {fn}. "Something quiet," said {hn}.',
    "After that, {hn} told everyone what had happened. {fn} told it, too, but a little differently. They are still friends today.",
    '{hn} went to see {g}. {g} listened to the whole story and nodded. "You have learned something," said {g}.',
    'Many years later, {hn} still remembered that day. "Do you remember?" {he} asked. "Of course I do," said {fn}.',
)


def _went_on(rng: Random, scene: Scene, split: Split) -> Document:
    turns, _, _ = _opening_turns(rng, scene)
    ask = rng.choice(
        ("What happened next?", "And then?", "Go on.", "Please go on with the story.", "What happened after that?")
    )
    answer = write(rng, _NEXT, plain_slots(scene))
    return _chat([*map(_without_thought, turns), user(ask), assistant(answer)], split)


def _continued(rng: Random, scene: Scene, split: Split) -> Document:
    story = tell(rng, scene, _length(rng))
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", story.text.replace("\n\n", " \n\n"))
    cut = rng.choice((1, 1, 2, 3))
    begin, rest = " ".join(sentences[:cut]).strip(), " ".join(sentences[cut:]).replace(" \n\n", "\n\n").strip()
    ask = rng.choice(
        ("Continue the story: {}", "Go on: {}", "Continue: {}", "Finish this story.\n\n{}", "{}", "Please continue. {}")
    )
    return _chat([user(ask.format(begin.replace(" \n\n", "\n\n"))), assistant(rest)], split)


def _read(rng: Random, scene: Scene, split: Split) -> Document:
    story = tell(rng, scene, rng.choice(("short", "medium")))
    turns = _question_turns(rng, story)
    ask = rng.choice(("Read this story and answer: {q}\n\n{s}", "{s}\n\n{q}", "Here is a story.\n\n{s}\n\n{q}"))
    turns[0] = user(ask.format(q=turns[0]["content"], s=story.text))
    return _chat(turns, split)


def _summed_up(rng: Random, scene: Scene, split: Split) -> Document:
    story = tell(rng, scene, rng.choice(("short", "medium")))
    ask = rng.choice(
        ("Sum up this story in two sentences.\n\n{}", "{}\n\nWhat is this story about?", "{}\n\nTell it in short.")
    )
    return _chat([user(ask.format(story.text)), assistant(story.summary)], split)


def _tiny(rng: Random, scene: Scene, split: Split) -> Document:
    story = tell(rng, scene, "short")
    about = _about(rng, scene)
    ask = write(
        rng,
        (
            "Tell me a story about {about} in two sentences.",
            "A story about {about}, in two sentences.",
            "[Write|Tell me] a very, very short story about {about}.",
        ),
        {"about": about},
    )
    return _chat([user(ask), assistant(story.summary)], split)


_Form = Callable[[Random, Scene, Split], Document]
_FORMS: dict[_Form, int] = {
    _plain: 46,
    _asked_about: 14,
    _shorter: 5,
    _titled: 5,
    _renamed: 4,
    _recast: 4,
    _went_on: 4,
    _continued: 7,
    _read: 7,
    _summed_up: 2,
    _tiny: 4,
}
