"""How a model's experts are read: which layout on disk, and through the page cache or past it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slotstream_core.experts.layout import ExpertLayout

LayoutName = Literal["stacked", "repacked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertReading:
    """What was chosen when a model was loaded.

    Attributes:
        layout: Whether experts are read from the stacked tensors or from records of their own.
        direct: Whether reads go past the page cache.
    """

    layout: LayoutName
    direct: bool

    def describe(self) -> str:
        """Return one line for a person."""
        how = "past the page cache" if self.direct else "through the page cache"
        what = "repacked records, one read each" if self.layout == "repacked" else "stacked tensors"
        return f"experts are read from {what}, {how}"


def name_layout(layout: ExpertLayout) -> LayoutName:
    """Return what a layout is called."""
    return "repacked" if layout.repacked else "stacked"
