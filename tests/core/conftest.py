"""Tiny checkpoints shared by the core tests."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotstream_core.experts import mapped_files
from slotstream_core.experts.sources import StoredExperts
from slotstream_core.native.binding import library_path
from slotstream_core.testing import write_tiny_model
from tests.core.expert_files import ExpertFile, expert_file
from tests.core.pinning_device import EXPERTS, LAYERS

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # exact float32 products where the device offers shorter ones


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete tiny quantised model, read-only."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExpertFile]:
    """Two layers of six experts, read-only. Modules that need other sizes have one of their own."""
    with expert_file(tmp_path_factory.mktemp("experts")) as opened:
        yield opened


@pytest.fixture(scope="module", params=["compiled", "python"])
def lanes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who reads experts, for modules whose every test is run with both."""
    if request.param == "compiled" and library_path() is None:
        pytest.skip("installed without a compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTSTREAM_NATIVE", "1" if request.param == "compiled" else "0")
        yield request.param


@pytest.fixture
def read_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models opened by the test read experts through `StoredExperts.read`, which the test then replaces."""
    monkeypatch.setattr(StoredExperts, "native_read", None)


@pytest.fixture
def compiled_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compiled code used although the whole suite runs without it: what is tested is that code."""
    if os.environ.get("SLOTSTREAM_NATIVE") == "0":
        monkeypatch.delenv("SLOTSTREAM_NATIVE")


@pytest.fixture
def many(tmp_path: Path) -> Iterator[ExpertFile]:
    """Six layers of 40 experts, which a test may write to."""
    with expert_file(tmp_path, layers=LAYERS, experts=EXPERTS) as opened:
        yield opened


@pytest.fixture
def steps_of_a_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files pinned by so little at a time that `many` takes many steps."""
    monkeypatch.setattr(mapped_files, "STEP_BYTES", 3 * mmap.PAGESIZE)
