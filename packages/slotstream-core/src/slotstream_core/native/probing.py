"""How fast the compiled products run here, for forecasts: a fraction of a second, without MLX."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

import numpy as np

from slotstream_core.native.checking import random_matrix
from slotstream_core.native.library import NativeLibrary, native_choice
from slotstream_core.native.matrices import NativeMatrix
from slotstream_planner.hosts import CpuSpeed

MEMBERS, ROWS, COLUMNS = 48, 640, 2560
"""Together some 44 MB of packed weights, more than most caches hold."""

PROMPT_ROWS: Final = 20
"""Rows that one expert gets on average of a pass of 1,024 tokens when each chooses 10 of 512."""

PROMPT_MEMBERS: Final = 12
"""Matrices multiplied with so many rows: enough for a figure, in about the time that one row takes with all."""


def probe_products(environment: Mapping[str, str], *, rounds: int = 3) -> CpuSpeed | None:
    """Multiply one row, then as many as prompts have, with many 4-bit matrices; the fastest round of each counts.

    Returns:
        The speed; None when the compiled products are not used here.

    Raises:
        SettingError: `SLOTSTREAM_NATIVE` has a value that cannot be used.
        NativeError: It names a variant that this processor cannot run.
    """
    library = NativeLibrary.load(threads=os.cpu_count() or 1, choice=native_choice(environment))
    if library is None:
        return None
    with library:
        stack, _ = random_matrix(np.random.default_rng(0), (MEMBERS, ROWS, COLUMNS), bits=4, group_size=64)
        return CpuSpeed(
            flop_per_s=_flop_per_s(library, stack, rows=1, members=MEMBERS, rounds=rounds),
            prompt_flop_per_s=_flop_per_s(library, stack, rows=PROMPT_ROWS, members=PROMPT_MEMBERS, rounds=rounds),
            label=f"the compiled products ({library.variant}, {library.threads} threads)",
        )


def _flop_per_s(library: NativeLibrary, stack: NativeMatrix, *, rows: int, members: int, rounds: int) -> float:
    x = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(np.float32)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        for member in range(members):
            library.multiply(stack, x, member=member)
        seconds.append(time.perf_counter() - started)
    return 2 * members * rows * ROWS * COLUMNS / min(seconds)
