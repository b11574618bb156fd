"""Integer BF16 arithmetic of kind 3: the center of a group and the bias that it predicts.

A 4-bit affine weight is scale * nibble + bias.  Quantisers put zero near a whole nibble, so the bias is close to
-scale * center with a small whole center: storing the center and an (almost always zero) correction is cheaper than
storing the bias.  Everything is computed on bit patterns, so that every machine predicts the same bits.
"""

SIGN = 0x8000
INFINITY = 0x7F80


def predict_bias(scale: int, center: int) -> int:
    """Return BF16(-scale * center), rounded to nearest even, as a bit pattern.

    Args:
        scale: BF16 bit pattern.
        center: 0 to 255.

    Returns:
        The prediction; 0 when the scale is infinite or not a number, and a signed zero when the product is zero.
    """
    field = scale >> 7 & 255
    sign = scale & SIGN ^ SIGN
    if field == 255:
        return 0
    exponent = max(field, 1)
    product = (scale & 127 | (128 if field else 0)) * center
    if product == 0:
        return sign
    shift = product.bit_length() - 8
    if exponent + shift < 1:  # subnormal: a whole number of smallest steps
        return sign | product << exponent - 1
    if shift <= 0:
        rounded = product << -shift
    else:
        rounded, tail = product >> shift, product & (1 << shift) - 1
        half = 1 << shift - 1
        rounded += tail > half or (tail == half and rounded & 1)
    bits = (exponent + shift - 1 << 7) + rounded
    return sign | min(bits, INFINITY)


def find_center(scale: int, bias: int) -> int:
    """Return -bias / scale rounded to nearest even and clamped to 0..255; 0 where no such number helps."""
    scale_field, bias_field = scale >> 7 & 255, bias >> 7 & 255
    if 255 in (scale_field, bias_field) or not scale & 0x7FFF or not bias & 0x7FFF or not (scale ^ bias) & SIGN:
        return 0
    difference = max(bias_field, 1) - max(scale_field, 1)
    if difference >= 16:
        return 255
    if difference <= -16:
        return 0
    numerator = (bias & 127 | (128 if bias_field else 0)) << max(difference, 0)
    denominator = (scale & 127 | (128 if scale_field else 0)) << max(-difference, 0)
    quotient, rest = divmod(numerator, denominator)
    quotient += 2 * rest > denominator or (2 * rest == denominator and quotient & 1)
    return min(quotient, 255)


def zigzag(difference: int) -> int:
    """Map a difference modulo 2^16 to a word: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    signed = (difference & 0xFFFF ^ SIGN) - SIGN
    return -2 * signed - 1 if signed < 0 else 2 * signed


def unzigzag(word: int) -> int:
    """Invert `zigzag`; the result is a signed difference."""
    return -(word >> 1) - 1 if word & 1 else word >> 1


def context_key(scale: int, center: int) -> int:
    """Return the number of the nibble statistics that a group uses: its center and the scale's leading bits."""
    return center * 1024 + ((scale & 0x7FFF) >> 5)
