"""Does the draft head pay, and does choosing its depth ever lose?  Prose, code-like and repetitive text.

Three engines over one checkpoint decode the same prompts in turn, with the same pool: without the draft head (`off`),
with two drafts a pass (`on`), and with the depth chosen while it runs (`auto`). Their ids must be equal. Of each engine
and kind of text, the tokens of all rounds are divided by the time of all rounds; a first round teaches and is dropped.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core import GREEDY, Engine, Finished, load
from slotstream_planner import PlanRequest

Mode = Literal["off", "on", "auto"]

MODES: tuple[Mode, ...] = ("off", "on", "auto")
TEXTS: Mapping[str, Sequence[str]] = {
    "prose": (
        "Once upon a time there was a small village by the sea. The people who lived there",
        "The old man opened the door and looked at the garden. It was early in the morning, and",
        "Lily was sad because her friend had gone away. One day she",
    ),
    "code-like": (
        '{"name": "weather", "arguments": {"city": "Paris"}}\n{"name": "weather", "arguments":',
        "12 + 7 = 19\n13 + 8 = 21\n14 + 9 = 23\n15 + 10 =",
        "name,age,city\nAnna,31,Rome\nBen,27,Oslo\nClara,",
    ),
    "repetitive": (
        "red green blue red green blue red green blue red green blue red green",
        "one two three four one two three four one two three four one two",
        "The cat sat. The cat sat. The cat sat. The cat sat. The cat",
    ),
}


class Tally:
    """What one engine did with one kind of text."""

    def __init__(self) -> None:
        self.tokens = 0
        self.time_s = 0.0
        self.drafted = 0
        self.accepted = 0
        self.depths: Counter[int] = Counter()

    def add(self, finished: Finished) -> None:
        """Count one reply."""
        self.tokens += len(finished.token_ids) - 1
        self.time_s += finished.timings.decode_s
        if finished.drafts is not None:
            self.drafted += finished.drafts.drafted
            self.accepted += finished.drafts.accepted
            self.depths.update(dict(enumerate(finished.drafts.passes_by_depth)))

    @property
    def pace(self) -> float:
        """Tokens a second."""
        return self.tokens / self.time_s if self.time_s else 0.0

    @property
    def acceptance(self) -> float:
        """Share of drafts that became part of a reply."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_depth(self) -> float:
        """Drafts a pass."""
        passes = sum(self.depths.values())
        return sum(depth * count for depth, count in self.depths.items()) / passes if passes else 0.0


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory with a draft head (default: the demo)")
    parser.add_argument("--tokens", type=int, default=160, help="most tokens of a reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--experts-per-layer", type=int, nargs="+", default=[16, 64], help="pool sizes")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    directory = options.model or demo_directory()
    rows: list[tuple[str, ...]] = []
    values: dict[str, float] = {}
    for experts in options.experts_per_layer:
        tallies = measure(directory, experts=experts, tokens=options.tokens, rounds=options.rounds)
        for text in TEXTS:
            pace = {mode: tallies[text, mode].pace for mode in MODES}
            ratio = pace["auto"] / max(pace["off"], pace["on"])
            on, auto = tallies[text, "on"], tallies[text, "auto"]
            rows.append(
                (
                    f"{text}, {experts} experts a layer",
                    *(f"{pace[mode]:.1f}" for mode in MODES),
                    f"{ratio:.3f}",
                    f"{on.acceptance:.0%}",
                    f"{auto.mean_depth:.2f}",
                )
            )
            name = f"{text} {experts} experts"
            values |= {f"{name} {mode}_tokens_per_s": pace[mode] for mode in MODES}
            values |= {f"{name} auto_over_better": ratio, f"{name} on_accepted_share": on.acceptance}
            values |= {f"{name} auto_mean_depth": auto.mean_depth}
    report(
        BenchmarkResult(
            benchmark="speculation", settings={"tokens": options.tokens, "rounds": options.rounds}, values=values
        ),
        table=format_table(
            ("text", "off tok/s", "on tok/s", "auto tok/s", "auto/better", "accepted", "auto depth"), rows
        ),
        record=options.record,
    )


def measure(directory: Path, *, experts: int, tokens: int, rounds: int) -> dict[tuple[str, Mode], Tally]:
    """Return what each engine did with each kind of text."""
    tallies: dict[tuple[str, Mode], Tally] = {(text, mode): Tally() for text in TEXTS for mode in MODES}
    with ExitStack() as opened:
        engines: dict[Mode, Engine] = {
            mode: opened.enter_context(
                load(directory, request=PlanRequest(experts_per_layer=experts, mtp=mode, prefix_cache="off"))
            )
            for mode in MODES
        }
        if engines["auto"].plan.draft == "off":
            raise SystemExit(f"the plan for {experts} experts a layer has no draft head; give more experts")
        for number in range(rounds + 1):
            for text, prompts in TEXTS.items():
                for place, prompt in enumerate(prompts):
                    outputs = set()
                    for position in range(len(MODES)):
                        mode = MODES[(number + place + position) % len(MODES)]
                        finished = reply(engines[mode], prompt, tokens)
                        outputs.add(finished.token_ids)
                        if number:
                            tallies[text, mode].add(finished)
                    if len(outputs) != 1:
                        raise SystemExit(f"the engines disagree about the reply to {prompt!r}")
    return tallies


def reply(engine: Engine, prompt: str, tokens: int) -> Finished:
    """Continue a text greedily."""
    *_, finished = engine.generate(engine.tokenizer.encode(prompt), sampling=GREEDY, max_tokens=tokens)
    if not isinstance(finished, Finished):
        raise SystemExit("a generation ended without its last event")
    return finished


if __name__ == "__main__":
    main()
