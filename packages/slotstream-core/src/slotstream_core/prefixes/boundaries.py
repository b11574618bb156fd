"""Where a prompt's state may be kept and resumed.

The engine's arithmetic depends on how tokens are grouped into passes. A state is therefore kept only at the end of a
complete pass, and used only by prompts whose own passes end there too: going on from it then computes, bit for bit,
what reading the whole prompt would have. Passes end after so many tokens, and where a turn of the conversation starts.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner.prefill import resume_boundaries

Ids = npt.NDArray[np.int32]

_MOST_BETWEEN_TURNS: Final = 2
"""Tokens between the end of a turn and the start of the next: a line break."""

LEAST_SHARED_TOKENS: Final = 512
"""A head that conversations have in common is kept for others from this length on."""

FINEST_PASS_TOKENS: Final = 256
"""While conversations are kept, prompts are read in passes of at most this many tokens.

A follow-up turn reads again what its conversation has behind the last pass end, so shorter passes save it more.
"""


def resume_pass_tokens(planned: int, *, keeps: bool) -> int:
    """Return how many prompt tokens a pass reads: as planned, or fewer while conversations are kept."""
    return min(planned, FINEST_PASS_TOKENS) if keeps else planned


def turn_starts(ids: Ids, turn_token: int | None) -> list[int]:
    """Return where turns of a conversation start in a prompt, ascending: at the token that opens one, if there is one.

    Passes end there too, so that what a prompt and its follow-up have in common is read in the same passes up to its
    very end, and a follow-up reads little more than what is new.
    """
    found: list[int] = [] if turn_token is None else np.flatnonzero(ids == turn_token).tolist()
    return found


def boundaries(ids: Ids, pass_tokens: int, turn_token: int | None = None) -> list[int]:
    """Return the lengths at which a prompt may be resumed, ascending; its own end is not one."""
    return resume_boundaries(len(ids), pass_tokens, turns=turn_starts(ids, turn_token))


def floor_to(marks: Sequence[int], length: int) -> int:
    """Return the last of ascending marks that is at most a length; 0 when there is none."""
    at = int(np.searchsorted(np.asarray(marks, np.int64), length, side="right"))
    return marks[at - 1] if at else 0


def common_length(first: Ids, second: Ids) -> int:
    """Return how many ids two prompts have in common from their beginning on."""
    length = min(len(first), len(second))
    differing = np.flatnonzero(first[:length] != second[:length])
    return int(differing[0]) if differing.size else length


class SystemHead:
    """Finds the end of the system message in a prompt's ids, by the family's turn markers.

    Attributes:
        turn_token: The id that opens a turn; None when the tokenizer has none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._opening = np.asarray(tokenizer.encode("<|im_start|>system\n"), np.int32)
        self._end = tokenizer.token_id("<|im_end|>")
        self.turn_token = tokenizer.token_id("<|im_start|>")

    def end(self, ids: Ids) -> int:
        """Return the length of the head up to where the next turn starts, or with the end marker; 0 without a head."""
        opening = len(self._opening)
        if self._end is None or not opening or not np.array_equal(ids[:opening], self._opening):
            return 0
        ends = np.flatnonzero(ids[opening:] == self._end)
        if not ends.size:
            return 0
        end = opening + int(ends[0]) + 1
        between = ids[end : end + _MOST_BETWEEN_TURNS + 1] == self.turn_token
        return end + int(between.argmax()) if between.any() else end
