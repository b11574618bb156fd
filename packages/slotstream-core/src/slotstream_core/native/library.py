"""Loading the native library: which variant, whether it is right, and what happens when there is none."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from slotstream_core.errors import NativeError, SettingError
from slotstream_core.native.binding import library_path, open_binding, variant_names
from slotstream_core.native.checking import disagreement, fastest_of
from slotstream_core.native.products import NativeProducts

VARIABLE: Final = "SLOTSTREAM_NATIVE"
OFF: Final = "0"
AUTOMATIC: Final = "1"
VARIANTS: Final = ("scalar", "avx2", "avx2-subnormal", "avx512", "neon")
TIMED: Final = ("avx2", "avx2-subnormal")
"""Variants that need the same instructions; the processor decides which is faster, so it is measured."""

logger = logging.getLogger("slotstream.native")


def native_choice(environment: Mapping[str, str]) -> str:
    """Return what SLOTSTREAM_NATIVE asks for: "0" (off), "1" (the best variant) or the name of a variant.

    Raises:
        SettingError: The variable holds something else.
    """
    text = environment.get(VARIABLE, AUTOMATIC)
    if text not in (OFF, AUTOMATIC, *VARIANTS):
        raise SettingError(
            f"{VARIABLE} is {text!r}; use 0 (off), 1 (the best for this processor) or one of {', '.join(VARIANTS)}"
        )
    return text


class NativeLibrary(NativeProducts):
    """The library with its threads, checked; a context manager.

    Attributes:
        variant: The instructions in use: one of `VARIANTS`.
        threads: Threads that compute, the calling one included.
    """

    def __init__(self, library: ctypes.CDLL, *, variant: str, threads: int) -> None:
        names = variant_names(library)
        if variant not in names:
            raise NativeError(f"this processor does not run the variant {variant!r}; it runs {', '.join(names)}")
        super().__init__(library, variant=names[variant], threads=threads)
        self.variant = variant

    def __enter__(self) -> NativeLibrary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def load(*, threads: int, choice: str = AUTOMATIC, path: Path | None = None) -> NativeLibrary | None:
        """Load the library, check it against NumPy, and start its threads.

        Args:
            threads: Threads that compute, the calling one included.
            choice: As `native_choice` returns it.
            path: The built library; by default the one installed with this package.

        Returns:
            None when it is switched off, not installed, not for this system, or does not compute what NumPy computes;
            all but the first are said in the log. Callers then use MLX's own operations.

        Raises:
            NativeError: A variant was asked for by name that this processor cannot run.
        """
        if choice == OFF:
            return None
        if sys.platform == "darwin":  # MLX computes on the GPU there
            return None
        where = path or library_path()
        if where is None:
            logger.warning("the native library was not built at installation; MLX's slower operations are used")
            return None
        try:
            library = open_binding(where)
        except NativeError as error:
            logger.warning("%s; MLX's slower operations are used", error)
            return None
        loaded = NativeLibrary(library, variant=_best(library) if choice == AUTOMATIC else choice, threads=threads)
        difference = disagreement(loaded)
        if difference is not None:
            loaded.close()
            logger.warning(
                "the native library (%s) is not used: %s; MLX's slower operations are used", loaded.variant, difference
            )
            return None
        return loaded


def _best(library: ctypes.CDLL) -> str:
    names = list(variant_names(library))
    if names[-1] not in TIMED:
        return names[-1]
    with ExitStack() as stack:
        candidates = [stack.enter_context(NativeLibrary(library, variant=name, threads=1)) for name in TIMED]
        fastest = candidates[fastest_of(candidates)]
    return fastest.variant
