"""One process at a time uses a directory of kept states."""

import fcntl
import os
from pathlib import Path
from typing import Final, Self

from slotstream_core.errors import DirectoryInUse, InaccessibleFile

LOCK_NAME: Final = ".lock"


class DirectoryLock:
    """Holds a directory until it is released or the process ends.  A context manager."""

    def __init__(self, directory: Path) -> None:
        """Create the directory for its owner only, if it is not there, and take it.

        Raises:
            DirectoryInUse: Another process holds it.
            InaccessibleFile: It cannot be created or locked.
        """
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InaccessibleFile(directory, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if not isinstance(error, BlockingIOError):  # such as a network file system without locks
                raise InaccessibleFile(directory / LOCK_NAME, error.strerror or str(error)) from error
            raise DirectoryInUse(
                f"{directory} is in use by another process; stop it (slotstream stop), or choose another directory"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the directory back.  A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
