"""Does the draft head pay, and does deciding guess by guess ever lose?

Prose, code-like and repetitive text, and two kinds that nothing was tuned on: letters, and questions with answers.
Three engines over one checkpoint continue the same prompts with equal pools: without the draft head (`off`), with two
drafts a pass (`on`), and with what the engine takes to be worth it (`auto`). Their replies are made side by side, a
short piece of each in turn and in changing order, and each piece of one engine is compared with the same piece of
another: the same tokens, a moment apart. A piece is timed after the first tokens of a turn, which find the caches full
of another engine's weights. Every round continues other texts; the first one, of fresh engines, is told apart. Engines
are loaded anew several times, since two that do the same differ by some per cent as long as they live.

Reported are middles of those ratios with a bootstrap interval of 95%, in wall clock and in processor time: the
geometric mean of their middle half. With `--control` a second engine like `off` runs beside the others: what it comes
to next to the first is what this method takes for a difference where there is none.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.demo import demo_directory
from benchmarks.pairing import estimate, middle_mean
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import GREEDY, Engine, Finished, GenerationEvent, load
from slotstream_core.events import TextDelta
from slotstream_planner import PlanRequest

Mode = Literal["off", "on", "auto", "again"]

MODES: Final[tuple[Mode, ...]] = ("off", "on", "auto")
LEAD: Final = 2
"""Deltas of a turn that are not timed."""

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
    """One engine's reply to a prompt, made as far as it is asked for."""

    def __init__(self, engine: Engine, prompt: str, tokens: int) -> None:
        self._events: Iterator[GenerationEvent] = engine.generate(
            engine.tokenizer.encode(prompt), sampling=GREEDY, max_tokens=tokens
        )
        self.finished: Finished | None = None

    def advance(self, deltas: int) -> int:
        """Go on until so many deltas of text were told, or to the end; return how many there were."""
        told = 0
        while told < deltas and self.finished is None:
            event = next(self._events)
            told += isinstance(event, TextDelta)
            if isinstance(event, Finished):
                self.finished = event
        return told

    def end(self) -> Finished:
        """Go on to the end."""
        while self.finished is None:
            self.advance(1)
        return self.finished


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What the same piece of a reply took each engine.

    Attributes:
        deltas: Its length.
        wall_s: Wall clock.
        processor_s: Processor time of all threads.
    """

    deltas: int
    wall_s: Mapping[Mode, float]
    processor_s: Mapping[Mode, float]


class Tally:
    """What the engines did with one kind of text."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.drafted: Counter[Mode] = Counter()
        self.accepted: Counter[Mode] = Counter()
        self.passes: Counter[Mode] = Counter()

    def add(self, mode: Mode, finished: Finished) -> None:
        """Count one reply's drafts."""
        if finished.drafts is not None:
            self.drafted[mode] += finished.drafts.drafted
            self.accepted[mode] += finished.drafts.accepted
            self.passes[mode] += sum(finished.drafts.passes_by_depth)

    def pace(self, mode: Mode) -> float:
        """Deltas of text, nearly all of one token, a second."""
        return sum(piece.deltas for piece in self.pieces) / sum(piece.wall_s[mode] for piece in self.pieces)

    def ratios(self, mode: Mode, over: Mode) -> tuple[list[float], list[float]]:
        """How many times faster a mode was than another in each piece, in wall clock and in processor time."""
        wall = [piece.wall_s[over] / piece.wall_s[mode] for piece in self.pieces]
        return wall, [piece.processor_s[over] / piece.processor_s[mode] for piece in self.pieces]

    def auto_over_better(self) -> tuple[list[float], list[float]]:
        """The same of `auto` over whichever of `on` and `off` took less time for all pieces."""
        if not self.pieces:
            return [], []
        return self.ratios("auto", "on" if self.pace("on") > self.pace("off") else "off")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a draft head (default: the demo)")
    parser.add_argument("--tokens", type=int, default=192, help="most tokens of a reply")
    parser.add_argument("--piece", type=int, default=14, help="tokens of a piece")
    parser.add_argument("--rounds", type=int, default=2, help="replies to each kind of text after a set's first ones")
    parser.add_argument("--sets", type=int, default=4, help="how often engines are loaded anew")
    parser.add_argument("--experts-per-layer", type=int, nargs="+", default=[16, 64], help="pool sizes")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="kinds of text")
    parser.add_argument("--control", action="store_true", help="run a second engine without the draft head as well")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    directory = options.model or demo_directory()
    modes: tuple[Mode, ...] = (*MODES, "again") if options.control else MODES
    rows: list[tuple[str, ...]] = []
    values: dict[str, float] = {}
    for experts in options.experts_per_layer:
        run = measure(
            directory,
            experts,
            modes=modes,
            texts=options.texts,
            tokens=options.tokens,
            piece=options.piece,
            rounds=options.rounds,
            sets=options.sets,
        )
        for text, tally in run.later.items():
            name = f"{text} {experts} experts"
            row, found = judge(tally)
            rows.append((name, *row))
            values |= {f"{name} {key}": value for key, value in found.items()}
        for name, group in run.together(options.control).items():
            over, wall, processor = f"{name} {experts} experts", estimate(group[0], middle_mean), group[1]
            rows.append((over, "", "", "", "", wall.shown(3), estimate(processor, middle_mean).shown(3), "", ""))
            values |= wall.values(f"{over} auto_over_better_ratio") | {f"{over} pieces": len(processor)}
    settings = {"texts": options.texts, "tokens": options.tokens, "piece": options.piece}
    settings |= {"rounds": options.rounds, "sets": options.sets}
    report(
        BenchmarkResult(benchmark="speculation", settings=settings, values=values),
        table=format_table(
            ("text", "off", "on", "auto tok/s", "on/off", "auto/better", "processor", "accepted", "depth"), rows
        ),
        record=options.record,
    )


