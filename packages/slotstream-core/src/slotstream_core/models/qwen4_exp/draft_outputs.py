"""What the draft head's layer ends in: one row of streams to the token that the vocabulary's head finds likeliest."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from slotstream_core.models.base import Guess
from slotstream_core.models.qwen4_exp.hyper_connections import StreamMixer
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.vocabulary import OutputHead


class DraftOutputs:
    """Mixes the streams and guesses.

    Args:
        weights: Says where it is computed.
        mixer: The head's own.
        vocabulary: The main model's output head.
    """

    def __init__(self, weights: WeightReader, mixer: StreamMixer, vocabulary: OutputHead) -> None:
        self._mixer = mixer
        self._vocabulary = vocabulary

    def logits(self, streams: mx.array) -> mx.array:
        """float32 [T, vocabulary] for ``streams`` [T, streams, hidden]."""
        return self._vocabulary(self._mixer.mix(streams))

    def guess(self, streams: mx.array, evaluate: Callable[[list[mx.array]], None]) -> Guess:
        """The likeliest token after ``streams`` [1, streams, hidden], and its probability.

        Args:
            streams: Evaluated when this returns.
            evaluate: Evaluates arrays; called once.
        """
        logits = self.logits(streams)
        token = mx.argmax(logits, axis=-1)
        confidence = mx.exp(mx.max(logits, axis=-1) - mx.logsumexp(logits, axis=-1))
        evaluate([token, confidence, streams])
        return Guess(int(np.asarray(token)[0]), float(np.asarray(confidence)[0]))
