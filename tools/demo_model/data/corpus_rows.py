"""Rows of a public corpus: one JSON value a line, compressed with xz."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

from tools.demo_model.data.errors import CorpusError


def read_rows(path: Path) -> Iterator[object]:
    """Yields the JSON value of every line of an xz file.

    Raises:
        CorpusError: the file is missing, not xz, or a line is not JSON.
    """
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise CorpusError(f"line {number} of {path} is not JSON: {error}") from error
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise CorpusError(f"cannot read {path} as JSON lines in xz: {error}") from error
