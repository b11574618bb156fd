"""Pages of files that somebody has pinned for a device: Linux counts them as available, and nobody else can have them.

No counter tells them alone. `nr_foll_pin_acquired` less `nr_foll_pin_released` of /proc/vmstat (Linux 5.7 and later)
counts every pinned page of the machine, those of shared memory, as CUDA's own pinned buffers are, and of programs
included, which are not available anyway. A pinned page of a file is mapped as long as the process lives that pinned it;
so it is also one of the mapped pages that are not shared memory. The smaller amount is right where files are the larger
part of what is pinned, and else too large by mapped programs and libraries at most (an NVIDIA H200, docs/log.md,
2026-12-01). Where much shared memory is mapped by nobody it is too small.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["read_pinned_page_bytes"]


def read_pinned_page_bytes(*, vmstat: Path = Path("/proc/vmstat"), meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how many bytes of files are pinned on this machine, this process's included; 0 where that is not told."""
    counters, memory = _read(vmstat), _read(meminfo)
    try:
        pages = counters["nr_foll_pin_acquired"] - counters["nr_foll_pin_released"]
        mapped_bytes = (memory["Mapped"] - memory["Shmem"]) * 1024
    except KeyError:
        return 0
    return max(0, min(pages * os.sysconf("SC_PAGE_SIZE"), mapped_bytes))


def _read(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number a line."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = (line.replace(":", " ").split() for line in lines)
    return {found[0]: int(found[1]) for found in words if len(found) > 1 and found[1].isdigit()}
