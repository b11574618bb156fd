"""Frames that are always the same but for the text they carry, for the deltas of a stream.

A reply of a thousand tokens has a thousand of them, each with ids and names around a word.  What stays is encoded once
a reply.
"""

import json

from slotstream_serve.dialects.base import Frame, JsonObject
from slotstream_serve.dialects.tools import LINE_BREAKS, json_text

TEXT = "\0text\0"
"""Stands in a value for the text of a `TextFrames`."""
NUMBER = "\0number\0"
"""Stands in a value for the number of a `NumberedFrames`; its name must come after the text's."""

_quoted = json.JSONEncoder(ensure_ascii=False).encode


def quoted_text(text: str) -> str:
    """Return a text as JSON, as `json_text` does."""
    quoted = _quoted(text)
    return quoted if quoted.isascii() else quoted.translate(LINE_BREAKS)


class TextFrames:
    """Frames of one value with different texts."""

    def __init__(self, value: JsonObject, *, event: str | None = None, sort_keys: bool = False) -> None:
        """Prepare frames of a value that has `TEXT` once, where the texts go."""
        self._before, self._after = json_text(value, sort_keys=sort_keys).split(json_text(TEXT))
        self._event = event

    def frame(self, text: str) -> Frame:
        """Return the frame of a text."""
        return Frame(data=f"{self._before}{quoted_text(text)}{self._after}", event=self._event)


class NumberedFrames:
    """Frames of one value with different texts and numbers, its names in alphabetical order."""

    def __init__(self, value: JsonObject, *, event: str) -> None:
        """Prepare frames of a value that has `TEXT` and, behind it, `NUMBER` once each."""
        self._before, rest = json_text(value, sort_keys=True).split(json_text(TEXT))
        self._between, self._after = rest.split(json_text(NUMBER))
        self._event = event

    def frame(self, text: str, number: int) -> Frame:
        """Return the frame of a text and a number."""
        data = f"{self._before}{quoted_text(text)}{self._between}{number}{self._after}"
        return Frame(data=data, event=self._event)
