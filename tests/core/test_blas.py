"""Which BLAS serves MLX's dense products."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slotstream_core import blas

MULTIPLY = """
import mlx.core as mx, numpy as np
from slotstream_core.blas import forwarded_blas, forwarded_calls
a = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4))
b = mx.array(np.arange(20, dtype=np.float32).reshape(4, 5))
assert np.array_equal(np.array(a @ b), np.arange(12).reshape(3, 4) @ np.arange(20).reshape(4, 5))
print(forwarded_blas().library is not None, forwarded_calls() > 0, forwarded_blas().reason)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the BLAS is forwarded on Linux only")


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.usefixtures("compiled_code_on")
def test_products_are_forwarded_when_the_package_is_imported_first() -> None:
    assert _run("import slotstream_core" + MULTIPLY) == "True True"


def test_products_stay_with_mlx_when_it_was_imported_first() -> None:
    said = _run("import mlx.core, slotstream_core" + MULTIPLY)
    assert said == "False False mlx was imported before slotstream_core"


@pytest.mark.parametrize("name", ["SLOTSTREAM_BLAS", "SLOTSTREAM_NATIVE"])
def test_products_stay_with_mlx_when_the_environment_says_so(name: str) -> None:
    assert _run("import slotstream_core" + MULTIPLY, **{name: "0"}) == "False False switched off by the environment"


def test_importing_the_package_alone_loads_neither_mlx_nor_a_library() -> None:
    code = "import sys, slotstream_core; print('mlx.core' in sys.modules, 'ctypes' in sys.modules)"
    assert _run(code) == "False False"


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    some = tmp_path / "_blas.abi3.so"
    assert "compiled parts" in blas.forward_blas({}, numpy_folder=tmp_path, shim=None).reason
    assert "no OpenBLAS" in blas.forward_blas({}, numpy_folder=tmp_path / "numpy", shim=some).reason
    libraries = tmp_path / "numpy.libs"
    libraries.mkdir()
    (libraries / "libscipy_openblas64_-1.so").write_bytes(b"not a library")
    some.write_bytes(b"not a library")
    outcome = blas.forward_blas({}, numpy_folder=tmp_path / "numpy", shim=some)
    assert outcome.library is None
    assert "cannot be used" in outcome.describe()
    some.write_bytes(b"\x7fELF\x02\x01" + bytes(34) + (9_000).to_bytes(8, "little") + bytes(16))
    assert (
        "_blas.abi3.so lacks its last 8,936 bytes"
        in blas.forward_blas({}, numpy_folder=tmp_path / "numpy", shim=some).reason
    )
