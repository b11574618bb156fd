r"""Lone surrogates: halves of characters, which JSON can name (`\ud800`) and UTF-8 cannot hold.

No tokenizer takes them and no stream can be written with them, and clients differ in what they make of the escape: V8's
`JSON.parse` keeps the half, Rust's `serde_json` refuses the whole text.  So what comes out of JSON has U+FFFD instead.
"""

import re
from collections.abc import Callable
from typing import Any, Final

SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""In JSON text, stands before every surrogate, lone or of a pair."""

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""In parsed JSON only lone ones are left."""

REPLACEMENT: Final = "\ufffd"


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
