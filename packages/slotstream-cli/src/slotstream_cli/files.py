"""Writing files so that a reader never sees half of one, and learning early whether that can be done."""

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
        place = _place(path)
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=_prefix(place))
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def check_writable(path: Path, *, parents_made: bool = False) -> None:
    """Find out before hours of work whether a file can be written in the end; what is there is left alone.

    Args:
        path: The file.
        parents_made: Whether missing directories will be made, so that the nearest one that is there is tried.

    Raises:
        click.ClickException: It is a directory, a pipe or a device, or no file can be made beside it.
    """
    try:
        place = _place(path)
        parents = [each for each in place.parents if each.exists()] if parents_made else [place.parent]
        descriptor, name = tempfile.mkstemp(dir=parents[0], prefix=_prefix(place))
        os.close(descriptor)
        Path(name).unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def _place(path: Path) -> Path:
    """Return the file that a path leads to, links followed.

    Raises:
        click.ClickException: Something that is no file is there; a rename would take its place.
    """
    place = Path(os.path.realpath(path))
    if place.is_dir():
        raise click.ClickException(f"{path} cannot be written: it is a directory; name a file in it")
    if os.path.lexists(place) and not place.is_file():
        raise click.ClickException(f"{path} cannot be written: it is a pipe, a device or a broken link; name a file")
    return place


def _prefix(place: Path) -> str:
    return f".{place.name[:40]}."  # a long name leaves no room for what is added


def _unwritable(path: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"{path} cannot be written: {error.strerror or error}")
