"""Ends a process at each of its file operations in turn, and checks what the directory of kept states then holds.

    python -m tests.core.crash_loop DIRECTORY [queued]

With "queued" the states are written by a queue's thread, as for an engine; without, at once. Each round is a process of
its own that saves two conversations over one that is there, makes room by removing states, and is killed (SIGKILL) at
its n-th operation: opening, renaming or removing a file, or a payload half-way through one. The parent opens the
directory as the next server would. Prints how many rounds there were.
"""

import os
import shutil
import signal
import sys
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from slotstream_core.persistence import container
from slotstream_core.persistence.directory import NewHead, PrefixDirectory
from slotstream_core.persistence.writing import WriteQueue
from tests.core.kept_states import head, named, opened, state

EVENTS = frozenset({"open", "os.rename", "os.remove"})
QUOTA_BYTES = 220_000
MOST_ROUNDS = 400


class Countdown:
    """Kills the process at its n-th operation."""

    def __init__(self, operations: int) -> None:
        self._left = operations

    def step(self) -> None:
        """Count one operation."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def save_until_killed(directory: Path, operations: int, *, queued: bool) -> None:
    countdown = Countdown(operations)

    def heard(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and str(directory) in str(arguments[0]):
            countdown.step()

    def crc32(data: bytes, value: int = 0) -> int:
        countdown.step()
        return zlib.crc32(data, value)

    vars(container)["zlib"] = SimpleNamespace(crc32=crc32)
    sys.addaudithook(heard)
    kept = opened(directory, quota_bytes=QUOTA_BYTES)
    first = state(60, fixed_bytes=20_000)
    second = state(110, first.segments, fixed_bytes=20_000)
    queue = WriteQueue()
    for new in (
        head(1, first, shared=True),
        head(2, second, 1, continued=True),
        head(3, state(140, second.segments, fixed_bytes=20_000), 1, 2, continued=True),
        head(4, state(100, fixed_bytes=20_000)),
    ):
        if queued:
            queue.put(partial(save, kept, new), 0)
        else:
            save(kept, new)
    queue.close()
    kept.close()


def save(kept: PrefixDirectory, new: NewHead) -> None:
    kept.save(new)


def check(directory: Path) -> None:
    """Raise `SystemExit` unless the directory opens, holds only whole states and stays usable."""
    kept = opened(directory, quota_bytes=QUOTA_BYTES)
    states = [kept.restore(kept.heads[name], "m") for name in list(kept.heads)]
    used = {f"{extent.segment}.slotseg" for each in kept.heads.values() for extent in each.extents}
    expected = used | {f"{name}.slotprefix" for name in kept.heads} | {".lock"}
    found = {path.name for path in directory.iterdir()}
    whole = all(each.segments[-1].end == each.length for each in states)
    again = kept.save(head(9, state(30)))
    kept.close()
    if found != expected or not whole or kept.removed["damaged"] or again != "saved" or named(9) not in kept.heads:
        raise SystemExit(f"found {sorted(found)}, expected {sorted(expected)}; removed {kept.removed}; save: {again}")


def main(directory: Path, *, queued: bool) -> None:
    for operations in range(1, MOST_ROUNDS):
        shutil.rmtree(directory, ignore_errors=True)
        before = opened(directory, quota_bytes=QUOTA_BYTES)
        before.save(head(7, state(90, fixed_bytes=20_000)))
        before.close()
        child = os.fork()
        if child == 0:
            save_until_killed(directory, operations, queued=queued)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        check(directory)
        if status == 0:
            print(operations - 1)
            return
        if os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"round {operations} ended with status {status}")
    raise SystemExit(f"no round came to its end within {MOST_ROUNDS} operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]), queued=sys.argv[2:] == ["queued"])
