"""What a model is to the generation loop."""

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

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
    """Passes that follow each other, prepared to be run together."""

    @property
    def result(self) -> Pass:
        """What the last pass returned, once all steps are done."""

    @property
    def kept(self) -> Mapping[int, SequenceState]:
        """By pass, the state after it, for those that were to be kept."""

    def steps(self) -> Generator[float, None, None]:
        """Run them; yield the share of the work that is done wherever stopping is safe. Close it to stop.

        Raises:
            StateError: The state belongs to another model.
            ExpertReadError: Expert or n-gram bytes could not be read.
        """


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
        keep: Collection[int] = (),
    ) -> Passes:
        """Prepare prompt passes that give what a `forward` for each gives, and may share what they read.

        Args:
            passes: The ids of each pass.
            state: What the first follows.
            ends_prompt: Whether the reply comes next.
            keep: Passes, by index, after which the state is kept as well.

        Raises:
            RequestError: No ids, or an id outside the vocabulary.
        """


class Guess(NamedTuple):
    """What a draft head takes to be the next token, and the probability it gives to that."""

    token: int
    confidence: float


class DraftingModel(Model, Protocol):
    """A model with a draft head."""

    @property
    def trying(self) -> bool:
        """Whether the last decode pass was not as such passes are going to be, so that its time says little."""

    def waiting_rows(self, state: SequenceState) -> int:
        """Return how many rows `catch_up` would take in now: those of tokens that were decoded plainly."""

    def catch_up(self, state: SequenceState) -> int:
        """Take in the rows that wait, unless they are as few as after every draft; return how many it took in."""

    def guesses(self, state: SequenceState, token: int) -> Generator[Guess, None, None]:
        """Guess the tokens after ``token``, the one chosen after everything ``state`` has seen, for as long as asked.

        Each guess follows from those before it. The state is not advanced; close the generator before using it.

        Raises:
            ExpertReadError: One of the head's records could not be read; state and model can still be used.
        """
