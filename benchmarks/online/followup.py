"""How much sooner does a follow-up turn begin when its conversation was kept, and what does keeping cost?

The demo model reads conversations of about 4,000 tokens, of several lengths, because how much of a conversation has to
be read again depends on where its end falls between two pass ends. In each round, in turn:

- the same model reads the conversation and keeps it, in memory and on disk, then reads it in the same passes and keeps
  nothing, then both once more the other way round, so that neither is always the first; a short reply is made when it
  is kept, during which the disk is written;
- the follow-up turn begins from what was kept;
- the same follow-up turn is read from its beginning, as with the prefix cache off;
- an engine that was just loaded begins the follow-up turn from what the first one left on disk.

What keeping adds is also taken directly, as the processor time of the engine's thread inside the calls that keep: that
is what a busy machine changes least.

    .venv/bin/python -m benchmarks.online.followup [--tokens N] [--rounds N] [--record]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.engine import Engine, load
from slotstream_core.events import Finished
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import PromptReader
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.generation.sharing import spare_tokens
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.persistence.directory import PersistentOptions
from slotstream_core.prefixes.boundaries import FINEST_PASS_TOKENS, resume_pass_tokens, turn_starts
from slotstream_core.prefixes.memory import prompt_array
from slotstream_core.prefixes.resuming import PromptMemory
from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest

STORY = "The fox walked over the hill number {} and asked the owl about her hat. "
STEP_TOKENS = 53
"""Between the lengths of two rounds; no divisor of a pass, so that ends fall at different places."""
REPLY_TOKENS = 16


@dataclass
class Times:
    """Seconds to the first token of each round."""

    kept_s: list[float] = field(default_factory=list)
    not_kept_s: list[float] = field(default_factory=list)
    follow_up_s: list[float] = field(default_factory=list)
    restarted_s: list[float] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    keeping_cpu_s: list[float] = field(default_factory=list)
    restoring_s: list[float] = field(default_factory=list)
    read_again: list[int] = field(default_factory=list)
    smaller_passes: list[float] = field(default_factory=list)


def conversation(engine: Engine, tokens: int) -> list[ChatMessage]:
    """Return one user turn whose prompt has about so many tokens."""
    text = "Retell this story."
    number = 0
    while len(engine.chat_ids(text)) < tokens:
        missing = max(1, (tokens - len(engine.chat_ids(text))) // 40)
        text += "".join(" " + STORY.format(number + each) for each in range(missing))
        number += missing
    return [ChatMessage(role="user", content=text)]


def first_token(engine: Engine, messages: Sequence[ChatMessage], *, persist: bool = True) -> tuple[float, Finished]:
    """Return the seconds from a conversation to its first token, and the end of the reply."""
    started = time.perf_counter()
    ids = engine.chat_ids(messages)
    began = time.perf_counter()
    *_, finished = engine.generate(ids, sampling=GREEDY, max_tokens=1, persist=persist)
    assert isinstance(finished, Finished)
    return began - started + finished.timings.prefill_s, finished


def open_engine(loaded: LoadedModel) -> Engine:
    """Return an engine over a model that the benchmark uses beside it."""
    directory, config = loaded.checkpoint.directory, loaded.checkpoint.config
    tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
    return Engine(loaded, tokenizer=tokenizer, template=ChatTemplate.from_directory(directory))


def read_kept(engine: Engine, ids: Sequence[int]) -> tuple[float, str]:
    """Return the seconds from a prompt's ids to its first token while it is kept, and a short reply."""
    *_, finished = engine.generate(ids, sampling=GREEDY, max_tokens=REPLY_TOKENS)
    assert isinstance(finished, Finished)
    text = engine.tokenizer.decode([each for each in finished.token_ids if each not in engine.tokenizer.eos_ids])
    return finished.timings.prefill_s, text


def turns_of(engine: Engine, ids: Sequence[int]) -> list[int]:
    """Return where passes end beside those of full length."""
    return turn_starts(prompt_array(ids), engine.tokenizer.token_id("<|im_start|>"))


def read_only(loaded: LoadedModel, ids: Sequence[int], turns: Sequence[int]) -> float:
    """Return the seconds to read a prompt in the passes of kept conversations, keeping nothing."""
    started = time.perf_counter()
    passes = resume_pass_tokens(loaded.plan.prefill_chunk, keeps=True)
    spare = spare_tokens(loaded.plan, pass_tokens=passes, unread_tokens=len(ids)) if loaded.experts.shares_reads else 0
    reader = PromptReader(loaded.model, loaded.model.new_state(), ids, passes, extra_tokens=spare, turns=turns)
    for _ in reader.passes(CancelToken()):
        pass
    return time.perf_counter() - started


@contextmanager
def clocked(name: Literal["passed", "resume"], clock: Callable[[], float], into: list[float]) -> Iterator[None]:
    """Add up what calls of `PromptMemory` take by a clock."""
    plain, total = getattr(PromptMemory, name), 0.0

    def timed(memory: PromptMemory, *arguments: object) -> object:
        nonlocal total
        started = clock()
        try:
            return plain(memory, *arguments)
        finally:
            total += clock() - started

    setattr(PromptMemory, name, timed)
    try:
        yield
    finally:
        setattr(PromptMemory, name, plain)
    into.append(total)


def keeping(keeps: Engine, loaded: LoadedModel, ids: Sequence[int], times: Times, kept: PersistentOptions) -> str:
    """Read a conversation twice with keeping it and twice without; return the reply to it.  It stays kept."""
    reply = ""
    for number, keep in enumerate((True, False, False, True)):
        if not keep:
            times.not_kept_s.append(read_only(loaded, ids, turns_of(keeps, ids)))
            continue
        keeps.memory.clear()
        keeps.keep_on_disk(replace(kept, directory=kept.directory / str(number)))
        with clocked("passed", time.thread_time, times.keeping_cpu_s):
            seconds, reply = read_kept(keeps, ids)
        times.kept_s.append(seconds)
    return reply


