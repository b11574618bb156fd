"""The loop from a prompt's ids to generated ids: passes over the prompt, then one token at a time."""

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.events import PromptProgress
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import Sampler
from slotstream_core.models.base import Model
from slotstream_core.state.sequence import SequenceState
from slotstream_planner.prefill import PrefillPass, schedule_passes

Row = npt.NDArray[np.float32]


def logits_row(logits: mx.array) -> Row:
    """Return the last row of float32 logits [rows, vocabulary] as a float32 numpy vector, evaluating it."""
    return np.array(logits[-1])


class PromptReader:
    """Reads what a state has not seen of a prompt, in passes, and keeps the last position's logits.

    Passes get smaller as the context grows, by the planner's schedule, so that a pass's workspace stays bounded.
    Neighbouring passes go through the model in groups that read each expert once.

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
        group_tokens: int = 0,
        stops: Collection[int] = (),
        logits: Row | None = None,
    ) -> None:
        """Prepare to read.

        Args:
            model: Reads.
            state: Has seen a beginning of the prompt that ends where a pass does, or nothing, or all of it.
            ids: The prompt.
            pass_tokens: Most tokens of one pass.
            group_tokens: Most tokens of the passes of a group; a pass of its own may have more.
            stops: Lengths at which a group ends, so that the state can be kept there.
            logits: After the whole prompt, when the state has seen all of it.
        """
        self._model = model
        self._state = state
        self._ids = np.asarray(ids, dtype=np.int32)
        self._pass_tokens = pass_tokens
        self._group_tokens = group_tokens
        self._stops = stops
        self.last_logits = logits

    def passes(self, cancel: CancelToken) -> Iterator[PromptProgress]:
        """Read the prompt; yield after each pass.

        The state's length is a progress's `done_tokens` at the end of a group only.

        Raises:
            GenerationCancelled: Between two passes or layers, when asked to stop.
            ExpertReadError: Expert bytes could not be read; the state is then unusable.
        """
        started = time.perf_counter()
        total, seen = len(self._ids), self._state.length
        for group in self._groups():
            cancel.check()
            begin, end = group[0].start, group[-1].start + group[-1].tokens
            ends = [step.start + step.tokens for step in group]
            read = self._model.read(
                [self._ids[step.start : step.start + step.tokens] for step in group],
                self._state,
                ends_prompt=end == total,
            )
            done = begin
            for share in read.steps():
                reached = max((each for each in ends if each - begin <= share * (end - begin)), default=begin)
                if reached == end:
                    continue  # nothing is left to stop
                cancel.check()
                if reached > done:
                    done = reached
                    yield self._progress(done, seen, started)
            if end == total:
                self.last_logits = logits_row(read.result.logits)
            yield self._progress(end, seen, started)

    def _groups(self) -> Iterator[list[PrefillPass]]:
        group: list[PrefillPass] = []
        seen, total = self._state.length, len(self._ids)
        for step in schedule_passes(total - seen, self._pass_tokens, start=seen):
            if group and (step.start in self._stops or step.start + step.tokens - group[0].start > self._group_tokens):
                yield group
                group = []
            group.append(step)
        if group:
            yield group

    def _progress(self, done: int, seen: int, started: float) -> PromptProgress:
        elapsed = time.perf_counter() - started
        return PromptProgress(done_tokens=done, total_tokens=len(self._ids), elapsed_s=elapsed, cached_tokens=seen)


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
