"""`DraftInputs`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from slotstream_core import _native as pieces
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.draft_inputs import DraftInputs
from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import Embedding


class EagerDraftInputs(DraftInputs):
    """See `DraftInputs`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, embedding: Embedding) -> None:
        super().__init__(weights, prefix, config, embedding)
        host = weights.eager_host()
        self._eps = config.rms_norm_eps
        self._embedding_map = EagerMap(self._from_embedding, host)
        self._streams_map = EagerMap(self._from_streams, host)
        self._embedding_weight = np.array(self._embedding_norm.plain_weight).reshape(-1)
        self._streams_weight = np.array(self._streams_norm.plain_weight).reshape(-1)

    def __call__(self, streams: mx.array, after: mx.array) -> mx.array:
        """See `DraftInputs.__call__`."""
        rows, count, hidden = streams.shape
        embedded = self._embedding_map(self._normed(rows_of(self._embedding.rows(after)), self._embedding_weight))
        normed = self._normed(rows_of(streams), self._streams_weight)
        joined = self._streams_map(normed.reshape(rows * count, hidden)).reshape(rows, count, hidden)
        return mx.array(joined + embedded[:, None])

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        out = np.empty(x.shape, np.float32)
        pieces.rms_norm(x, weight, 1, self._eps, out)
        return out
