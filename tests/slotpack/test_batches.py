"""Several frames in one call: every frame does as it does alone, whatever the others are, under every coder."""

import hashlib
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotpack
from slotpack.codec import Coder, ReferenceCoder, batch_frames, choose_coder
from slotpack.errors import BadMagic, FrameError
from slotpack.frames import FrameHeader, Kind
from tests.slotpack.blocks import bf16, quantised_block, text_block
from tests.slotpack.test_golden import GOLDEN, INDEX

REFERENCE = ReferenceCoder()
NATIVE = choose_coder()


def skewed_block(seed: int, groups: int, group_size: int, nibbles: list[int], rare: list[int]) -> tuple[bytes, bytes]:
    """Return a block of one context, with some nibbles once in a thousand and others never, and its frame."""
    rng = random.Random(seed)
    values = [rng.choice(rare if rng.random() < 0.001 else nibbles) for _ in range(groups * group_size)]
    weights = bytes(values[i] | values[i + 1] << 4 for i in range(0, len(values), 2))
    raw = weights + struct.pack("<H", bf16(0.01)) * groups + struct.pack("<H", bf16(-0.08)) * groups
    return raw, framed(
        raw, FrameHeader(raw_bytes=len(raw), kind=Kind.QUANTIZED, weight_bytes=len(weights), group_size=group_size)
    )


def framed(raw: bytes, header: FrameHeader) -> bytes:
    frame = NATIVE.encode_exact(raw, header)
    assert frame is not None
    return frame


def mixed_frames() -> list[tuple[bytes, bytes]]:
    """Return blocks of both group sizes, different lengths and spreads, other kinds between them, and their frames."""
    text = text_block(3, 3000)
    made = [
        skewed_block(1, 200, 64, [6, 7, 8, 9], [0, 2, 15]),
        (text, slotpack.encode(text, kind=Kind.BYTES)),
        skewed_block(2, 90, 64, [0], [15]),
        skewed_block(3, 150, 32, [0, 15], [8]),
        skewed_block(4, 1, 64, [3], [3]),
        skewed_block(5, 260, 64, list(range(16)), [1]),
        (b"raw bytes", slotpack.encode(b"raw bytes", kind=Kind.RAW)),
    ]
    shapes = ((1, 64), (30, 64), (77, 32), (140, 64), (141, 64), (250, 32), (9, 64))
    for seed, (groups, group_size) in enumerate(shapes):
        raw, header = quantised_block(seed, groups, group_size)
        made.append((raw, framed(raw, header)))
    return made


MIXED = mixed_frames()


def outcome(coder: Coder, frame: bytes) -> bytes | type[FrameError]:
    try:
        return coder.decode(frame)
    except FrameError as error:
        return type(error)


def outcomes(coder: Coder, frames: list[bytes]) -> list[bytes | type[FrameError]]:
    answers = coder.decode_many(frames)
    return [type(answer) if isinstance(answer, FrameError) else answer for answer in answers]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, len(MIXED)])
def test_a_batch_of_any_size_holds_what_its_frames_hold(coder: Coder, count: int) -> None:
    assert coder.decode_many([frame for _raw, frame in MIXED[-count:] if count]) == [
        raw for raw, _frame in MIXED[-count:] if count
    ]


def test_the_golden_files_have_their_recorded_outcomes_in_one_batch(coder: Coder) -> None:
    names = sorted(INDEX)
    random.Random(4).shuffle(names)
    for name, answer in zip(
        names, coder.decode_many([(GOLDEN / f"{name}.bin").read_bytes() for name in names]), strict=True
    ):
        if isinstance(answer, FrameError):
            assert type(answer).__name__ == INDEX[name].get("error"), name
        else:
            assert hashlib.sha256(answer).hexdigest() == INDEX[name].get("raw_sha256"), name


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, len(MIXED) - 1), min_size=1, max_size=7),
    st.lists(st.tuples(st.integers(0, 6), st.integers(32, 20_000), st.integers(0, 255)), max_size=5),
)
def test_damage_to_some_frames_of_a_batch_changes_only_their_outcomes(
    chosen: list[int], edits: list[tuple[int, int, int]]
) -> None:
    frames = [bytearray(MIXED[number][1]) for number in chosen]
    for which, position, value in edits:
        frame = frames[which % len(frames)]
        frame[position % len(frame)] = value
    batch = [bytes(frame) for frame in frames]
    assert outcomes(NATIVE, batch) == [outcome(NATIVE, frame) for frame in batch]


def test_a_damaged_frame_in_a_batch_meets_the_error_of_the_reference() -> None:
    rng = random.Random(8)
    batch = []
    for _raw, frame in MIXED[7:10]:
        damaged = bytearray(frame)
        damaged[rng.randrange(40, len(frame))] ^= 1 + rng.randrange(255)
        batch.append(bytes(damaged))
    assert outcomes(NATIVE, batch) == [outcome(REFERENCE, frame) for frame in batch]


def test_the_public_call_takes_every_buffer_and_puts_errors_in_their_places() -> None:
    (first, frame), (second, other) = MIXED[7], MIXED[8]
    answers = slotpack.decode_many([memoryview(frame), b"not a frame", bytearray(other)])
    assert (answers[0], answers[2]) == (first, second)
    assert isinstance(answers[1], BadMagic)


def test_an_entry_that_is_no_buffer_is_refused_and_the_next_batch_is_whole(coder: Coder) -> None:
    with pytest.raises(TypeError):
        coder.decode_many([MIXED[7][1], 5])  # type: ignore[list-item]
    assert coder.decode_many([MIXED[7][1]]) == [MIXED[7][0]]


def test_the_batch_size_is_that_of_the_coder_in_use() -> None:
    assert batch_frames == choose_coder().batch_frames >= 1
