"""Each mechanism on and off: how fast, and the counters that explain it.

For every mechanism two engines over one checkpoint, each in a process of its own, answer the same prompts greedily in
turn. Their ids must be equal; only where layers are computed by other kernels may a near tie fall otherwise, and then
the share of equal replies is reported. The first round warms up and is left out. Compared are medians over the rounds
of tokens a second; counters and processor time are sums over prompts and replies of all rounds, divided by the tokens
that are compared.

    python -m benchmarks.offline.ablations [--model DIR] [--only NAME ...] [--record]

- sweep: a prompt of many rows goes expert by expert (its speed is that of the prompt, not of the reply).
- lookahead: likely experts of the next layer are read before they are asked for.
- draft head: tokens are guessed and verified several at a time, as many as pay.
- warm start: a fresh engine fills its pool with what earlier runs used most, files not in the page cache.
- direct reads: experts are read past the page cache.
- records: experts lie in one piece each, past the page cache.
- mirror: two directories, here on one disk, share the reads.
- compiled lanes: compiled threads read experts, where Python's would.
- vector kernels: products use the processor's vector instructions.
- native layers: layers are computed by compiled code.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.demo import demo_directory
from benchmarks.offline.ablation_engine import Measured, Way
from benchmarks.offline.speculation import TEXTS
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.diagnostics.prompts import PROMPTS
from slotstream_core.experts.repacking import repack_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]
COUNTERS = [
    f.name for f in fields(Measured) if f.name not in {"ids", "prompt_tokens", "prefill_s", "decode_s", "processor_s"}
]
COPY = "copy"
Prompt = str | list[int]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One mechanism and how to do without it.

    Attributes:
        name: What it is called.
        on: The engine with it.
        off: The engine without it.
        on_environment: Variables of the engine with it.
        off_environment: Variables of the other.
        prompts: What is asked, one a round.
        tokens: Of a reply.
        timed: Which part of the work is compared.
        exact: Whether the ids must be equal.
    """

    name: str
    on: Way
    off: Way
    prompts: Sequence[Prompt]
    tokens: int
    on_environment: Mapping[str, str] = field(default_factory=dict)
    off_environment: Mapping[str, str] = field(default_factory=dict)
    timed: Literal["prompt", "reply", "both"] = "reply"
    exact: bool = True


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    parser.add_argument("--share", type=float, default=0.25, help="of the experts, in slots")
    parser.add_argument("--tokens", type=int, default=48, help="of a reply")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt that is swept")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="the mechanisms to compare (default: all)")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    directory = options.model or demo_directory()
    values: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as room:
        (Path(room) / "warm").mkdir()
        mechanisms = all_mechanisms(directory, options, Path(room))
        chosen = options.only or [mechanism.name for mechanism in mechanisms]
        if unknown := set(chosen) - {mechanism.name for mechanism in mechanisms}:
            names = ", ".join(repr(mechanism.name) for mechanism in mechanisms)
            raise SystemExit(f"there is no mechanism {min(unknown)!r}; there are {names}")
        for mechanism in mechanisms:
            if mechanism.name in chosen:
                if mechanism.name in ("records", "mirror"):
                    write_copy(directory, Path(room))
                judge(mechanism, compare(mechanism, options.rounds), values, rows)
    settings = {"model": directory.name, "share": options.share, "tokens": options.tokens, "rounds": options.rounds}
    settings |= {"prompt": options.prompt}
    header = ("mechanism", "tok/s", "of off", "ms processor", "hits", "KB read", "KB wasted", "ms wait", "stops", "ids")
    report(
        BenchmarkResult(benchmark="ablations", settings=settings, values=values),
        table=format_table(header, rows) + "\nall but tok/s, hits and ids: of prompt and reply, a compared token",
        record=options.record,
    )


