"""Reading what a directory of kept states holds, without loading any of it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slotstream_core.errors import InaccessibleFile, StateFileDamaged
from slotstream_core.persistence.container import PARTIAL_SUFFIX, read_container
from slotstream_core.persistence.records import HEAD_SUFFIX, REPLY_SUFFIX, SEGMENT_SUFFIX, HeadFile, parse_head

SUFFIXES = (HEAD_SUFFIX, SEGMENT_SUFFIX, REPLY_SUFFIX)


@dataclass(kw_only=True)
class DirectoryContent:
    """The files of a directory.

    Attributes:
        heads: Kept states by name.
        segments: Sizes of the files with rows, by name.
        replies: Sizes and modification times (ns) of the files with replies, by name.
        damaged: Files whose headers are damaged.
        partial: Files that were being written when a process ended.
        inaccessible: Files that the system refuses to read, with its reason.
    """

    heads: dict[str, HeadFile] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    replies: dict[str, tuple[int, int]] = field(default_factory=dict)
    damaged: list[Path] = field(default_factory=list)
    partial: list[Path] = field(default_factory=list)
    inaccessible: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def byte_count(self) -> int:
        """Bytes of all files that are in order."""
        heads = sum(head.byte_count for head in self.heads.values())
        return heads + sum(self.segments.values()) + sum(size for size, _ in self.replies.values())


def state_files(directory: Path) -> Iterator[Path]:
    """Yield every file that this package writes into a directory, finished or not.

    Raises:
        InaccessibleFile: The directory cannot be listed.
    """
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InaccessibleFile(directory, error.strerror or str(error)) from error
    endings = (*SUFFIXES, *(suffix + PARTIAL_SUFFIX for suffix in SUFFIXES))
    for name in names:
        if name.endswith(endings):
            yield directory / name


def scan_directory(directory: Path) -> DirectoryContent:
    """Return what a directory holds; a missing one holds nothing.

    Raises:
        InaccessibleFile: The directory itself cannot be listed.
    """
    content = DirectoryContent()
    for path in state_files(directory):
        if path.name.endswith(PARTIAL_SUFFIX):
            content.partial.append(path)
            continue
        try:
            container = read_container(path)
            if path.suffix == HEAD_SUFFIX:
                head = parse_head(container, used_ns=container.modified_ns)
                content.heads[head.name] = head
            elif path.suffix == SEGMENT_SUFFIX:
                content.segments[path.stem] = container.byte_count
            else:
                content.replies[path.stem] = (container.byte_count, container.modified_ns)
        except FileNotFoundError:
            continue  # removed meanwhile by the process that uses the directory
        except StateFileDamaged:
            content.damaged.append(path)
        except OSError as error:
            content.inaccessible.append((path, error.strerror or str(error)))
    return content


def clear_directory(directory: Path) -> tuple[int, list[tuple[Path, str]]]:
    """Remove every state file; return how many are gone, and which are not and why.

    The caller holds the directory's lock.

    Raises:
        InaccessibleFile: The directory cannot be listed.
    """
    removed, kept = 0, list[tuple[Path, str]]()
    for path in state_files(directory):
        try:
            path.unlink()
            removed += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            kept.append((path, error.strerror or str(error)))
    return removed, kept
