"""Read the demo corpus: JSON lines, plain or xz-compressed."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_documents(path: Path, *, index: int = 0, count: int = 1) -> Iterator[dict[str, Any]]:
    """Yield every ``count``-th document of a ``.jsonl`` or ``.jsonl.xz`` file, from the ``index``-th on."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % count == index and line.strip():
                yield json.loads(line)
