"""What the expert pool did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple


class Waited(NamedTuple):
    """The two totals that decoding looks at between passes, cheaper than a whole `ExpertStats`.

    Attributes:
        wait_s: Time the computing thread stood still for records.
        bytes_read: Bytes of expert records read from disk.
    """

    wait_s: float = 0.0
    bytes_read: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertStats:
    """Totals since the pool was made; subtract an earlier snapshot with `since`.

    Attributes:
        requests: Requests that were granted.
        hits: Distinct experts found resident (or already being read), summed over requests.
        misses: Distinct experts that had to be read, summed over requests.
        evictions: Records dropped to make room.
        bytes_read: Bytes of expert records read from disk, those read ahead included.
        failed_records: Records whose read failed.
        read_s: Time reader threads spent in reads and copies, summed over threads.
        wait_s: Time the computing thread stood still for records.
        ahead_records: Records whose read ahead was issued, because a forecast named them.
        ahead_used: Of those, records that were complete when a request asked for them. They count as hits.
        ahead_joined: Records that were on their way when asked for, and then waited for. They count as hits.
        ahead_retracted: Records asked for before any lane had begun; read as ordinary misses.
        ahead_wasted: Records nobody asked for.
        ahead_bytes: Bytes read ahead.
        wasted_bytes: Of those, bytes of records nobody asked for.
        sweeps: Layers of prompt passes that went expert by expert; their experts count as hits and misses too.
        swept_records: Records such passes read, in time or ahead.
        swept_in_vain: Those of them that were read ahead and then not needed.
        admitted: Records of a prompt's last pass that moved into the pool.
        warmed: Records that a warm start brought before the first request.
        warm_used: Those of them that were asked for while they were there.
        warm_bytes: Bytes a warm start read; not part of `bytes_read`, which requests caused.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_read: int = 0
    failed_records: int = 0
    ahead_records: int = 0
    ahead_used: int = 0
    ahead_joined: int = 0
    ahead_retracted: int = 0
    ahead_wasted: int = 0
    ahead_bytes: int = 0
    wasted_bytes: int = 0
    sweeps: int = 0
    swept_records: int = 0
    swept_in_vain: int = 0
    admitted: int = 0
    warmed: int = 0
    warm_used: int = 0
    warm_bytes: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Hits over all lookups; 0 when there were none."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else 0.0

    def since(self, earlier: ExpertStats) -> ExpertStats:
        """Return what happened after an earlier snapshot of the same pool."""
        return ExpertStats(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def plus(self, other: ExpertStats) -> ExpertStats:
        """Return the sums of both."""
        return ExpertStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})
