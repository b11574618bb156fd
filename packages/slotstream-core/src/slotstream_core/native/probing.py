"""How fast the compiled products run here, for forecasts: a fraction of a second, without MLX."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import numpy as np

from slotstream_core.native.checking import random_matrix
from slotstream_core.native.library import NativeLibrary, native_choice
from slotstream_planner.hosts import CpuSpeed

MEMBERS, ROWS, COLUMNS = 48, 640, 2560
"""Together some 44 MB of packed weights, more than most caches hold."""


def probe_products(environment: Mapping[str, str], *, rounds: int = 3) -> CpuSpeed | None:
    """Multiply one row with each of many 4-bit matrices; the fastest round counts.

    Returns:
        The speed; None when the compiled products are not used here.

    Raises:
        SettingError: `SLOTSTREAM_NATIVE` has a value that cannot be used.
        NativeError: It names a variant that this processor cannot run.
    """
    library = NativeLibrary.load(threads=os.cpu_count() or 1, choice=native_choice(environment))
    if library is None:
        return None
    random = np.random.default_rng(0)
    with library:
        stack, _ = random_matrix(random, (MEMBERS, ROWS, COLUMNS), bits=4, group_size=64)
        x = random.standard_normal((1, COLUMNS)).astype(np.float32)
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            for member in range(MEMBERS):
                library.multiply(stack, x, member=member)
            seconds.append(time.perf_counter() - started)
        label = f"the compiled products ({library.variant}, {library.threads} threads)"
    return CpuSpeed(flop_per_s=2 * MEMBERS * ROWS * COLUMNS / min(seconds), label=label)
