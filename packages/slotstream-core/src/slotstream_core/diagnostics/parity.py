"""Logits of a checkpoint for given ids, to compare with another implementation or another setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import ContextLengthExceeded, EmptyPrompt, RequestError
from slotstream_core.generation.decoding import logits_row
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.state.sequence import SequenceState
from slotstream_planner import PlanRequest


@dataclass(frozen=True, kw_only=True)
class ParityResult:
    """What a checkpoint computes for a list of ids.

    Attributes:
        logits: Float32 [tokens, vocabulary]: row t follows token t.
        ids: The given ids and the greedy continuation, int64 [tokens + continuation].
    """

    logits: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]


def compute_parity(
    directory: Path,
    ids: Sequence[int],
    *,
    experts_per_layer: int | None = None,
    chunk: int | None = None,
    greedy: int = 0,
) -> ParityResult:
    """Run ids through a checkpoint and return every position's logits.

    Args:
        directory: The checkpoint.
        ids: Token ids, at least one.
        experts_per_layer: Expert slots as a number a layer; the automatic plan decides when not given.
        chunk: Tokens a pass; everything in one pass when not given.
        greedy: Tokens to append by taking the most likely one each time, end-of-text or not.

    Raises:
        EmptyPrompt: No ids.
        RequestError: An id outside the vocabulary, or a chunk or continuation that makes no sense.
        ContextLengthExceeded: Ids and continuation do not fit in the plan's window.
        SlotstreamError: The checkpoint cannot be loaded or read.
    """
    if not ids:
        raise EmptyPrompt("the list of token ids is empty; give at least one")
    if greedy < 0 or (chunk is not None and chunk < 1):
        raise RequestError(f"chunk {chunk} must be at least 1 and the continuation {greedy} at least 0")
    with load_model(directory, request=PlanRequest(experts_per_layer=experts_per_layer)) as loaded:
        limit = loaded.checkpoint.config.vocab_size
        outside = next((token for token in ids if not 0 <= token < limit), None)
        if outside is not None:
            raise RequestError(f"token id {outside} is outside the vocabulary of {limit:,}")
        if len(ids) + greedy > loaded.plan.window_tokens:
            raise ContextLengthExceeded(len(ids) + greedy, loaded.plan.window_tokens)
        state = loaded.model.new_state()
        logits = _all_logits(loaded, state, np.asarray(ids, dtype=np.int32), chunk or len(ids))
        continuation = _greedy(loaded, state, logits[-1], greedy)
    return ParityResult(logits=logits, ids=np.asarray([*ids, *continuation], dtype=np.int64))


def _all_logits(
    loaded: LoadedModel, state: SequenceState, ids: npt.NDArray[np.int32], chunk: int
) -> npt.NDArray[np.float32]:
    rows = []
    for start in range(0, len(ids), chunk):
        result = loaded.model.forward(ids[start : start + chunk], state, logits="all")
        rows.append(np.array(result.logits))
    return np.concatenate(rows).astype(np.float32, copy=False)


def _greedy(loaded: LoadedModel, state: SequenceState, row: npt.NDArray[np.float32], count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(int(row.argmax()))
        if len(tokens) < count:
            result = loaded.model.forward(np.array(tokens[-1:], dtype=np.int32), state)
            row = logits_row(result.logits)
    return tokens
