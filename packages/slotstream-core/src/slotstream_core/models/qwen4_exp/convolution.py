"""Short causal convolutions over tokens, one kernel per channel, as a few products of whole rows."""

import mlx.core as mx


def causal_convolution(padded: mx.array, kernel: mx.array, *, dilation: int) -> mx.array:
    """Convolve each channel and apply SiLU.

    Args:
        padded: The ``(taps - 1) * dilation`` rows before the pass and the pass itself, [history + T, channels].
        kernel: [taps, channels]; the last tap meets the present token.
        dilation: Tokens between taps.

    Returns:
        [T, channels].
    """
    taps = kernel.shape[0]
    tokens = padded.shape[0] - (taps - 1) * dilation
    if tokens == 1:
        summed = (padded[::dilation] * kernel).sum(axis=0, keepdims=True)
    else:
        summed = padded[:tokens] * kernel[0]
        for tap in range(1, taps):
            summed = summed + padded[tap * dilation : tap * dilation + tokens] * kernel[tap]
    return summed * mx.sigmoid(summed)


def last_rows(padded: mx.array, count: int) -> mx.array:
    """The last ``count`` rows as an array of their own, so that the rest of ``padded`` can be freed."""
    if padded.shape[0] <= 2 * count or count < 2:
        return padded[padded.shape[0] - count :]
    cut = padded.shape[0] - 1
    return mx.concatenate([padded[padded.shape[0] - count : cut], padded[cut:]])
