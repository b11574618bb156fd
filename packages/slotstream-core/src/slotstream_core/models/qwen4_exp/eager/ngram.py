"""`NgramLayer`, computed at once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core import _native as pieces
from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.products import EagerMaps
from slotstream_core.models.qwen4_exp.host_products import Floats
from slotstream_core.models.qwen4_exp.ngram import Ids, NgramLayer, NgramSource, NgramState


class EagerNgram(NgramLayer):
    """See `NgramLayer`."""

    def __init__(self, source: NgramSource) -> None:
        super().__init__(source)
        self._eager = source.weights.eager_host()
        self._eps = source.config.rms_norm_eps
        self._record = self._table.record_layout()
        self._table.read_with(pieces.read_rows)
        self._maps = EagerMaps(self._projections, self._eager)
        self._taps = np.ascontiguousarray(np.asarray(self._kernel))
        self._key_weight, self._query_weight, self._conv_weight = (
            np.array(norm.plain_weight).reshape(-1) for norm in (self._key_norm, self._query_norm, self._conv_norm)
        )

    def __call__(
        self, streams: mx.array, ids: Ids, embeddings: mx.array, state: NgramState, *, start: int, record: bool
    ) -> mx.array:
        """See `NgramLayer.__call__`."""
        keys, value = self._maps(rows_of(embeddings))
        flat = rows_of(streams)
        gated = np.empty(flat.shape, np.float32)
        matched, asked = self._normed(keys, self._key_weight), self._normed(flat, self._query_weight)
        self._eager.run_rows(lambda rows: pieces.ngram_gate(matched[rows], asked[rows], value[rows], gated[rows]), flat)
        window = np.asarray(state.window)
        normed = self._normed(gated, self._conv_weight)
        convolved = np.empty(flat.shape, np.float32)
        pieces.convolve(window, normed, self._taps, self._dilation, convolved)
        self._advance(mx.array(np.concatenate([window, normed])), ids, state, start=start, record=record)
        return mx.array((flat + gated + convolved).reshape(streams.shape))

    def embed(self, packed: npt.NDArray[np.uint8], places: npt.NDArray[np.intp]) -> mx.array:
        """See `NgramLayer.embed`."""
        if self._record is None:
            return super().embed(packed, places)
        values = self._eager.library.unpack_records(packed, self._record, round_to_bfloat16=True)
        return mx.array(values[places].reshape(len(places), -1))

    def _last_rows(self, padded: mx.array, kept: int) -> mx.array:
        return mx.array(np.asarray(padded)[padded.shape[0] - kept :])

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        out = np.empty(x.shape, np.float32)
        self._eager.run_rows(lambda rows: pieces.rms_norm(x[rows], weight, self._count, self._eps, out[rows]), x)
        return out
