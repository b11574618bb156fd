"""Does the draft head pay, and does deciding guess by guess ever lose?

Prose, code-like and repetitive text, and two kinds that nothing was tuned on: letters, and questions with answers. One
engine with its draft head continues each prompt four times side by side, a short piece of each reply in turn, in an
order drawn anew: plainly (`off`), with two drafts a pass (`on`), with what it takes to be worth it (`auto`), and
plainly once more, which is the control. Weights, memory, pool and moment are the same for all of them, while two
engines that do the same differ by some per cent for as long as they live. A pool of some of the experts has changed all
it holds within a piece, so it favours nobody. `auto` learns from its own replies only; the first ones are told apart.

Reported are ratios of the time that all replies to a kind of text took, in wall clock and in processor time, with a
bootstrap interval of 95% over replies. What the control comes to is what this method takes for a difference where there
is none.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from benchmarks.demo import demo_directory
from benchmarks.pairing import Estimate, total_ratio
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import GREEDY
from slotstream_core.diagnostics.continuing import read_prompt
from slotstream_core.events import DraftCounts
from slotstream_core.generation.decoding import Decoder, PlainDecoder, Row
from slotstream_core.generation.draft_depth import DEFAULT_DEPTH, DepthPolicy, FixedDepth
from slotstream_core.generation.sampling import Sampler
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.state.sequence import SequenceState
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest

Mode = Literal["off", "on", "auto", "again"]

MODES: Final[tuple[Mode, ...]] = ("off", "on", "auto", "again")
NAMES: Final = ("Lily", "Tom", "Anna", "Ben", "Mia", "Max", "Sue", "Tim")
PLACES: Final = ("by the sea", "in the forest", "on a hill", "near the river", "in the city")
CITIES: Final = ("Paris", "Rome", "London", "Berlin", "Madrid", "Oslo", "Vienna")
THINGS: Final = ("garden", "ball", "boat", "bird", "cake", "tree", "kite")


def prose(number: int) -> str:
    """The beginning of a story."""
    name, place = NAMES[number % len(NAMES)], PLACES[number % len(PLACES)]
    return f"Once upon a time, a child called {name} lived {place}. One day {name} saw a {THINGS[number % len(THINGS)]}"


def code_like(number: int) -> str:
    """Calls of a tool, or lines of numbers that go on regularly."""
    if number % 2:
        step = 2 + number % 5
        return "".join(f"x: {row}, y: {step * row}\n" for row in range(1, 4)) + "x:"
    cities = [CITIES[(number + place) % len(CITIES)] for place in range(2)]
    return "".join(f'{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n' for city in cities) + '{"name":'


def repetitive(number: int) -> str:
    """The same words or lines over and over."""
    if number % 2:
        names = "ijkmnpq"
        loops = [names[(number + place) % len(names)] for place in range(2)]
        lines = "".join(f"for {name} in range(10):\n    print({name})\n" for name in loops)
        return f"import os\nimport sys\n\n{lines[: lines.rindex('(') + 1]}"
    name = NAMES[number % len(NAMES)]
    return f"Run, {name}, run! " * 3 + "Run,"


def letter(number: int) -> str:
    """The beginning of a letter."""
    name, thing = NAMES[number % len(NAMES)], THINGS[number % len(THINGS)]
    return f"Dear {name},\n\nthank you for the {thing}. I hope that you and your family are well. Last week we"


def questions(number: int) -> str:
    """Short questions with their answers."""
    city, thing, name = (names[number % len(names)] for names in (CITIES, THINGS, NAMES))
    return f"Question: Did {name} ever see a {thing} in {city}?\nAnswer: Yes, {name} did.\n\nQuestion:"


TEXTS: Final[Mapping[str, Callable[[int], str]]] = {
    "prose": prose,
    "code-like": code_like,
    "repetitive": repetitive,
    "letter": letter,
    "questions": questions,
}


class Reply:
    """A greedy reply, made as far as it is asked for, plainly without a policy.

    Attributes:
        ids: Its tokens so far.
        wall_s: What they took, wall clock, without the prompt.
        processor_s: The same in processor time of all threads.
        ended: Whether there are no more.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        state: SequenceState,
        row: Row,
        policy: DepthPolicy | None,
        *,
        seen: Sequence[int],
        limit: int,
        ends: Collection[int],
    ) -> None:
        self._speculative: SpeculativeDecoder | None = None
        decoder: Decoder = PlainDecoder(loaded.model, state, Sampler(GREEDY))
        if policy is not None:
            decoder = self._speculative = SpeculativeDecoder(
                loaded.model, state, Sampler(GREEDY), policy, waited=loaded.waited, seen=seen
            )
        self._tokens = decoder.tokens(row, limit=limit)
        self._ends = ends
        self.ids: list[int] = []
        self.wall_s = self.processor_s = 0.0
        self.ended = False

    @property
    def drafts(self) -> DraftCounts:
        """What was drafted so far."""
        return DraftCounts() if self._speculative is None else self._speculative.counts

    def advance(self, tokens: int) -> None:
        """Go on by so many tokens, or to the end."""
        before = len(self.ids)
        started, processor = time.perf_counter(), time.process_time()
        for token in islice(self._tokens, tokens):
            self.ids.append(token)
            self.ended = token in self._ends
            if self.ended:
                break
        self.wall_s += time.perf_counter() - started
        self.processor_s += time.process_time() - processor
        self.ended = self.ended or len(self.ids) < before + tokens


