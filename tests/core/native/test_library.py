"""Loading the native library, switching it off, and what it says when it cannot be used."""

import logging
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from slotstream_core.errors import NativeError, SettingError
from slotstream_core.native import NativeLibrary, NativeMatrix, native_choice
from slotstream_core.native.binding import library_path, open_binding
from slotstream_core.native.checking import disagreement
from slotstream_core.native.lanes import lane_library
from slotstream_core.native.library import VARIANTS
from slotstream_core.native.matrices import NativeExperts
from slotstream_core.native.products import Activations, Floats
from tests.core.native.variants import opened, runnable

built = pytest.mark.skipif(library_path() is None, reason="installed without a compiler")


def test_the_variable_chooses_off_the_best_or_a_variant() -> None:
    assert native_choice({}) == "1"
    for text in ("0", "1", *VARIANTS):
        assert native_choice({"SLOTSTREAM_NATIVE": text}) == text
    with pytest.raises(SettingError, match="'yes'; use 0"):
        native_choice({"SLOTSTREAM_NATIVE": "yes"})


def test_off_loads_nothing_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert NativeLibrary.load(threads=1, choice="0") is None
    assert not caplog.records


@built
def test_the_best_variant_is_one_of_this_processor() -> None:
    library = NativeLibrary.load(threads=3)
    assert library is not None
    with library:
        assert library.variant in runnable()
        assert library.variant != "scalar" or len(runnable()) == 1
        assert library.threads == 3


@pytest.mark.parametrize("variant", runnable())
def test_a_variant_that_is_asked_for_by_name_is_used(variant: str) -> None:
    if library_path() is None:
        pytest.skip("installed without a compiler")
    library = NativeLibrary.load(threads=1, choice=variant)
    assert library is not None
    with library:
        assert library.variant == variant


@built
def test_a_variant_of_another_processor_is_an_error_that_names_those_of_this_one() -> None:
    other = next(name for name in VARIANTS if name not in runnable())
    with pytest.raises(NativeError, match=f"{other}.*scalar"):
        NativeLibrary.load(threads=1, choice=other)


def test_a_file_that_is_no_library_is_said_once_and_not_used(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "_native.so"
    path.write_bytes(b"not a library")
    assert NativeLibrary.load(threads=1, path=path) is None
    assert [record.name for record in caplog.records] == ["slotstream.native"]
    assert "MLX's slower operations are used" in caplog.text


@built
@pytest.mark.parametrize("kept", [63, 64, 5_000, -1])
def test_a_library_that_was_cut_off_is_said_and_ends_nothing(
    kept: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = library_path()
    assert whole is not None
    path = tmp_path / whole.name
    path.write_bytes(whole.read_bytes()[:kept])
    assert NativeLibrary.load(threads=1, path=path) is None
    for _ in range(2):  # a model's experts and its draft head's
        assert lane_library({}, path=path) is None
    assert [record.getMessage().startswith(f"{path.name} cannot be used") for record in caplog.records] == [True, True]


def test_a_missing_library_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("slotstream_core.native.library.library_path", lambda: None)
    assert NativeLibrary.load(threads=1) is None
    assert len(caplog.records) == 1
    assert "not built" in caplog.text


class WrongProducts(NativeLibrary):
    """Computes products with one value a little off."""

    def multiply(self, matrix: NativeMatrix, x: Activations, *, member: int = 0, out: Floats | None = None) -> Floats:
        result = super().multiply(matrix, x, member=member, out=out)
        result[-1, -1] += np.float32(0.01)
        return result


class WrongExperts(NativeLibrary):
    """Computes products right and forgets an expert."""

    def experts(
        self,
        stacks: NativeExperts,
        x: Activations,
        slots: np.ndarray[tuple[int, ...], np.dtype[np.integer]],
        mix: Floats | None,
        *,
        out: Floats | None = None,
    ) -> Floats:
        return super().experts(stacks, x, np.zeros_like(slots), mix, out=out)


@built
@pytest.mark.parametrize("wrong", [WrongProducts, WrongExperts])
def test_a_library_that_disagrees_with_numpy_is_found_out(wrong: type[NativeLibrary]) -> None:
    path = library_path()
    assert path is not None
    with wrong(open_binding(path), variant=runnable()[-1], threads=1) as library:
        difference = disagreement(library)
    assert difference is not None
    assert "differ by" in difference


@built
def test_a_library_that_fails_its_check_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("slotstream_core.native.library.disagreement", lambda _: "dense products differ by 1.0e+00")
    assert NativeLibrary.load(threads=1) is None
    assert "is not used: dense products differ by 1.0e+00" in caplog.text


@built
def test_a_closed_library_refuses_and_closes_twice() -> None:
    path = library_path()
    assert path is not None
    library = NativeLibrary(open_binding(path), variant="scalar", threads=2)
    library.close()
    library.close()
    with pytest.raises(NativeError, match="was closed"):
        library.multiply(NativeMatrix(np.ones((1, 1), np.float32)), np.ones((1, 1), np.float32))


@built
def test_a_forked_child_computes_without_the_threads() -> None:
    program = """
import os, numpy as np
from slotstream_core.native import NativeLibrary, NativeMatrix
library = NativeLibrary.load(threads=3)
matrix = NativeMatrix(np.ones((500, 64), np.float32))
x = np.ones((2, 64), np.float32)
library.multiply(matrix, x)
child = os.fork()
if not child:
    good = (library.multiply(matrix, x) == 64).all()
    library.close()
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
assert (library.multiply(matrix, x) == 64).all()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.stdout == "done\n", done.stderr


def test_loading_the_package_imports_no_mlx() -> None:
    program = "import sys, slotstream_core.native; print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@built
def test_the_threads_of_a_library_that_is_never_closed_do_not_keep_the_process() -> None:
    assert opened(runnable()[-1]).threads == 2
    program = "from slotstream_core.native import NativeLibrary; NativeLibrary.load(threads=4)"
    assert subprocess.run([sys.executable, "-c", program], timeout=280).returncode == 0
