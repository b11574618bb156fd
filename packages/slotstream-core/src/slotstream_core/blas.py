"""Dense float32 products of MLX on a Linux CPU, through NumPy's OpenBLAS.

MLX's CPU wheels for Linux bring a reference BLAS, some fifty times slower than the OpenBLAS that NumPy's wheels bring.
`cblas_sgemm` is looked up when MLX is loaded, so an object that exports it and is loaded globally before MLX serves
it. That must happen between "this package was imported" and "MLX was imported": `BeforeMlx` waits for that moment in
the import system and does nothing otherwise.

`SLOTSTREAM_BLAS=0`, or `SLOTSTREAM_NATIVE=0`, leaves MLX's own in place.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MLX = "mlx.core"
BLAS_VARIABLE = "SLOTSTREAM_BLAS"
"""Checked where an engine's options are read: importing a package is no place for a refusal."""
SYMBOL = "scipy_cblas_sgemm64_"
"""What NumPy's OpenBLAS calls its `cblas_sgemm` with 64-bit integers."""

_ROW_MAJOR, _AS_IS, _TRANSPOSED = 101, 111, 112


@dataclass(frozen=True, kw_only=True, slots=True)
class BlasForwarding:
    """What became of MLX's dense products.

    Attributes:
        library: The OpenBLAS that serves them; None when MLX's own does.
        reason: Why MLX's own does, or "".
    """

    library: Path | None
    reason: str = ""

    def describe(self) -> str:
        """Return a line for people."""
        if self.library is None:
            return f"MLX's own BLAS ({self.reason})"
        return f"NumPy's OpenBLAS ({self.library.name})"


class BeforeMlx(MetaPathFinder):
    """Finds nothing; forwards the BLAS when MLX is about to be imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder.find_spec`."""
        if fullname == MLX:
            sys.meta_path.remove(self)
            forwarded_blas()
        return None


@functools.cache
def forwarded_blas() -> BlasForwarding:
    """Forward MLX's dense products, once in a process, and say what became of them."""
    if MLX in sys.modules:
        return BlasForwarding(library=None, reason="mlx was imported before slotstream_core")
    return forward_blas(os.environ, numpy_folder=_package_folder("numpy"), shim=_shim_file())


def forward_blas(environment: Mapping[str, str], *, numpy_folder: Path | None, shim: Path | None) -> BlasForwarding:
    """Load the forwarding object for everything loaded later, if it computes correctly.

    Args:
        environment: May switch it off.
        numpy_folder: Where NumPy is installed, its libraries beside it.
        shim: The forwarding object.
    """
    if environment.get(BLAS_VARIABLE) == "0" or environment.get("SLOTSTREAM_NATIVE") == "0":
        return BlasForwarding(library=None, reason="switched off by the environment")
    if sys.platform != "linux":
        return BlasForwarding(library=None, reason=f"not used on {sys.platform}")
    if shim is None:
        return BlasForwarding(library=None, reason="slotstream-core was installed without its compiled parts")
    library = None if numpy_folder is None else _openblas_beside(numpy_folder)
    if library is None:
        return BlasForwarding(library=None, reason="NumPy has no OpenBLAS of its own here")
    try:
        _load(shim, library)
    except (OSError, AttributeError) as error:
        return BlasForwarding(library=None, reason=f"{library.name} cannot be used: {error}")
    return BlasForwarding(library=library)


def forwarded_calls() -> int:
    """Return how many products were forwarded so far in this process."""
    import ctypes

    shim = _shim_file()
    if forwarded_blas().library is None or shim is None:
        return 0
    count = ctypes.CDLL(str(shim)).slotstream_sgemm_calls
    count.restype = ctypes.c_uint64
    return int(count())


def _load(shim: Path, library: Path) -> None:
    import ctypes

    from slotstream_core.native.elf import check_whole

    check_whole(shim)
    local = ctypes.CDLL(str(shim), mode=ctypes.RTLD_LOCAL)
    openblas = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)
    local.slotstream_set_sgemm(ctypes.cast(getattr(openblas, SYMBOL), ctypes.c_void_p))
    if not _multiplies(local):
        raise OSError(f"{SYMBOL} gave wrong products")
    ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)


def _multiplies(library: ctypes.CDLL) -> bool:
    """Whether ``2 a b^T + 3 c`` comes out right for small whole numbers, which no rounding touches."""
    import ctypes

    m, n, k = 5, 3, 4
    a, b, c = ([float(i * i % 7 - 3) for i in range(count)] for count in (m * k, n * k, m * n))
    wanted = [
        2 * sum(a[i * k + x] * b[j * k + x] for x in range(k)) + 3 * c[i * n + j] for i in range(m) for j in range(n)
    ]
    arrays = [(ctypes.c_float * len(values))(*values) for values in (a, b, c)]
    multiply = library.cblas_sgemm
    multiply.restype = None
    floats = ctypes.c_float
    multiply(
        _ROW_MAJOR, _AS_IS, _TRANSPOSED, m, n, k, floats(2), arrays[0], k, arrays[1], k, floats(3), arrays[2], n
    )  # fmt: skip
    return list(arrays[2]) == wanted


def _openblas_beside(numpy_folder: Path) -> Path | None:
    found = sorted(numpy_folder.parent.glob("numpy.libs/libscipy_openblas64_*.so"))
    return found[0] if found else None


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _shim_file() -> Path | None:
    spec = importlib.util.find_spec("slotstream_core._blas")
    return None if spec is None or spec.origin is None else Path(spec.origin)
