"""`DraftInputs`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from slotstream_core import _native
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.draft_inputs import DraftInputs
from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMap
from slotstream_core.models.qwen4_exp.eager.vocabulary import EagerEmbedding
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import Embedding


class EagerDraftInputs(DraftInputs):
    """See `DraftInputs`."""

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, embedding: Embedding) -> None:
        super().__init__(weights, prefix, config, embedding)
        host = weights.eager_host()
        self._host = host
        self._eps = config.rms_norm_eps
        self._own_embedding = embedding if isinstance(embedding, EagerEmbedding) else None
        self._embedding_map = EagerMap(self._from_embedding, host)
        self._streams_map = EagerMap(self._from_streams, host)
        self._embedding_weight = np.array(self._embedding_norm.plain_weight).reshape(-1)
        self._streams_weight = np.array(self._streams_norm.plain_weight).reshape(-1)

    def __call__(self, streams: mx.array, after: mx.array) -> mx.array:
        """See `DraftInputs.__call__`."""
        embedding = 0 if self._own_embedding is None else self._own_embedding.handle
        if not (embedding and self._embedding_map.handle and self._streams_map.handle):
            return super().__call__(streams, after)
        rows, count, _ = streams.shape
        flat = rows_of(streams)
        out = np.empty((rows, flat.shape[1]), np.float32)
        _native.join_inputs(
            self._host.handle,
            embedding,
            self._embedding_map.handle,
            self._streams_map.handle,
            self._embedding_weight,
            self._streams_weight,
            count,
            self._eps,
            flat,
            np.asarray(after).astype(np.int64),
            out,
        )
        return mx.array(out.reshape(streams.shape))
