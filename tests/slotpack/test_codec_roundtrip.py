"""Lossless round trips, equal bytes from both coders, and hypothesis over both."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotpack
from slotpack.codec import Coder, NativeCoder, ReferenceCoder, choose_coder, encode_exact
from slotpack.errors import EncodeError, FrameError
from slotpack.frames import MAX_RAW_BYTES, FrameHeader, Kind
from tests.slotpack.blocks import quantised_block, text_block, word_block

REFERENCE = ReferenceCoder()
NATIVE = choose_coder()


def blocks() -> list[tuple[bytes, FrameHeader]]:
    def plain(raw: bytes, kind: Kind) -> tuple[bytes, FrameHeader]:
        return raw, FrameHeader(raw_bytes=len(raw), kind=kind)

    noise = random.Random(3).randbytes(6000)
    return [
        plain(b"x", Kind.BYTES),
        plain(b"x" * 5000, Kind.BYTES),
        plain(bytes(range(256)) * 9, Kind.BYTES),
        plain(text_block(1, 9001), Kind.BYTES),
        plain(noise, Kind.BYTES),
        plain(noise, Kind.WORDS),
        plain(word_block(2, 5001), Kind.WORDS),
        plain(b"\0\1" * 77, Kind.WORDS),
        quantised_block(4, 1, 32),
        quantised_block(5, 90, 32),
        quantised_block(6, 301, 64),
    ]


@pytest.mark.parametrize(("raw", "header"), blocks())
def test_every_block_survives_both_coders_with_equal_bytes(coder: Coder, raw: bytes, header: FrameHeader) -> None:
    frame = coder.encode_exact(raw, header)
    assert frame is not None
    assert frame == REFERENCE.encode_exact(raw, header)
    assert coder.decode(frame) == raw
    assert coder.encode_smaller(raw, header) == (frame if len(frame) < len(raw) + 32 else None)


def test_special_scales_and_biases_survive(coder: Coder) -> None:
    rng = random.Random(9)
    edges = [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x3C23, 0xBDA3]
    pairs = [(scale, bias) for scale in edges for bias in edges]
    weights = rng.randbytes(32 * len(pairs))
    scales = struct.pack(f"<{len(pairs)}H", *(scale for scale, _ in pairs))
    biases = struct.pack(f"<{len(pairs)}H", *(bias for _, bias in pairs))
    raw = weights + scales + biases
    header = FrameHeader(raw_bytes=len(raw), kind=Kind.QUANTIZED, weight_bytes=len(weights), group_size=64)
    frame = coder.encode_exact(raw, header)
    assert frame is not None
    assert coder.decode(frame) == raw


def test_all_65536_words_in_one_section_survive_the_c_coder() -> None:
    if not isinstance(NATIVE, NativeCoder):
        pytest.skip("the C coder was not built here")
    raw = struct.pack("<65536H", *range(65536))
    frame = encode_exact(raw, kind=Kind.WORDS)
    assert slotpack.decode(frame) == raw


def test_a_block_with_too_many_contexts_stays_raw(coder: Coder) -> None:
    scales = list(range(0x1000, 0x7000, 0x20))
    pairs = [(scale, 0x8000 | min(0x7F7F, scale + 0x80 * step)) for scale in scales for step in range(3)]
    raw = bytes(32 * len(pairs)) + b"".join(struct.pack("<H", scale) for scale, _ in pairs)
    raw += b"".join(struct.pack("<H", bias) for _, bias in pairs)
    header = FrameHeader(raw_bytes=len(raw), kind=Kind.QUANTIZED, weight_bytes=32 * len(pairs), group_size=64)
    assert coder.encode_exact(raw, header) is None
    assert coder.encode_smaller(raw, header) is None


@given(st.binary(min_size=1, max_size=400), st.sampled_from([Kind.RAW, Kind.BYTES, Kind.WORDS]))
def test_any_bytes_round_trip(raw: bytes, kind: Kind) -> None:
    if kind is Kind.WORDS and len(raw) % 2:
        raw += b"\0"
    frame = slotpack.encode(raw, kind=kind)
    assert len(frame) <= len(raw) + 32
    assert slotpack.decode(frame) == raw
    assert REFERENCE.decode(frame) == raw


@settings(max_examples=60)
@given(st.integers(1, 4), st.sampled_from([32, 64]), st.data())
def test_any_quantised_block_round_trips(groups: int, group_size: int, data: st.DataObject) -> None:
    weight_bytes = groups * group_size // 2
    raw = data.draw(st.binary(min_size=weight_bytes + 4 * groups, max_size=weight_bytes + 4 * groups))
    frame = encode_exact(raw, kind=3, weight_bytes=weight_bytes, group_size=group_size)
    assert slotpack.decode(frame) == raw
    assert REFERENCE.decode(frame) == raw


SEEDS = [frame for frame in (REFERENCE.encode_exact(raw, header) for raw, header in blocks()[3:10:2]) if frame]


@settings(max_examples=150)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4), st.data())
def test_a_damaged_frame_is_refused_alike_or_decodes_alike(
    seed: bytes, edits: list[tuple[int, int]], data: st.DataObject
) -> None:
    frame = bytearray(seed)
    for position, value in edits:
        frame[position % len(frame)] = value
    cut = data.draw(st.integers(0, len(frame)))
    if data.draw(st.booleans()):
        del frame[cut:]

    def outcome(coder: Coder) -> bytes | type[FrameError]:
        try:
            return coder.decode(bytes(frame))
        except FrameError as error:
            return type(error)

    assert outcome(NATIVE) == outcome(REFERENCE)


@pytest.mark.parametrize(
    ("raw", "kind", "weight_bytes", "group_size"),
    [
        (b"", 1, 0, 0),
        (b"abc", 2, 0, 0),
        (b"abc", 4, 0, 0),
        (b"abc", -1, 0, 0),
        (b"abc", 1, 2, 0),
        (bytes(36), 3, 32, 16),
        (bytes(36), 3, 0, 64),
        (bytes(36), 3, 40, 64),
        (bytes(40), 3, 32, 64),
    ],
)
def test_a_block_that_does_not_fit_its_kind_is_refused(
    raw: bytes, kind: int, weight_bytes: int, group_size: int
) -> None:
    with pytest.raises(EncodeError):
        slotpack.encode(raw, kind=kind, weight_bytes=weight_bytes, group_size=group_size)


def test_a_block_above_the_limit_is_refused() -> None:
    with pytest.raises(EncodeError, match="41,943,040"):
        slotpack.encode(bytes(MAX_RAW_BYTES + 1), kind=0)


def test_the_largest_block_fits() -> None:
    frame = slotpack.encode(bytes(MAX_RAW_BYTES), kind=0)
    assert len(frame) == MAX_RAW_BYTES + 32
    assert slotpack.decode(memoryview(frame)) == bytes(MAX_RAW_BYTES)


def test_the_environment_selects_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPACK_PURE_PYTHON", "1")
    assert choose_coder().name == "python"
    monkeypatch.setenv("SLOTPACK_PURE_PYTHON", "0")
    assert choose_coder("python").name == "python"


def test_without_the_extension_the_reference_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "slotpack._codec", None)
    monkeypatch.delenv("SLOTPACK_PURE_PYTHON", raising=False)
    assert choose_coder().name == "python"
