"""The worked examples of docs/slotpack-format.md, byte for byte, in both coders."""

import hashlib

import pytest

import slotpack
from slotpack.codec import Coder, encode_exact
from slotpack.frames import FrameHeader, Kind

RAW_EXAMPLE = (
    bytes.fromhex("534c54504b303031 0f000000 00000000 00000000 00000000 00000000 00000000") + b"hello slotpack\n"
)
BYTES_EXAMPLE = bytes.fromhex(
    "534c54504b303031 40000000 01000000 00000000 00000000 00000000 00000000"
    "02000000 61ff1d 008102 12000000 06ee6801 06ee6801 06ee6801 15551201 e48a"
)
QUANTISED_EXAMPLE = bytes.fromhex(
    "534c54504b303031 24000000 03000000 20000000 40000000 00000000 00000000"
    "01000000 a3788080 04 10000000 00008000 00008000 00008000 00008000"
    "01000000 088020 10000000 00008000 00008000 00008000 00008000"
    "01000000 00808004 10000000 00008000 00008000 00008000 00008000"
    "01000000 e1210000 0000000000000000 ff1d8102 000000000000"
    "12000000 06ee6801 dc993a01 06ee6801 dc993a01 5f5f"
)
QUANTISED_RAW = b"\x88" * 28 + b"\x98" * 4 + bytes.fromhex("233c a3bd")


def header(raw: bytes, kind: Kind) -> FrameHeader:
    quantised = kind is Kind.QUANTIZED
    return FrameHeader(
        raw_bytes=len(raw), kind=kind, weight_bytes=32 if quantised else 0, group_size=64 if quantised else 0
    )


def test_fifteen_bytes_stay_raw() -> None:
    assert slotpack.encode(b"hello slotpack\n", kind=Kind.BYTES) == RAW_EXAMPLE
    digest = hashlib.sha256(RAW_EXAMPLE).hexdigest()
    assert digest == "e6cf7ec0e3e05f5790cda9566652d5f63d203bc2ea57c56b0a5bfbec0c04cda6"


@pytest.mark.parametrize(
    ("raw", "kind", "frame"),
    [
        (b"hello slotpack\n", Kind.RAW, RAW_EXAMPLE),
        (b"aaaaaaaaaaaaaaab" * 4, Kind.BYTES, BYTES_EXAMPLE),
        (QUANTISED_RAW, Kind.QUANTIZED, QUANTISED_EXAMPLE),
    ],
)
def test_worked_examples_encode_and_decode_to_the_published_bytes(
    coder: Coder, raw: bytes, kind: Kind, frame: bytes
) -> None:
    assert coder.encode_exact(raw, header(raw, kind)) == frame
    assert coder.decode(frame) == raw


def test_the_coded_example_is_kept_because_it_is_smaller(coder: Coder) -> None:
    raw = b"aaaaaaaaaaaaaaab" * 4
    assert coder.encode_smaller(raw, header(raw, Kind.BYTES)) == BYTES_EXAMPLE
    digest = hashlib.sha256(BYTES_EXAMPLE).hexdigest()
    assert digest == "7b4b9fbf31d592a70ff1636f489533ef109b28c401ae4b1ace8301a79a79273a"


def test_the_size_example_has_the_published_digest(coder: Coder) -> None:
    raw = bytes(i % 8 for i in range(4096))
    frame = coder.encode_smaller(raw, header(raw, Kind.BYTES))
    assert frame is not None
    assert len(frame) == 1616
    digest = hashlib.sha256(frame).hexdigest()
    assert digest == "809ed33f224d539f6286ee675bf5ddd065aeaadffc69608a50056d0ec25b0b71"


def test_the_quantised_example_is_too_small_to_gain() -> None:
    frame = slotpack.encode(QUANTISED_RAW, kind=3, weight_bytes=32, group_size=64)
    assert len(frame) == 68
    assert slotpack.decode(frame) == QUANTISED_RAW
    assert encode_exact(QUANTISED_RAW, kind=3, weight_bytes=32, group_size=64) == QUANTISED_EXAMPLE
