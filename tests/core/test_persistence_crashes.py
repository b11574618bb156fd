"""A process that is killed leaves a directory of kept states that the next one can use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("how", [[], ["queued"]], ids=["at once", "on the queue's thread"])
def test_a_process_killed_at_each_of_its_file_operations_leaves_only_whole_states(
    memory_path: Path, how: list[str]
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.core.crash_loop", str(memory_path / "kept"), *how],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30  # operations, each of which one round ended at
