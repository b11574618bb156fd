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
    """See `Embedding`.

    Attributes:
        handle: The matrix's address in C; see `EagerMap`.
    """

    def __init__(self, weights: WeightReader, module: str, streams: int) -> None:
        super().__init__(weights, module, streams)
        self._host_map = EagerMap(self.matrix, weights.eager_host())
        self.handle = self._host_map.handle

    def rows(self, ids: mx.array) -> mx.array:
        """See `Embedding.rows`."""
        return mx.array(self._host_map.rows(np.asarray(ids).astype(np.int64)))

    def __call__(self, tokens: npt.NDArray[np.int64]) -> mx.array:
        """See `Embedding.__call__`."""
        return mx.array(np.repeat(self._host_map.rows(tokens)[:, None], self._streams, axis=1))


class EagerOutputHead(OutputHead):
    """See `OutputHead`.

    Attributes:
        handle: The matrix's address in C; see `EagerMap`.
    """

    def __init__(self, weights: WeightReader, module: str) -> None:
        super().__init__(weights, module)
        self._host_map = EagerMap(self.matrix, weights.eager_host())
        self.handle = self._host_map.handle

    def __call__(self, mixed: mx.array) -> mx.array:
        """See `OutputHead.__call__`."""
        return mx.array(self._host_map(rows_of(mixed)))
