"""The engine: one checkpoint, loaded under a memory plan, generating one reply at a time."""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from slotstream_core.backend import Backend
from slotstream_core.errors import (
    ContextLengthExceeded,
    DeviceHung,
    EmptyPrompt,
    EngineBusy,
    RequestError,
    TemplateError,
)
from slotstream_core.events import GenerationEvent
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.experts.reading import ExpertReading
from slotstream_core.generation.assembly import ReplyAssembler
from slotstream_core.generation.control import CancelToken, FirstTokenDeadline
from slotstream_core.generation.phases import Phase, Transition
from slotstream_core.generation.replies import ReplyLoop
from slotstream_core.generation.sampling import ORDINARY, Sampler, SamplingParams
from slotstream_core.governing import ExpertsPool
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.models.qwen4_exp.device.kernels import KERNELS_VARIABLE
from slotstream_core.persistence.directory import PersistentOptions
from slotstream_core.prefixes.kept import PrefixKey
from slotstream_core.prefixes.memory import ConversationMemory, prompt_array
from slotstream_core.prefixes.resuming import PromptMemory
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.template import ChatTemplate, ReasoningEffort
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_core.turns import ReplyTurn
from slotstream_planner import MemoryPlan, PlanRequest

MAX_REPLY_TOKENS = 32_768


