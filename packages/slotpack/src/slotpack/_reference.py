"""The coder in plain Python: slow, short, and in the order of docs/slotpack-format.md.

It is what runs where no C compiler was there, and the second opinion that every test compares the C coder with.
"""

import itertools
import struct
from collections import Counter
from collections.abc import Iterable, Sequence

from slotpack.bf16 import context_key, find_center, predict_bias, unzigzag, zigzag
from slotpack.errors import (
    BadContext,
    BadTable,
    FrequencySum,
    StreamState,
    TrailingBytes,
    TruncatedFrame,
    frame_error_of,
)
from slotpack.frames import HEADER_BYTES, FrameHeader, Kind, read_header, read_varint, write_varint

LOW = 1 << 23
HIGH = 1 << 31
BYTE_BITS = 12
WORD_BITS = 16
MAX_CONTEXTS = 2048
CONTEXT_KEYS = 1 << 18

Share = tuple[int, int]
"""(frequency, cumulative frequency) of a symbol."""


class TooManyContexts(Exception):
    """A block with more than 2,048 quantisation contexts: kind 3 cannot hold it."""


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """A position in a frame's payload."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def u32(self) -> int:
        if self.remaining < 4:
            raise frame_error_of(TruncatedFrame)
        return int.from_bytes(self.take(4), "little")

    def varint(self) -> int:
        value, self.position = read_varint(self.data, self.position)
        return value

    def take(self, count: int) -> memoryview:
        self.position += count
        return self.data[self.position - count : self.position]


class _Stream:
    """Four states and the bytes that refill them."""

    def __init__(self, reader: _Reader, bits: int) -> None:
        size = reader.u32()
        if size > reader.remaining or size < 16:
            raise frame_error_of(TruncatedFrame)
        data = reader.take(size)
        self.states: list[int] = list(struct.unpack_from("<4I", data))
        if any(not LOW <= state < HIGH for state in self.states):
            raise frame_error_of(StreamState)
        self.data = data[16:]
        self.position = 0
        self.bits = bits
        self.lane = 0

    def pop(self, owners: Sequence[int], shares: dict[int, Share]) -> int:
        """Return the next symbol, given the owner of every slot."""
        state = self.states[self.lane]
        slot = state & (1 << self.bits) - 1
        symbol = owners[slot]
        freq, cum = shares[symbol]
        state = freq * (state >> self.bits) + slot - cum
        while state < LOW:
            if self.position == len(self.data):
                raise frame_error_of(TruncatedFrame)
            state = state << 8 | self.data[self.position]
            self.position += 1
        self.states[self.lane] = state
        self.lane = (self.lane + 1) & 3
        return symbol

    def close(self) -> None:
        if self.position != len(self.data):
            raise frame_error_of(TrailingBytes)
        if any(state != LOW for state in self.states):
            raise frame_error_of(StreamState)


def _spread(shares: dict[int, Share]) -> list[int]:
    """Return the owner of every slot."""
    return [symbol for symbol, (freq, _cum) in shares.items() for _ in range(freq)]


def _read_table(reader: _Reader, symbol_limit: int, bits: int) -> dict[int, Share]:
    used = reader.u32()
    if not 1 <= used <= symbol_limit:
        raise frame_error_of(BadTable)
    shares: dict[int, Share] = {}
    total = 0
    expected = 0
    for _ in range(used):
        symbol = expected + reader.varint()
        if symbol >= symbol_limit:
            raise frame_error_of(BadTable)
        expected = symbol + 1
        freq = reader.varint()
        if freq == 0:
            raise frame_error_of(BadTable)
        if freq > (1 << bits) - total:
            raise frame_error_of(FrequencySum)
        shares[symbol] = (freq, total)
        total += freq
    if total != 1 << bits:
        raise frame_error_of(FrequencySum)
    return shares


def _read_section(reader: _Reader, bits: int, count: int) -> list[int]:
    shares = _read_table(reader, 256 if bits == BYTE_BITS else 65536, bits)
    owners = _spread(shares)
    stream = _Stream(reader, bits)
    symbols = [stream.pop(owners, shares) for _ in range(count)]
    stream.close()
    return symbols


def _read_contexts(reader: _Reader) -> dict[int, dict[int, Share]]:
    count = reader.u32()
    if not 1 <= count <= MAX_CONTEXTS:
        raise frame_error_of(BadContext)
    if reader.remaining < 20 * count:  # a key and sixteen varints each
        raise frame_error_of(TruncatedFrame)
    contexts: dict[int, dict[int, Share]] = {}
    for _ in range(count):
        key = reader.u32()
        if key >= CONTEXT_KEYS or key in contexts:
            raise frame_error_of(BadContext)
        shares: dict[int, Share] = {}
        total = 0
        for nibble in range(16):
            freq = reader.varint()
            if freq > (1 << BYTE_BITS) - total:
                raise frame_error_of(FrequencySum)
            shares[nibble] = (freq, total)
            total += freq
        if total != 1 << BYTE_BITS:
            raise frame_error_of(FrequencySum)
        contexts[key] = shares
    return contexts


def _read_quantised(reader: _Reader, header: FrameHeader) -> bytes:
    groups = header.group_count
    scales = _read_section(reader, WORD_BITS, groups)
    centers = _read_section(reader, BYTE_BITS, groups)
    residuals = _read_section(reader, WORD_BITS, groups)
    contexts = _read_contexts(reader)
    biases = [
        predict_bias(scale, center) + unzigzag(residual) & 0xFFFF
        for scale, center, residual in zip(scales, centers, residuals, strict=True)
    ]
    keys = [context_key(scale, center) for scale, center in zip(scales, centers, strict=True)]
    if any(key not in contexts for key in keys):
        raise frame_error_of(BadContext)
    owners = {key: _spread(shares) for key, shares in contexts.items()}
    stream = _Stream(reader, BYTE_BITS)
    weights = bytearray()
    for key in keys:
        for _ in range(header.group_size // 2):
            low = stream.pop(owners[key], contexts[key])
            weights.append(low | stream.pop(owners[key], contexts[key]) << 4)
    stream.close()
    return bytes(weights) + _words(scales) + _words(biases)


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def decode(frame: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes that a frame holds.

    Raises:
        FrameError: The matching subclass when the frame breaks the format.
    """
    header = read_header(frame)
    reader = _Reader(memoryview(frame)[HEADER_BYTES:])
    if header.kind is Kind.RAW:
        return bytes(reader.data)
    if header.kind is Kind.BYTES:
        raw = bytes(_read_section(reader, BYTE_BITS, header.raw_bytes))
    elif header.kind is Kind.WORDS:
        raw = _words(_read_section(reader, WORD_BITS, header.raw_bytes // 2))
    else:
        raw = _read_quantised(reader, header)
    if reader.remaining:
        raise frame_error_of(TrailingBytes)
    return raw


# ---- writing ---------------------------------------------------------------------------------------------------------


def _normalise(counts: Counter[int], bits: int) -> dict[int, Share]:
    """Scale counts to frequencies that sum to 2^bits exactly; every used symbol keeps at least one.

    With n used symbols, `avail = 2^bits - n` and prefix counts P in ascending symbol order:
    `f_i = 1 + floor(P_i * avail / total) - floor(P_(i-1) * avail / total)`.
    """
    total = sum(counts.values())
    available = (1 << bits) - len(counts)
    shares: dict[int, Share] = {}
    prefix = before = cum = 0
    for symbol in sorted(counts):
        prefix += counts[symbol]
        after = prefix * available // total
        shares[symbol] = (1 + after - before, cum)
        cum += 1 + after - before
        before = after
    return shares


def _write_stream(symbols: Iterable[tuple[int, Share]], bits: int) -> bytes:
    """Code (lane, share) pairs given from the last to the first."""
    states = [LOW] * 4
    emitted = bytearray()
    for lane, (freq, cum) in symbols:
        state = states[lane]
        while state >= (LOW >> bits << 8) * freq:
            emitted.append(state & 255)
            state >>= 8
        states[lane] = (state // freq << bits) + state % freq + cum
    emitted.reverse()
    return struct.pack("<5I", 16 + len(emitted), *states) + bytes(emitted)


def _write_section(symbols: Sequence[int], bits: int) -> bytes:
    shares = _normalise(Counter(symbols), bits)
    table = bytearray(struct.pack("<I", len(shares)))
    for previous, symbol in itertools.pairwise([-1, *shares]):
        table += write_varint(symbol - previous - 1) + write_varint(shares[symbol][0])
    backwards = ((index & 3, shares[symbols[index]]) for index in reversed(range(len(symbols))))
    return bytes(table) + _write_stream(backwards, bits)


def _write_quantised(raw: bytes, header: FrameHeader) -> bytes:
    weights = raw[: header.weight_bytes]
    metadata = struct.unpack(f"<{2 * header.group_count}H", raw[header.weight_bytes :])
    scales, biases = metadata[: header.group_count], metadata[header.group_count :]
    centers = [find_center(scale, bias) for scale, bias in zip(scales, biases, strict=True)]
    residuals = [
        zigzag(bias - predict_bias(scale, center)) for scale, bias, center in zip(scales, biases, centers, strict=True)
    ]
    keys = [context_key(scale, center) for scale, center in zip(scales, centers, strict=True)]
    nibbles = [nibble for byte in weights for nibble in (byte & 15, byte >> 4)]
    counts: dict[int, Counter[int]] = {key: Counter() for key in sorted(set(keys))}
    if len(counts) > MAX_CONTEXTS:
        raise TooManyContexts
    for group, key in enumerate(keys):
        counts[key].update(nibbles[group * header.group_size : (group + 1) * header.group_size])
    shares = {key: _normalise(counter, BYTE_BITS) for key, counter in counts.items()}
    contexts = bytearray(struct.pack("<I", len(shares)))
    for key, table in shares.items():
        contexts += struct.pack("<I", key)
        contexts += b"".join(write_varint(table.get(nibble, (0, 0))[0]) for nibble in range(16))
    backwards = (
        (index & 3, shares[keys[index // header.group_size]][nibbles[index]]) for index in reversed(range(len(nibbles)))
    )
    return (
        _write_section(scales, WORD_BITS)
        + _write_section(centers, BYTE_BITS)
        + _write_section(residuals, WORD_BITS)
        + bytes(contexts)
        + _write_stream(backwards, BYTE_BITS)
    )


def encode_exact(raw: bytes, header: FrameHeader) -> bytes:
    """Return a frame of exactly `header.kind`, even where kind 0 would be smaller.

    Raises:
        TooManyContexts: When kind 3 cannot hold the block.
    """
    if header.kind is Kind.RAW:
        payload = raw
    elif header.kind is Kind.BYTES:
        payload = _write_section(raw, BYTE_BITS)
    elif header.kind is Kind.WORDS:
        payload = _write_section(struct.unpack(f"<{len(raw) // 2}H", raw), WORD_BITS)
    else:
        payload = _write_quantised(raw, header)
    return header.to_bytes() + payload
