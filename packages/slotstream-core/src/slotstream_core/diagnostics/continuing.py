"""Prompts read and continued outside an engine, for checks that compare ids and bits."""

from __future__ import annotations

from collections.abc import Sequence

from slotstream_core.errors import CheckpointError
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import PlainDecoder, PromptReader, Row
from slotstream_core.generation.sampling import GREEDY, Sampler
from slotstream_core.loading import LoadedModel
from slotstream_core.state.sequence import SequenceState

__all__ = ["continue_greedily", "invented_ids", "read_prompt"]


def invented_ids(loaded: LoadedModel, count: int, *, seed: int = 0) -> list[int]:
    """Return prompt ids that say nothing, and differ from the first one on between seeds."""
    vocabulary = loaded.checkpoint.config.vocab_size
    return [(11 + 7919 * seed + 31 * place + place // 7) % vocabulary for place in range(count)]


def read_prompt(
    loaded: LoadedModel, prompt: Sequence[int], *, pass_tokens: int | None = None
) -> tuple[SequenceState, Row]:
    """Read a prompt from its beginning, in the plan's passes unless told otherwise.

    Returns:
        The state after it, and its last logits, float32 [vocabulary].

    Raises:
        CheckpointError: The prompt is empty.
        ExpertReadError: Expert bytes could not be read.
    """
    state = loaded.model.new_state()
    reader = PromptReader(loaded.model, state, prompt, pass_tokens or loaded.plan.prefill_chunk)
    for _ in reader.passes(CancelToken()):
        pass
    if reader.last_logits is None:
        raise CheckpointError("the tokenizer turns a question into no token at all; it belongs to another model")
    return state, reader.last_logits


def continue_greedily(loaded: LoadedModel, state: SequenceState, row: Row, count: int) -> list[int]:
    """Return the likeliest next tokens after a prompt with last logits ``row``, end-of-text or not."""
    return list(PlainDecoder(loaded.model, state, Sampler(GREEDY)).tokens(row, limit=count))
