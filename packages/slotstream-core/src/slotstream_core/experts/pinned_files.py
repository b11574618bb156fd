"""All files of an engine from which a device fetches experts, as one amount that is pinned."""

from __future__ import annotations

from collections.abc import Sequence

from slotstream_core.experts.mapped_files import MappedFiles


class PinnedFiles:
    """Pins so many bytes of some sources' files, and gives them back from the other end. Closes nothing.

    Args:
        parts: The files of each source. Those of the first are pinned first and given back last.
    """

    def __init__(self, parts: Sequence[MappedFiles]) -> None:
        self._parts = tuple(parts)
        for part in self._parts:
            part.give_way_to(self._parts)

    @property
    def pinned_bytes(self) -> int:
        """What is pinned now."""
        return sum(part.pinned_bytes for part in self._parts)

    @property
    def wanted_bytes(self) -> int:
        """What is to be pinned, once what is being done is done."""
        return sum(part.wanted_bytes for part in self._parts)

    @property
    def most_bytes(self) -> int:
        """What can be pinned; 0 where nothing can."""
        return sum(part.most_bytes for part in self._parts)

    def pin(self, wanted_bytes: int) -> None:
        """Begin to pin so many bytes, or to give back all beyond them, and return at once; see `MappedFiles.pin`."""
        for part in self._parts:
            share = min(wanted_bytes, part.most_bytes)
            part.pin(share)
            wanted_bytes -= share
