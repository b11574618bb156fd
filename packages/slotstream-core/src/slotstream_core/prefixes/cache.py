"""The states kept in memory: finding the one a prompt can go on from, and making room for new ones."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from slotstream_core.prefixes.boundaries import LEAST_SHARED_TOKENS, Ids, common_length, floor_to
from slotstream_core.prefixes.kept import (
    CHECKPOINTS,
    MAY_EVICT,
    PURPOSES,
    KeptState,
    Logits,
    PrefixKey,
    Purpose,
    eviction_rank,
    held_bytes,
    owners,
)
from slotstream_core.state.rows import RowSegment, segments_until
from slotstream_core.state.sequence import SequenceState

MOST_STATES: Final = 64
"""States kept at most, however small they are, so that searching them stays instant."""

STATES_OF_A_PROMPT: Final = 3
"""States that a long prompt is kept in: its system message's, its last one, and a part that others begin with."""

MissReason = Literal[
    "no retained state",
    "retained states are not exact prefixes",
    "model identity changed",
    "no compatible prefill boundary",
    "equal length without logits",
]
StoreOutcome = Literal["stored", "known", "no room"]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """What the cache has for a prompt.

    Attributes:
        state: The longest state it can go on from, or None.
        reason: Why there is none.
    """

    state: KeptState | None
    reason: MissReason | None


@dataclass(frozen=True, kw_only=True)
class CacheBudget:
    """How much may be kept.

    Attributes:
        capacity_bytes: Rows, fixed arrays, ids and logits together.
        max_tokens: The plan's tokens for retained conversations.
        token_bytes: Rows of one token, for counting in tokens.
    """

    capacity_bytes: int
    max_tokens: int
    token_bytes: int


