"""Memory limits and pressure of Linux control groups, version 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CgroupLimit", "MemoryPressure", "read_cgroup_limits", "read_memory_pressure"]

_NO_LIMIT_BYTES: Final = 2**60
"""Version 1 writes a number near 2^63 where version 2 writes ``max``."""


@dataclass(frozen=True, kw_only=True)
class CgroupLimit:
    """One control group above this process that limits memory.

    Attributes:
        limit_bytes: The group's hard limit.
        used_bytes: What the group holds now, page cache included.
        reclaimable_bytes: Clean page cache the kernel gives back before it kills anything.
        active_cache_bytes: Page cache that is used often, which the kernel gives back last.
    """

    limit_bytes: int
    used_bytes: int
    reclaimable_bytes: int
    active_cache_bytes: int = 0

    @property
    def available_bytes(self) -> int:
        """What this group can still take."""
        return max(0, self.limit_bytes - self.used_bytes + self.reclaimable_bytes)

    @property
    def available_without_cache_bytes(self) -> int:
        """What this group could take if it kept no page cache at all."""
        cache_bytes = min(self.used_bytes, self.reclaimable_bytes + self.active_cache_bytes)
        return max(0, self.limit_bytes - self.used_bytes + cache_bytes)


@dataclass(frozen=True, kw_only=True)
class MemoryPressure:
    """Share of the last ten seconds in which tasks waited for memory, in percent.

    Attributes:
        some: At least one task waited.
        full: Every task waited.
    """

    some: float
    full: float


def read_cgroup_limits(
    *, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> list[CgroupLimit]:
    """Return every limited group from this process's own up to the root; empty when none limits it."""
    limits: list[CgroupLimit] = []
    for folder, names in _memory_folders(membership, root):
        limit_bytes = _read_count(folder / names[0])
        used_bytes = _read_count(folder / names[1])
        if limit_bytes is None or used_bytes is None or not 0 < limit_bytes < _NO_LIMIT_BYTES:
            continue
        fields = _read_fields(folder / "memory.stat")
        limits.append(
            CgroupLimit(
                limit_bytes=limit_bytes,
                used_bytes=used_bytes,
                reclaimable_bytes=min(fields.get(names[2], 0), used_bytes),
                active_cache_bytes=fields.get(names[3], 0),
            )
        )
    return limits


def read_memory_pressure(path: Path = Path("/proc/pressure/memory")) -> MemoryPressure | None:
    """Return the kernel's pressure reading, or None where the kernel keeps none."""
    try:
        text = path.read_text()
    except OSError:
        return None
    shares = {"some": 0.0, "full": 0.0}
    for line in text.splitlines():
        kind, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if name == "avg10" and kind in shares:
                try:
                    shares[kind] = float(value)
                except ValueError:
                    return None
    return MemoryPressure(some=shares["some"], full=shares["full"])


_V2_NAMES: Final = ("memory.max", "memory.current", "inactive_file", "active_file")
_V1_NAMES: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")


def _memory_folders(membership: Path, root: Path) -> list[tuple[Path, tuple[str, str, str, str]]]:
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders: list[tuple[Path, tuple[str, str, str, str]]] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            folders += [(folder, _V2_NAMES) for folder in _upwards(root, path)]
        elif "memory" in controllers.split(","):
            folders += [(folder, _V1_NAMES) for folder in _upwards(root / "memory", path)]
    return folders


def _upwards(root: Path, path: str) -> list[Path]:
    """Return the group's folder and its ancestors; inside a container the tail of the path may not exist."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _read_count(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_fields(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    fields: dict[str, int] = {}
    for line in lines:
        name, _, value = line.partition(" ")
        if value.isdigit():
            fields[name] = int(value)
    return fields
