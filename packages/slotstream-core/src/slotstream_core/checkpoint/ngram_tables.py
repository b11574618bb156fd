"""Hash constants of the n-gram embeddings, derived from the configuration.

A checkpoint stores them too (`layer_multipliers`, `ngram_heads_vocab_sizes`, `ngram_heads_offsets`); these are the
values when it does not, and the row counts that its shards must have.
"""

import math
from dataclasses import dataclass
from typing import Final

from slotstream_core.checkpoint.config import Qwen4ExpConfig

_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_LAYER_STEP: Final = 10_007
_MASK_64: Final = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class NgramTables:
    """Hash constants of one n-gram embedding.

    Attributes:
        multipliers: One odd factor for each position of the n-gram, `ngram_size` of them.
        head_sizes: Rows of each hashed head; distinct primes, `ngram_heads` of them.
        head_offsets: First row of each head in the table.
        total_rows: Rows of the whole table, padded as the configuration says.
    """

    multipliers: tuple[int, ...]
    head_sizes: tuple[int, ...]
    head_offsets: tuple[int, ...]
    total_rows: int


def derive_ngram_tables(config: Qwen4ExpConfig, ple_index: int) -> NgramTables:
    """Return the constants of the n-gram embedding that is `ple_index`-th (from zero) in `ple_layer_ids`.

    Head sizes are successive primes from `ngram_vocab_size_base`, continuing from one embedding to the next;
    multiplier i is `2 * (splitmix64(seed_l + gamma * (i + 1)) mod half) + 1` with splitmix64 (increment included) and
    `half = max(1, (2**63 - 1) // vocab_size // 2)`.
    """
    primes = _primes_from(config.ngram_vocab_size_base, (ple_index + 1) * config.ngram_heads)
    sizes = primes[ple_index * config.ngram_heads :]
    offsets = tuple(sum(sizes[:head]) for head in range(len(sizes)))
    half = max(1, (2**63 - 1) // config.vocab_size // 2)
    seed = config.ngram_seed + _LAYER_STEP * ple_index
    multipliers = tuple(2 * (_mix(seed + _GAMMA * (i + 1)) % half) + 1 for i in range(config.ngram_size))
    divisor = config.make_ngram_vocab_size_divisible_by
    return NgramTables(
        multipliers=multipliers,
        head_sizes=tuple(sizes),
        head_offsets=offsets,
        total_rows=-(-sum(sizes) // divisor) * divisor,
    )


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31)


def _primes_from(start: int, count: int) -> list[int]:
    primes: list[int] = []
    candidate = start
    while len(primes) < count:
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return primes


def _is_prime(value: int) -> bool:
    if value < 4:
        return value >= 2
    return value % 2 != 0 and all(value % divisor for divisor in range(3, math.isqrt(value) + 1, 2))
