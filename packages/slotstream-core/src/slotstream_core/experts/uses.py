"""Which records served most uses: a small file from one run to the next.

Uses of an earlier run count half as much as those of the run that ends, so that the order follows what is asked today.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slotstream_core.experts.layout import ExpertLayout
from slotstream_core.experts.packed import sample_digest

logger = logging.getLogger("slotstream.experts")

FORMAT = 1
RECORDS_MOST = 1 << 16
FILE_BYTES_MOST = 1 << 21
COUNT_MOST = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordUses:
    """How often records were asked for.

    Attributes:
        counts: By layer * experts a layer + expert.
    """

    counts: tuple[int, ...]

    def plus(self, later: Sequence[int]) -> RecordUses:
        """Return the counts after another run: half of these and all of its."""
        return RecordUses(counts=tuple(a // 2 + b for a, b in zip(self.counts, later, strict=True)))

    def most_used(self, expert_count: int) -> list[tuple[int, int]]:
        """Return (layer, expert) of every record that was used, most used first."""
        used = [key for key, count in enumerate(self.counts) if count]
        used.sort(key=lambda key: (-self.counts[key], key))
        return [divmod(key, expert_count) for key in used]


def uses_path(directory: Path, layout: ExpertLayout) -> Path:
    """Return the file of a checkpoint's uses: named after samples of its experts, so that these may move.

    Raises:
        RecordsUnusable: A file of the checkpoint cannot be read.
    """
    return directory / f"{sample_digest(layout)[:32]}.json"


def read_uses(path: Path, layout: ExpertLayout) -> RecordUses | None:
    """Return the uses kept in a file; None when there is none or, after a line in the log, it cannot be used."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MOST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.info("%s cannot be read (%s); the pool starts cold", path, error.strerror or error)
        return None
    counts = _parse(content, layout) if len(content) <= FILE_BYTES_MOST else None
    if counts is None:
        logger.info("%s is damaged; the pool starts cold, and the file is replaced when the model is closed", path)
        return None
    return RecordUses(counts=counts)


def _parse(content: bytes, layout: ExpertLayout) -> tuple[int, ...] | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None
    entries = document.get("uses")
    if not isinstance(entries, list) or len(entries) > RECORDS_MOST:
        return None
    counts = [0] * layout.record_count
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not all(type(number) is int for number in entry):
            return None
        key, count = entry
        if not (0 <= key < layout.record_count and 0 < count <= COUNT_MOST):
            return None
        counts[key] = count
    return tuple(counts)


def write_uses(path: Path, uses: RecordUses) -> bool:
    """Keep the most used records, at most 65,536, in a file that appears whole.

    Returns:
        Whether it was written; a line in the log says why not.
    """
    used = [key for key, count in enumerate(uses.counts) if count]
    used.sort(key=lambda key: (-uses.counts[key], key))
    entries = [[key, min(uses.counts[key], COUNT_MOST)] for key in used[:RECORDS_MOST]]
    content = json.dumps({"format": FORMAT, "uses": entries}, separators=(",", ":"))
    partial: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=path.stem, suffix=".partial", dir=path.parent)
        partial = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        partial.replace(path)
    except OSError as error:
        logger.info("%s cannot be written (%s); the next start is cold", path, error.strerror or error)
        if partial is not None:
            partial.unlink(missing_ok=True)
        return False
    return True
