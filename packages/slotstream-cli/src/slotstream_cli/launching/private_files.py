"""Files of the user and about the user: readable by nobody else, replaced whole, symbolic links followed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from slotstream_cli.launching.errors import AgentRefused, LaunchError

__all__ = ["make_private_directory", "read_text", "write_text"]

DIRECTORY_MODE = 0o700


def read_text(path: Path) -> str | None:
    """Return a file's text with its line ends, or None when it does not exist.

    Raises:
        AgentRefused: It cannot be read, is no ordinary file, or is not UTF-8.
    """
    try:
        if path.exists() and not path.is_file():
            raise AgentRefused(f"{path} is not an ordinary file")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise AgentRefused(f"{path} is not UTF-8 text: {error.reason} at byte {error.start:,}") from error
    except OSError as error:
        raise AgentRefused(f"{path} cannot be read: {error.strerror or error}") from error


def make_private_directory(path: Path) -> None:
    """Make a directory, and those above it, that only the user can enter; existing ones stay as they are.

    Raises:
        LaunchError: It cannot be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            each.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        if not path.is_dir():
            raise NotADirectoryError(20, "Not a directory")
    except OSError as error:
        raise LaunchError(f"{path} cannot be made: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file's content at once; a new file is for its owner only, an old one keeps its permissions.

    Raises:
        LaunchError: It cannot be written.
    """
    target = Path(os.path.realpath(path))
    make_private_directory(target.parent)
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(text.encode("utf-8"))
            if target.exists():
                temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror or error}") from error
