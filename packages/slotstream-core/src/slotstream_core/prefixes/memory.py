"""Everything an engine remembers between requests: states of prompts, and the ids behind replies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotstream_core.persistence.directory import PersistentOptions
from slotstream_core.persistence.identity import build_name, identity_digest
from slotstream_core.persistence.tier import DiskTier
from slotstream_core.prefixes.boundaries import Ids, SystemHead, resume_pass_tokens
from slotstream_core.prefixes.cache import CacheBudget, PrefixCache
from slotstream_core.prefixes.kept import PrefixKey
from slotstream_core.prefixes.resuming import PromptMemory
from slotstream_core.prefixes.splicing import rest_after
from slotstream_core.prefixes.transcripts import ChatSettings, Transcripts, fingerprints
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.template import ChatTemplate, ReasoningEffort
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import MemoryPlan


def cache_budget(plan: MemoryPlan) -> CacheBudget:
    """Return what a plan reserves for retained conversations; nothing when it retains none."""
    return CacheBudget(
        capacity_bytes=plan.ledger.retained_bytes,
        max_tokens=plan.retained_tokens,
        token_bytes=plan.geometry.kv_bytes_per_token,
    )


class ConversationMemory:
    """What one engine remembers.  `chat_ids` and `status` may be called from any thread, the rest from one.

    Attributes:
        cache: States of prompts.
        transcripts: Ids behind replies.
        tier: The disk behind both; see `keep_on_disk`.
    """

    def __init__(self, plan: MemoryPlan, tokenizer: Tokenizer) -> None:
        self.cache = PrefixCache(cache_budget(plan))
        self.transcripts = Transcripts(tokenizer)
        self._tokenizer = tokenizer
        self.tier: DiskTier | None = None
        self._head = SystemHead(tokenizer)

    @property
    def enabled(self) -> bool:
        """Whether the plan has room for conversations, or the disk."""
        return self.cache.enabled or self.tier is not None

    def keep_on_disk(self, options: PersistentOptions, *, directory: Path, settings: Mapping[str, str]) -> None:
        """Also keep states and replies on disk from now on, and use those that are there.

        Args:
            options: Where and how many.
            directory: The checkpoint.
            settings: What the engine's arithmetic depends on besides code and model.

        Raises:
            DirectoryInUse: Another process uses the directory.
            InaccessibleFile: Something in it cannot be read; nothing was changed.
            CheckpointError: The checkpoint's headers cannot be read.
            OSError: It cannot be read.
        """
        self.leave_disk()
        self.tier = DiskTier(options, identity=identity_digest(directory, settings), build=build_name())
        for transcript in self.tier.transcripts():
            self.transcripts.add(transcript)

    def leave_disk(self) -> None:
        """Use the disk no longer; what was to be kept is written first, and the files stay."""
        if self.tier is not None:
            self.tier.close()
        self.tier = None

    def finish_writing(self) -> None:
        """Wait until everything that was to be kept on disk is there."""
        if self.tier is not None:
            self.tier.finish_writing()

    @property
    def held_bytes(self) -> int:
        """Bytes that kept states take now."""
        return self.cache.held_bytes

    def adopt(self, plan: MemoryPlan) -> None:
        """Keep within another plan from now on."""
        self.finish_writing()  # what is waiting to be written would stay in memory
        self.cache.resize(cache_budget(plan))

    def clear(self) -> None:
        """Forget everything that is in memory."""
        self.finish_writing()
        self.cache.clear()
        self.transcripts.clear()

    def pass_tokens(self, plan: MemoryPlan) -> int:
        """Return how many prompt tokens a pass reads under a plan."""
        return resume_pass_tokens(plan.prefill_chunk, keeps=self.enabled)

    def prefix_key(self, model: str, plan: MemoryPlan) -> PrefixKey:
        """Return what the prompts of a model, named by its own key, are computed with under a plan."""
        turn_token = self._head.turn_token if self.enabled else None
        return PrefixKey(model=model, pass_tokens=self.pass_tokens(plan), turn_token=turn_token)

    def chat_ids(
        self,
        template: ChatTemplate,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject],
        thinking: bool,
        effort: ReasoningEffort | None,
        window_tokens: int,
        within_tokens: int | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation, with the very ids of the replies in it that this engine made.

        Args:
            template: The checkpoint's template.
            messages: The conversation.
            tools: Declared tools.
            thinking: Whether the reply starts inside a thinking block.
            effort: How much to think.
            window_tokens: The window; a prompt that only fits without old reasoning is rendered without it.
            within_tokens: A window to refuse a prompt by that is far too long, as `Tokenizer.encode` does.

        Raises:
            ContextLengthExceeded: The prompt is too long for `within_tokens`, and was not tokenized.
            TemplateError: The template refused the conversation.
        """

        def render(turns: Sequence[ChatMessage]) -> str:
            return template.render(turns, tools=tools, thinking=thinking, effort=effort)

        def encode(text: str) -> list[int]:
            return self._tokenizer.encode(text, within_tokens=within_tokens)

        if not self.enabled:
            return encode(render(messages))
        settings = ChatSettings(tools=tools, thinking=thinking, effort=effort)
        splice = self.transcripts.find(messages, settings)
        rest = None if splice is None else rest_after(splice, messages, render)
        if splice is not None and rest is not None:
            ids = [*splice.ids, *encode(rest)]  # the plain rendering ends with it, so one too long is refused for both
        if splice is None or rest is None or len(ids) >= window_tokens:
            ids = encode(render(messages))
        self.transcripts.note_prompt(ids, fingerprints(messages, settings)[-1], thinking=thinking)
        return ids

    def reusable_tokens(self, ids: Ids, key: PrefixKey) -> int:
        """Return how much of a prompt is kept, without counting or marking it as used."""
        state = self.cache.find(ids, key, use=False).state if self.enabled else None
        length = 0 if state is None else len(state.ids)
        head = None if self.tier is None else self.tier.longest(ids, key, above=length)
        return length if head is None else head.tokens

    def follow(
        self, ids: Ids, key: PrefixKey, *, shared_tokens: int | None = None, persist: bool = True
    ) -> PromptMemory:
        """Return what follows one prompt while it is read.

        Args:
            ids: The prompt.
            key: What it is computed with.
            shared_tokens: Length of the head that other conversations will start with; the system message's when None,
                0 for none.
            persist: Whether it may be kept on disk.
        """
        if shared_tokens is None:
            shared_tokens = self._head.end(ids)
        shared_tokens = min(shared_tokens, len(ids))
        return PromptMemory(self.cache, key, ids, tier=self.tier, shared_tokens=shared_tokens, persist=persist)

    def finished(self, prompt: PromptMemory, reply: Sequence[int]) -> None:
        """Note a complete reply to a prompt; an end token may be its last."""
        if self.enabled:
            transcript = self.transcripts.note_reply(prompt.ids, reply)
            if transcript is not None and prompt.persist and self.tier is not None:
                self.tier.save_reply(transcript)

    def status(self) -> dict[str, Any]:
        """Return what is kept and how it served, with its documented keys."""
        status = self.cache.status()
        tier = self.tier
        if tier is not None:
            status["enabled"] = True
            status["persistent"] = tier.status()
            status["persistent_hits"] = status["persistent"]["hits"]
        return status


def prompt_array(ids: Sequence[int]) -> Ids:
    """Return token ids as a read-only array."""
    array = np.array(ids, np.int32)
    array.setflags(write=False)
    return array
