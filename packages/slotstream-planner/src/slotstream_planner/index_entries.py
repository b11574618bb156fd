"""Values in the index files of records, checked as they are read.

Each raises ValueError for another kind of value; the text says which one stood there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LARGEST_SIZE: Final = 2**48
"""No file, tensor or axis is as large."""


def as_size(value: object) -> int:
    """Return a number of bytes or entries, or a place among them.

    Raises:
        ValueError: It is not an integer from 0 to below `LARGEST_SIZE`.
    """
    if type(value) is not int or not 0 <= value < LARGEST_SIZE:
        raise ValueError(f"it has {value!r} where a size belongs")
    return value


def as_text(value: object) -> str:
    """Return a text.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"it has {value!r} where a text belongs")
    return value


def as_file_name(value: object) -> str:
    """Return the name of a file beside the index.

    Raises:
        ValueError: It is no text, or leads to another directory.
    """
    name = as_text(value)
    if not name or Path(name).name != name:
        raise ValueError(f"it has {name!r} where the name of a file belongs")
    return name
