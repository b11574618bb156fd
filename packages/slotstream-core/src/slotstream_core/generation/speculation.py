"""Speculative decoding: the draft head guesses, one pass of the model verifies, and the sampler decides.

The tokens are those of plain decoding: at every place the ordinary sampler draws from the model's own logits, in the
same order and with the same history, and a draft is kept when it is what was drawn. The first draw that differs from
its draft is itself the next token. Nothing is compared with the head's probabilities.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from slotstream_core.errors import ExpertReadError
from slotstream_core.events import DraftCounts
from slotstream_core.experts.stats import Waited
from slotstream_core.generation.decoding import Row, next_logits
from slotstream_core.generation.draft_depth import DepthPolicy, PassCost
from slotstream_core.generation.sampling import Sampler
from slotstream_core.models.base import DraftingModel
from slotstream_core.state.sequence import SequenceState


class _Start(NamedTuple):
    """When a pass began, what had been waited for experts then, and what the head took in before."""

    time_s: float
    waited: Waited
    caught_up_rows: int = 0
    caught_up_s: float = 0.0


class SpeculativeDecoder:
    """Decodes with drafts, as many a pass as a policy says.  One reply.

    A draft record that cannot be read ends drafting, not the reply: what follows is decoded plainly.

    Args:
        model: With its draft head.
        state: Of a prompt that was read.
        sampler: The reply's.
        policy: Chooses the depth of each pass and learns from it; outlives the reply.
        waited: How long was waited for experts, the head's included, and their bytes, so far.
    """

    def __init__(
        self,
        model: DraftingModel,
        state: SequenceState,
        sampler: Sampler,
        policy: DepthPolicy,
        *,
        waited: Callable[[], Waited],
    ) -> None:
        self._model = model
        self._state = state
        self._sampler = sampler
        self._policy = policy
        self._waited = waited
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
        left = limit
        token = self._sampler.sample(row)
        while True:
            yield token
            left -= 1
            if not left:
                return
            start = _Start(time.perf_counter(), self._waited())
            drafts, start = self._draft(token, left - 1, start)
            if drafts:
                token, accepted = yield from self._verified(token, drafts, start)
                left -= accepted
            else:
                row = next_logits(self._model, self._state, token)
                self._passes[0] += 1
                if not self._failed_reads:
                    self._policy.note(self._cost(0, start), 0)
                token = self._sampler.sample(row)

    def _draft(self, token: int, most: int, start: _Start) -> tuple[list[int], _Start]:
        """Guess as many tokens as the policy says; returns them, and when that began once the head had caught up."""
        if self._failed_reads:
            return [], start
        depth = self._policy.choose(most, waiting=self._model.waiting_rows(self._state))
        if not depth:
            return [], start
        if rows := self._model.catch_up(self._state):
            now = time.perf_counter()
            start = _Start(now, start.waited, caught_up_rows=rows, caught_up_s=now - start.time_s)
        try:
            return self._model.draft(self._state, token, depth), start
        except ExpertReadError:
            self._failed_reads += 1
            return [], start

    def _verified(self, token: int, drafts: list[int], start: _Start) -> Generator[int, None, tuple[int, int]]:
        """Read ``token`` and its drafts, yield the accepted ones, and return the token after them and their number."""
        first = self._state.length + 1
        ids = np.array([token, *drafts], dtype=np.int32)
        rows = np.array(self._model.forward(ids, self._state, logits="all", record=True, decode=True).logits)
        cost = self._cost(len(drafts), start)
        self._passes[len(drafts)] += 1
        accepted = 0
        try:
            drawn = self._sampler.sample(rows[0])
            while accepted < len(drafts) and drawn == drafts[accepted]:
                yield drawn
                accepted += 1
                drawn = self._sampler.sample(rows[accepted])
        finally:
            self._state.trim(first + accepted)
            self._state.forget_passes()
            self._accepted += accepted
        self._policy.note(cost, accepted)
        return drawn, accepted

    def _cost(self, depth: int, start: _Start) -> PassCost:
        elapsed, now, before = time.perf_counter() - start.time_s, self._waited(), start.waited
        return PassCost(
            depth=depth,
            time_s=elapsed,
            wait_s=now.wait_s - before.wait_s,
            bytes_read=now.bytes_read - before.bytes_read,
            caught_up_rows=start.caught_up_rows,
            caught_up_s=start.caught_up_s,
            usual=not self._model.trying,
        )
