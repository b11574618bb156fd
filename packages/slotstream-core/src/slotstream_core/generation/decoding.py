"""The loop from a prompt's ids to generated ids: passes over the prompt, then one token at a time."""

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.events import PromptProgress
from slotstream_core.generation.control import StopCheck
from slotstream_core.generation.sampling import Sampler
from slotstream_core.models.base import Model
from slotstream_core.state.sequence import SequenceState
from slotstream_planner.prefill import schedule_passes
from slotstream_planner.workspace import ReadScope, share_reads

Row = npt.NDArray[np.float32]
Passed = Callable[[SequenceState, Row | None], None]
"""Told the state after a pass, and the logits after the last one."""
Before = Callable[[ReadScope], None]
"""Told which passes come next; raises a `SlotstreamError` when they may not."""


def logits_row(logits: mx.array) -> Row:
    """Return the last row of float32 logits [rows, vocabulary] as a float32 numpy vector, evaluating it."""
    return np.array(np.asarray(logits)[-1])  # indexing first would be an operation of MLX


class PromptReader:
    """Reads what a state has not seen of a prompt, in passes, and keeps the last position's logits.

    Passes get smaller as the context grows, by the planner's schedule, so that a pass's workspace stays bounded. As far
    as there is memory for it, passes that follow each other read each expert once between them.

    Attributes:
        last_logits: Logits after the whole prompt, float32 [vocabulary]; set when the iteration has ended.
    """

    def __init__(
        self,
        model: Model,
        state: SequenceState,
        ids: Sequence[int] | npt.NDArray[np.int32],
        pass_tokens: int,
        *,
        logits: Row | None = None,
        extra_tokens: int = 0,
        turns: Sequence[int] = (),
        keep: Collection[int] = (),
        passed: Passed | None = None,
        before: Before | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            model: Reads.
            state: Has seen a beginning of the prompt that ends where a pass does, or nothing, or all of it.
            ids: The prompt.
            pass_tokens: Most tokens of one pass.
            logits: After the whole prompt, when the state has seen all of it.
            extra_tokens: Tokens beyond one pass that there is memory for, in passes that share their reads.
            turns: Where turns of a conversation start, before which passes end; see `schedule_passes`.
            keep: Lengths at which `passed` is to be told the state, even where passes share their reads.
            passed: Told the state at those lengths, and wherever else it is at hand.
            before: Asked before passes that go together whether there is memory for them.
        """
        self._model = model
        self._state = state
        self._ids = np.asarray(ids, dtype=np.int32)
        self._pass_tokens = pass_tokens
        self._extra_tokens = extra_tokens
        self._turns = turns
        self._keep = frozenset(keep)
        self._passed = passed
        self._before = before
        self.last_logits = logits

    def passes(self, stop: StopCheck) -> Iterator[PromptProgress]:
        """Read the prompt; yield after each pass, or when as much of the work is done of passes that go together.

        The state's length is a progress's `done_tokens` only where no passes are under way.

        Args:
            stop: Asked between two passes, and between two layers of passes under way together; what it raises ends
                the reading there.

        Raises:
            MemoryUnavailable: `before` found too little memory.
            ExpertReadError: Expert bytes could not be read; the state is then unusable.
        """
        started = time.perf_counter()
        total, seen = len(self._ids), self._state.length
        steps = list(schedule_passes(total - seen, self._pass_tokens, start=seen, turns=self._turns))
        for scope in share_reads(steps, extra_tokens=self._extra_tokens):
            stop.check()
            if self._before is not None:
                self._before(scope)
            done = first = scope.passes[0].start
            ends = [each.start + each.tokens for each in scope.passes]
            with closing(self._read(scope, stop)) as shares:
                for share in shares:
                    reached = max((end for end in ends if end - first <= share * scope.tokens), default=first)
                    if reached > done:
                        done = reached
                        elapsed = time.perf_counter() - started
                        yield PromptProgress(
                            done_tokens=done, total_tokens=total, elapsed_s=elapsed, cached_tokens=seen
                        )

    def _read(self, scope: ReadScope, stop: StopCheck) -> Generator[float, None, None]:
        """Read the passes of a scope; yield the share that is done, 1 at the end."""
        ends = [each.start + each.tokens for each in scope.passes]
        ends_prompt = ends[-1] == len(self._ids)
        read = self._model.read(
            [self._ids[each.start : each.start + each.tokens] for each in scope.passes],
            self._state,
            ends_prompt=ends_prompt,
            keep=[number for number, end in enumerate(ends[:-1]) if end in self._keep],
        )
        with closing(read.steps()) as steps:
            for share in steps:
                if share < 1.0:
                    stop.check()
                    yield share
        if ends_prompt:
            self.last_logits = logits_row(read.result.logits)
        if self._passed is not None:
            for number in sorted(read.kept):
                self._passed(read.kept[number], None)
            self._passed(self._state, self.last_logits)
        yield 1.0


def next_logits(model: Model, state: SequenceState, token: int) -> Row:
    """Return the logits after one more token, float32 [vocabulary]; the token joins the state."""
    result = model.forward(np.array([token], dtype=np.int32), state, decode=True)
    return logits_row(result.logits)


class Decoder(Protocol):
    """Continues one sequence.  Every decoder of a model yields the same tokens for the same sampler."""

    def tokens(self, row: Row, *, limit: int) -> Generator[int, None, None]:
        """Yield the next tokens; nothing is computed or drawn before it is asked for.

        When the generator ends or is closed, the state holds every token yielded but the last.

        Args:
            row: Logits after what the state has seen, float32 [vocabulary].
            limit: Most tokens to yield, at least 1.

        Raises:
            ExpertReadError: Expert bytes could not be read; the state is then unusable.
            CheckpointDamaged: A logit is not a number.
        """


class PlainDecoder:
    """Runs one pass a token."""

    def __init__(self, model: Model, state: SequenceState, sampler: Sampler) -> None:
        self._model = model
        self._state = state
        self._sampler = sampler

    def tokens(self, row: Row, *, limit: int) -> Generator[int, None, None]:
        """See `Decoder.tokens`."""
        for _ in range(limit - 1):
            token = self._sampler.sample(row)
            yield token
            row = next_logits(self._model, self._state, token)
        yield self._sampler.sample(row)
