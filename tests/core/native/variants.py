"""The variants of the native library that this machine runs."""

from functools import cache

import pytest

from slotstream_core.native import NativeLibrary
from slotstream_core.native.binding import library_path, open_binding, variant_names


@cache
def runnable() -> tuple[str, ...]:
    """Names, or one placeholder where the package was installed without a compiler."""
    path = library_path()
    return tuple(variant_names(open_binding(path))) if path is not None else ("not built",)


@cache
def opened(variant: str, threads: int = 2) -> NativeLibrary:
    """One library a variant for all tests; skips the test where there is none."""
    path = library_path()
    if path is None:
        pytest.skip("installed without a compiler")
    return NativeLibrary(open_binding(path), variant=variant, threads=threads)
