"""`Embedding` and `OutputHead`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import Embedding, OutputHead


class EagerEmbedding(Embedding):
    """See `Embedding`."""

    def __init__(self, weights: WeightReader, module: str, streams: int) -> None:
        super().__init__(weights, module, streams)
        self._host_map = EagerMap(self._map, weights.eager_host())

    def rows(self, ids: mx.array) -> mx.array:
        """See `Embedding.rows`."""
        return mx.array(self._host_map.rows(np.asarray(ids).astype(np.int64)))

    def __call__(self, tokens: npt.NDArray[np.int64]) -> mx.array:
        """See `Embedding.__call__`."""
        return mx.array(np.repeat(self._host_map.rows(tokens)[:, None], self._streams, axis=1))


class EagerOutputHead(OutputHead):
    """See `OutputHead`."""

    def __init__(self, weights: WeightReader, module: str) -> None:
        super().__init__(weights, module)
        self._host_map = EagerMap(self._map, weights.eager_host())

    def __call__(self, mixed: mx.array) -> mx.array:
        """See `OutputHead.__call__`."""
        return mx.array(self._host_map(rows_of(mixed)))

    def best(self, mixed: mx.array) -> tuple[mx.array, mx.array]:
        """See `OutputHead.best`."""
        logits = self._host_map(rows_of(mixed))
        best = logits.argmax(axis=-1)
        logits -= logits.max(axis=-1, keepdims=True)
        probabilities = 1 / np.exp(logits, out=logits).sum(axis=-1)
        return mx.array(best.astype(np.int32)), mx.array(probabilities)
