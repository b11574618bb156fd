"""What the draft head's layer starts from: the main model's streams joined with the token after them."""

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import Embedding


class DraftInputs:
    """Joins streams and embeddings: each is normalised and mapped, and every stream gets the same embedding.

    Args:
        weights: Reads the two norms and maps.
        prefix: Name of the head.
        config: Model settings.
        embedding: The main model's token embedding.
    """

    def __init__(self, weights: WeightReader, prefix: str, config: Qwen4ExpConfig, embedding: Embedding) -> None:
        self._embedding = embedding
        self._embedding_norm = weights.norm(f"{prefix}.pre_fc_norm_embedding.weight", config.rms_norm_eps)
        self._streams_norm = weights.norm(f"{prefix}.pre_fc_norm_hidden.weight", config.rms_norm_eps)
        self._from_embedding = weights.projection(f"{prefix}.fc_embedding")
        self._from_streams = weights.projection(f"{prefix}.fc_hidden")

    def __call__(self, streams: mx.array, after: mx.array) -> mx.array:
        """Join ``streams`` [T, streams, hidden] with the tokens ``after`` them [T]; returns [T, streams, hidden]."""
        rows, count, hidden = streams.shape
        embedded = self._from_embedding(self._embedding_norm(self._embedding.rows(after)[:, None])[:, 0])
        normed = self._streams_norm(streams.reshape(rows, 1, count * hidden))
        return self._from_streams(normed.reshape(rows * count, hidden)).reshape(streams.shape) + embedded[:, None]
