"""One prompt's use of the cache: where it goes on from, and which of its states are kept for later prompts."""

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from slotstream_core.errors import StateError
from slotstream_core.generation.control import StopCheck
from slotstream_core.persistence.tier import DiskTier
from slotstream_core.prefixes.boundaries import LEAST_SHARED_TOKENS, Ids, floor_to, turn_starts
from slotstream_core.prefixes.cache import MissReason, PrefixCache
from slotstream_core.prefixes.kept import CHECKPOINTS, KeptState, Logits, PrefixKey, Purpose
from slotstream_core.state.rows import RowSegment
from slotstream_core.state.sequence import SequenceState

logger = logging.getLogger("slotstream.prefixes")

GUESS_DISTANCES: Final = (4096, 512)
"""How far before its end a prompt may be left by one with an edit, and a system message by other conversations: agents
name their directory there.
"""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """How a prompt began.

    Attributes:
        tokens: Prompt tokens that were not read again.
        reason: Why none were, when none were.
        logits: Of the whole prompt, when nothing has to be read.
    """

    tokens: int
    reason: MissReason | None
    logits: Logits | None


class PromptMemory:
    """Follows one prompt while it is read.

    Args:
        cache: Where states come from and go to.
        tier: The disk behind it, if there is one.
        key: What the prompt is computed with.
        ids: The prompt.
        shared_tokens: Length of the head that other conversations will start with; 0 for none.
        persist: Whether its states may be kept on disk.

    Attributes:
        key: What it is computed with.
        ids: The prompt, read-only.
        persist: Whether its states may be kept on disk.
        turns: Where its turns start, before which passes end.
    """

    def __init__(
        self,
        cache: PrefixCache,
        key: PrefixKey,
        ids: Ids,
        *,
        tier: DiskTier | None = None,
        shared_tokens: int,
        persist: bool = True,
    ) -> None:
        self._tier = tier
        self._rows: Sequence[RowSegment] = ()
        self._stop: StopCheck | None = None
        self._continued = False
        self.persist = persist
        self._cache = cache
        self.key = key
        self.ids = ids
        self.turns = turn_starts(ids, key.turn_token)
        self._marks = key.boundaries(ids)
        self._purposes: dict[int, Purpose] = {}
        self._shared_tokens = shared_tokens

    @property
    def _enabled(self) -> bool:
        return self._cache.enabled or self._tier is not None

    @property
    def stops(self) -> Collection[int]:
        """Lengths at which the state is to be kept, known once `resume` was called."""
        return self._purposes.keys()

    def resume(self, state: SequenceState, stop: StopCheck) -> Resumption:
        """Bring an empty state as far as a kept one goes, and decide what is kept on the way.

        Args:
            state: Of no tokens.
            stop: Asked while the disk is waited for, now and in `passed`; what it raises ends the waiting.

        Raises:
            StateError: The state has seen tokens.
        """
        self._stop = stop
        if not self._enabled:
            return Resumption(tokens=0, reason=None, logits=None)
        from_disk = self._load(state)
        if from_disk:
            self._choose(state)
            self._log(state.length, source="disk")
            self._continued = True
            return Resumption(tokens=state.length, reason=None, logits=None)
        found = self._cache.find(self.ids, self.key)
        kept = found.state
        if kept is not None:
            state.restore(kept.snapshot)
            self._continued = True
            self._note_use(kept)
        self._choose(state)
        self._log(state.length, **({"source": "memory"} if kept is not None else {"miss": found.reason}))
        whole = kept is not None and state.length == len(self.ids)
        return Resumption(tokens=state.length, reason=found.reason, logits=kept.logits if kept and whole else None)

    def _note_use(self, kept: KeptState) -> None:
        """Tell the disk that memory served a state; one that was a guess before is written now."""
        if self._tier is None:
            return
        if kept.purpose == "speculative" and self._persists(kept.ids):
            self._tier.save(kept.ids, self.key, kept.snapshot, shared=True, continued=True, stop=self._stop)
        else:
            self._tier.used(kept.ids, self.key)

    def _persists(self, ids: Ids) -> bool:
        return self.persist and self._tier is not None and len(ids) >= self._tier.options.minimum_tokens

    def _log(self, cached: int, **how: str | None) -> None:
        record = {"event": "prefix", "prompt_tokens": len(self.ids), "cached_tokens": cached, **how}
        logger.info("%s", json.dumps(record))

    def _load(self, state: SequenceState) -> bool:
        """Bring the state as far as the disk goes, when that is further than memory goes."""
        if self._tier is None:
            return False
        here = self._cache.find(self.ids, self.key, use=False).state
        head = self._tier.longest(self.ids, self.key, above=0 if here is None else len(here.ids), stop=self._stop)
        snapshot = None if head is None else self._tier.restore(head, self.key, stop=self._stop)
        if head is None or snapshot is None:
            return False
        try:
            state.restore(snapshot)
        except StateError as error:
            logger.warning("a kept state was not used: %s", error)
            self._tier.discard(head)
            return False
        self._rows = snapshot.segments
        self._cache.insert(
            KeptState(
                ids=self.ids[: head.tokens],
                key=self.key,
                snapshot=snapshot,
                logits=None,
                purpose="shared" if head.shared else "conversation",
                last_used=0,
                uses=1,
            )
        )
        return True

    def _choose(self, state: SequenceState) -> None:
        """Choose the lengths to keep among those that are still to be read; the last purpose of a length counts."""
        shared = self._shared_tokens if self._shared_tokens >= LEAST_SHARED_TOKENS else 0
        guessed = [end - distance for end in (shared, len(self.ids)) for distance in GUESS_DISTANCES]
        heads: list[tuple[int, Purpose]] = [(each, "guess") for each in guessed if each >= LEAST_SHARED_TOKENS]
        heads.append((self._cache.branching(self.ids, self.key), "speculative"))
        if self._marks:
            # of a conversation that memory cannot keep to its end, what it can
            heads.append((self._cache.longest_tokens(state.fixed_bytes()), "conversation"))
            heads.append((self._marks[-1], "conversation"))
        heads.append((shared, "shared"))
        for length, purpose in heads:
            mark = floor_to(self._marks, length)
            if mark > state.length:
                self._purposes[mark] = purpose

    def passed(self, state: SequenceState, logits: Logits | None) -> None:
        """Keep the state after a pass when it is one to keep.

        Args:
            state: The live state; copied.
            logits: Of the whole prompt, after its last pass.
        """
        if not self._enabled:
            return
        purpose = self._purposes.get(state.length)
        if state.length == len(self.ids) and logits is not None:
            logits = logits.copy()
            logits.setflags(write=False)
            self._keep(state, "complete", logits)
        elif purpose is not None:
            self._keep(state, purpose, None)

    def _keep(self, state: SequenceState, purpose: Purpose, logits: Logits | None) -> None:
        ids = self.ids[: state.length]
        outcome = self._cache.keep(ids, self.key, state, purpose, logits=logits, rows=self._rows)
        if outcome == "no room" and purpose != "complete":
            logger.info("%s", json.dumps({"event": "prefix_not_kept", "tokens": state.length, "purpose": purpose}))
        if self._tier is not None and purpose not in ("complete", "guess") and self._persists(ids):
            kept = self._cache.kept_at(ids, self.key)
            known = self._cache.known_rows(ids, self.key, self._rows)
            snapshot = state.snapshot(known) if kept is None else kept.snapshot
            self._rows = snapshot.segments
            self._tier.save(
                ids, self.key, snapshot, shared=purpose in CHECKPOINTS, continued=self._continued, stop=self._stop
            )
            if kept is None:  # nothing has reserved memory for a copy that stays until it is written
                self._tier.finish_writing(self._stop)
