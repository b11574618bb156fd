"""Calls every function of `_native` with right and wrong arguments; the sanitizers watch what it touches.

Run with `python -m`: the module's path, a seed, and how many calls. Right arguments must be taken; wrong ones must be
taken or refused with an ordinary error, and a refused call must have written nothing. Prints one line a function.
"""

import collections
import ctypes
import json
import sys
from typing import Any

import numpy as np

from tests.built_modules import built_module
from tests.core.native import fuzz_launches, fuzz_layers, fuzz_recipes
from tests.core.native.fuzz_maker import Maker
from tests.core.native.fuzz_spoiling import LARGE, spoil

REFUSALS = (ValueError, TypeError, OverflowError, BufferError)
WITHOUT_ARGUMENTS = {"instruction_sets"}
RECIPES = fuzz_recipes.RECIPES | fuzz_launches.RECIPES | fuzz_layers.RECIPES


def leaves_of(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves_of(item)] if isinstance(value, tuple | list) else [value]


def rebuilt(like: Any, leaves: collections.deque[Any]) -> Any:
    if isinstance(like, tuple | list):
        return type(like)(rebuilt(item, leaves) for item in like)
    return leaves.popleft()


def copies(values: list[Any]) -> list[bytes | None]:
    small = (np.ndarray, memoryview)
    return [value.tobytes() if isinstance(value, small) and value.nbytes < LARGE else None for value in values]


def attempt(m: Maker, name: str, counts: dict[str, list[int]]) -> None:
    """One call, right or wrong."""
    arguments = RECIPES[name](m)
    wrong = m.random.random() < 0.75
    if wrong:
        leaves = leaves_of(arguments)
        for _ in range(m.random.choice((1, 1, 2))):
            spoil(m, leaves)
        arguments = rebuilt(arguments, collections.deque(leaves))
        if m.random.random() < 0.05:
            arguments = m.random.choice((arguments[:-1], [*arguments, 0], [None] * len(arguments)))
    before = copies(leaves_of(arguments))
    try:
        getattr(m.module, name)(*arguments)
    except REFUSALS as error:
        if not wrong:
            raise AssertionError(f"{name} refused right arguments: {error}") from error
        if copies(leaves_of(arguments)) != before:
            raise AssertionError(f"{name} wrote before it refused: {error}") from error
        counts[name][1] += 1
    else:
        counts[name][0] += 1


def main() -> None:
    """Make the calls of one seed."""
    path, seed, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    module = built_module("_native", path)
    named = {name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))}
    offered = named - WITHOUT_ARGUMENTS
    assert offered == set(RECIPES), f"functions without a recipe, or gone: {sorted(offered ^ set(RECIPES))}"
    maker = Maker(module, ctypes.CDLL(path), seed)
    counts = {name: [0, 0] for name in sorted(RECIPES)}
    for call in range(calls):
        name = sorted(RECIPES)[call % len(RECIPES)]
        print(f"call {call} of seed {seed}: {name}", file=sys.stderr)
        attempt(maker, name, counts)
        maker.kept.clear()
        maker.matrices.clear()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
