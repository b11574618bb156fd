"""How a model's experts are read: from which directories, in which layout, and through the page cache or past it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slotstream_core.checkpoint.records import PartName
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts.layout import ExpertLayout, FloatName, trunk_modules
from slotstream_core.experts.mirrors import MirroredExperts
from slotstream_core.experts.packed import best_layout, mirror_layout
from slotstream_core.experts.probing import AccessSwitch, ReadAccess, choose_access
from slotstream_core.experts.sources import ExpertSource, StoredExperts

LayoutName = Literal["stacked", "repacked"]
RecordsSwitch = Literal["auto", "off"]
LanesSwitch = Literal["auto", "python"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingOptions:
    """What may be used to read experts.

    Attributes:
        records: Whether repacked experts are read where there are any.
        access: Whether reads go through the page cache, past it, or as `choose_access` decides.
        mirrors: Other directories with the same checkpoint.
        lanes: Whether compiled lanes read where they can, or Python's always.
    """

    records: RecordsSwitch = "auto"
    access: AccessSwitch = "auto"
    mirrors: tuple[Path, ...] = ()
    lanes: LanesSwitch = "auto"

    @property
    def native(self) -> bool:
        """Whether compiled lanes may read."""
        return self.lanes == "auto"

    def like(self, reading: ExpertReading) -> ReadingOptions:
        """Return the same with the access another part of the checkpoint was given, so that nothing is measured."""
        return replace(self, access="direct" if reading.access.direct else "cached")


@dataclass(frozen=True, kw_only=True)
class ExpertReading:
    """What was chosen when a model was loaded.

    Attributes:
        layout: Whether experts are read from the stacked tensors or from records of their own.
        access: How, and why.
        direct: Whether reads go past the page cache.
        source: What is read from.
    """

    layout: LayoutName
    access: ReadAccess
    direct: bool
    source: ExpertSource

    @property
    def bytes_by_directory(self) -> dict[Path, int]:
        """Bytes read so far from each directory that mirrors another; empty without mirrors."""
        return self.source.bytes_by_directory if isinstance(self.source, MirroredExperts) else {}

    def describe(self) -> str:
        """Return one line for a person."""
        how = "past the page cache" if self.direct else "through the page cache"
        what = "repacked records, one read each" if self.layout == "repacked" else "stacked tensors"
        count = len(self.bytes_by_directory)
        where = f" in {count} directories at once" if count else ""
        return f"experts are read from {what}{where}, {how} ({self.access.reason})"


def open_reading(
    directory: Path,
    stacked: ExpertLayout,
    part: PartName,
    *,
    options: ReadingOptions,
    available_bytes: int,
    resources: ExitStack,
) -> ExpertReading:
    """Choose how experts are read, and open the files.

    Args:
        directory: The checkpoint's.
        stacked: Where its stacked tensors hold the experts.
        part: Which experts.
        options: What may be used.
        available_bytes: Memory left to the page cache once the plan's memory is taken.
        resources: Closes what was opened.

    Raises:
        MirrorMismatch: A mirror does not hold the same checkpoint.
        CheckpointError: A file of the checkpoint cannot be read.
    """
    layout = choose_layout(directory, stacked, part, options)
    access = choose_access(layout, available_bytes=available_bytes, switch=options.access)
    source: ExpertSource
    source = own = resources.enter_context(StoredExperts(layout, direct=access.direct, native=options.native))
    others = [(mirror, mirror_layout(directory, mirror, stacked, part)) for mirror in options.mirrors]
    copies = [(mirror, copy) for mirror, copy in others if copy is not None]
    if copies:
        sources: Sequence[ExpertSource] = [
            own,
            *(
                resources.enter_context(StoredExperts(copy, direct=access.direct, native=options.native))
                for _, copy in copies
            ),
        ]
        source = MirroredExperts(sources, [directory, *(mirror for mirror, _ in copies)])
    return ExpertReading(
        layout="repacked" if layout.repacked else "stacked", access=access, direct=own.alignment > 1, source=source
    )


def preview_reading(
    directory: Path, *, options: ReadingOptions, available_bytes: int, measure: bool
) -> tuple[LayoutName, ReadAccess | None]:
    """Return which layout and which access loading a checkpoint would choose now, and load nothing.

    Args:
        directory: The checkpoint's.
        options: What may be used.
        available_bytes: Memory left to the page cache once a plan's memory is taken.
        measure: Whether a few records may be read; without that the access is None.

    Raises:
        CheckpointError: The directory cannot be used as a model.
    """
    with Checkpoint.open(directory) as checkpoint:
        stacked = trunk_layout(checkpoint, float_name="F32")
        layout = choose_layout(checkpoint.directory, stacked, "trunk", options)
    access = choose_access(layout, available_bytes=available_bytes, switch=options.access) if measure else None
    return "repacked" if layout.repacked else "stacked", access


def trunk_layout(checkpoint: Checkpoint, *, float_name: FloatName) -> ExpertLayout:
    """Return where the stacked tensors hold the experts of the model's own layers.

    Raises:
        CheckpointError: See `ExpertLayout.from_checkpoint`.
    """
    modules = trunk_modules(checkpoint.config.num_hidden_layers)
    return ExpertLayout.from_checkpoint(checkpoint, modules, float_name=float_name)


def choose_layout(directory: Path, stacked: ExpertLayout, part: PartName, options: ReadingOptions) -> ExpertLayout:
    """Return where a checkpoint's own experts are read.

    Raises:
        CheckpointError: A shard cannot be read.
    """
    return stacked if options.records == "off" else best_layout(directory, stacked, part)
