"""The ends of the model: token ids to residual streams, and the last hidden vectors to logits."""

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.projections import WeightReader


class Embedding:
    """Token embeddings, the same in every residual stream.

    Attributes:
        matrix: Whose rows they are.
    """

    def __init__(self, weights: WeightReader, module: str, streams: int) -> None:
        self.matrix = weights.projection(module)
        self._streams = streams

    def rows(self, ids: mx.array) -> mx.array:
        """The embeddings [T, hidden] of ``ids`` [T]."""
        return self.matrix.rows(ids)

    def __call__(self, tokens: npt.NDArray[np.int64]) -> mx.array:
        """The streams [T, streams, hidden] of ``tokens`` [T]."""
        rows = self.rows(mx.array(tokens.astype(np.int32)))
        return mx.broadcast_to(rows[:, None, :], (len(tokens), self._streams, rows.shape[-1]))


class OutputHead:
    """Logits of every token of the vocabulary.

    Attributes:
        matrix: What the last hidden vectors are multiplied with.
    """

    def __init__(self, weights: WeightReader, module: str) -> None:
        self.matrix = weights.projection(module)

    def __call__(self, mixed: mx.array) -> mx.array:
        """float32 [T, vocabulary] for ``mixed`` [T, hidden]."""
        return self.matrix(mixed).astype(mx.float32)
