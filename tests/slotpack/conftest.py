"""Every coder, for the tests of the format."""

import importlib
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

from slotpack.codec import Coder, NativeCoder, ReferenceCoder, choose_coder
from tests.conftest import MEMORY
from tests.slotpack.models import Packaged, described, write_package


@pytest.fixture
def tmp_path(memory_path: pathlib.Path) -> pathlib.Path:
    """Return a directory in memory where there is one: every object is synced."""
    return memory_path


@pytest.fixture(scope="session")
def template() -> Iterator[Packaged]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="slotpack-") as name:
        yield write_package(pathlib.Path(name))


@pytest.fixture
def packaged(template: Packaged, tmp_path: pathlib.Path) -> Packaged:
    """Return a private copy of a packed model, below tmp_path."""
    shutil.copytree(template.model, tmp_path / "model")
    shutil.copytree(template.package, tmp_path / "package")
    return described(tmp_path / "model", tmp_path / "package")


@pytest.fixture(params=["c", "c-narrow", "python"])
def coder(request: pytest.FixtureRequest) -> Coder:
    if request.param == "python":
        return ReferenceCoder()
    if not isinstance(choose_coder(), NativeCoder):
        pytest.skip("the C coder was not built here")
    return NativeCoder(importlib.import_module("slotpack._codec"), wide=request.param == "c")
