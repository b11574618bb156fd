"""Choosing the next token from a row of logits.

The order of the steps, the random stream and every tie rule are fixed, so that a seed names one reply on every machine
that computes the same logits.
"""

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from slotstream_core.errors import CheckpointDamaged, InvalidSampling

Logits = npt.NDArray[np.float32]
MASK_64 = 2**64 - 1
ZERO_SEED_STATE = 0xDEADBEEF


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens.  Values outside a range are brought into it by `sanitised`.

    Attributes:
        temperature: 0 means greedy.
        top_p: Keep the most likely tokens until their probability reaches this; 1 keeps all.
        top_k: Keep this many of the most likely tokens (ties kept); 0 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one.
        presence_penalty: Subtracted once from the logit of every distinct token already in the reply.
        seed: Names the random stream; None draws a random one.
    """

    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 20
    min_p: float = 0.0
    presence_penalty: float = 1.5
    seed: int | None = None

    def sanitised(self) -> "SamplingParams":
        """Return the parameters with every value inside its range.

        Raises:
            InvalidSampling: The presence penalty is not a finite number.
        """
        if not math.isfinite(self.presence_penalty):
            raise InvalidSampling(f"presence penalty {self.presence_penalty} is not a finite number; use e.g. 0 or 1.5")
        top_p_usable = math.isfinite(self.top_p) and 0 < self.top_p <= 1
        return replace(
            self,
            temperature=self.temperature if math.isfinite(self.temperature) and self.temperature > 0 else 0.0,
            top_p=self.top_p if top_p_usable else 1.0,
            min_p=min(max(self.min_p, 0.0), 1.0) if math.isfinite(self.min_p) else 0.0,
            top_k=max(self.top_k, 0),
        )


ORDINARY = SamplingParams()
THINKING = SamplingParams(temperature=1.0, top_p=0.95, presence_penalty=0.0)
AGENT = SamplingParams(temperature=0.2, top_p=0.9, presence_penalty=0.0)
GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, presence_penalty=0.0)


def splitmix64_mix(value: int) -> int:
    """Return the SplitMix64 output function of a 64-bit value (Steele, Lea and Flood, 2014)."""
    value &= MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


class Sampler:
    """One reply's sampler: it owns the random state and the set of tokens already generated.

    Attributes:
        seed: The seed in use, as an unsigned 64-bit number; give it again to get the same reply.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params.sanitised()
        self.seed = secrets.randbits(64) if self._params.seed is None else self._params.seed & MASK_64
        self._state = self.seed or ZERO_SEED_STATE
        self._seen: set[int] = set()

    def note(self, tokens: Iterable[int]) -> None:
        """Add generated tokens to the set that the presence penalty applies to."""
        self._seen.update(tokens)

    def sample(self, logits: Logits) -> int:
        """Return the next token id and remember it for the presence penalty.

        Args:
            logits: Raw logits of one position, float32 [vocabulary].

        Raises:
            CheckpointDamaged: A logit is not a number.
        """
        if np.isnan(logits.max()):
            raise CheckpointDamaged(
                f"{int(np.isnan(logits).sum()):,} of {logits.size:,} logits are not numbers; "
                "the model's weights are damaged: download or convert the checkpoint again"
            )
        token = self._choose(logits)
        self._seen.add(token)
        return token

    def _choose(self, raw: Logits) -> int:
        params = self._params
        logits = raw.astype(np.float32, copy=True)
        if params.presence_penalty and self._seen:
            logits[list(self._seen)] -= np.float32(params.presence_penalty)
        if params.temperature <= 0:
            return int(logits.argmax())
        logits /= np.float32(params.temperature)
        kept = _top_k(logits, params.top_k)
        probabilities = _softmax(logits[kept])
        order = np.argsort(-probabilities, kind="stable")  # most likely first; ties by the lower id
        kept, probabilities = kept[order], probabilities[order]
        running = np.cumsum(probabilities, dtype=np.float32)
        before = np.concatenate((np.zeros(1, np.float32), running[:-1]))
        mask = (before < np.float32(params.top_p)) & (probabilities >= probabilities[0] * np.float32(params.min_p))
        kept, probabilities = kept[mask], probabilities[mask]
        running = np.cumsum(probabilities, dtype=np.float32)
        if not running.size or not np.isfinite(running[-1]) or running[-1] <= 0:
            return int(raw.argmax())
        threshold = self._uniform() * running[-1]
        return int(kept[min(int(np.count_nonzero(running < threshold)), kept.size - 1)])

    def _uniform(self) -> np.float32:
        self._state = splitmix64_mix(self._state + 1)
        return np.float32((self._state >> 11) / 2**53)


def _top_k(logits: Logits, top_k: int) -> npt.NDArray[np.intp]:
    """Return the ids whose logits reach the k-th largest, ascending; all ids for k = 0."""
    if not 0 < top_k < logits.size:
        return np.arange(logits.size)
    threshold = np.partition(logits, logits.size - top_k)[logits.size - top_k]
    return np.flatnonzero(logits >= threshold)


def _softmax(logits: Logits) -> Logits:
    exponentials: Logits = np.exp(logits - logits.max())
    exponentials /= exponentials.sum(dtype=np.float32)
    return exponentials
