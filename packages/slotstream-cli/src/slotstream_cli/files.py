"""Writing files so that a reader never sees half of one."""

import os
import tempfile
from pathlib import Path

import click


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 text file through a temporary one in the same directory.

    Raises:
        click.ClickException: The directory is missing or cannot be written.
    """
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file through a temporary one in the same directory.

    Raises:
        click.ClickException: The directory is missing or cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error