Replies = Mapping[Mode, Reply]
"""To one prompt."""


def ratio(replies: Sequence[Replies], mode: Mode, over: Mode) -> tuple[Estimate, Estimate]:
    """How many times faster a mode was than another, in wall clock and in processor time."""
    return (
        total_ratio([each[over].wall_s for each in replies], [each[mode].wall_s for each in replies]),
        total_ratio([each[over].processor_s for each in replies], [each[mode].processor_s for each in replies]),
    )


def pace(replies: Sequence[Replies], mode: Mode) -> float:
    """Tokens a second."""
    return sum(len(each[mode].ids) for each in replies) / sum(each[mode].wall_s for each in replies)


def better(replies: Sequence[Replies]) -> Mode:
    """Whichever of `on` and `off` took less time for all replies to one kind of text."""
    return "on" if pace(replies, "on") > pace(replies, "off") else "off"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a draft head (default: the demo)")
    parser.add_argument("--tokens", type=int, default=192, help="most tokens of a reply")
    parser.add_argument("--piece", type=int, default=12, help="tokens of a piece")
    parser.add_argument("--rounds", type=int, default=8, help="prompts of each kind of text")
    parser.add_argument("--experts-per-layer", type=int, nargs="+", default=[16, 64], help="pool sizes")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="kinds of text")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    directory = options.model or demo_directory()
    rows: list[tuple[str, ...]] = []
    values: dict[str, float] = {}
    for experts in options.experts_per_layer:
        found = measure(
            directory,
            experts,
            texts=options.texts,
            tokens=options.tokens,
            piece=options.piece,
            rounds=options.rounds,
        )
        for text, replies in found.items():
            name = f"{text} {experts} experts"
            row, own = judge(replies)
            rows.append((name, *row))
            values |= {f"{name} {key}": value for key, value in own.items()}
        for name, wall, processor in together(found):
            rows.append((f"{name} {experts} experts", *("",) * 4, wall.shown(3), processor.shown(3), *("",) * 3))
            values |= wall.values(f"{name} {experts} experts wall_ratio")
            values |= processor.values(f"{name} {experts} experts processor_ratio")
    settings = {"texts": options.texts, "tokens": options.tokens, "piece": options.piece}
    settings |= {"rounds": options.rounds}
    columns = ("text", "off", "on", "auto tok/s", "on/off", "auto/better", "processor", "off/off", "accepted", "depth")
    report(
        BenchmarkResult(benchmark="speculation", settings=settings, values=values),
        table=format_table(columns, rows),
        record=options.record,
    )


