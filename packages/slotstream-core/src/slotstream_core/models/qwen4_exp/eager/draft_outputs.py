"""`DraftOutputs`, computed at once: one call a guess."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from slotstream_core import _native
from slotstream_core.models.base import Guess
from slotstream_core.models.qwen4_exp.draft_outputs import DraftOutputs
from slotstream_core.models.qwen4_exp.eager.host import rows_of
from slotstream_core.models.qwen4_exp.eager.streams import EagerStreamMixer
from slotstream_core.models.qwen4_exp.eager.vocabulary import EagerOutputHead
from slotstream_core.models.qwen4_exp.hyper_connections import StreamMixer
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import OutputHead


class EagerDraftOutputs(DraftOutputs):
    """See `DraftOutputs`."""

    def __init__(self, weights: WeightReader, mixer: StreamMixer, vocabulary: OutputHead) -> None:
        super().__init__(weights, mixer, vocabulary)
        self._host = weights.eager_host()
        self._reading = mixer.mixing.reading() if isinstance(mixer, EagerStreamMixer) else None
        self._matrix = vocabulary.handle if isinstance(vocabulary, EagerOutputHead) else 0

    def guess(self, streams: mx.array, evaluate: Callable[[list[mx.array]], None]) -> Guess:
        """See `DraftOutputs.guess`."""
        if self._reading is None or not self._matrix:
            return super().guess(streams, evaluate)
        evaluate([streams])
        return Guess(*_native.guess(self._host.handle, *self._reading, self._matrix, rows_of(streams)))
