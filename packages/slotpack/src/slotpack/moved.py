"""Model directories whose experts `slotstream repack --move` moved into records: their shards are not as published."""

import pathlib
from typing import Final

MOVED_INDEX: Final = pathlib.Path("experts") / "index.json"
"""There while a shard lacks experts."""


def moved_reason(directory: pathlib.Path) -> str | None:
    """Return why a directory's files cannot be compared, completed or packed; None when they can."""
    if not (directory / MOVED_INDEX).is_file():
        return None
    return (
        f"the experts of {directory} were moved into records, so its shards are not as they were published; "
        "`slotstream repack --undo` brings them back, bit for bit"
    )
