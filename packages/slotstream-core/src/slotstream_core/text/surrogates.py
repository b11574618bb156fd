r"""Lone surrogates: halves of characters, which JSON can name (`\ud800`) and UTF-8 cannot hold.

No tokenizer takes them and no stream can be written with them, and clients differ in what they make of the escape: V8's
`JSON.parse` keeps the half, Rust's `serde_json` refuses the whole text.  So what comes out of JSON has U+FFFD instead.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""In JSON text, stands before every surrogate, lone or of a pair."""

ESCAPE_LENGTH: Final = 6

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""In parsed JSON only lone ones are left."""

REPLACEMENT: Final = "\ufffd"


def lone_escapes(text: str) -> int:
    """Return how many lone surrogates a text of JSON names: those that it names less two for every pair."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    found = np.flatnonzero(data[:-5] == ord("\\"))
    found = found[(data[found + 1] == ord("u")) & (data[found + 2] | 32 == ord("d"))]
    digit = data[found + 3] | 32  # lower case, and digits as they are
    low = (digit >= ord("c")) & (digit <= ord("f"))
    surrogate = low | (digit == ord("8")) | (digit == ord("9")) | (digit == ord("a")) | (digit == ord("b"))
    found, low = found[surrogate], low[surrogate]
    pairs = ~low[:-1] & low[1:] & (np.diff(found) == ESCAPE_LENGTH)
    return len(found) - 2 * int(np.count_nonzero(pairs))


def without_surrogates(value: Any) -> Any:
    """Return a parsed JSON value with U+FFFD for each lone surrogate."""
    return with_texts(value, lambda text: SURROGATE.sub(REPLACEMENT, text))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a parsed JSON value with all its texts changed, names too and at any depth.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): with_texts(item, change) for key, item in value.items()}
    return value
