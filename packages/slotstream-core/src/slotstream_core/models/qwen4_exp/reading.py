"""Several passes of one prompt under way together: their results, and the states kept between them."""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass

import mlx.core as mx

from slotstream_core.errors import StateError
from slotstream_core.state.sequence import LayerState, SequenceState

SWEEP_ROWS = 256
"""From this many rows on, passes go through the experts one by one instead of row by row."""


@dataclass(frozen=True, kw_only=True)
class ForwardResult:
    """What a pass returns.

    Attributes:
        logits: float32, [1, vocab] of the last token or [T, vocab] of all.
        left: As `streams`; None where a token of a reply took a way that leaves none.
    """

    logits: mx.array
    left: mx.array | None

    @property
    def streams(self) -> mx.array:
        """The residual streams of every token before the final mixer, [T, streams, hidden], compute dtype.

        Raises:
            StateError: The pass was part of a reply and did not keep them.
        """
        if self.left is None:
            raise StateError("the streams of a reply's token are not kept; run the pass without decode=True")
        return self.left


class PassesRead:
    """Passes that were prepared by `Qwen4ExpModel.read`: iterate `steps` to the end, then take the results.

    Attributes:
        kept: By pass, the state after it, for the passes that were to be kept.
    """

    def __init__(self, run: Callable[["PassesRead"], Generator[float, None, None]]) -> None:
        self._run = run
        self._result: ForwardResult | None = None
        self.kept: dict[int, SequenceState] = {}

    def steps(self) -> Generator[float, None, None]:
        """Run the passes; yield, at points where stopping is safe, the share of the work that is done.

        Raises:
            StateError: The state belongs to another model, or an earlier pass over it failed.
            ExpertReadError: Expert or n-gram bytes could not be read.
        """
        yield from self._run(self)

    def finish(self, result: ForwardResult) -> None:
        """Set the result; called by what runs the passes."""
        self._result = result

    @property
    def result(self) -> ForwardResult:
        """Logits of the last pass, and the streams of every token of all passes.

        Raises:
            StateError: The passes did not run to the end.
        """
        if self._result is None:
            raise StateError("the passes of this prompt have not run to the end; iterate their steps first")
        return self._result


class Snapshots:
    """States as they were after some of the passes, put together layer by layer while the passes run side by side.

    Args:
        passes: Which passes to keep, by index.
        parts: How many parts a state has.
    """

    def __init__(self, passes: Collection[int], parts: int) -> None:
        self._parts = parts
        self._found: dict[int, dict[int, LayerState]] = {number: {} for number in sorted(passes)}

    def note(self, number: int, part: int, state: LayerState) -> None:
        """Keep ``part`` of the state, if pass ``number``, which it has just seen, is to be kept."""
        if number in self._found:
            self._found[number][part] = state.fork()

    def state(self, number: int, length: int, model_key: str) -> SequenceState:
        """The state of ``length`` tokens after pass ``number``."""
        found = self._found[number]
        state = SequenceState([found[part] for part in range(self._parts)], model_key)
        state.length = length
        return state