def judge(replies: Sequence[Replies]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return a row of the table and the values of one kind of text."""
    paces = {mode: pace(replies, mode) for mode in ("off", "on", "auto")}
    wall, processor = ratio(replies, "auto", better(replies))
    on_ratio, control = ratio(replies, "on", "off")[0], ratio(replies, "again", "off")[0]
    drafted = {mode: sum(each[mode].drafts.drafted for each in replies) for mode in ("on", "auto")}
    accepted = sum(each["on"].drafts.accepted for each in replies) / max(1, drafted["on"])
    depth = drafted["auto"] / max(1, sum(sum(each["auto"].drafts.passes_by_depth) for each in replies))
    row = (
        *(f"{each:.1f}" for each in paces.values()),
        on_ratio.shown(3),
        wall.shown(3),
        processor.shown(3),
        control.shown(3),
        f"{accepted:.0%}",
        f"{depth:.2f}",
    )
    values = {f"{mode}_tokens_per_s": each for mode, each in paces.items()}
    values |= on_ratio.values("on_over_off_ratio") | wall.values("auto_over_better_ratio")
    values |= processor.values("auto_over_better_processor_ratio") | control.values("off_over_off_ratio")
    values |= {"prompts": len(replies), "on_accepted_share": accepted, "auto_mean_depth": depth}
    return row, values


def together(found: Mapping[str, Sequence[Replies]]) -> list[tuple[str, Estimate, Estimate]]:
    """Ratios of the replies to all kinds of text, in wall clock and in processor time, by what they show."""
    modes = {text: better(replies) for text, replies in found.items()}
    pairs = [(each, modes[text]) for text, replies in found.items() for each in replies]
    firsts = [(replies[0], modes[text]) for text, replies in found.items()]
    groups: dict[str, list[tuple[Reply, Reply]]] = {
        "first replies, auto/better": [(each[over], each["auto"]) for each, over in firsts],
        "all, auto/better": [(each[over], each["auto"]) for each, over in pairs],
        "all, off/off": [(each["off"], each["again"]) for each, _ in pairs],
    }
    return [
        (
            name,
            total_ratio([over.wall_s for over, _ in group], [each.wall_s for _, each in group]),
            total_ratio([over.processor_s for over, _ in group], [each.processor_s for _, each in group]),
        )
        for name, group in groups.items()
    ]


def measure(
    directory: Path, experts: int, *, texts: Sequence[str], tokens: int, piece: int, rounds: int
) -> dict[str, list[Replies]]:
    """Return the replies of one engine with that many experts of every layer in slots, by kind of text."""
    found: dict[str, list[Replies]] = {text: [] for text in texts}
    chance = random.Random(0)
    request = PlanRequest(experts_per_layer=experts, mtp="auto", prefix_cache="off")
    with load_model(directory, request=request) as loaded:
        if loaded.draft_experts is None:
            raise SystemExit(f"the plan for {experts} experts a layer has no draft head; give more experts")
        config = loaded.model.config
        tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
        policies: dict[Mode, DepthPolicy] = {"on": FixedDepth(DEFAULT_DEPTH), "auto": loaded.depths}
        for number in range(rounds):
            for text in texts:
                prompt = tokenizer.encode(TEXTS[text](number))
                state, row = read_prompt(loaded, prompt)
                replies = {
                    mode: Reply(
                        loaded, state.fork(), row, policies.get(mode), seen=prompt, limit=tokens, ends=tokenizer.eos_ids
                    )
                    for mode in MODES
                }
                side_by_side(replies, piece, chance)
                found[text].append(replies)
    return found


def side_by_side(replies: Replies, piece: int, chance: random.Random) -> None:
    """Make the replies, a piece of each in turn, in an order drawn anew for every piece."""
    while not all(reply.ended for reply in replies.values()):
        for mode in chance.sample(MODES, len(MODES)):
            replies[mode].advance(piece)
    if len({tuple(reply.ids) for reply in replies.values()}) != 1:
        raise SystemExit("the replies to one prompt differ; `slotstream mtp-check` says more")


if __name__ == "__main__":
    main()
