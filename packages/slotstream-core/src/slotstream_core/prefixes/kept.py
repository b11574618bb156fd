"""One kept state, and in which order states go when room is needed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from slotstream_core.prefixes.boundaries import Ids, boundaries
from slotstream_core.state.rows import RowSegment, StateSnapshot

Logits = npt.NDArray[np.float32]

Purpose = Literal["complete", "guess", "speculative", "conversation", "shared"]
"""Why a state is kept; a later one outweighs the ones before it where a state has two.

complete: the end of a prompt with its logits, for the same prompt again.
guess: a part of a system message or of the whole prompt, in case another one leaves it behind that; in memory only.
speculative: a head that two prompts had in common.
conversation: the last boundary of a prompt, where the next turn resumes.
shared: a system message.
"""

PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
"""All of them, ascending by weight."""

CHECKPOINTS: Final = frozenset[Purpose](("guess", "speculative", "shared"))
"""What is kept for other conversations than its own."""


@dataclass(frozen=True, kw_only=True)
class PrefixKey:
    """What a state was computed with; only states with the key of the running engine are used.

    Attributes:
        model: The model's own key, which says whether the draft head's cache is part of the state.
        pass_tokens: Prompt tokens per pass.
        turn_token: The id that opens a turn, before which passes end; None when they do not.
    """

    model: str
    pass_tokens: int
    turn_token: int | None = None

    def boundaries(self, ids: Ids) -> list[int]:
        """Return the lengths at which a prompt may be resumed, ascending; its own end is not one."""
        return boundaries(ids, self.pass_tokens, self.turn_token)


@dataclass(kw_only=True, eq=False)
class KeptState:
    """The state after exactly these ids, all of them read in prompt passes.

    Attributes:
        ids: Read-only, one a token of the snapshot's length.
        key: What it was computed with.
        snapshot: The state.
        logits: After the last id, float32 [vocabulary], read-only; None at a boundary.
        purpose: Why it is kept.
        uses: How often a prompt resumed from it.
        last_used: When, in the cache's own count of events.
    """

    ids: Ids
    key: PrefixKey
    snapshot: StateSnapshot
    logits: Logits | None
    purpose: Purpose
    last_used: int
    uses: int = 0

    @property
    def own_bytes(self) -> int:
        """Bytes that no other state shares."""
        logits = 0 if self.logits is None else self.logits.nbytes
        return self.snapshot.fixed_bytes + self.ids.nbytes + logits

    def begins(self, ids: Ids) -> bool:
        """Return whether ids begin with this state's."""
        return len(self.ids) <= len(ids) and bool(np.array_equal(self.ids, ids[: len(self.ids)]))


def owners(segments: Iterable[RowSegment]) -> dict[int, RowSegment]:
    """Return the segments whose memory these use, each once."""
    return {id(segment.owner or segment): segment.owner or segment for segment in segments}


def held_bytes(states: Sequence[KeptState], extra: Sequence[RowSegment] = ()) -> int:
    """Return the bytes that states keep alive, rows shared between them counted once.

    Args:
        states: The states.
        extra: Segments that a state to come will use as well.
    """
    segments = owners([*extra, *(segment for state in states for segment in state.snapshot.segments)])
    return sum(state.own_bytes for state in states) + sum(segment.byte_size for segment in segments.values())


def eviction_rank(state: KeptState, states: Sequence[KeptState], key: PrefixKey | None) -> tuple[int, int]:
    """Return what orders states for eviction: the lowest goes first.

    States that cannot be resumed any more go first, then complete prompts, which save less than a pass; then heads
    that nobody has used; then earlier turns of a conversation that has gone on; then the rest. Inside a class the
    least recently used goes first.
    """
    if state.key != key:
        rank = 0
    elif state.purpose == "complete":
        rank = 1
    elif state.purpose in ("guess", "speculative") and not state.uses:
        rank = 2
    elif state.purpose == "conversation" and _superseded(state, states):
        rank = 3
    else:
        rank = 4
    return rank, state.last_used


MAY_EVICT: dict[Purpose, int] = {"conversation": 4, "shared": 4, "speculative": 2, "guess": 2, "complete": 1}
"""The highest class that may go to make room for a state of a purpose."""


def _superseded(state: KeptState, states: Sequence[KeptState]) -> bool:
    return any(
        other.purpose == "conversation"
        and other.key == state.key
        and len(other.ids) > len(state.ids)
        and state.begins(other.ids)
        for other in states
    )
