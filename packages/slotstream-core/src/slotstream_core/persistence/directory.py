"""The files of one directory: what is there, what goes when room is needed, and how states are written.

Segments are written before the head that uses them, and every file appears whole under its name, so that a process may
end at any point: what no head uses, or was never finished, is removed when the directory is opened again.
"""

import os
import secrets
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage
from typing import Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from slotstream_core.errors import InaccessibleFile, StateFileDamaged
from slotstream_core.generation.control import StopCheck
from slotstream_core.persistence.container import Container, read_container, write_container
from slotstream_core.persistence.locking import DirectoryLock
from slotstream_core.persistence.records import (
    HEAD_SUFFIX,
    REPLY_SUFFIX,
    SEGMENT_SUFFIX,
    Extent,
    HeadFile,
    element_bytes,
    fixed_arrays,
    head_header,
    parse_head,
    parse_segment,
    segment_header,
)
from slotstream_core.persistence.scanning import DirectoryContent, clear_directory, scan_directory
from slotstream_core.state.rows import HostArray, RowSegment, StateSnapshot

MOST_EXTENTS: Final = 32
HEADER_ALLOWANCE_BYTES: Final = 16_384
"""Added to a file's arrays when its size is estimated before it is written."""

DAY_S: Final = 86_400

SaveOutcome = Literal["saved", "present", "too short", "no room", "failed"]


@dataclass(frozen=True, kw_only=True)
class PersistentOptions:
    """Where states are kept on disk, and how many.

    Attributes:
        directory: Created for its owner only.
        quota_bytes: Most bytes of all files.
        minimum_tokens: Shortest state that is written.
        max_age_s: States unused for longer are removed; None keeps them until the quota needs room.
        free_bytes: What writing must leave free on the disk.
    """

    directory: Path
    quota_bytes: int = 20 * 10**9
    minimum_tokens: int = 1024
    max_age_s: float | None = 30 * DAY_S
    free_bytes: int = 2 * 10**9


@dataclass(frozen=True, kw_only=True)
class NewHead:
    """A state to write.

    Attributes:
        name: Its file's name without suffix.
        snapshot: The state.
        pass_tokens: Prompt tokens per pass.
        shared: Whether conversations start with it.
        continued: Whether its prompt went on from an earlier state.
        beginnings: Names that heads with beginnings of its ids would have, shortest first.
    """

    name: str
    snapshot: StateSnapshot
    pass_tokens: int
    shared: bool
    continued: bool
    beginnings: Sequence[str]


