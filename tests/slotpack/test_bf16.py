"""Center and prediction against the format's table and against exact fractions."""

import random
import struct
from fractions import Fraction

import pytest

from slotpack.bf16 import find_center, predict_bias, unzigzag, zigzag


def exact(bits: int) -> Fraction:
    """Return the value of a finite BF16 pattern."""
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    return Fraction(value)


def nearest_bf16(value: Fraction) -> int:
    """Return the non-negative BF16 pattern nearest to `value` by bisection, ties to even."""
    low, high = 0, 0x7F7F
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if exact(middle) <= value else (low, middle - 1)
    step = exact(low) - exact(low - 1) if low == 0x7F7F else exact(low + 1) - exact(low)
    distance = 2 * (value - exact(low))
    return low + (distance > step or (distance == step and low & 1 == 1))


@pytest.mark.parametrize(
    ("scale", "center", "predicted"),
    [
        (0x3C23, 8, 0xBDA3),
        (0xBC23, 8, 0x3DA3),
        (0x3F80, 3, 0xC040),
        (0x0001, 3, 0x8003),
        (0x7F7F, 255, 0xFF80),
        (0x7F80, 4, 0x0000),
        (0x3C23, 0, 0x8000),
    ],
)
def test_prediction_matches_the_format_table(scale: int, center: int, predicted: int) -> None:
    assert predict_bias(scale, center) == predicted


@pytest.mark.parametrize(
    ("scale", "bias", "center"),
    [
        (0x3C23, 0xBDA3, 8),
        (0x3F80, 0xC020, 2),
        (0x3F80, 0xC060, 4),
        (0x3F80, 0xBF00, 0),
        (0x3F80, 0x4000, 0),
        (0x0001, 0x8003, 3),
        (0x3C00, 0xC400, 255),
    ],
)
def test_center_matches_the_format_table(scale: int, bias: int, center: int) -> None:
    assert find_center(scale, bias) == center


def test_prediction_agrees_with_exact_rounding() -> None:
    rng = random.Random(7)
    for _ in range(4000):
        scale, center = rng.randrange(0x7F80), rng.randrange(1, 256)
        product = exact(scale) * center
        if product:
            assert predict_bias(scale, center) == 0x8000 | min(nearest_bf16(product), 0x7F80)


def test_center_agrees_with_exact_rounding() -> None:
    rng = random.Random(8)
    for _ in range(4000):
        scale = rng.randrange(1, 0x7F80)
        bias = 0x8000 | max(1, min(0x7F7F, scale + rng.randrange(-2200, 2200)))
        assert find_center(scale, bias) == min(255, round(-exact(bias) / exact(scale)))


def test_zigzag_is_a_bijection_of_words() -> None:
    assert [zigzag(difference) for difference in (0, -1, 1, -2, 2)] == [0, 1, 2, 3, 4]
    assert all(unzigzag(zigzag(word)) & 0xFFFF == word for word in range(65536))
