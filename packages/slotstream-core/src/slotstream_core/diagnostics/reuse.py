"""Does going on from kept conversations compute what reading them from their beginning computes?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotstream_core.diagnostics.continuing import continue_greedily, invented_ids
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import PromptReader
from slotstream_core.generation.sharing import spare_tokens
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.persistence.directory import PersistentOptions
from slotstream_core.prefixes.cache import MOST_STATES
from slotstream_core.prefixes.memory import ConversationMemory, prompt_array
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest

__all__ = ["check_exact_reuse", "check_reuse"]

FIRST_TOKENS: Final = 600
LATER_TOKENS: Final = 90
SHARED_TOKENS: Final = 512
OTHERS: Final = 6
"""Conversations beside the one that is looked at."""


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """A prompt that was read, and what follows it.

    Attributes:
        logits: Bits of the logits after the prompt.
        reply: The greedy continuation.
        cached: Prompt tokens that were not read again.
    """

    logits: bytes
    reply: list[int]
    cached: int


class _Reader:
    """Reads prompts as an engine does, with what is kept of earlier ones or without."""

    def __init__(self, loaded: LoadedModel, tokenizer: Tokenizer, reply_tokens: int) -> None:
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._reply_tokens = reply_tokens
        self._key = self.new_memory().prefix_key(loaded.model.key, loaded.plan)

    def new_memory(self) -> ConversationMemory:
        return ConversationMemory(self._loaded.plan, self._tokenizer)

    def ids(self, tokens: int, seed: int) -> list[int]:
        """Return invented prompt ids that differ from the first one on between seeds."""
        return invented_ids(self._loaded, tokens, seed=seed)

    def last_boundary(self, ids: Sequence[int]) -> int:
        return self._key.boundaries(prompt_array(ids))[-1]

    def read(self, ids: Sequence[int], memory: ConversationMemory | None, *, shared_tokens: int = 0) -> _Turn:
        """Read a prompt and go on greedily; without a memory it is read from its beginning, in the same passes."""
        loaded, state = self._loaded, self._loaded.model.new_state()
        prompt = (memory or self.new_memory()).follow(prompt_array(ids), self._key, shared_tokens=shared_tokens)
        resumed = prompt.resume(state, CancelToken()) if memory is not None else None
        cached, spare = state.length, 0
        if loaded.experts.shares_reads:
            spare = spare_tokens(
                loaded.plan, pass_tokens=self._key.pass_tokens, unread_tokens=len(prompt.ids) - state.length
            )
        reader = PromptReader(
            loaded.model,
            state,
            prompt.ids,
            self._key.pass_tokens,
            logits=None if resumed is None else resumed.logits,
            extra_tokens=spare,
            turns=prompt.turns,
            keep=() if memory is None else prompt.stops,
            passed=None if memory is None else prompt.passed,
        )
        for _ in reader.passes(CancelToken()):
            pass
        row = reader.last_logits
        logits = b"" if row is None else row.tobytes()
        reply = [] if row is None else continue_greedily(loaded, state, row, self._reply_tokens)
        return _Turn(logits=logits, reply=reply, cached=cached)

    def keep_on_disk(self, memory: ConversationMemory, directory: Path) -> None:
        options = PersistentOptions(directory=directory, minimum_tokens=1)
        memory.keep_on_disk(options, directory=self._loaded.checkpoint.directory, settings={})


def check_exact_reuse(directory: Path, request: PlanRequest | None = None, *, max_tokens: int = 24) -> CheckReport:
    """Compare prompt logits, bit for bit, and ids of prompts that go on from kept states with cold reads.

    Args:
        directory: The checkpoint.
        request: What the plan to load under should achieve.
        max_tokens: Tokens to generate after each prompt.

    Raises:
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    with load_model(directory, request=request) as loaded:
        reader = _Reader(loaded, _tokenizer(loaded), max_tokens)
        memory = reader.new_memory()
        if not memory.enabled:
            return _disabled("prefix-exact-check")
        first = reader.ids(FIRST_TOKENS, 1)
        began = reader.read(first, memory)
        second = [*first, *began.reply, *reader.ids(LATER_TOKENS, 2)]
        cold = reader.read(second, None)
        edited = [*second[:40], *reader.ids(1, 6), *second[41:]]
        head = reader.ids(SHARED_TOKENS + 20, 3)
        other = [*head, *reader.ids(LATER_TOKENS, 4)]
        items = [
            _equal("the first turn", began, reader.read(first, None), cached=0),
            _equal(
                "the next turn goes on from the last one",
                reader.read(second, memory),
                cold,
                cached=reader.last_boundary(first),
            ),
            _equal("the same prompt again reads nothing", reader.read(second, memory), cold, cached=len(second)),
            _equal("an edited history is read again", reader.read(edited, memory), reader.read(edited, None), cached=0),
        ]
        reader.read([*head, *reader.ids(LATER_TOKENS, 5)], memory, shared_tokens=len(head))
        items.append(
            _equal(
                "another conversation goes on from the shared beginning",
                reader.read(other, memory, shared_tokens=len(head)),
                reader.read(other, None),
                cached=SHARED_TOKENS,
            )
        )
        items.append(_check_restart(reader, first, second, cold))
        loaded.experts.pool.check_integrity()
    return CheckReport(name="prefix-exact-check", items=tuple(items), facts={"ids": cold.reply})