def judge(tally: Tally) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return a row of the table and the values of one kind of text."""
    pace = {mode: tally.pace(mode) for mode in MODES}
    wall, processor = (estimate(ratios, middle_mean) for ratios in tally.auto_over_better())
    on_ratio = estimate(tally.ratios("on", "off")[0], middle_mean)
    accepted = tally.accepted["on"] / max(1, tally.drafted["on"])
    depth = tally.drafted["auto"] / max(1, tally.passes["auto"])
    row = (
        *(f"{pace[mode]:.1f}" for mode in MODES),
        on_ratio.shown(3),
        wall.shown(3),
        processor.shown(3),
        f"{accepted:.0%}",
        f"{depth:.2f}",
    )
    values = {f"{mode}_tokens_per_s": pace[mode] for mode in MODES}
    values |= on_ratio.values("on_over_off_ratio") | wall.values("auto_over_better_ratio")
    values |= processor.values("auto_over_better_processor_ratio") | {"pieces": len(tally.pieces)}
    values |= {"on_accepted_share": accepted, "auto_mean_depth": depth}
    return row, values


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the engines did with each kind of text: fresh ones in a set's first round, and in all later rounds."""

    first: Mapping[str, Tally]
    later: Mapping[str, Tally]

    def together(self, control: bool) -> dict[str, tuple[list[float], list[float]]]:
        """Ratios of the pieces of all kinds, in wall clock and in processor time, by what they show."""
        groups = {"first replies": self.first.values(), "all later": self.later.values()}
        found = {name: _joined([tally.auto_over_better() for tally in group]) for name, group in groups.items()}
        if control:
            found["off over off"] = _joined([tally.ratios("again", "off") for tally in self.later.values()])
        return {name: both for name, both in found.items() if both[0]}


def _joined(ratios: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    wall, processor = zip(*ratios, strict=True)
    return [ratio for each in wall for ratio in each], [ratio for each in processor for ratio in each]


def measure(
    directory: Path,
    experts: int,
    *,
    modes: Sequence[Mode],
    texts: Sequence[str],
    tokens: int,
    piece: int,
    rounds: int,
    sets: int,
) -> Run:
    """Return what the engines did with each kind of text; in each set of engines another mode's is loaded first."""
    run = Run(first={text: Tally() for text in texts}, later={text: Tally() for text in texts})
    for number in range(sets):
        with ExitStack() as opened:
            engines = {
                mode: opened.enter_context(load_engine(directory, experts, mode))
                for mode in _order(tuple(modes), number)
            }
            for place in range(rounds + 1):
                for text in texts:
                    tally = (run.later if place else run.first)[text]
                    prompt = TEXTS[text](number * (rounds + 1) + place)
                    side_by_side(engines, prompt, tally, tokens=tokens, piece=piece)
    if empty := [text for text, tally in run.later.items() if not tally.pieces]:
        raise SystemExit(f"every {empty[0]} reply ended before {piece} tokens; ask for more rounds or shorter pieces")
    return run


def load_engine(directory: Path, experts: int, mode: Mode) -> Engine:
    """Load the checkpoint with that many experts of every layer in slots."""
    mtp = "off" if mode == "again" else mode
    engine = load(directory, request=PlanRequest(experts_per_layer=experts, mtp=mtp, prefix_cache="off"))
    if mode == "auto" and engine.plan.draft == "off":
        engine.close()
        raise SystemExit(f"the plan for {experts} experts a layer has no draft head; give more experts")
    return engine


def side_by_side(engines: Mapping[Mode, Engine], prompt: str, tally: Tally, *, tokens: int, piece: int) -> None:
    """Continue a prompt with every engine, a piece of each in turn; the pieces that all of them finish are kept."""
    replies = {mode: Reply(engine, prompt, tokens) for mode, engine in engines.items()}
    while all(reply.finished is None for reply in replies.values()):
        wall_s: dict[Mode, float] = {}
        processor_s: dict[Mode, float] = {}
        told = []
        for mode in _order(tuple(replies), len(tally.pieces)):
            replies[mode].advance(LEAD)
            started, processor = time.perf_counter(), time.process_time()
            told.append(replies[mode].advance(piece))
            wall_s[mode], processor_s[mode] = time.perf_counter() - started, time.process_time() - processor
        if min(told) == piece:
            tally.pieces.append(Piece(deltas=piece, wall_s=wall_s, processor_s=processor_s))
    ends = {mode: reply.end() for mode, reply in replies.items()}
    if len({finished.token_ids for finished in ends.values()}) != 1:
        raise SystemExit(f"the engines disagree about the reply to {prompt!r}")
    for mode, finished in ends.items():
        tally.add(mode, finished)


def _order(modes: tuple[Mode, ...], number: int) -> Sequence[Mode]:
    """The order of a piece: every mode comes first, second and so on equally often, and after each neighbour."""
    turned = modes[number % len(modes) :] + modes[: number % len(modes)]
    return turned if number // len(modes) % 2 == 0 else turned[::-1]


if __name__ == "__main__":
    main()
