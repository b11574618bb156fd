"""Small text files of a checkpoint: missing, read, or refused because something else stands in their place."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

__all__ = ["check_regular", "read_text_file", "reason"]

KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def check_regular(path: Path) -> bool:
    """Tell whether a file is there to be read.  Reading a pipe would wait for ever, so that is refused.

    Raises:
        OSError: Something other than a file is there, or the system does not let it be looked at.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.ENOENT, "a link to something that is not there", str(path)) from None
        return False
    if stat.S_ISREG(mode):
        return True
    kind = next((name for test, name in KINDS if test(mode)), "a device")
    raise OSError(errno.EINVAL, f"{kind} stands where a file belongs", str(path))


def read_text_file(path: Path) -> str | None:
    """Return a file's UTF-8 text, or None when it is not there.

    Raises:
        OSError: It cannot be read, or is no file.
        ValueError: It is not UTF-8 text.
    """
    return path.read_text(encoding="utf-8") if check_regular(path) else None


def reason(error: Exception) -> str:
    """Return why something failed, without the number and the path that the system puts around it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
