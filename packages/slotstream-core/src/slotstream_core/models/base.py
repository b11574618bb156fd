"""What a model is to the generation loop."""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.state.sequence import SequenceState


class Pass(Protocol):
    """What one pass returned: float32 logits, [1, vocabulary] of the last token or [tokens, vocabulary] of all."""

    @property
    def logits(self) -> mx.array:
        """The logits, perhaps not evaluated yet."""


class Passes(Protocol):
    """Several passes that are prepared; iterating `steps` runs them."""

    def steps(self) -> Iterator[float]:
        """Run the passes; yield, at points where stopping is safe, the share of the work that is done."""

    @property
    def result(self) -> Pass:
        """What the last pass returned, once the steps were iterated to their end."""


class Model(Protocol):
    """Token ids and a state in, logits out.  Used by one thread."""

    def new_state(self) -> SequenceState:
        """Return the state of an empty sequence."""

    def forward(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        state: SequenceState,
        *,
        logits: Literal["last", "all"] = "last",
        record: bool = False,
        decode: bool = False,
    ) -> Pass:
        """Run one pass over ids that follow what the state has seen, and append them to it.

        Args:
            ids: Token ids.
            state: What they follow.
            logits: Of the last token or of all.
            record: Keep what trimming inside this pass needs.
            decode: Whether a reply is being made, so that experts may be read ahead; the result is the same.

        A pass that raises leaves the state unusable and the model usable.

        Raises:
            RequestError: No ids, or an id outside the vocabulary.
            StateError: The state belongs to another model.
            ExpertReadError: Expert or n-gram bytes could not be read.
        """

    def read(
        self,
        passes: Sequence[Sequence[int] | npt.NDArray[np.integer]],
        state: SequenceState,
        *,
        ends_prompt: bool = False,
    ) -> Passes:
        """Prepare passes that follow each other and share the reads of experts; the result is that of a `forward` each.

        Args:
            passes: The ids of each pass.
            state: Advanced when the steps are iterated; unusable when that ends early.
            ends_prompt: Whether tokens of the reply come next.

        Raises:
            RequestError: No ids, or an id outside the vocabulary.
        """


class DraftingModel(Model, Protocol):
    """A model with a draft head."""

    def draft(self, state: SequenceState, token: int, depth: int) -> list[int]:
        """Guess the ``depth`` tokens after ``token``, the one chosen after everything ``state`` has seen.

        The state is not advanced.

        Raises:
            ExpertReadError: One of the head's records could not be read; state and model can still be used.
        """