def load(
    path: str | Path,
    plan: MemoryPlan | None = None,
    *,
    request: PlanRequest | None = None,
    warm_directory: Path | None = None,
    mirrors: Sequence[Path] = (),
) -> Engine:
    """Load a checkpoint and return an engine that owns its files and memory.

    Args:
        path: The checkpoint directory.
        plan: The memory plan to load under, from `slotstream_planner.plan`; made for this machine when not given.
        request: What the plan should achieve, when it is made here.
        warm_directory: Where to keep which experts were used most, to start with those the next time; None keeps
            nothing.
        mirrors: Other directories with the same checkpoint, on other disks, that experts are read from too.

    Raises:
        MirrorMismatch: A mirror does not hold the same checkpoint.
        CheckpointError: The directory cannot be used as a model.
        TokenizerError: Its tokenizer or chat template cannot be used.
        PlanError: The plan is simulated or belongs to another model.
        BackendError: MLX cannot run here as installed.
        DeviceHung: The device does not answer.
        slotstream_planner.PlannerError: No plan fits, or the request contradicts itself.
    """
    directory = Path(path)
    with ExitStack() as opened:
        loaded = opened.enter_context(
            load_model(directory, plan, request=request, warm_directory=warm_directory, mirrors=mirrors)
        )
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
        self._hung: str | None = None
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
    def reading(self) -> ExpertReading:
        """How the experts are read from disk."""
        return self._loaded.reading

    @property
    def pinned_bytes(self) -> int:
        """What is pinned now of the experts' files, for an NVIDIA GPU to fetch from."""
        return self.pinned.pinned_bytes

    @property
    def pinned(self) -> PinnedFiles:
        """The experts' files that an NVIDIA GPU fetches from, as a governor pins more or less of them at any time."""
        return self._loaded.pinned

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

        Raises:
            DeviceHung: The device does not answer any more.
        """
        self._require_device()
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
        within_tokens: int | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation; a plain string is one user turn.

        While conversations are kept, replies of this engine in the conversation become the ids it made, reasoning
        included, so that what is kept of them fits.

        Args:
            conversation: The turns.
            tools: Declared tools.
            thinking: Whether the reply starts inside a thinking block.
            effort: How much to think.
            within_tokens: A window that the prompt is to leave room in, as `Tokenizer.encode` takes it; None for ids
                however many they are.

        Raises:
            ContextLengthExceeded: The prompt is far too long for `within_tokens`, and was not tokenized.
            TemplateError: The checkpoint has no chat template, or it refused the conversation.
        """
        if self._template is None:
            raise TemplateError("this checkpoint has no chat template; send its prompt as plain text (--raw)")
        messages = [ChatMessage(role="user", content=conversation)] if isinstance(conversation, str) else conversation
        return self.memory.chat_ids(
            self._template,
            messages,
            tools=tools,
            thinking=thinking,
            effort=effort,
            window_tokens=self.window_tokens,
            within_tokens=within_tokens,
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
        first_token_s: float | None = None,
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
            first_token_s: Longest time from this call to the first token, in seconds; None for as long as it takes.

        Raises:
            EmptyPrompt: There are no prompt tokens.
            ContextLengthExceeded: The prompt leaves no room for a reply.
            RequestError: A token id is outside the vocabulary, the time no positive number, or an item of the prompt
                neither a `ChatMessage` among others nor a token id among others.
            TemplateError: The chat template is missing or refused the conversation.

        The iterator itself may raise `ExpertReadError` (disk), `GenerationCancelled`, `DeadlineExceeded`,
        `MemoryUnavailable` between passes of the prompt and where a long reply's cache grows, and `EngineBusy` when
        another generation of this engine is running; after any of them the engine can be used again. `DeviceHung` ends
        the engine: every later generation raises it at once.
        """
        cancel = cancel or CancelToken()
        deadline = FirstTokenDeadline(cancel, first_token_s)
        ids = self._prompt_ids(prompt, thinking=thinking)
        room = self._room(ids)
        loop = ReplyLoop(
            ReplyAssembler(self.tokenizer.detokenizer(), thinking=thinking, stop=stop),
            eos_ids=self.tokenizer.eos_ids,
            budget=min(room, MAX_REPLY_TOKENS, max_tokens if max_tokens > 0 else room),
            cancel=cancel,
        )
        followed = self.memory.follow(
            prompt_array(ids), self._prefix_key(), shared_tokens=shared_tokens, persist=persist
        )
        return self._guarded(self._events(followed, loop, Sampler(sampling), cancel, deadline))

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
        if backend.kind == "cuda":
            settings["kernels"] = os.environ.get(KERNELS_VARIABLE, "1")
        self.memory.keep_on_disk(options, directory=checkpoint.directory, settings=settings)

    def reusable_tokens(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt are kept and would not be read again now."""
        return self.memory.reusable_tokens(prompt_array(prompt), self._prefix_key())

    def prefix_status(self) -> dict[str, Any]:
        """Return what is kept of conversations and how it served, with its documented keys."""
        return self.memory.status()

    def _prefix_key(self) -> PrefixKey:
        return self.memory.prefix_key(self._loaded.model.key, self.plan)

    def _prompt_ids(self, prompt: str | Sequence[ChatMessage] | Sequence[int], *, thinking: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.chat_ids(prompt, thinking=thinking, within_tokens=self.window_tokens)
        messages = [item for item in prompt if isinstance(item, ChatMessage)]
        if messages and len(messages) == len(prompt):
            return self.chat_ids(messages, thinking=thinking, within_tokens=self.window_tokens)
        return self._checked_ids([_token_id(item, position) for position, item in enumerate(prompt)])

    def _checked_ids(self, ids: Sequence[int]) -> list[int]:
        limit = self._loaded.checkpoint.config.vocab_size
        outside = next((token for token in ids if not 0 <= token < limit), None)
        if outside is not None:
            raise RequestError(f"token id {outside} is outside the vocabulary of {limit:,}")
        return list(ids)

    def generate_phases(
        self,
        prompt: str | Sequence[ChatMessage] | Sequence[int],
        first: Phase,
        second: Phase,
        transition: Transition,
        *,
        cancel: CancelToken | None = None,
        first_token_s: float | None = None,
    ) -> Iterator[GenerationEvent]:
        """Check a request and return the events of two phases, each ending with `Finished`.

        After the first phase `transition` names the ids that come next; the second continues behind them from the live
        state, so that nothing is read twice. It is called while the engine is busy and must not call it. What the
        phases generate is not kept for later prompts, nor is the prompt written to disk.

        Args:
            prompt: As in `generate`; it is a thinking prompt when the first phase thinks.
            first: The first phase.
            second: The second phase; its `Finished` counts everything before it as prompt.
            transition: Returns the ids between the phases.
            cancel: Lets another thread stop either phase.
            first_token_s: Longest time from this call to the first phase's first token, in seconds; None for any.

        Raises:
            EmptyPrompt: There are no prompt tokens.
            ContextLengthExceeded: The prompt leaves no room for a reply; from the iterator, the first phase left none.
            RequestError: A token id is outside the vocabulary, or the time no positive number; from the iterator,
                `transition` returned such an id or none.
            TemplateError: The chat template is missing or refused the conversation.

        The iterator may raise what that of `generate` may.
        """
        cancel = cancel or CancelToken()
        deadline = FirstTokenDeadline(cancel, first_token_s)
        ids = self._prompt_ids(prompt, thinking=first.thinking)
        self._room(ids)
        followed = self.memory.follow(prompt_array(ids), self._prefix_key(), persist=False)
        return self._guarded(self._phased_events(followed, (first, second), transition, cancel, deadline))

    def _phased_events(
        self,
        prompt: PromptMemory,
        phases: tuple[Phase, Phase],
        transition: Transition,
        cancel: CancelToken,
        deadline: FirstTokenDeadline,
    ) -> Iterator[GenerationEvent]:
        turn = ReplyTurn(self._loaded, self.tokenizer, self.plan, cancel)
        yield from turn.read_prompt(prompt, deadline)
        ids = [int(token) for token in prompt.ids]
        for number, phase in enumerate(phases):
            room = min(self._room(ids), MAX_REPLY_TOKENS)
            loop = ReplyLoop(
                ReplyAssembler(self.tokenizer.detokenizer(), thinking=phase.thinking, stop=phase.stop),
                eos_ids=self.tokenizer.eos_ids,
                budget=min(room, phase.max_tokens) if phase.max_tokens > 0 else room,
                cancel=cancel,
                ends_with_thinking=phase.ends_with_thinking,
            )
            finished = yield from turn.reply(loop, Sampler(phase.sampling))
            if number == 0:
                between = self._checked_ids(transition(finished))
                if not between:
                    raise RequestError("nothing stands between the phases; return at least one id from the transition")
                ids += [*finished.token_ids, *between]
                self._room(ids)
                yield from turn.read_on(ids, prompt.key.pass_tokens)

    def _room(self, ids: Sequence[int]) -> int:
        """How many tokens may follow a prompt.

        Raises:
            EmptyPrompt: There are no prompt tokens.
            ContextLengthExceeded: None may.
        """
        if not ids:
            raise EmptyPrompt("the prompt has no tokens; write something to answer")
        if len(ids) >= self.window_tokens:
            raise ContextLengthExceeded(len(ids), self.window_tokens)
        return self.window_tokens - len(ids)

    def _guarded(self, events: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        """Yield events while no other generation runs."""
        self._require_device()
        if not self._gate.acquire(blocking=False):
            if self._generating:
                raise EngineBusy("the engine is making another reply; wait for its last event or close its iterator")
            self._gate.acquire()  # its pool is being resized; that takes a moment
        self._generating = True
        self._loaded.experts.stop_warming()
        try:
            yield from events
        except DeviceHung as error:
            self._hung = str(error)
            raise
        finally:
            self._generating = False
            self._gate.release()

    def _require_device(self) -> None:
        """Raise what ended the engine, if something did."""
        if self._hung is not None:
            raise DeviceHung(self._hung)

    def _events(
        self, prompt: PromptMemory, loop: ReplyLoop, sampler: Sampler, cancel: CancelToken, deadline: FirstTokenDeadline
    ) -> Iterator[GenerationEvent]:
        turn = ReplyTurn(self._loaded, self.tokenizer, self.plan, cancel)
        yield from turn.read_prompt(prompt, deadline)
        yield from turn.reply(loop, sampler, on_end=lambda reply: self.memory.finished(prompt, reply))


@contextmanager
def _give_back(gate: threading.Lock) -> Iterator[None]:
    """Release a lock that is held already."""
    try:
        yield
    finally:
        gate.release()


def _token_id(item: object, position: int) -> int:
    """Return a token id of any integer type.

    Raises:
        RequestError: It is something else.
    """
    try:
        return operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        raise RequestError(
            f"item {position} of the prompt is a {type(item).__name__}; give text, token ids, or a conversation of "
            "ChatMessage(role=..., content=...) alone"
        ) from None
