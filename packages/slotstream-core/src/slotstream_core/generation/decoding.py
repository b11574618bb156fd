"""The loop from a prompt's ids to generated ids: passes over the prompt, then one token at a time."""

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.events import PromptProgress
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import Sampler
from slotstream_core.models.base import Model
from slotstream_core.state.sequence import SequenceState
from slotstream_planner.prefill import schedule_passes

Row = npt.NDArray[np.float32]


def logits_row(logits: mx.array) -> Row:
    """Return the last row of float32 logits [rows, vocabulary] as a float32 numpy vector, evaluating it."""
    return np.array(logits[-1])


class PromptReader:
    """Reads what a state has not seen of a prompt, in passes, and keeps the last position's logits.

    Passes get smaller as the context grows, by the planner's schedule, so that a pass's workspace stays bounded.

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
    ) -> None:
        """Prepare to read.

        Args:
            model: Reads.
            state: Has seen a beginning of the prompt that ends where a pass does, or nothing, or all of it.
            ids: The prompt.
            pass_tokens: Most tokens of one pass.
            logits: After the whole prompt, when the state has seen all of it.
        """
        self._model = model
        self._state = state
        self._ids = np.asarray(ids, dtype=np.int32)
        self._pass_tokens = pass_tokens
        self.last_logits = logits

    def passes(self, cancel: CancelToken) -> Iterator[PromptProgress]:
        """Read pass after pass; yield after each one.

        Raises:
            GenerationCancelled: Between two passes, when asked to stop.
            ExpertReadError: Expert bytes could not be read; the state is then unusable.
        """
        started = time.perf_counter()
        total, seen = len(self._ids), self._state.length
        for step in schedule_passes(total - seen, self._pass_tokens, start=seen):
            cancel.check()
            end = step.start + step.tokens
            logits = self._model.forward(self._ids[step.start : end], self._state).logits
            if end == total:
                self.last_logits = logits_row(logits)
            elapsed = time.perf_counter() - started
            yield PromptProgress(done_tokens=end, total_tokens=total, elapsed_s=elapsed, cached_tokens=seen)


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