def _check_restart(reader: _Reader, first: Sequence[int], second: Sequence[int], cold: _Turn) -> CheckItem:
    """Keep a turn in a directory, and go on from there as another process would."""
    with tempfile.TemporaryDirectory() as folder:
        for ids in (first, second):
            memory = reader.new_memory()
            reader.keep_on_disk(memory, Path(folder))
            try:
                turn = reader.read(ids, memory)
            finally:
                memory.leave_disk()
        return _equal("a restart goes on from the disk", turn, cold, cached=reader.last_boundary(first))


def check_reuse(directory: Path, request: PlanRequest | None = None, *, max_tokens: int = 24) -> CheckReport:
    """Hold a conversation with and without what is kept of it, twice, beside others.

    Args:
        directory: The checkpoint.
        request: What the plan to load under should achieve.
        max_tokens: Tokens of a reply.

    Raises:
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    with load_model(directory, request=request) as loaded:
        reader = _Reader(loaded, _tokenizer(loaded), max_tokens)
        memory = reader.new_memory()
        if not memory.enabled:
            return _disabled("prefix-check")
        expected, found = _converse(reader, None), _converse(reader, memory)
        reused = [turn.cached for turn in found]
        largest = 0
        for seed in range(OTHERS):
            reader.read(reader.ids(FIRST_TOKENS, 10 + seed), memory)
            largest = max(largest, memory.held_bytes)
        states, capacity = len(memory.cache.states()), memory.cache.budget.capacity_bytes
        memory.clear()
        again = _converse(reader, memory)
        loaded.experts.pool.check_integrity()
    bounded = largest <= capacity and states <= MOST_STATES
    return CheckReport(
        name="prefix-check",
        items=(
            _same("replies are the same with what is kept and without", expected, found),
            CheckItem(name="later turns go on from earlier ones", passed=all(reused[1:]), detail=f"{reused} tokens"),
            CheckItem(
                name="what is kept stays inside its budget",
                passed=bounded,
                detail=f"at most {largest:,} of {capacity:,} bytes, {states} states",
            ),
            CheckItem(name="clearing leaves nothing to go on from", passed=again[0].cached == 0),
            _same("the same conversation again has the same replies", expected, again),
        ),
        facts={"reused_tokens": reused, "held_bytes": largest, "capacity_bytes": capacity},
    )


def _converse(reader: _Reader, memory: ConversationMemory | None) -> list[_Turn]:
    """Hold a conversation of three turns."""
    prompt, turns = reader.ids(FIRST_TOKENS, 1), list[_Turn]()
    for seed in (2, 3, 4):
        turns.append(reader.read(prompt, memory))
        prompt = [*prompt, *turns[-1].reply, *reader.ids(LATER_TOKENS, seed)]
    return turns


def _equal(name: str, found: _Turn, cold: _Turn, *, cached: int) -> CheckItem:
    """Say whether a turn computed what a cold read did, and went on from where it should."""
    detail = f"{found.cached} tokens not read again"
    if found.logits != cold.logits:
        detail += "; logits differ from those of a cold read"
    if found.reply != cold.reply:
        detail += "; ids differ from those of a cold read"
    passed = (found.logits, found.reply, found.cached) == (cold.logits, cold.reply, cached)
    return CheckItem(name=name, passed=passed, detail=detail)


def _same(name: str, expected: Sequence[_Turn], found: Sequence[_Turn]) -> CheckItem:
    equal = [one.reply == other.reply for one, other in zip(expected, found, strict=True)]
    return CheckItem(name=name, passed=all(equal), detail=f"{sum(equal)} of {len(equal)} replies")


def _disabled(name: str) -> CheckReport:
    item = CheckItem(name="the plan has memory for conversations", passed=False, detail="it keeps none; give more")
    return CheckReport(name=name, items=(item,))


def _tokenizer(loaded: LoadedModel) -> Tokenizer:
    config = loaded.checkpoint.config
    return Tokenizer.from_directory(
        loaded.checkpoint.directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids
    )