def one_round(
    keeps: Engine, cold: Engine, loaded: LoadedModel, tokens: int, times: Times, kept: PersistentOptions
) -> None:
    messages = conversation(keeps, tokens)
    ids = keeps.chat_ids(messages)
    reply = keeping(keeps, loaded, ids, times, kept)
    turns = [
        *messages,
        ChatMessage(role="assistant", content=reply),
        ChatMessage(role="user", content="And what did the owl say then?"),
    ]
    seconds, finished = first_token(keeps, turns, persist=False)  # the restarted engine is to find the first turn
    times.follow_up_s.append(seconds)
    times.read_again.append(finished.usage.prompt_tokens - finished.usage.cached_tokens)
    cold_s, whole = first_token(cold, turns)
    times.cold_s.append(cold_s)
    alone_s = statistics.mean(times.not_kept_s[-2:]) / len(ids)
    times.smaller_passes.append(alone_s / (whole.timings.prefill_s / whole.usage.prompt_tokens) - 1)
    keeps.memory.leave_disk()
    with load(demo_directory()) as restarted:
        restarted.keep_on_disk(replace(kept, directory=kept.directory / "3"))
        first_token(restarted, conversation(restarted, 300))
        with clocked("resume", time.perf_counter, times.restoring_s):
            seconds, found = first_token(restarted, turns)
        assert found.usage.cached_tokens == finished.usage.cached_tokens
        times.restarted_s.append(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    times = Times()
    directory = demo_directory()
    off = PlanRequest(prefix_cache="off")
    with (
        tempfile.TemporaryDirectory() as folder,
        load_model(directory) as loaded,
        open_engine(loaded) as keeps,
        load(directory, request=off) as cold,
    ):
        plan_passes = loaded.plan.prefill_chunk
        first_token(keeps, conversation(keeps, 300))
        first_token(cold, conversation(cold, arguments.tokens))  # its memory is touched before it is timed
        ids = keeps.chat_ids(conversation(keeps, arguments.tokens))
        read_only(loaded, ids, turns_of(keeps, ids))
        for number in range(arguments.rounds):
            one_round(
                keeps,
                cold,
                loaded,
                arguments.tokens + number * STEP_TOKENS,
                times,
                # one directory a round: the conversations begin alike
                PersistentOptions(directory=Path(folder) / str(number), minimum_tokens=FINEST_PASS_TOKENS),
            )
    values = {name: statistics.median(each) for name, each in vars(times).items() if name != "read_again"}
    ratios = [cold_s / warm_s for cold_s, warm_s in zip(times.cold_s, times.follow_up_s, strict=True)]
    pairs = zip(times.kept_s, times.not_kept_s, strict=True)
    apart = [kept / alone - 1 for kept, alone in pairs]
    saving = [(one + other) / 2 for one, other in zip(apart[::2], apart[1::2], strict=True)]
    restarts = [cold_s / warm_s for cold_s, warm_s in zip(times.cold_s, times.restarted_s, strict=True)]
    values["read_again_tokens"] = statistics.mean(times.read_again)
    values["sooner_median"] = statistics.median(ratios)
    values["sooner_worst"] = min(ratios)
    values["restarted_sooner_median"] = statistics.median(restarts)
    values["restarted_sooner_worst"] = min(restarts)
    values["saving_percent"] = 100 * statistics.median(saving)
    values["smaller_passes_percent"] = 100 * values.pop("smaller_passes")
    values["keeping_cpu_percent"] = 100 * values["keeping_cpu_s"] / values["not_kept_s"]
    rows = [
        ("conversation, read and kept", f"{values['kept_s']:.2f} s"),
        ("conversation, same passes, nothing kept", f"{values['not_kept_s']:.2f} s"),
        ("keeping adds", f"{values['saving_percent']:.1f} %"),
        (
            "of it on the engine's thread, processor time",
            f"{values['keeping_cpu_s'] * 1e3:.1f} ms, {values['keeping_cpu_percent']:.2f} %",
        ),
        (
            f"passes of {FINEST_PASS_TOKENS} instead of the plan's {plan_passes}, a token",
            f"{values['smaller_passes_percent']:+.1f} %",
        ),
        ("follow-up turn, kept", f"{values['follow_up_s']:.2f} s, {values['read_again_tokens']:.0f} tokens read"),
        ("follow-up turn, read from its beginning", f"{values['cold_s']:.2f} s"),
        ("follow-up turn, kept on disk, after a restart", f"{values['restarted_s']:.2f} s"),
        ("sooner by", f"{values['sooner_median']:.1f} times, at least {values['sooner_worst']:.1f}"),
        (
            "after a restart sooner by",
            f"{values['restarted_sooner_median']:.1f} times, at least {values['restarted_sooner_worst']:.1f}",
        ),
        ("of it reading the disk", f"{values['restoring_s'] * 1e3:.1f} ms"),
        *(
            (f"  round {number}: {again} tokens read again", f"{one:.1f} times, after a restart {other:.1f}")
            for number, (again, one, other) in enumerate(zip(times.read_again, ratios, restarts, strict=True), 1)
        ),
    ]
    report(
        BenchmarkResult(
            benchmark="followup",
            settings={"tokens": arguments.tokens, "rounds": arguments.rounds},
            values=values,
        ),
        table=format_table(("first token of", "median"), rows),
        record=arguments.record,
    )


if __name__ == "__main__":
    main()
