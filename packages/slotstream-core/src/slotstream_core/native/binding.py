"""The C functions of the native library as ctypes sees them, and their codes as errors.

The library is loaded by its path, not as a Python module: calls through ctypes release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Final

from slotstream_core.errors import NativeError
from slotstream_core.native.elf import check_whole

ABI_VERSION: Final = 5
MODULE: Final = "slotstream_core._native"

_REASONS: Final = {
    1: "an argument is missing, negative or of an unknown type",
    2: "sizes contradict each other, or a group does not divide the columns",
    3: "the memory is smaller than the matrix",
    4: "a pointer is not aligned to its values",
    5: "a member, slot or row does not exist",
    6: "there is not enough memory",
    7: "this processor cannot run the variant",
}


class MatrixStructure(ctypes.Structure):
    """`ss_matrix` of csrc/slotstream_native.h."""

    _fields_ = [
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("biases", c_void_p),
        ("weight_bytes", c_int64),
        ("scales_bytes", c_int64),
        ("members", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("bits", c_int32),
        ("group", c_int32),
        ("type", c_int32),
        ("reserved", c_int32),
    ]


_MATRIX: Final = ctypes.POINTER(MatrixStructure)

_FUNCTIONS: Final = {
    "ss_abi_version": (c_int32, []),
    "ss_variant_name": (c_char_p, [c_int32]),
    "ss_variant_runnable": (c_int32, [c_int32]),
    "ss_pool_create": (c_int32, [c_int32, c_int32, ctypes.POINTER(c_void_p)]),
    "ss_pool_destroy": (None, [c_void_p]),
    "ss_multiply": (c_int32, [c_void_p, _MATRIX, c_int64, c_void_p, c_int32, c_int64, c_void_p]),
    "ss_multiply_members": (
        c_int32,
        [c_void_p, _MATRIX, c_void_p, c_int32, c_int64, c_void_p, c_void_p, c_int64, c_void_p],
    ),
    "ss_experts": (
        c_int32,
        [c_void_p, _MATRIX, _MATRIX, _MATRIX, c_void_p, c_int32, c_int64, c_void_p, c_void_p, c_int64, c_void_p],
    ),
    "ss_unpack_rows": (c_int32, [c_void_p, _MATRIX, c_int64, c_void_p, c_int64, c_void_p]),
    "ss_unpack_records": (
        c_int32,
        [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int32, c_int32, c_int32, c_int32, c_void_p],
    ),
}


def library_path() -> Path | None:
    """Where the built library lies, or None when the package was installed without one."""
    found = importlib.util.find_spec(MODULE)
    return Path(found.origin) if found is not None and found.origin is not None else None


def open_binding(path: Path) -> ctypes.CDLL:
    """Load the library and declare its functions.

    Raises:
        NativeError: It cannot be loaded, lacks a function, or was built from another version of this package.
    """
    try:
        check_whole(path)
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NativeError(f"{path.name} cannot be used ({error}); install slotstream-core again") from error
    version = library.ss_abi_version()
    if version != ABI_VERSION:
        raise NativeError(f"{path.name} has interface {version}, not {ABI_VERSION}; install slotstream-core again")
    return library


def check(code: int, call: str) -> None:
    """Turn the code that ``call`` returned into an error.

    Raises:
        NativeError: The code is not 0; nothing was written.
    """
    if code:
        raise NativeError(f"{call} refused its arguments: {_REASONS.get(code, f'code {code}')}")


def variant_names(library: ctypes.CDLL) -> dict[str, int]:
    """Index by name of the variants that this processor runs, best last."""
    names: dict[str, int] = {}
    index = 0
    while (name := library.ss_variant_name(index)) is not None:
        if library.ss_variant_runnable(index):
            names[name.decode()] = index
        index += 1
    return names
