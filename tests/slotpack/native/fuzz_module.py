"""Gives the functions of slotpack's `_codec` frames that were damaged, cut or made up; the sanitizers watch.

Run as a program: the module's path, a seed, and how many rounds. Prints how many frames were taken and refused.
"""

import importlib.util
import random
import sys
from typing import Any

REFUSALS = (ValueError, TypeError, OverflowError, BufferError)


def octets(chance: random.Random, count: int) -> bytes:
    """Bytes of which the small ones are frequent, so that they can be coded."""
    return bytes(min(255, int(chance.expovariate(0.2))) for _ in range(count))


def block(chance: random.Random) -> tuple[bytes, int, int, int]:
    """Bytes to encode with a kind, the bytes of the weights and a group size: right three times of four."""
    count, group_size, groups = chance.choice((0, 2, 64, 640, 4096)), chance.choice((32, 64, 128)), chance.randrange(40)
    weight_bytes = groups * group_size // 2
    right = [
        (octets(chance, count), 1, 0, 0),
        (octets(chance, count), 2, 0, 0),
        (octets(chance, weight_bytes + 4 * groups), 3, weight_bytes, group_size),
    ]
    raw, kind, weights, group = chance.choice(right)
    if chance.random() < 0.25:
        weights = chance.choice((0, 1, 2, len(raw) // 2, len(raw), 2**31))
        group = chance.choice((0, 1, 2, 32, 64, 2**31))
        kind = chance.randrange(6)
    return raw, kind, weights, group


def damaged(chance: random.Random, frame: bytes) -> bytes:
    """The frame with some bytes changed, cut off or added."""
    changed = bytearray(frame)
    for _ in range(chance.choice((0, 1, 1, 3))):
        if changed:
            changed[chance.randrange(min(len(changed), chance.choice((16, len(changed)))))] = chance.randrange(256)
    end = chance.choice((len(changed), len(changed), chance.randrange(len(changed) + 1)))
    return bytes(changed[:end]) + bytes(chance.choice((0, 0, 0, 5)))


def odd(chance: random.Random, frame: bytes) -> Any:
    """Something that is no contiguous frame."""
    return chance.choice((None, 3, "text", [], memoryview(frame + frame)[::2], bytearray(), (frame,)))


def main() -> None:
    """Make the rounds of one seed."""
    path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spec = importlib.util.spec_from_file_location("_codec", path)
    assert spec is not None
    assert spec.loader is not None
    codec = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(codec)
    chance = random.Random(seed)
    taken = refused = 0
    for _ in range(rounds):
        raw, kind, weight_bytes, group_size = block(chance)
        made = codec.encode(raw, kind, weight_bytes, group_size, chance.random() < 0.5)
        whole = made if isinstance(made, bytes) else bytes(chance.randrange(256) for _ in range(chance.randrange(80)))
        if isinstance(made, bytes):
            assert codec.decode(made) == raw, "a frame came back as something else"
            taken += 1
        frames = [damaged(chance, whole) for _ in range(chance.randrange(6))]
        alone = [codec.decode(frame) for frame in frames]
        assert codec.decode_many(frames, chance.random() < 0.5) == alone, "frames decode differently together"
        taken += sum(isinstance(answer, bytes) for answer in alone)
        refused += sum(isinstance(answer, int) for answer in alone)
        wrong = odd(chance, whole)
        for call, argument in (
            (codec.decode, (wrong,)),
            (codec.decode_many, ([*frames, wrong], 1)),
            (codec.decode_many, (wrong, 0)),
            (codec.encode, (wrong, kind, weight_bytes, group_size, 0)),
            (codec.encode, (whole, wrong, weight_bytes, group_size, 0)),
        ):
            try:
                call(*argument)
            except REFUSALS:
                refused += 1
    print(taken, refused)


if __name__ == "__main__":
    main()
