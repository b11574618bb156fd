"""The draft head: one full-attention layer that guesses the tokens after the one just chosen.

Row t joins the main model's residual streams at token t, before their final mixer, with the embedding of token t + 1,
and predicts token t + 2. It stands at rotary position t and attends to the head's own rows 0 to t. Further guesses
feed the head its own streams; those rows are dropped again, and their places are filled from the main model's streams
once it has read the tokens. Embedding and vocabulary head are the main model's.

Rows that nothing is predicted from only leave keys and values behind: they need neither attention nor experts.
"""

from collections.abc import Generator
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import StateError
from slotstream_core.experts.stacks import Experts
from slotstream_core.models.base import Guess
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.decoder_layer import PassPositions, decoder_layer
from slotstream_core.models.qwen4_exp.draft_state import DraftState, Ids
from slotstream_core.models.qwen4_exp.moe import PassLeases, pass_leases
from slotstream_core.models.qwen4_exp.parts import layer_parts
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from slotstream_core.models.qwen4_exp.vocabulary import Embedding, OutputHead

DRAFT_PREFIX = "mtp"
WAITING_ROWS = 512
"""Rows that may wait for the next draft; more are taken in at once. While nothing is drafted they cost nothing, and a
row of the published widths is 40 KB."""

DRAFT_ROWS = 5
"""Rows that a draft takes in on its way: about as many as the pass before it accepted. More are taken in apart."""

ROWS_AT_ONCE = 256
"""Rows of a long pass are taken in by pieces of this size, which bounds the workspace."""


class _Step(NamedTuple):
    """A guess, and the head's own streams, [1, streams, hidden], that the next one follows from."""

    guess: Guess
    streams: mx.array


class DraftHead:
    """The draft head of one checkpoint; weights only, the sequence lives in `DraftState`.

    Args:
        weights: Reads the head's resident weights.
        config: Model settings.
        embedding: The main model's token embedding.
        vocabulary: The main model's output head.
        rotary: Turns positions into angles.
        experts: Where the head's routed experts come from, as layer 0; not owned.

    Raises:
        CheckpointError: A weight is missing, damaged, or not stored as the configuration says.
    """

    def __init__(
        self,
        weights: WeightReader,
        config: Qwen4ExpConfig,
        *,
        embedding: Embedding,
        vocabulary: OutputHead,
        rotary: RotaryEmbedding,
        experts: Experts,
    ) -> None:
        layer = f"{DRAFT_PREFIX}.layers.0"
        parts = layer_parts(weights)
        self._shape = (config.hc_count, config.hidden_size)
        self._ratio = config.indexer_compress_ratio
        self._dtype = weights.compute_dtype
        self._rotary = rotary
        self._inputs = parts.draft_inputs(weights, DRAFT_PREFIX, config, embedding)
        self._layer = decoder_layer(weights, layer, config, kind="full_attention", layer=0, experts=experts)
        mixer = parts.mixer(weights, f"{DRAFT_PREFIX}.hyper_connection_mixer", config)
        self._outputs = parts.draft_outputs(weights, mixer, vocabulary)

    def new_state(self) -> DraftState:
        """The state before the first token."""
        attention = self._layer.new_state()
        if not isinstance(attention, AttentionState):
            raise StateError(f"the draft head's layer keeps a {type(attention).__name__}; it needs attention")
        return DraftState(
            attention=attention,
            streams=mx.zeros((0, *self._shape), self._dtype),
            tokens=np.zeros(0, np.int64),
            on_host=self._layer.at_once,
        )

    def follow(self, state: DraftState, tokens: Ids, streams: mx.array, *, wait: bool, record: bool = False) -> None:
        """Take in a pass of the main model: its ``tokens`` [T] and their ``streams`` [T, streams, hidden].

        Every row whose next token is known for good leaves its keys and values; with ``wait`` a few rows wait for the
        next draft. With ``record`` the pass's tokens may be taken back.
        """
        known = max(0, (state.length if record else state.length + len(tokens)) - 1)
        state.add(tokens, streams)
        if wait and state.length - state.first <= WAITING_ROWS:
            return
        self._take_in(state, known)

    def catch_up(self, state: DraftState) -> int:
        """Take in the rows that wait for the next draft, all but the last one; return how many they are."""
        state.drop_last_row(state.length)
        known = max(state.attention.length, state.length - 1)
        taken = known - state.attention.length
        self._take_in(state, known)
        return taken

    def _take_in(self, state: DraftState, known: int) -> None:
        """Leave the keys and values of the rows before ``known``."""
        state.join()
        while (start := state.attention.length) < known:
            end = min(start + ROWS_AT_ONCE, known)
            first, last = start - state.first, end - state.first
            after, streams = state.tokens[first + 1 : last + 1], state.rows(first, last)
            positions = self._positions(state.attention, streams, queries=0)
            joined = self._inputs(streams, mx.array(after.astype(np.int32)))
            self._layer.remember(joined, state.attention, positions)
            mx.eval(*state.attention.arrays())
        self._drop_rows(state)
        mx.eval(state.streams)

    def guesses(self, state: DraftState, token: int) -> Generator[Guess, None, None]:
        """Guess the tokens after ``token``, which was chosen after everything ``state`` has seen, one when asked.

        Args:
            state: Of at least one token; takes in the rows that waited, otherwise unchanged once this is closed.
            token: The next token of the sequence.

        Raises:
            ExpertReadError: One of the head's records could not be read. The state can still be used.
        """
        state.join()
        state.drop_last_row(state.length)
        self._drop_rows(state)
        attention, first = state.attention, state.attention.length - state.first
        streams, after = state.rows(first), np.append(state.tokens[first + 1 :], token)
        guess = self._guess(attention, streams, after)
        kept, index = attention.length, attention.index.copy()
        try:
            while True:
                yield guess.guess
                guess = self._guess(attention, guess.streams, np.array([guess.guess.token]))
        finally:
            attention.length, attention.index = kept, index

    def _guess(self, attention: AttentionState, streams: mx.array, after: Ids) -> _Step:
        """Append rows and guess from the last of them, computed when this returns."""
        with pass_leases() as leases:
            streams = self._advance(attention, streams, mx.array(after.astype(np.int32)), leases)
            guess = self._outputs.guess(streams, lambda arrays: leases.evaluate(arrays, *attention.arrays()))
        return _Step(guess, streams)

    def _drop_rows(self, state: DraftState) -> None:
        """Forget the streams of rows that are taken in for good: all but the last one of them."""
        spent = max(0, min(state.attention.length, state.length - 1) - state.first)
        if spent:
            state.forget_rows(spent)

    def _advance(self, attention: AttentionState, streams: mx.array, after: mx.array, leases: PassLeases) -> mx.array:
        """Append rows and compute the last of them.

        Args:
            attention: Advanced by the rows.
            streams: Of the rows, [rows, streams, hidden].
            after: The token after each row, [rows].
            leases: Hold the experts that the result reads, until it was evaluated.

        Returns:
            The head's own streams, [1, streams, hidden], from which the token after ``after[-1]`` is guessed.
        """
        positions = self._positions(attention, streams, queries=1)
        return self._layer(self._inputs(streams, after), attention, positions, leases)

    def _positions(self, attention: AttentionState, streams: mx.array, *, queries: int) -> PassPositions:
        start = attention.length
        angles, block_angles = self._rotary.pass_angles(start, streams.shape[0], self._ratio)
        return PassPositions(start=start, angles=angles, block_angles=block_angles, record=queries > 0, queries=queries)
