"""One turn of a loaded model: a prompt is read into a state, and one or more replies continue it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import StateError
from slotstream_core.events import (
    DraftCounts,
    ExpertTraffic,
    Finished,
    GenerationEvent,
    PromptProgress,
    Timings,
    Usage,
)
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.generation.control import CancelToken, StopCheck
from slotstream_core.generation.decoding import Decoder, PlainDecoder, PromptReader, Row
from slotstream_core.generation.replies import ReplyLoop
from slotstream_core.generation.room import ReplyRoom, check_passes
from slotstream_core.generation.sampling import Sampler
from slotstream_core.generation.sharing import spare_tokens
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.loading import LoadedModel
from slotstream_core.prefixes.resuming import PromptMemory
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import MemoryPlan
from slotstream_planner.workspace import ReadScope


class ReplyTurn:
    """Reads a prompt, then makes replies, each behind what was read and made before it.  For one thread."""

    def __init__(self, loaded: LoadedModel, tokenizer: Tokenizer, plan: MemoryPlan, cancel: CancelToken) -> None:
        self._loaded = loaded
        self._plan = plan
        self._tokenizer = tokenizer
        self._cancel = cancel
        self._state = loaded.model.new_state()
        self._row: Row | None = None
        self._seen: Sequence[int] | npt.NDArray[np.int32] = ()
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._begin()

    def read_prompt(self, prompt: PromptMemory, stop: StopCheck) -> Iterator[PromptProgress]:
        """Read a prompt from where a kept state of it ends, and let its memory keep what it wants.

        Args:
            prompt: The prompt and what is kept of it.
            stop: Asked at every safe boundary; what it raises ends the reading.

        Raises:
            MemoryUnavailable: The machine has less memory than the next passes take.
            ExpertReadError: Expert bytes could not be read.
        """
        self._begin()
        resumed = prompt.resume(self._state, stop)
        total = len(prompt.ids)
        self._prompt_tokens, self._cached_tokens = total, resumed.tokens
        yield PromptProgress(
            done_tokens=resumed.tokens, total_tokens=total, elapsed_s=0.0, cached_tokens=resumed.tokens
        )
        reader = PromptReader(
            self._loaded.model,
            self._state,
            prompt.ids,
            prompt.key.pass_tokens,
            logits=resumed.logits,
            extra_tokens=self._tokens_beside_a_pass(prompt, resumed.tokens),
            turns=prompt.turns,
            keep=prompt.stops,
            passed=prompt.passed,
            before=self._check_passes,
        )
        yield from reader.passes(stop)
        self._row, self._seen = reader.last_logits, prompt.ids

    def _tokens_beside_a_pass(self, prompt: PromptMemory, resumed: int) -> int:
        """How many tokens beyond one pass may go through the model together, reading each expert once."""
        if not self._loaded.experts.shares_reads:
            return 0
        return spare_tokens(
            self._plan,
            pass_tokens=prompt.key.pass_tokens,
            unread_tokens=len(prompt.ids) - resumed,
            kept_states=len(prompt.stops),
        )

    def read_on(self, ids: Sequence[int], pass_tokens: int) -> Iterator[PromptProgress]:
        """Read the ids that the state has not seen, the last token of a reply among them.

        Args:
            ids: Everything from the start of the prompt on.
            pass_tokens: Most tokens of one pass.

        Raises:
            GenerationCancelled: Between two layers, when asked to stop.
            MemoryUnavailable: The machine has less memory than the next passes take.
            ExpertReadError: Expert bytes could not be read.
        """
        self._begin()
        self._prompt_tokens, self._cached_tokens = len(ids), self._state.length
        reader = PromptReader(self._loaded.model, self._state, ids, pass_tokens, before=self._check_passes)
        yield from reader.passes(self._cancel)
        self._row, self._seen = reader.last_logits, ids

    def reply(
        self, loop: ReplyLoop, sampler: Sampler, *, on_end: Callable[[Sequence[int]], None] | None = None
    ) -> Generator[GenerationEvent, None, Finished]:
        """Yield the events of a reply, `Finished` included, and return that.

        Args:
            loop: Takes the tokens.
            sampler: Draws them.
            on_end: Called with the tokens before the last event.

        Raises:
            StateError: Nothing was read.
            GenerationCancelled: Between two tokens, when asked to stop.
            MemoryUnavailable: Between two tokens, when the sequence cache has to grow and the machine lacks memory.
            ExpertReadError: Expert bytes could not be read.
        """
        if self._row is None:
            raise StateError("a reply continues something that was read; read a prompt first")
        read_at, row, self._row = time.perf_counter(), self._row, None
        decoder = self._decoder(sampler)
        yield from loop.events(decoder, row, ReplyRoom(self._cancel, self._plan, self._state))
        if on_end is not None:
            on_end(loop.generated)
        finished = Finished(
            reason=loop.reason,
            stop_string=loop.stop_string,
            token_ids=tuple(loop.generated),
            seed=sampler.seed,
            usage=Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(loop.generated),
                thinking_tokens=loop.thinking_tokens,
                cached_tokens=self._cached_tokens,
            ),
            timings=Timings(prefill_s=read_at - self._started, decode_s=time.perf_counter() - read_at),
            experts=_traffic(self._loaded.experts.stats.since(self._before)),
            drafts=self._draft_counts(decoder),
        )
        yield finished
        return finished

    def _check_passes(self, scope: ReadScope) -> None:
        check_passes(self._plan, scope)

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._before, self._drafted = self._loaded.experts.stats, self._loaded.draft_stats()

    def _decoder(self, sampler: Sampler) -> Decoder:
        """What makes the tokens after a prompt: speculatively when the draft head is loaded."""
        loaded = self._loaded
        if loaded.draft_experts is None:
            return PlainDecoder(loaded.model, self._state, sampler)
        return SpeculativeDecoder(
            loaded.model, self._state, sampler, loaded.depths, waited=loaded.waited, seen=self._seen
        )

    def _draft_counts(self, decoder: Decoder) -> DraftCounts | None:
        if not isinstance(decoder, SpeculativeDecoder):
            return None
        return replace(decoder.counts, bytes_read=self._loaded.draft_stats().since(self._drafted).bytes_read)


def _traffic(stats: ExpertStats) -> ExpertTraffic:
    return ExpertTraffic(
        hits=stats.hits,
        misses=stats.misses,
        bytes_read=stats.bytes_read,
        read_wait_s=stats.wait_s,
        ahead_records=stats.ahead_records,
        ahead_used=stats.ahead_used + stats.ahead_joined,
        wasted_bytes=stats.wasted_bytes,
    )
