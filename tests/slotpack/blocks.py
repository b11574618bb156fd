"""Deterministic blocks that look like a checkpoint's: quantised triples, BF16 tensors, text."""

import random
import struct

from slotpack.frames import FrameHeader, Kind


def bf16(value: float) -> int:
    """Return the BF16 bit pattern of a float, rounded to nearest even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits + 0x7FFF + (bits >> 16 & 1) >> 16)


def quantised_block(seed: int, groups: int, group_size: int = 64) -> tuple[bytes, FrameHeader]:
    """Return packed bell-shaped weights with their scales and biases, and the header that codes them."""
    rng = random.Random(seed)
    weights = bytearray()
    scales: list[int] = []
    biases: list[int] = []
    for _ in range(groups):
        spread = 0.02 * rng.choice([0.7, 1.0, 1.0, 1.4])
        values = [rng.gauss(0.0, spread) for _ in range(group_size)]
        low, high = min(values), max(values)
        scale = (high - low) / 15
        base = -round(-low / scale) * scale
        nibbles = [max(0, min(15, round((value - base) / scale))) for value in values]
        weights += bytes(nibbles[i] | nibbles[i + 1] << 4 for i in range(0, group_size, 2))
        scales.append(bf16(scale))
        biases.append(bf16(base))
    raw = bytes(weights) + struct.pack(f"<{groups}H", *scales) + struct.pack(f"<{groups}H", *biases)
    header = FrameHeader(raw_bytes=len(raw), kind=Kind.QUANTIZED, weight_bytes=len(weights), group_size=group_size)
    return raw, header


def word_block(seed: int, words: int) -> bytes:
    """Return BF16 words of a bell-shaped tensor."""
    rng = random.Random(seed)
    return b"".join(struct.pack("<H", bf16(rng.gauss(0.0, 0.05))) for _ in range(words))


def text_block(seed: int, size: int) -> bytes:
    """Return compressible ASCII."""
    rng = random.Random(seed)
    return bytes(rng.choices(b"etaoin shrdlu\n", weights=range(14, 0, -1), k=size))
