"""The engine: one checkpoint, loaded under a memory plan, generating one reply at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from slotstream_core.backend import Backend
from slotstream_core.errors import ContextLengthExceeded, EmptyPrompt, EngineBusy, RequestError, TemplateError
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
from slotstream_core.generation.assembly import ReplyAssembler
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import Decoder, PlainDecoder, PromptReader
from slotstream_core.generation.replies import ReplyLoop
from slotstream_core.generation.sampling import ORDINARY, Sampler, SamplingParams
from slotstream_core.generation.sharing import spare_tokens
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.governing import ExpertsPool
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.persistence.directory import PersistentOptions
from slotstream_core.prefixes.kept import PrefixKey
from slotstream_core.prefixes.memory import ConversationMemory, prompt_array
from slotstream_core.prefixes.resuming import PromptMemory
from slotstream_core.state.sequence import SequenceState
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.template import ChatTemplate, ReasoningEffort
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import MemoryPlan, PlanRequest

MAX_REPLY_TOKENS = 32_768


def load(path: str | Path, plan: MemoryPlan | None = None, *, request: PlanRequest | None = None) -> Engine:
    """Load a checkpoint and return an engine that owns its files and memory.

    Args:
        path: The checkpoint directory.
        plan: The memory plan to load under, from `slotstream_planner.plan`; made for this machine when not given.
        request: What the plan should achieve, when it is made here.

    Raises:
        CheckpointError: The directory cannot be used as a model.
        TokenizerError: Its tokenizer or chat template cannot be used.
        PlanError: The plan is simulated or belongs to another model.
        BackendError: MLX cannot run here as installed.
        slotstream_planner.PlannerError: No plan fits, or the request contradicts itself.
    """
    directory = Path(path)
    with ExitStack() as opened:
        loaded = opened.enter_context(load_model(directory, plan, request=request))
        config = loaded.checkpoint.config
        tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
        template = ChatTemplate.from_directory(directory)
        opened.pop_all()
    return Engine(loaded, tokenizer=tokenizer, template=template)


class Engine:
    """Generates text with a loaded model.  One thread at a time; close it, or use it as a context manager.

    Attributes:
        plan: The memory plan it was loaded under.
        tokenizer: The checkpoint's tokenizer.
        memory: What it remembers of past prompts, as much as the plan has room for.
    """

    def __init__(self, loaded: LoadedModel, *, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._loaded = loaded
        self._template = template
        self._gate = threading.Lock()
        self._generating = False
        self.tokenizer = tokenizer
        self.plan = loaded.plan
        self.memory = ConversationMemory(loaded.plan, tokenizer)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the readers, close the checkpoint's files and let the memory go.  A second call does nothing."""
        self.memory.leave_disk()
        self._loaded.close()

    @property
    def pool(self) -> ExpertsPool:
        """The expert pool, as a governor resizes it between requests; see `held`."""
        return ExpertsPool(self._loaded.experts)

    def held(self, *, wait: bool) -> AbstractContextManager[None] | None:
        """Take the engine between two generations, so that its pool and plan may change.

        Args:
            wait: Whether to wait for a running generation.

        Returns:
            A context manager that gives the engine back; None when a generation runs and `wait` is false.
        """
        return _give_back(self._gate) if self._gate.acquire(blocking=wait) else None

    def adopt(self, plan: MemoryPlan) -> None:
        """Serve under another plan from the next request on.  Only while `held`."""
        self.plan = plan
        self.memory.adopt(plan)

    @property
    def window_tokens(self) -> int:
        """Most tokens a prompt and its reply may have together."""
        return self.plan.window_tokens

    def chat_ids(
        self,
        conversation: str | Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        thinking: bool = False,
        effort: ReasoningEffort | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation; a plain string is one user turn.

        While conversations are kept, replies of this engine in the conversation become the ids it made, reasoning
        included, so that what is kept of them fits.

        Raises:
            TemplateError: The checkpoint has no chat template, or it refused the conversation.
        """
        if self._template is None:
            raise TemplateError("this checkpoint has no chat template; send its prompt as plain text (--raw)")
        messages = [ChatMessage(role="user", content=conversation)] if isinstance(conversation, str) else conversation
        return self.memory.chat_ids(
            self._template, messages, tools=tools, thinking=thinking, effort=effort, window_tokens=self.window_tokens
        )

    def generate(
        self,
        prompt: str | Sequence[ChatMessage] | Sequence[int],
        *,
        sampling: SamplingParams = ORDINARY,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        thinking: bool = False,
        cancel: CancelToken | None = None,
        shared_tokens: int | None = None,
        persist: bool = True,
    ) -> Iterator[GenerationEvent]:
        """Check a request and return its events, ending with `Finished`.

        Args:
            prompt: Text of one user turn, a conversation, or token ids used as they are.
            sampling: How to choose tokens.
            max_tokens: Most tokens to make; 0 or less means as many as the window leaves, at most 32,768.
            stop: Texts that end the answer; they are not part of it and are not looked for in the thinking.
            thinking: Whether the reply begins inside a thinking block, as the prompt must then end with its opening.
            cancel: Lets another thread stop the generation.
            shared_tokens: Length of the head of the prompt that other conversations will start with, kept for them;
                0 for none, None for the system message.
            persist: Whether the conversation may be kept on disk; see `ConversationMemory.keep_on_disk`.

        Raises:
            EmptyPrompt: There are no prompt tokens.
            ContextLengthExceeded: The prompt leaves no room for a reply.
            RequestError: A token id is outside the vocabulary.
            TemplateError: The chat template is missing or refused the conversation.

        The iterator itself may raise `ExpertReadError` (disk), `GenerationCancelled`, and `EngineBusy` when another
        generation of this engine is running; after any of them the engine can be used again.
        """
        ids = self._prompt_ids(prompt, thinking=thinking)
        room = self.window_tokens - len(ids)
        if not ids:
            raise EmptyPrompt("the prompt has no tokens; write something to answer")
        if room < 1:
            raise ContextLengthExceeded(len(ids), self.window_tokens)
        budget = min(room, MAX_REPLY_TOKENS, max_tokens if max_tokens > 0 else room)
        assembler = ReplyAssembler(self.tokenizer.detokenizer(), thinking=thinking, stop=stop)
        followed = self.memory.follow(
            prompt_array(ids), self._prefix_key(), shared_tokens=shared_tokens, persist=persist
        )
        return self._run(followed, Sampler(sampling), assembler, budget, cancel or CancelToken())

    def keep_on_disk(self, options: PersistentOptions) -> None:
        """Also keep conversations on disk from now on, and go on from those that are there; see `ConversationMemory`.

        Raises:
            DirectoryInUse: Another process uses the directory.
            InaccessibleFile: Something in it cannot be read; nothing was changed.
        """
        checkpoint = self._loaded.checkpoint
        backend = Backend.detect()
        native = os.environ.get("SLOTSTREAM_NATIVE", "1")
        settings = {"backend": backend.kind, "element": str(backend.compute_dtype), "native": native}
        self.memory.keep_on_disk(options, directory=checkpoint.directory, settings=settings)

    def reusable_tokens(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt are kept and would not be read again now."""
        return self.memory.reusable_tokens(prompt_array(prompt), self._prefix_key())

    def prefix_status(self) -> dict[str, Any]:
        """Return what is kept of conversations and how it served, with its documented keys."""
        return self.memory.status()

    def _prefix_key(self) -> PrefixKey:
        return PrefixKey(model=self._loaded.model.key, pass_tokens=self.memory.pass_tokens(self.plan))

    def _prompt_ids(self, prompt: str | Sequence[ChatMessage] | Sequence[int], *, thinking: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.chat_ids(prompt, thinking=thinking)
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) == len(prompt):
            limit = self._loaded.checkpoint.config.vocab_size
            outside = next((token for token in ids if not 0 <= token < limit), None)
            if outside is not None:
                raise RequestError(f"token id {outside} is outside the vocabulary of {limit:,}")
            return ids
        messages = [item for item in prompt if isinstance(item, ChatMessage)]
        return self.chat_ids(messages, thinking=thinking)

    def _run(
        self, prompt: PromptMemory, sampler: Sampler, assembler: ReplyAssembler, budget: int, cancel: CancelToken
    ) -> Iterator[GenerationEvent]:
        if not self._gate.acquire(blocking=False):
            if self._generating:
                raise EngineBusy("the engine is making another reply; wait for its last event or close its iterator")
            self._gate.acquire()  # its pool is being resized; that takes a moment
        self._generating = True
        try:
            yield from self._events(prompt, sampler, assembler, budget, cancel)
        finally:
            self._generating = False
            self._gate.release()

    def _events(
        self, prompt: PromptMemory, sampler: Sampler, assembler: ReplyAssembler, budget: int, cancel: CancelToken
    ) -> Iterator[GenerationEvent]:
        model, experts = self._loaded.model, self._loaded.experts
        before, drafted = experts.stats, self._loaded.draft_stats()
        state = model.new_state()
        started = time.perf_counter()
        resumed = prompt.resume(state)
        total = len(prompt.ids)
        yield PromptProgress(
            done_tokens=resumed.tokens, total_tokens=total, elapsed_s=0.0, cached_tokens=resumed.tokens
        )
        reader = PromptReader(
            model,
            state,
            prompt.ids,
            prompt.key.pass_tokens,
            logits=resumed.logits,
            extra_tokens=self._tokens_beside_a_pass(prompt, resumed.tokens),
            keep=prompt.stops,
            passed=prompt.passed,
        )
        yield from reader.passes(cancel)
        prefilled = time.perf_counter()
        reply = ReplyLoop(assembler, eos_ids=self.tokenizer.eos_ids, budget=budget, cancel=cancel)
        decoder = self._decoder(state, sampler)
        if reader.last_logits is not None:
            yield from reply.events(decoder, reader.last_logits)
        self.memory.finished(prompt, reply.generated)
        traffic = experts.stats.since(before)
        yield Finished(
            reason=reply.reason,
            stop_string=assembler.stop_string,
            token_ids=tuple(reply.generated),
            seed=sampler.seed,
            usage=Usage(
                prompt_tokens=total,
                completion_tokens=len(reply.generated),
                thinking_tokens=assembler.thinking_tokens,
                cached_tokens=resumed.tokens,
            ),
            timings=Timings(prefill_s=prefilled - started, decode_s=time.perf_counter() - prefilled),
            experts=ExpertTraffic(
                hits=traffic.hits,
                misses=traffic.misses,
                bytes_read=traffic.bytes_read,
                read_wait_s=traffic.wait_s,
                ahead_records=traffic.ahead_records,
                ahead_used=traffic.ahead_used + traffic.ahead_joined,
                wasted_bytes=traffic.wasted_bytes,
            ),
            drafts=self._draft_counts(decoder, drafted),
        )

    def _decoder(self, state: SequenceState, sampler: Sampler) -> Decoder:
        """What makes the tokens after a prompt: speculatively when the draft head is loaded."""
        loaded = self._loaded
        if loaded.draft_experts is None:
            return PlainDecoder(loaded.model, state, sampler)
        return SpeculativeDecoder(loaded.model, state, sampler, loaded.depths, traffic=loaded.all_stats)

    def _draft_counts(self, decoder: Decoder, before: ExpertStats) -> DraftCounts | None:
        if not isinstance(decoder, SpeculativeDecoder):
            return None
        return replace(decoder.counts, bytes_read=self._loaded.draft_stats().since(before).bytes_read)

    def _tokens_beside_a_pass(self, prompt: PromptMemory, resumed: int) -> int:
        """How many tokens beyond one pass may go through the model together, reading each expert once."""
        if not self._loaded.experts.shares_reads:
            return 0
        return spare_tokens(self.plan, pass_tokens=prompt.key.pass_tokens, unread_tokens=len(prompt.ids) - resumed)


@contextmanager
def _give_back(gate: threading.Lock) -> Iterator[None]:
    """Release a lock that is held already."""
    try:
        yield
    finally:
        gate.release()
