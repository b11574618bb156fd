"""Gives the functions of slotpack's `_codec` frames that were damaged, cut or made up; the sanitizers watch.

Run with `python -m`: the module's path, a seed, and how many rounds. Prints how many frames were taken and refused.
"""

import random
import sys
from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.built_modules import built_module

REFUSALS = (ValueError, TypeError, OverflowError, BufferError)
ODD_INTEGERS = (0, -1, 1, 3, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64, True)
ODD_VALUES: tuple[Any, ...] = (None, "text", 1.5, (), [], {}, object())


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
    """Something that is no contiguous frame, or is one of another kind of memory."""
    wide = array("I", bytes(len(frame) // 4 * 4))
    others = (memoryview(frame + frame)[::2], bytearray(), bytearray(frame), memoryview(frame), wide, memoryview(wide))
    return chance.choice((*ODD_VALUES, 3, (frame,), *others))


class Calls:
    """Makes calls, right or wrong, and counts what became of them."""

    def __init__(self, codec: ModuleType, seed: int) -> None:
        self.codec = codec
        self.chance = random.Random(seed)
        self.taken = self.refused = 0

    def try_each(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call with each argument in turn replaced by something odd, and with one too few and too many."""
        variants = [arguments[:-1], (*arguments, 0)]
        for place, argument in enumerate(arguments):
            number = isinstance(argument, int)
            wrong = self.chance.choice((*ODD_INTEGERS, *ODD_VALUES)) if number else odd(self.chance, bytes(20))
            variants.append((*arguments[:place], wrong, *arguments[place + 1 :]))
        for variant in variants:
            try:
                function(*variant)
            except REFUSALS:
                self.refused += 1

    def round(self) -> None:
        """Encode a block, decode frames made of it, alone and together, and get every argument wrong once."""
        chance, codec = self.chance, self.codec
        raw, kind, weight_bytes, group_size = block(chance)
        exact = chance.random() < 0.5
        made = codec.encode(raw, kind, weight_bytes, group_size, exact)
        whole = made if isinstance(made, bytes) else bytes(chance.randrange(256) for _ in range(chance.randrange(80)))
        if isinstance(made, bytes):
            assert codec.decode(made) == raw, "a frame came back as something else"
            assert codec.decode(bytearray(made)) == raw, "a frame in other memory came back as something else"
            self.taken += 1
        frames = [damaged(chance, whole) for _ in range(chance.randrange(codec.wide_frames() + 4))]
        alone = [codec.decode(frame) for frame in frames]
        assert codec.decode_many(frames, chance.random() < 0.5) == alone, "frames decode differently together"
        assert codec.decode_many([memoryview(frame) for frame in frames], 1) == alone, "frames in other memory differ"
        self.taken += sum(isinstance(answer, bytes) for answer in alone)
        self.refused += sum(isinstance(answer, int) for answer in alone)
        self.try_each(codec.encode, raw, kind, weight_bytes, group_size, int(exact))
        self.try_each(codec.decode, whole)
        self.try_each(codec.decode_many, frames, 1)
        self.try_each(codec.decode_many, [*frames, odd(chance, whole)], 0)


def main() -> None:
    """Make the rounds of one seed."""
    path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    calls = Calls(built_module("_codec", path), seed)
    for _ in range(rounds):
        calls.round()
    print(calls.taken, calls.refused)


if __name__ == "__main__":
    main()
