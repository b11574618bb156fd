"""Read the demo corpus: JSON lines, plain or xz-compressed."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of one ``.jsonl`` or ``.jsonl.xz`` file in order."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)
