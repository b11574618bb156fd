"""Does the draft head pay, and does deciding guess by guess ever lose?

Prose, code-like and repetitive text, and two kinds that nothing was tuned on: letters, and questions with answers.
Three engines over one checkpoint continue the same prompts with equal pools: without the draft head (`off`), with two
drafts a pass (`on`), and with what the engine takes to be worth it (`auto`). Their replies are made side by side, a
short piece of each in turn and in changing order, and each piece of one engine is compared with the same piece of
another: the same tokens, a moment apart. Every round continues other texts, and the first one teaches and is dropped.
Reported are medians of those ratios with a bootstrap interval of 95%, in wall clock and in processor time.
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

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.pairing import estimate
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import GREEDY, Engine, Finished, GenerationEvent, load
from slotstream_core.events import TextDelta
from slotstream_planner import PlanRequest

Mode = Literal["off", "on", "auto"]

MODES: Final[tuple[Mode, ...]] = ("off", "on", "auto")
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

    def ratios(self, mode: Mode, over: Mode) -> tuple[np.ndarray, np.ndarray]:
        """How many times faster a mode was than another in each piece, in wall clock and in processor time."""
        wall = np.array([piece.wall_s[over] / piece.wall_s[mode] for piece in self.pieces])
        processor = np.array([piece.processor_s[over] / piece.processor_s[mode] for piece in self.pieces])
        return wall, processor


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a draft head (default: the demo)")
    parser.add_argument("--tokens", type=int, default=192, help="most tokens of a reply")
    parser.add_argument("--piece", type=int, default=16, help="tokens of a piece")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--experts-per-layer", type=int, nargs="+", default=[16, 64], help="pool sizes")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="kinds of text")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    directory = options.model or demo_directory()
    rows: list[tuple[str, ...]] = []
    values: dict[str, float] = {}
    for experts in options.experts_per_layer:
        tallies = measure(
            directory, experts, texts=options.texts, tokens=options.tokens, piece=options.piece, rounds=options.rounds
        )
        for text, tally in tallies.items():
            name = f"{text} {experts} experts"
            row, found = judge(tally)
            rows.append((name, *row))
            values |= {f"{name} {key}": value for key, value in found.items()}
    settings = {"texts": options.texts, "tokens": options.tokens, "piece": options.piece, "rounds": options.rounds}
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
    better: Mode = "on" if pace["on"] > pace["off"] else "off"
    wall, processor = tally.ratios("auto", better)
    on_wall, _ = tally.ratios("on", "off")
    ratio, on_ratio = estimate(wall.tolist()), estimate(on_wall.tolist())
    accepted = tally.accepted["on"] / max(1, tally.drafted["on"])
    depth = tally.drafted["auto"] / max(1, tally.passes["auto"])
    row = (
        *(f"{pace[mode]:.1f}" for mode in MODES),
        on_ratio.shown(3),
        ratio.shown(3),
        f"{np.median(processor):.3f}",
        f"{accepted:.0%}",
        f"{depth:.2f}",
    )
    values = {f"{mode}_tokens_per_s": pace[mode] for mode in MODES}
    values |= on_ratio.values("on_over_off_ratio") | ratio.values("auto_over_better_ratio")
    values |= {"auto_over_better_processor": float(np.median(processor)), "pieces": len(tally.pieces)}
    values |= {"on_accepted_share": accepted, "auto_mean_depth": depth}
    return row, values


def measure(
    directory: Path, experts: int, *, texts: Sequence[str], tokens: int, piece: int, rounds: int
) -> dict[str, Tally]:
    """Return what the engines did with each kind of text."""
    with ExitStack() as opened:
        engines: dict[Mode, Engine] = {
            mode: opened.enter_context(
                load(directory, request=PlanRequest(experts_per_layer=experts, mtp=mode, prefix_cache="off"))
            )
            for mode in MODES
        }
        if engines["auto"].plan.draft == "off":
            raise SystemExit(f"the plan for {experts} experts a layer has no draft head; give more experts")
        tallies: dict[str, Tally] = {}
        for number in range(rounds + 1):
            if number <= 1:  # what the first round taught is dropped
                tallies = {text: Tally() for text in texts}
            for text in texts:
                side_by_side(engines, TEXTS[text](number), tallies[text], tokens=tokens, piece=piece)
    if empty := [text for text, tally in tallies.items() if not tally.pieces]:
        raise SystemExit(f"every {empty[0]} reply ended before {piece} tokens; ask for more rounds or shorter pieces")
    return tallies


def side_by_side(engines: Mapping[Mode, Engine], prompt: str, tally: Tally, *, tokens: int, piece: int) -> None:
    """Continue a prompt with every engine, a piece of each in turn; the pieces that all of them finish are kept."""
    replies = {mode: Reply(engines[mode], prompt, tokens) for mode in MODES}
    for reply in replies.values():
        reply.advance(1)
    while all(reply.finished is None for reply in replies.values()):
        wall_s: dict[Mode, float] = {}
        processor_s: dict[Mode, float] = {}
        told = []
        for mode in _order(len(tally.pieces)):
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


def _order(number: int) -> Sequence[Mode]:
    """The order of a piece: every mode comes first, second and last equally often, and after each other one."""
    turned = MODES[number % len(MODES) :] + MODES[: number % len(MODES)]
    return turned if number // len(MODES) % 2 == 0 else turned[::-1]


if __name__ == "__main__":
    main()
