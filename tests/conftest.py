"""What several test packages share."""

import signal
import threading
from pathlib import Path

import pytest

from slotpack.catalog import DEMO_MODEL, default_directory, find_model
from slotpack.store import WeightStore


def pytest_sessionstart() -> None:
    """Let an interrupt raise KeyboardInterrupt, also in the workers of a parallel run, which start out ignoring it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the demo model unpacked, as `slotstream pull demo` leaves it."""
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
