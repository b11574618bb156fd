"""What several test packages share."""

import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from slotpack.catalog import DEMO_MODEL, default_directory, find_model
from slotpack.store import WeightStore
from slotstream_planner import InsufficientMemory, PlanRequest

MEMORY = Path("/dev/shm")

# The same examples every time, however slowly they run; drawing them may take long on a busy machine, too.
settings.register_profile(
    "fixed",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fixed")

# Other examples every time, for `make fuzz`; what failed is tried first the next time.
settings.register_profile(
    "fresh",
    parent=settings.get_profile("fixed"),
    derandomize=False,
    max_examples=400,
    print_blob=True,
    database=DirectoryBasedExampleDatabase(Path(".hypothesis") / "examples"),
)


def pytest_sessionstart() -> None:
    """Let an interrupt raise KeyboardInterrupt, also in the workers of a parallel run, which start out ignoring it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory where there is one, for tests that sync much: a busy disk takes seconds for each time."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="slotstream-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the demo model unpacked, without the records that `slotstream pull demo` adds."""
    root = tmp_path_factory.mktemp("root")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTSTREAM_ROOT_DIR", str(root))
        WeightStore(find_model(DEMO_MODEL)).download()
    return root


@pytest.fixture(scope="session")
def demo_model(demo_root: Path) -> Path:
    """The demo checkpoint's directory, read-only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTSTREAM_ROOT_DIR", str(demo_root))
        return default_directory(find_model(DEMO_MODEL))


@pytest.fixture
def without_memory_for_a_resident_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of drafts find no memory to hold the head's experts."""
    # Imported here because most tests need no MLX.
    from slotstream_core.diagnostics import drafts

    load = drafts._load

    def small(directory: Path, request: PlanRequest) -> object:
        if request.mtp_experts == "resident":
            raise InsufficientMemory("it needs 2 GB more", required_bytes=3, available_bytes=1)
        return load(directory, request)

    monkeypatch.setattr(drafts, "_load", small)
