"""Where a prompt's state may be kept and resumed.

The engine's arithmetic depends on how tokens are grouped into passes. A state is therefore kept only at the end of a
complete pass, and used only by prompts whose own passes end there too: going on from it then computes, bit for bit,
what reading the whole prompt would have.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner.prefill import resume_boundaries

Ids = npt.NDArray[np.int32]

LEAST_SHARED_TOKENS: Final = 512
"""A head that conversations have in common is kept for others from this length on."""

FINEST_PASS_TOKENS: Final = 256
"""While conversations are kept, prompts are read in passes of at most this many tokens.

A follow-up turn reads again what its conversation has behind the last pass end, so shorter passes save it more.
"""


def resume_pass_tokens(planned: int, *, keeps: bool) -> int:
    """Return how many prompt tokens a pass reads: as planned, or fewer while conversations are kept."""
    return min(planned, FINEST_PASS_TOKENS) if keeps else planned


def boundaries(tokens: int, pass_tokens: int) -> list[int]:
    """Return the lengths at which a prompt of so many tokens may be resumed, ascending; its own end is not one."""
    return resume_boundaries(tokens, pass_tokens)


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
    """Finds the end of the system message in a prompt's ids, by the family's turn markers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._opening = np.asarray(tokenizer.encode("<|im_start|>system\n"), np.int32)
        self._end = tokenizer.token_id("<|im_end|>")

    def end(self, ids: Ids) -> int:
        """Return the length of the head up to and with the end marker; 0 without a system message."""
        opening = len(self._opening)
        if self._end is None or not opening or not np.array_equal(ids[:opening], self._opening):
            return 0
        ends = np.flatnonzero(ids[opening:] == self._end)
        return opening + int(ends[0]) + 1 if ends.size else 0