def all_mechanisms(directory: Path, options: argparse.Namespace, room: Path) -> list[Mechanism]:
    """Return what is compared; what some of them keep, or read besides, lies in ``room``."""
    with Checkpoint.open(directory) as checkpoint:
        config = checkpoint.config
    plain = Way(model=str(directory), experts_per_layer=max(1, round(options.share * config.num_experts)))
    half = replace(plain, experts_per_layer=max(1, config.num_experts // 2), fresh=True)
    packed = replace(plain, model=str(room / COPY), direct=True)
    texts = [make(number) for number in range(3) for make in TEXTS.values()]
    tokens: int = options.tokens

    def replies(
        name: str, on: Way, off: Way = plain, *, native: str | None = None, exact: bool = True, more: int = 1
    ) -> Mechanism:
        """Compare replies; ``native`` is what SLOTSTREAM_NATIVE is without the mechanism."""
        without = {} if native is None else {"SLOTSTREAM_NATIVE": native}
        asked = texts if more > 1 else PROMPTS
        return Mechanism(
            name=name, on=on, off=off, off_environment=without, prompts=asked, tokens=more * tokens, exact=exact
        )

    return [
        Mechanism(
            name="sweep",
            on=plain,
            off=plain,
            off_environment={"SLOTSTREAM_SWEEP": "0"},
            prompts=random_prompts(config, options.prompt),
            tokens=2,
            timed="prompt",
        ),
        replies("lookahead", replace(plain, lookahead="on")),
        replies("draft head", replace(plain, mtp="auto"), more=2),
        replace(replies("warm start", replace(half, warm_directory=str(room / "warm")), half), timed="both"),
        replies("direct reads", replace(plain, direct=True)),
        replies("records", packed, replace(packed, records="off")),
        replies("mirror", replace(plain, mirror=str(room / COPY))),
        replies("compiled lanes", plain, replace(plain, lanes="python")),
        replies("vector kernels", plain, native="scalar", exact=False),
        replies("native layers", plain, native="0", exact=False),
    ]


def write_copy(directory: Path, room: Path) -> None:
    """Copy a checkpoint, and write the copy's experts as records, unless that was done."""
    copy = room / COPY
    if not copy.exists():
        shutil.copytree(directory, copy)
        repack_checkpoint(copy)


def random_prompts(config: Qwen4ExpConfig, length: int) -> list[Prompt]:
    """Prompts of random ordinary ids."""
    draw = np.random.default_rng(0)
    return [draw.integers(300, min(4000, config.vocab_size), length).tolist() for _ in range(4)]


def compare(mechanism: Mechanism, rounds: int) -> list[tuple[Measured, Measured]]:
    """Return what both engines did in every round but the first, with the mechanism first.

    Raises:
        SystemExit: The ids depend on the mechanism.
    """
    pairs = []
    with ExitStack() as opened:
        on = opened.enter_context(engine(mechanism.on, mechanism.on_environment))
        off = opened.enter_context(engine(mechanism.off, mechanism.off_environment))
        for number in range(rounds + 1):
            prompt = mechanism.prompts[number % len(mechanism.prompts)]
            order = (on, off) if number % 2 else (off, on)
            answers = {id(child): ask(child, prompt, mechanism.tokens) for child in order}
            pair = answers[id(on)], answers[id(off)]
            if mechanism.exact and pair[0].ids != pair[1].ids:
                raise SystemExit(f"{mechanism.name}: in round {number} the ids depend on it")
            if number:
                pairs.append(pair)
    return pairs


@contextmanager
def engine(way: Way, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child with one engine, ready to be asked."""
    command = [sys.executable, "-m", "benchmarks.offline.ablation_engine", json.dumps(asdict(way))]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"an engine set up as {way} did not start")
            yield process
        finally:
            process.stdin.close()


def ask(child: subprocess.Popen[str], prompt: Prompt, tokens: int) -> Measured:
    """Have one prompt answered."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit("an engine ended without an answer")
    answer = json.loads(line)
    return Measured(**{**answer, "ids": tuple(answer["ids"])})


def judge(
    mechanism: Mechanism,
    pairs: Sequence[tuple[Measured, Measured]],
    values: dict[str, float],
    rows: list[tuple[str, ...]],
) -> None:
    """Add the values to keep and the rows to print."""
    equal = sum(on.ids == off.ids for on, off in pairs) / len(pairs)
    without = median_rate(mechanism, [off for _, off in pairs])
    values[f"{mechanism.name} equal_ids_share"] = equal
    for place, side in enumerate(("on", "off")):
        answers = [pair[place] for pair in pairs]
        rate = median_rate(mechanism, answers)
        tokens = sum(counted(mechanism, answer)[0] for answer in answers)
        a_token = {name: sum(getattr(answer, name) for answer in answers) / tokens for name in COUNTERS}
        processor_s = sum(answer.processor_s for answer in answers) / tokens
        label = f"{mechanism.name} {side}"
        values |= {f"{label} tokens_per_s": rate, f"{label} processor_s_per_token": processor_s}
        values |= {f"{label} {name}_per_token": value for name, value in a_token.items()}
        lookups = a_token["hits"] + a_token["misses"]
        rows.append(
            (
                label,
                f"{rate:.1f}",
                f"{rate / without:.3f}",
                f"{1e3 * processor_s:.2f}",
                f"{a_token['hits'] / lookups:.1%}" if lookups else "-",
                f"{a_token['bytes_read'] / 1e3:.0f}",
                f"{a_token['wasted_bytes'] / 1e3:.1f}",
                f"{1e3 * a_token['wait_s']:.2f}",
                f"{a_token['requests']:.1f}",
                f"{equal:.0%}" if place else "",
            )
        )


def counted(mechanism: Mechanism, answer: Measured) -> tuple[int, float]:
    """The tokens and the time that are compared."""
    made = len(answer.ids) - 1
    if mechanism.timed == "prompt":
        return answer.prompt_tokens, answer.prefill_s
    if mechanism.timed == "both":
        return made + 1, answer.prefill_s + answer.decode_s
    return made, answer.decode_s


def median_rate(mechanism: Mechanism, answers: Sequence[Measured]) -> float:
    """Tokens a second, the median over the rounds."""
    rates = [tokens / seconds for tokens, seconds in (counted(mechanism, answer) for answer in answers)]
    return statistics.median(rates)


if __name__ == "__main__":
    main()