class PrefixCache:
    """States of past prompts in host memory.  One thread stores and looks up; any thread may ask for `status`.

    Attributes:
        budget: How much may be kept; see `resize`.
    """

    def __init__(self, budget: CacheBudget) -> None:
        self.budget = budget
        self._states: list[KeptState] = []
        self._key: PrefixKey | None = None
        self._clock = 0
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("hits", "misses", "evictions", "checkpoint_hits", "checkpoint_stores", "checkpoint_fork_failures"), 0
        )

    @property
    def enabled(self) -> bool:
        """Whether anything may be kept."""
        return self.budget.capacity_bytes > 0

    @property
    def held_bytes(self) -> int:
        """Bytes that the kept states take now."""
        return held_bytes(self.states())

    def find(self, ids: Ids, key: PrefixKey, *, use: bool = True) -> Lookup:
        """Return the longest kept state that a prompt can go on from as if it had been read from its beginning.

        Args:
            ids: The prompt.
            key: What it is computed with.
            use: Whether the answer counts as a use; otherwise nothing changes.
        """
        with self._lock:
            self._key = key if use else self._key
            marks = set(key.boundaries(ids))
            prefixes = [state for state in self._states if state.begins(ids)]
            usable = [
                state
                for state in prefixes
                if state.key == key
                and (len(state.ids) in marks or (len(state.ids) == len(ids) and state.logits is not None))
            ]
            if not usable:
                self._counts["misses"] += use
                return Lookup(state=None, reason=self._reason(ids, key, prefixes))
            best = max(usable, key=lambda state: len(state.ids))
            if not use:
                return Lookup(state=best, reason=None)
            self._clock += 1
            best.uses += 1
            best.last_used = self._clock
            for state in prefixes:
                if state.purpose in ("shared", "speculative"):
                    state.last_used = self._clock  # as recent as the conversation that goes on from it
            self._counts["hits"] += 1
            self._counts["checkpoint_hits"] += best.purpose in CHECKPOINTS
            best.purpose = "speculative" if best.purpose == "guess" else best.purpose  # it was right
            return Lookup(state=best, reason=None)

    def _reason(self, ids: Ids, key: PrefixKey, prefixes: Sequence[KeptState]) -> MissReason:
        if not self._states:
            return "no retained state"
        if all(state.key != key for state in self._states):
            return "model identity changed"
        own = [state for state in prefixes if state.key == key]
        if not own:
            return "retained states are not exact prefixes"
        equal = any(len(state.ids) == len(ids) for state in own)
        return "equal length without logits" if equal else "no compatible prefill boundary"

    def longest_tokens(self, fixed_bytes: int) -> int:
        """Return how many tokens of one prompt there is room for, if nothing else of other prompts is kept.

        Args:
            fixed_bytes: What a state takes whatever its length; a few of the prompt are kept.
        """
        row_bytes = self.budget.token_bytes + np.dtype(np.int32).itemsize
        return max(0, self.budget.capacity_bytes - STATES_OF_A_PROMPT * fixed_bytes) // row_bytes

    def branching(self, ids: Ids, key: PrefixKey) -> int:
        """Return the length of the longest head that a prompt shares with a kept one and then leaves; 0 for none.

        A prompt that its own conversation's state begins leaves nothing that another conversation starts with. Why a
        state is kept does not matter: that of a conversation may be its system message's too.
        """
        longest = 0
        with self._lock:
            for state in self._states:
                if state.key == key and longest < len(state.ids):
                    shared = common_length(ids, state.ids)
                    if LEAST_SHARED_TOKENS <= shared < min(len(ids), len(state.ids)):
                        longest = max(longest, shared)
        return longest

    def keep(
        self,
        ids: Ids,
        key: PrefixKey,
        state: SequenceState,
        purpose: Purpose,
        *,
        logits: Logits | None = None,
        rows: Sequence[RowSegment] = (),
    ) -> StoreOutcome:
        """Keep the state of a prompt at one of its lengths, making room first; the rows others have are shared.

        Args:
            ids: What the state has seen.
            key: What it was computed with.
            state: The live state; copied, not kept.
            purpose: Why.
            logits: After the last id, for a complete prompt.
            rows: Rows of a beginning of the prompt that the caller holds, to be shared where none are kept.
        """
        with self._lock:
            self._clock += 1
            twin = next((each for each in self._states if each.key == key and _equal(each, ids)), None)
            if twin is not None:
                twin.last_used = self._clock
                twin.logits = logits if twin.logits is None else twin.logits
                twin.purpose = max(twin.purpose, purpose, key=PURPOSES.index)
                return "known"
            known = self.known_rows(ids, key, rows)
            needed = state.snapshot_bytes(known) + ids.nbytes + (0 if logits is None else logits.nbytes)
            if not self._make_room(needed, known, MAY_EVICT[purpose]):
                self._counts["checkpoint_fork_failures"] += 1
                return "no room"
            self._states.append(
                KeptState(
                    ids=_frozen(ids),
                    key=key,
                    snapshot=state.snapshot(known),
                    logits=logits,
                    purpose=purpose,
                    last_used=self._clock,
                )
            )
            self._counts["checkpoint_stores"] += purpose in CHECKPOINTS
            return "stored"

    def known_rows(self, ids: Ids, key: PrefixKey, rows: Sequence[RowSegment] = ()) -> tuple[RowSegment, ...]:
        """Return kept rows of the longest beginning of ids, cut at a boundary: up to there passes were the same."""
        best = segments_until(rows, len(ids))
        marks = [*key.boundaries(ids), len(ids)]
        for state in self._states:
            if state.key == key:
                shared = common_length(ids, state.ids)
                # where the prompts part, only one of them may have ended a pass
                shared = floor_to(marks, shared if shared == len(state.ids) else shared - 1)
                if shared > (best[-1].end if best else 0):
                    best = segments_until(state.snapshot.segments, shared)
        return best

    def insert(self, state: KeptState) -> bool:
        """Keep a state that was read from disk, if there is room; return whether."""
        with self._lock:
            self._clock += 1
            needed = state.own_bytes + state.snapshot.row_bytes
            if any(each.key == state.key and _equal(each, state.ids) for each in self._states):
                return False
            if not self._make_room(needed, (), MAY_EVICT[state.purpose]):
                return False
            state.last_used = self._clock
            self._states.append(state)
            return True

    def kept_at(self, ids: Ids, key: PrefixKey) -> KeptState | None:
        """Return the kept state of exactly these ids, if there is one."""
        with self._lock:
            return next((each for each in self._states if each.key == key and _equal(each, ids)), None)

    def _make_room(self, needed: int, known: Sequence[RowSegment], highest: int) -> bool:
        """Evict until so many bytes fit beside what stays; leave everything when they cannot."""
        going = sorted(self._states, key=lambda state: eviction_rank(state, self._states, self._key))
        going = [state for state in going if eviction_rank(state, self._states, self._key)[0] <= highest]
        kept = list(self._states)
        evicted = 0
        while held_bytes(kept, known) + needed > self.budget.capacity_bytes or len(kept) >= MOST_STATES:
            if evicted == len(going):
                return False
            kept.remove(going[evicted])
            evicted += 1
        self._states = kept
        self._counts["evictions"] += evicted
        return True

    def resize(self, budget: CacheBudget) -> None:
        """Keep at most so much from now on; evicts at once."""
        with self._lock:
            self.budget = budget
            going = sorted(self._states, key=lambda state: eviction_rank(state, self._states, self._key))
            while going and held_bytes(going) > budget.capacity_bytes:
                del going[0]
                self._counts["evictions"] += 1
            self._states = [state for state in self._states if state in going]

    def clear(self) -> None:
        """Let every state go."""
        with self._lock:
            self._states = []

    def states(self) -> tuple[KeptState, ...]:
        """Return the kept states, oldest first; for the disk tier and for tests."""
        with self._lock:
            return tuple(self._states)

    def status(self) -> dict[str, Any]:
        """Return what is kept and how it served, with its documented keys."""
        with self._lock:
            states, counts = tuple(self._states), dict(self._counts)
        segments = owners(segment for state in states for segment in state.snapshot.segments).values()
        tokens = sum(segment.end - segment.start for segment in segments)
        size = held_bytes(states)
        reusable = sum(state.purpose in CHECKPOINTS for state in states)
        return {
            "enabled": self.enabled,
            "conversations": len(states) - reusable,
            "max_conversations": MOST_STATES,
            "held_tokens": tokens,
            "charged_token_capacity": max(tokens, -(-size // max(1, self.budget.token_bytes))),
            "allocated_sequence_bytes": size,
            "held_images": 0,
            "reusable_checkpoints": reusable,
            "checkpoint_hits": counts["checkpoint_hits"],
            "checkpoint_stores": counts["checkpoint_stores"],
            "checkpoint_fork_failures": counts["checkpoint_fork_failures"],
            "held_gb": size / 1e9,
            "max_tokens": self.budget.max_tokens,
            "hits": counts["hits"],
            "misses": counts["misses"],
            "evictions": counts["evictions"],
            "persistent_hits": 0,
            "persistent": None,
        }


def _equal(state: KeptState, ids: Ids) -> bool:
    return len(state.ids) == len(ids) and state.begins(ids)


def _frozen(ids: Ids) -> Ids:
    if not ids.flags.writeable:
        return ids
    copy = ids.copy()
    copy.setflags(write=False)
    return copy
