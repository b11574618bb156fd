"""A reply in two phases, such as thinking and then an answer, each with its own sampling and budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotstream_core.events import Finished
from slotstream_core.generation.sampling import ORDINARY, SamplingParams

Transition = Callable[[Finished], Sequence[int]]
"""Called with the end of the first phase; returns the ids that stand between the phases, at least one."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One of the two phases.

    Attributes:
        sampling: How to choose tokens.  Each phase has a random stream and a presence history of its own.
        max_tokens: Most tokens to make; 0 or less means as many as the window leaves.
        stop: Texts that end the phase; not looked for in the thinking.
        thinking: Whether the phase begins inside a thinking block.
        ends_with_thinking: Whether the phase is over once the thinking block closes.
    """

    sampling: SamplingParams = ORDINARY
    max_tokens: int = 0
    stop: tuple[str, ...] = ()
    thinking: bool = False
    ends_with_thinking: bool = False
