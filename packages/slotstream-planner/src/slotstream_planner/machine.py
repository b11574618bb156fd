"""What a machine has: memory, the share of it that may be used, and cores."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from typing import Final, Literal

from slotstream_planner.cgroups import read_cgroup_limits
from slotstream_planner.errors import InvalidRequest, MachineError
from slotstream_planner.pinned_pages import read_pinned_page_bytes
from slotstream_planner.sensors import read_mac_available_bytes
from slotstream_planner.units import GB, gb_to_bytes

__all__ = ["UNLIMITED_BYTES", "Machine", "MachineKind"]

MachineKind = Literal["macos", "linux", "cuda", "other"]

UNLIMITED_BYTES: Final = 2**62
"""Available memory of a machine on which nothing else runs."""

_SLACK_BYTES: Final = 1_500_000_000
_WORKING_SET_MARGIN_BYTES: Final = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Readings of one machine at one moment, all decimal bytes.

    Attributes:
        kind: Whose rules apply: ``macos``, ``linux`` (CPU), ``cuda`` or ``other``.
        ram_bytes: Memory that exists for this process: RAM, a container's limit when that is lower, or
            the accelerator's own memory.
        available_bytes: What could be taken now without paging; None when it cannot be read.
        working_set_bytes: The most the accelerator wants to keep resident; None when unread or absent.
        cores: Logical CPU cores.
        host_available_bytes: What could be taken of the host's memory beside an accelerator's own; None where both are
            one, and where it cannot be read.
        host_pinned_bytes: Pages among these that somebody pinned, who alone may use them; 0 where that is not known.
        is_simulated: True for an invented machine. Its plans can be shown, never loaded.
    """

    kind: MachineKind
    ram_bytes: int
    available_bytes: int | None
    working_set_bytes: int | None
    cores: int
    host_available_bytes: int | None = None
    host_pinned_bytes: int = 0
    is_simulated: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ram_bytes < 2**62:
            raise MachineError(f"this machine reports {self.ram_bytes} bytes of RAM, which cannot be right")
        if self.available_bytes is not None and self.available_bytes < 0:
            raise MachineError(f"available memory reads as {self.available_bytes} bytes, which cannot be right")
        if self.working_set_bytes is not None and self.working_set_bytes <= 0:
            raise MachineError(f"the working-set limit reads as {self.working_set_bytes} bytes, which cannot be right")

    @property
    def slack_bytes(self) -> int:
        """Headroom never planned for: 1.5 GB or 5% of RAM, and at most a quarter of a small machine."""
        return max(min(_SLACK_BYTES, self.ram_bytes // 4), self.ram_bytes // 20)

    @property
    def working_set_limit_bytes(self) -> int:
        """The working-set limit that applies: the reading, 75% of RAM on an unread Mac, RAM elsewhere."""
        if self.working_set_bytes is not None:
            return min(self.working_set_bytes, self.ram_bytes)
        return self.ram_bytes * 3 // 4 if self.kind == "macos" else self.ram_bytes

    @property
    def working_set_margin_bytes(self) -> int:
        """What a target keeps below the working-set limit; nothing where no accelerator imposes one."""
        has_limit = self.working_set_bytes is not None or self.kind == "macos"
        return _WORKING_SET_MARGIN_BYTES if has_limit else 0

    @property
    def usable_bytes(self) -> int:
        """The most any plan may peak at now: RAM, the working set, and availability less the slack.

        Raises:
            MachineError: Available memory could not be read.
        """
        if self.available_bytes is None:
            raise MachineError(
                "available memory could not be read on this machine, so no plan can be checked against it"
            )
        return max(0, min(self.ram_bytes, self.working_set_limit_bytes, self.available_bytes - self.slack_bytes))

    @property
    def largest_limit_bytes(self) -> int:
        """The largest process ceiling this hardware supports, whatever is running now."""
        working_set = self.working_set_limit_bytes - self.working_set_margin_bytes
        return max(0, min(working_set, self.ram_bytes - self.slack_bytes))

    @classmethod
    def current(
        cls,
        *,
        working_set_bytes: int | None = None,
        accelerator_bytes: int | None = None,
        accelerator_available_bytes: int | None = None,
    ) -> Machine:
        """Read this machine.

        Args:
            working_set_bytes: The Metal working-set limit, when the caller knows it.
            accelerator_bytes: Total memory of a CUDA device; the plan is then for that device.
            accelerator_available_bytes: Free memory of that device.

        Raises:
            MachineError: The memory sensors cannot be read.
        """
        cores = os.cpu_count() or 1
        if accelerator_bytes is not None:
            return cls(
                kind="cuda",
                ram_bytes=accelerator_bytes,
                available_bytes=accelerator_available_bytes,
                working_set_bytes=accelerator_bytes,
                cores=cores,
                host_available_bytes=_host_available_bytes(),
                host_pinned_bytes=read_pinned_page_bytes(),
            )
        import psutil  # a tenth of a second, and simulated machines do not need it

        try:
            memory = psutil.virtual_memory()
        except (OSError, RuntimeError, psutil.Error) as error:
            raise MachineError(f"the memory sensors of this machine cannot be read: {error}") from error
        kind: MachineKind = "macos" if sys.platform == "darwin" else "linux" if sys.platform == "linux" else "other"
        ram_bytes, available_bytes = int(memory.total), int(memory.available)
        if kind == "macos":
            available_bytes = read_mac_available_bytes()
        if kind == "linux":
            for limit in read_cgroup_limits():
                ram_bytes = min(ram_bytes, limit.limit_bytes)
                available_bytes = min(available_bytes, limit.available_bytes)
        return cls(
            kind=kind,
            ram_bytes=ram_bytes,
            available_bytes=available_bytes,
            working_set_bytes=working_set_bytes,
            cores=cores,
        )

    @classmethod
    def simulated(
        cls,
        *,
        ram_gb: float,
        working_set_gb: float | None = None,
        available_gb: float | None = None,
        cores: int = 8,
    ) -> Machine:
        """Invent a machine for planning only.

        Args:
            ram_gb: Its RAM in decimal GB.
            working_set_gb: Its working-set limit; 75% of RAM unless given.
            available_gb: Its available memory; unlimited unless given.
            cores: Its logical cores.

        Raises:
            InvalidRequest: A size is not a positive number, or the working set exceeds RAM.
        """
        ram_bytes = gb_to_bytes(ram_gb, what="the simulated RAM")
        if working_set_gb is None:
            working_set_bytes = ram_bytes * 3 // 4
        else:
            working_set_bytes = gb_to_bytes(working_set_gb, what="the simulated working set")
        if working_set_bytes > ram_bytes:
            raise InvalidRequest(
                f"a simulated working set of {working_set_gb:g} GB exceeds {ram_gb:g} GB of RAM; "
                f"give at most {ram_gb:g}"
            )
        if available_gb is None:
            available_bytes = UNLIMITED_BYTES
        elif math.isfinite(available_gb) and 0 <= available_gb <= ram_gb:
            available_bytes = round(available_gb * GB)
        else:
            raise InvalidRequest(
                f"simulated available memory is {available_gb:g} GB; give a number from 0 to the {ram_gb:g} GB of RAM"
            )
        return cls(
            kind="macos",
            ram_bytes=ram_bytes,
            available_bytes=available_bytes,
            working_set_bytes=working_set_bytes,
            cores=cores,
            is_simulated=True,
        )

    def idle(self) -> Machine:
        """Return the same machine with nothing else running: its tier."""
        return replace(self, available_bytes=UNLIMITED_BYTES)


def _host_available_bytes() -> int | None:
    """Return what a process could take of the host's memory now; None where that cannot be read.

    Control groups count the whole page cache here, as the machine does: pages of files are in active use once they
    were pinned, and come back all the same.
    """
    import psutil

    try:
        available_bytes = int(psutil.virtual_memory().available)
    except (OSError, RuntimeError, psutil.Error):
        return None
    return min([available_bytes, *(limit.available_without_cache_bytes for limit in read_cgroup_limits())])
