"""What the expert pool did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertStats:
    """Totals since the pool was made; subtract an earlier snapshot with `since`.

    Attributes:
        requests: Requests that were granted.
        hits: Distinct experts found resident (or already being read), summed over requests.
        misses: Distinct experts that had to be read, summed over requests.
        evictions: Records dropped to make room.
        bytes_read: Bytes of expert records read from disk.
        failed_records: Records whose read failed.
        read_s: Time reader threads spent in reads and copies, summed over threads.
        wait_s: Time the computing thread stood still for records.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes_read: int = 0
    failed_records: int = 0
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
