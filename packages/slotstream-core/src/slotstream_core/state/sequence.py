"""The state of one token sequence: what every layer remembers, and how to branch from it or step back.

Arrays in a state are never modified through a second reference: layers replace them, so a fork shares them until one
side moves on.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import mlx.core as mx

from slotstream_core.errors import StateError
from slotstream_core.state.rows import RowSegment, StateSnapshot
from slotstream_core.state.snapshot import Storable, load_layers, snapshot_bytes, snapshot_layers


class LayerState(Storable, Protocol):
    """What one layer remembers of the tokens it has seen."""

    def fork(self) -> Self:
        """An independent continuation; cheap, arrays are shared until replaced."""

    def trim(self, length: int) -> None:
        """Return to the first ``length`` tokens; only lengths that `SequenceState` found possible are passed."""

    def forget_passes(self) -> None:
        """Drop what was recorded to return inside the last pass."""

    def arrays(self) -> Iterable[mx.array]:
        """Every array held, recordings included."""


class SequenceState:
    """State of one sequence; made by `Model.new_state`, advanced by `Model.forward`. Used by one thread.

    Attributes:
        length: Tokens seen.
        layers: One state for each part of the model that remembers something; the model knows the order.
    """

    def __init__(self, layers: Sequence[LayerState], model_key: str) -> None:
        self.layers = list(layers)
        self.length = 0
        self._model_key = model_key
        self._recorded_from: int | None = None
        self._in_pass = False

    @property
    def model_key(self) -> str:
        """Which model made this state."""
        return self._model_key

    def begin_pass(self, model_key: str) -> None:
        """Note that a pass begins; called by the model, which calls `advance` when the pass is complete.

        Raises:
            StateError: Another model made this state, or its last pass failed half-way.
        """
        if model_key != self._model_key:
            raise StateError(
                f"this sequence state belongs to another model ({self._model_key}) than the one running "
                f"({model_key}); start from a new state"
            )
        self._refuse_half_advanced()
        self._in_pass = True

    def fork(self) -> "SequenceState":
        """An independent copy of this state; neither side sees what the other does next."""
        copy = SequenceState([layer.fork() for layer in self.layers], self._model_key)
        copy.length = self.length
        copy._recorded_from = self._recorded_from
        copy._in_pass = self._in_pass
        return copy

    def advance(self, tokens: int, *, recorded: bool) -> None:
        """Note that a pass over ``tokens`` tokens is complete; called by the model."""
        self._recorded_from = self.length if recorded else None
        self.length += tokens
        self._in_pass = False

    def possible_lengths(self) -> range:
        """Lengths that `trim` accepts: those inside the last pass when it was recorded, else the present one."""
        first = self.length if self._recorded_from is None else self._recorded_from
        return range(first, self.length + 1)

    def trim(self, length: int) -> None:
        """Return to the first ``length`` tokens, as if the later ones had never been seen.

        Raises:
            StateError: The recurrent layers kept no state for that length, or the last pass failed half-way.
        """
        self._refuse_half_advanced()
        possible = self.possible_lengths()
        if length not in possible:
            raise StateError(
                f"the sequence has {self.length:,} tokens and cannot be cut to {length:,}; possible are "
                f"{possible.start:,} to {self.length:,} (run the pass with record=True to return inside it)"
            )
        if length == self.length:
            return
        for layer in self.layers:
            layer.trim(length)
        self.length = length

    def _refuse_half_advanced(self) -> None:
        if self._in_pass:
            raise StateError(
                f"the last pass over this sequence failed after token {self.length:,} and left it half advanced; "
                "go on from a fork taken before that pass, or from a new state"
            )

    def snapshot(self, known: Sequence[RowSegment] = ()) -> StateSnapshot:
        """Copy this state to host memory.

        Args:
            known: Segments of an earlier snapshot that saw the same tokens; their rows are shared, not copied.

        Raises:
            StateError: The last pass failed half-way.
        """
        self._refuse_half_advanced()
        return snapshot_layers(self._named(), length=self.length, model_key=self._model_key, known=known)

    def snapshot_bytes(self, known: Sequence[RowSegment] = ()) -> int:
        """Return the new memory that `snapshot` would take."""
        return snapshot_bytes(self.layers, length=self.length, known=known)

    def fixed_bytes(self) -> int:
        """Return what a snapshot takes whatever its length: the arrays that every pass replaces."""
        return sum(array.nbytes for layer in self.layers for array in layer.fixed_arrays().values())

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become the state that a snapshot was taken of; this one must be new.

        Raises:
            StateError: This state has seen tokens, or the snapshot belongs to another model.
        """
        if self.length:
            raise StateError(f"a kept state can only replace an empty one; this one has {self.length:,} tokens")
        if snapshot.model_key != self._model_key:
            raise StateError(
                f"the kept state belongs to another model ({snapshot.model_key}) than this one ({self._model_key})"
            )
        load_layers(snapshot, self._named())
        self.length = snapshot.length

    def _named(self) -> dict[str, Storable]:
        return {str(index): layer for index, layer in enumerate(self.layers)}

    def forget_passes(self) -> None:
        """Free what the last recorded pass kept; afterwards only the present length is possible."""
        self._recorded_from = None
        for layer in self.layers:
            layer.forget_passes()

    def arrays(self) -> list[mx.array]:
        """Every array held."""
        return [array for layer in self.layers for array in layer.arrays()]

    def byte_size(self) -> int:
        """Bytes of all arrays, unused capacity included; shared arrays count in every fork."""
        return sum(array.nbytes for array in self.arrays())