class PrefixDirectory:
    """The directory of one identity.  Used by one thread at a time; it holds the lock until it is closed.

    Attributes:
        options: Where and how many.
        removed: How many files opening it removed, by reason.
    """

    def __init__(self, options: PersistentOptions, *, identity: str, build: str) -> None:
        """Take the directory and bring it in order.

        Raises:
            DirectoryInUse: Another process uses it.
            InaccessibleFile: Something in it cannot be read, and nothing was changed, or not be removed.
        """
        self.options = options
        self._identity = identity
        self._build = build
        self._files: WeakKeyDictionary[RowSegment, str] = WeakKeyDictionary()
        self._latest_ns = 0
        self._lock = DirectoryLock(options.directory)
        try:
            self._content = scan_directory(options.directory)
            if self._content.inaccessible:
                raise InaccessibleFile(*self._content.inaccessible[0])
            self._refuse_future()
            self.removed = self._tidy()
        except OSError as error:
            self._lock.release()
            path = Path(str(error.filename or options.directory))
            raise InaccessibleFile(path, error.strerror or str(error)) from error
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Give the directory back.  A second call does nothing."""
        self._lock.release()

    @property
    def heads(self) -> Mapping[str, HeadFile]:
        """Kept states by name."""
        return self._content.heads

    @property
    def byte_count(self) -> int:
        """Bytes of all files."""
        return self._content.byte_count

    def replies(self) -> list[Container]:
        """Return the kept replies, newest first; damaged ones are removed."""
        found = []
        for name, _ in sorted(self._content.replies.items(), key=lambda item: -item[1][1]):
            path = self._path(name, REPLY_SUFFIX)
            try:
                found.append(read_container(path))
            except StateFileDamaged:
                self.discard_reply(name)
            except OSError:
                del self._content.replies[name]
        return found

    def save(self, new: NewHead) -> SaveOutcome:
        """Write a state: its fixed arrays and the rows that no file holds yet.

        Raises:
            OSError: It cannot be written.
        """
        if new.snapshot.length < self.options.minimum_tokens:
            return "too short"
        present = self._content.heads.get(new.name)
        if present is not None and (present.shared or not new.shared or self._set_shared(present)):
            self.touch(new.name)
            return "present"
        known = [self._file_of(segment) for segment in new.snapshot.segments]
        segments: Sequence[RowSegment] = new.snapshot.segments
        if len(segments) > MOST_EXTENTS:
            segments, known = [_join(segments)], [None]
        fresh = [segment for segment, name in zip(segments, known, strict=True) if name is None]
        needed = new.snapshot.fixed_bytes + sum(segment.byte_size for segment in fresh)
        needed += HEADER_ALLOWANCE_BYTES * (1 + len(fresh))
        pinned = {name for name in known if name is not None}
        ancestors = [name for name in new.beginnings if name in self._content.heads]
        if not self._make_room(needed, pinned, ancestors):
            return "no room"
        extents = [
            Extent(segment=name or self._write_segment(segment), start=segment.start, end=segment.end)
            for segment, name in zip(segments, known, strict=True)
        ]
        fixed = new.snapshot.fixed
        now = self._now_ns()
        head = HeadFile(
            name=new.name,
            identity=self._identity,
            build=self._build,
            tokens=new.snapshot.length,
            pass_tokens=new.pass_tokens,
            shared=new.shared,
            continued=new.continued,
            ancestors=tuple(name for name in ancestors if name in self._content.heads),
            extents=tuple(extents),
            row_bytes=new.snapshot.row_bytes,
            arrays=tuple((name, array.dtype, array.values.shape) for name, array in fixed.items()),
            written_ns=now,
            used_ns=now,
            byte_count=0,
        )
        self._write_head(head, [element_bytes(array) for array in fixed.values()])
        self._remove_superseded(head)
        return "saved"

    def save_reply(self, name: str, header: Mapping[str, object], payloads: Sequence[bytes]) -> bool:
        """Write a reply; return whether there was room.

        Raises:
            OSError: It cannot be written.
        """
        if not self._make_room(sum(map(len, payloads)) + HEADER_ALLOWANCE_BYTES, (), ()):
            return False
        size = write_container(self._path(name, REPLY_SUFFIX), header, payloads)
        self._content.replies[name] = (size, self._now_ns())
        return True

    def restore(self, head: HeadFile, model_key: str, *, stop: StopCheck | None = None) -> StateSnapshot:
        """Read a state.

        Args:
            head: Which.
            model_key: The model it will belong to.
            stop: Asked before each array of rows is read; what it raises ends the reading, and nothing is removed.

        Raises:
            StateFileDamaged: One of its files is damaged or gone; the states that need it were removed.
            OSError: The system refuses to read a file; it is left alone.
        """
        try:
            container = read_container(self._head_path(head.name))
            present = parse_head(container, used_ns=head.used_ns)
            if (present.identity, present.extents, present.arrays) != (head.identity, head.extents, head.arrays):
                raise StateFileDamaged(container.path, "it is another state than the one that was found first")
            fixed = fixed_arrays(head, container)
            segments = tuple(self._read_extent(extent, stop) for extent in head.extents)
        except (StateFileDamaged, FileNotFoundError) as error:
            path = error.path if isinstance(error, StateFileDamaged) else Path(str(error.filename))
            self._remove_users(path)
            if isinstance(error, StateFileDamaged):
                raise
            raise StateFileDamaged(path, "it is gone") from error
        self.touch(head.name)
        return StateSnapshot(length=head.tokens, model_key=model_key, fixed=fixed, segments=segments)

    def forget(self, name: str) -> None:
        """Leave a state out from now on, without touching its file."""
        self._content.heads.pop(name, None)

    def discard(self, name: str) -> None:
        """Remove a state, if the system lets us; it is not used again either way."""
        try:
            self._remove_head(name)
        except OSError:
            self.forget(name)

    def touch(self, name: str) -> None:
        """Note that a state was used, and with it the shared ones it begins with."""
        head = self._content.heads.get(name)
        for each in () if head is None else (name, *head.ancestors):
            used = self._content.heads.get(each)
            if used is None or (each != name and not used.shared):
                continue
            now = self._now_ns()
            try:
                os.utime(self._head_path(each), ns=(now, now))
            except OSError:
                continue  # a listing shows it as older than it is
            self._content.heads[each] = replace(used, used_ns=now)

    def clear(self) -> int:
        """Remove every file; return how many."""
        removed, _ = clear_directory(self.options.directory)
        self._content = DirectoryContent()
        self._files.clear()
        return removed

    def _file_of(self, segment: RowSegment) -> str | None:
        for each in (segment, segment.owner):
            if each is not None and self._files.get(each) in self._content.segments:
                return self._files[each]
        return None

    def _read_extent(self, extent: Extent, stop: StopCheck | None) -> RowSegment:
        path = self._path(extent.segment, SEGMENT_SUFFIX)
        whole = next((each for each, name in self._files.items() if name == extent.segment), None)
        if whole is None:
            whole = parse_segment(read_container(path), stop=stop)
            self._files[whole] = extent.segment
        if not whole.start <= extent.start < extent.end <= whole.end:
            raise StateFileDamaged(path, f"it has no rows of tokens {extent.start:,} to {extent.end:,}")
        return whole.part(extent.start, extent.end)

    def _write_segment(self, segment: RowSegment) -> str:
        name = secrets.token_hex(16)
        payloads = (element_bytes(array) for array in segment.rows.values())
        self._content.segments[name] = write_container(
            self._path(name, SEGMENT_SUFFIX), segment_header(segment, name), payloads
        )
        self._files[segment] = name
        return name

    def _write_head(self, head: HeadFile, payloads: Iterable[bytes | memoryview]) -> None:
        path = self._head_path(head.name)
        size = write_container(path, head_header(head), payloads)
        with suppress(OSError):  # it counts as used then
            os.utime(path, ns=(head.used_ns, head.used_ns))
        self._content.heads[head.name] = replace(head, byte_count=size)

    def _set_shared(self, head: HeadFile) -> bool:
        """Write that conversations start with a state; False when its file is damaged or gone, and then forgotten."""
        try:
            payloads = read_container(self._head_path(head.name)).read()
        except (StateFileDamaged, FileNotFoundError):
            self.discard(head.name)
            return False
        self._write_head(replace(head, shared=True), payloads)
        return True

    def _now_ns(self) -> int:
        """Return the time, later than at every call before, so that the order of uses survives a clock set back."""
        self._latest_ns = max(time.time_ns(), self._latest_ns + 1)
        return self._latest_ns

    def _refuse_future(self) -> None:
        """Take files from a time to come, before the clock was set back, as used now: they would never grow old."""
        now, content = self._now_ns(), self._content
        for head in sorted(content.heads.values(), key=lambda each: each.used_ns):
            if head.used_ns > now:
                used = self._now_ns()
                written = used if head.written_ns == head.used_ns else head.written_ns
                content.heads[head.name] = replace(head, used_ns=used, written_ns=written)
        for name, (size, used) in content.replies.items():
            content.replies[name] = (size, min(used, now))

    def _remove_superseded(self, head: HeadFile) -> None:
        """Remove earlier turns of a conversation, but not the last one, shared heads or where branches part."""
        heads = self._content.heads
        extended = {name for each in heads.values() for name in each.ancestors}
        parents = {self._parent(each) for each in heads.values() if each.name not in extended}
        for name in head.ancestors:
            ancestor = heads.get(name)
            if ancestor is not None and not ancestor.shared and name not in parents:
                self._remove_head(name)
        self._remove_orphans(())

    def _parent(self, head: HeadFile) -> str | None:
        own = [name for name in head.ancestors if name in self.heads and not self.heads[name].shared]
        return own[-1] if own else None

    def _tidy(self) -> dict[str, int]:
        """Remove what cannot be used; return how many files, by reason."""
        content, now = self._content, time.time_ns()
        counts = {"damaged": len(content.damaged), "partial": len(content.partial)}
        for path in (*content.damaged, *content.partial):
            path.unlink(missing_ok=True)
        before = dict(content.heads)
        for name, head in before.items():
            if head.identity != self._identity:
                self._remove_head(name)
        counts["foreign"] = len(before) - len(content.heads)
        counts["expired"] = self._remove_expired(now)
        incomplete = [
            name
            for name, head in content.heads.items()
            if any(extent.segment not in content.segments for extent in head.extents)
        ]
        for name in incomplete:
            self._remove_head(name)
        counts["incomplete"] = len(incomplete)
        counts["orphans"] = self._remove_orphans(())
        held = len(content.heads)
        self._make_room(0, (), ())
        counts["over quota"] = held - len(content.heads)
        return counts

    def _remove_expired(self, now_ns: int) -> int:
        if self.options.max_age_s is None:
            return 0
        oldest = now_ns - int(self.options.max_age_s * 1e9)
        heads = [name for name, head in self._content.heads.items() if head.used_ns < oldest]
        replies = [name for name, (_, used) in self._content.replies.items() if used < oldest]
        for name in heads:
            self._remove_head(name)
        for name in replies:
            self.remove_reply(name)
        return len(heads) + len(replies)

    def _make_room(self, needed: int, pinned: Collection[str], protected: Collection[str]) -> bool:
        """Remove states until so many bytes fit; leave everything when they cannot.

        Args:
            needed: Bytes to be written.
            pinned: Segments that stay.
            protected: Heads that go last, because the state to be written goes on from them.
        """
        options, content = self.options, self._content
        self._remove_expired(time.time_ns())
        self._remove_orphans(pinned)
        staying = sum(content.segments[name] for name in pinned)
        free = disk_usage(options.directory).free + content.byte_count - staying
        if needed and (staying + needed > options.quota_bytes or free - needed < options.free_bytes):
            return False
        while self._lacks(needed):
            if content.replies and len(content.replies) > 4 * len(content.heads):
                self.remove_reply(min(content.replies, key=lambda name: content.replies[name][1]))
            elif content.heads:
                ranks = self._ranks()
                self._remove_head(min(content.heads, key=lambda name: (name in protected, *ranks[name])))
                self._remove_orphans(pinned)
            else:
                return False
        return True

    def _lacks(self, needed: int) -> bool:
        """Whether so many bytes would be too many for the quota or for the disk."""
        if self._content.byte_count + needed > self.options.quota_bytes:
            return True
        return needed > 0 and disk_usage(self.options.directory).free - needed < self.options.free_bytes

    def _ranks(self) -> dict[str, tuple[int, int, str]]:
        """Return by name what orders heads for removal, the lowest first: class, last use, name."""
        users: dict[str, list[HeadFile]] = {}
        for head in self._content.heads.values():
            for name in head.ancestors:
                users.setdefault(name, []).append(head)
        return {
            name: (_removal_class(head, users.get(name, ())), head.used_ns, name)
            for name, head in self._content.heads.items()
        }

    def _remove_users(self, path: Path) -> None:
        """Remove a damaged file and every state that needs it."""
        path.unlink(missing_ok=True)
        name = path.stem
        self._content.segments.pop(name, None)
        needing = [
            head.name
            for head in self._content.heads.values()
            if head.name == name or any(extent.segment == name for extent in head.extents)
        ]
        for each in needing:
            self._remove_head(each)
        self._remove_orphans(())

    def _remove_head(self, name: str) -> None:
        self._head_path(name).unlink(missing_ok=True)
        del self._content.heads[name]

    def remove_reply(self, name: str) -> None:
        """Remove a reply's file."""
        self._path(name, REPLY_SUFFIX).unlink(missing_ok=True)
        del self._content.replies[name]

    def discard_reply(self, name: str) -> None:
        """Use a reply no longer, and remove its file if the system lets us."""
        try:
            self.remove_reply(name)
        except OSError:
            self._content.replies.pop(name, None)

    def _remove_orphans(self, pinned: Collection[str]) -> int:
        used = {extent.segment for head in self._content.heads.values() for extent in head.extents}
        orphans = [name for name in self._content.segments if name not in used and name not in pinned]
        for name in orphans:
            self._path(name, SEGMENT_SUFFIX).unlink(missing_ok=True)
            del self._content.segments[name]
        return len(orphans)

    def _head_path(self, name: str) -> Path:
        return self._path(name, HEAD_SUFFIX)

    def _path(self, name: str, suffix: str) -> Path:
        return self.options.directory / f"{name}{suffix}"


def _removal_class(head: HeadFile, users: Sequence[HeadFile]) -> int:
    """Return the class of a head that others, its users, go on from; the lowest is removed first."""
    if head.shared and users:
        extended = {name for each in users for name in each.ancestors}
        if sum(each.name not in extended for each in users) >= 2:
            return 3
    elif users:
        return 1
    return 2 if head.used or users else 0


def _join(segments: Sequence[RowSegment]) -> RowSegment:
    """Return the rows of adjoining segments as one."""
    forms = segments[0].forms
    rows = {
        name: HostArray(
            dtype=segments[0].rows[name].dtype,
            values=np.concatenate([each.rows[name].values for each in segments], axis=form.axis),
        )
        for name, form in forms.items()
    }
    return RowSegment(start=segments[0].start, end=segments[-1].end, rows=rows, forms=forms)
