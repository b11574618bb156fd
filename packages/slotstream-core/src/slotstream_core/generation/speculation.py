"""Speculative decoding: the text or the draft head guesses, one pass of the model verifies, and the sampler decides.

The tokens are those of plain decoding: at every place the ordinary sampler draws from the model's own logits, in the
same order and with the same history, and a draft is kept when it is what was drawn. The first draw that differs from
its draft is itself the next token. The head's probabilities decide what is verified, never what is kept.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import ExpertReadError
from slotstream_core.events import DraftCounts
from slotstream_core.experts.stats import Waited
from slotstream_core.generation.decoding import Row, next_logits
from slotstream_core.generation.draft_costs import PassCost
from slotstream_core.generation.draft_depth import DEPTH_LIMIT, DepthPolicy, Outcome
from slotstream_core.generation.repetition import Repetition
from slotstream_core.generation.sampling import Sampler
from slotstream_core.models.base import DraftingModel, Guess
from slotstream_core.state.sequence import SequenceState

_REPEATS: Final = 0.5
"""How often copies must have been right lately for every pass to be asked about: else some are made without."""


class _Start(NamedTuple):
    """When a pass began, and what had been waited for experts then."""

    time_s: float
    waited: Waited


@dataclass(frozen=True, kw_only=True)
class _Guessing:
    """The guesses before a pass, what each took, and what the head took in before."""

    guesses: tuple[Guess, ...] = ()
    seconds: tuple[float, ...] = ()
    caught_up_rows: int = 0
    caught_up_s: float = 0.0

    @property
    def confidences(self) -> tuple[float, ...]:
        return tuple(guess.confidence for guess in self.guesses)


class SpeculativeDecoder:
    """Decodes with drafts, as many a pass as a policy says.  One reply.

    A draft record that cannot be read ends drafting, not the reply: what follows is decoded plainly.

    Args:
        model: With its draft head.
        state: Of a prompt that was read.
        sampler: The reply's.
        policy: Decides what each pass verifies and learns from it; outlives the reply.
        waited: How long was waited for experts, the head's included, and their bytes, so far.
        seen: What the state has seen, or the end of it: guesses may be copied from there.
    """

    def __init__(
        self,
        model: DraftingModel,
        state: SequenceState,
        sampler: Sampler,
        policy: DepthPolicy,
        *,
        waited: Callable[[], Waited],
        seen: Sequence[int] | npt.NDArray[np.int32] = (),
    ) -> None:
        self._model = model
        self._state = state
        self._sampler = sampler
        self._policy = policy
        self._waited = waited
        self._repetition = Repetition(seen)
        self._passes: Counter[int] = Counter()
        self._accepted = 0
        self._failed_reads = 0

    @property
    def counts(self) -> DraftCounts:
        """What was drafted so far and what became of it."""
        deepest = max(self._passes, default=0)
        return DraftCounts(
            drafted=sum(depth * count for depth, count in self._passes.items()),
            accepted=self._accepted,
            passes_by_depth=tuple(self._passes[depth] for depth in range(deepest + 1)),
            failed_reads=self._failed_reads,
        )

    def tokens(self, row: Row, *, limit: int) -> Generator[int, None, None]:
        """See `Decoder.tokens`."""
        self._policy.begin()
        left, rest = limit, 0
        token = self._sampler.sample(row)
        while True:
            self._repetition.add(token)
            yield token
            left -= 1
            if not left:
                return
            if rest:
                rest -= 1
                token = self._next(token)
                continue
            made, drafts = _Guessing(), self._copies(left - 1)
            if not drafts:
                made = self._guess(token, left - 1)
                verified = self._policy.verified(made.confidences) if made.guesses else 0
                drafts = [guess.token for guess in made.guesses[:verified]]
            if drafts:
                token, accepted = yield from self._verified(token, drafts, made)
                left -= accepted
            elif self._failed_reads:
                token, rest = self._next(token), left
            else:
                token = self._plain(token, made)
                rest = 0 if made.guesses or self._repetition.chance >= _REPEATS else self._policy.rest()

    def _copies(self, most: int) -> list[int]:
        """The next tokens, should the text repeat itself, as many as the policy wants of at most ``most``."""
        copied = self._repetition.guesses(min(most, DEPTH_LIMIT))
        return copied[: self._policy.copies(self._repetition.chance, len(copied))] if copied else []

    def _guess(self, token: int, most: int) -> _Guessing:
        """Guess as many tokens as the policy wants, at most ``most``, once the head has caught up."""
        if not self._policy.starts(most, waiting=self._model.waiting_rows(self._state)):
            return _Guessing()
        started = time.perf_counter()
        rows = self._model.catch_up(self._state)
        before = time.perf_counter()
        caught_up_s = before - started if rows else 0.0
        guesses: list[Guess] = []
        seconds: list[float] = []
        try:
            with closing(self._model.guesses(self._state, token)) as following:
                for guess in following:
                    now = time.perf_counter()
                    guesses.append(guess)
                    seconds.append(now - before)
                    before = now
                    confidences = [each.confidence for each in guesses]
                    if len(guesses) >= most or not self._policy.goes_on(confidences):
                        break
        except ExpertReadError:
            self._failed_reads += 1
            return _Guessing()
        return _Guessing(guesses=tuple(guesses), seconds=tuple(seconds), caught_up_rows=rows, caught_up_s=caught_up_s)

    def _next(self, token: int) -> int:
        """Read ``token`` alone and return the one after it."""
        row = next_logits(self._model, self._state, token)
        self._passes[0] += 1
        return self._sampler.sample(row)

    def _plain(self, token: int, made: _Guessing) -> int:
        """As `_next`, timed; a guess that was not verified is judged by it as well."""
        start = _Start(time.perf_counter(), self._waited())
        row = next_logits(self._model, self._state, token)
        cost = self._cost(0, start, made)
        self._passes[0] += 1
        drawn = self._sampler.sample(row)
        self._policy.note(cost, _outcome(made, 0, drawn, depth=0))
        return drawn

    def _verified(self, token: int, drafts: Sequence[int], made: _Guessing) -> Generator[int, None, tuple[int, int]]:
        """Read ``token`` and its drafts, yield the accepted ones, and return the token after them and their number."""
        start = _Start(time.perf_counter(), self._waited())
        first = self._state.length + 1
        ids = np.array([token, *drafts], dtype=np.int32)
        rows = np.array(self._model.forward(ids, self._state, logits="all", record=True, decode=True).logits)
        cost = self._cost(len(drafts), start, made)
        self._passes[len(drafts)] += 1
        accepted = 0
        try:
            drawn = self._sampler.sample(rows[0])
            while accepted < len(drafts) and drawn == drafts[accepted]:
                self._repetition.add(drawn)
                yield drawn
                accepted += 1
                drawn = self._sampler.sample(rows[accepted])
        finally:
            before = time.perf_counter()
            self._state.trim(first + accepted)
            self._state.forget_passes()
            self._accepted += accepted
        cost = replace(cost, time_s=cost.time_s + time.perf_counter() - before)
        self._policy.note(cost, _outcome(made, accepted, drawn, depth=len(drafts)))
        return drawn, accepted

    def _cost(self, depth: int, start: _Start, made: _Guessing) -> PassCost:
        elapsed, now, before = time.perf_counter() - start.time_s, self._waited(), start.waited
        return PassCost(
            depth=depth,
            time_s=elapsed,
            wait_s=now.wait_s - before.wait_s,
            bytes_read=now.bytes_read - before.bytes_read,
            guesses_s=made.seconds,
            caught_up_rows=made.caught_up_rows,
            caught_up_s=made.caught_up_s,
            usual=not self._model.trying,
        )


def _outcome(made: _Guessing, accepted: int, drawn: int, *, depth: int) -> Outcome:
    """What became of the guesses when the first ``accepted`` of ``depth`` were kept and ``drawn`` came after them."""
    also = accepted == depth < len(made.guesses) and made.guesses[depth].token == drawn
    return Outcome(confidences=made.confidences, right=accepted + also, judged=min(accepted + 1, len(made.guesses)))
