"""How fast a plan will run on a machine, with a range and the resource that limits it.

Time of one decode pass:

    pass = host * verify + disk - overlap
    disk = misses * union * waste * record / (efficiency * rate) + stall * layers that miss
    misses = layers * experts per token * (1 - hit rate at this pool share)

A pass yields one token, or with two drafts at 70% acceptance 1 + 0.7 + 0.49 of them; it then verifies three
rows, which cost half a token more than one and touch the union of their experts (consecutive tokens share
27%). The lookahead reads a quarter more bytes and hides at most half of the shorter of disk and host.

The constants were fitted to one machine (see `slotstream_planner.hosts`); `slotstream_planner.evidence`
holds the community results that test them. They describe the systems that were measured: an engine that
overlaps less or computes slower than those will be slower than forecast until it has recorded a profile.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.hitcurves import HitCurve
from slotstream_planner.hosts import HostSpeed

__all__ = ["DecodeSetting", "DiskSpeed", "Forecast", "forecast_decode", "forecast_prefill", "rate_of_waits"]

LimitingResource = Literal["disk", "host", "compute"]

_DISK_EFFICIENCY: Final = 0.90
"""Share of the probed rate that demand reads reach; the 13 reports with a known disk fit 0.7 to 1.1."""

_ACCEPTED_TOKENS: Final = 1 + 0.7 + 0.7**2
_VERIFY_FACTOR: Final = 1.5
_UNION_FACTOR: Final = 1 + 2 * (1 - 0.27)
_LOOKAHEAD_WASTE: Final = 1.25
_OVERLAP_SHARE: Final = 0.5
_RANGE: Final = (0.70, 1.30)
_ASSUMED_RANGE: Final = (0.40, 2.00)
_SHARED_SCOPE_TOKENS: Final = {256: 8192, 512: 4096, 1024: 4096}


@dataclass(frozen=True, kw_only=True)
class DiskSpeed:
    """How fast parallel reads of one record are.

    Attributes:
        bytes_per_s: The rate.
        label: Where it comes from.
    """

    bytes_per_s: float
    label: str


@dataclass(frozen=True, kw_only=True)
class DecodeSetting:
    """The part of a plan that decides its speed.

    Attributes:
        pool_share: Share of the experts that have a slot.
        drafts: Whether the draft head runs.
        lookahead: Whether likely experts are read ahead.
    """

    pool_share: float
    drafts: bool
    lookahead: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A predicted speed in tokens per second.

    Attributes:
        tok_s: The central figure.
        low_tok_s: The lower end of the range.
        high_tok_s: The upper end of the range.
        limiting: The resource with the largest share of the time.
        disk_s: Waiting for reads, per token.
        host_s: Graph building, submission and readbacks, per token.
        compute_s: Matrix products, per token.
        read_bytes: Bytes read per token.
        hit_rate: Share of expert uses found in a slot.
        basis: What the figure rests on, in words.
    """

    tok_s: float
    low_tok_s: float
    high_tok_s: float
    limiting: LimitingResource
    disk_s: float
    host_s: float
    compute_s: float
    read_bytes: float
    hit_rate: float
    basis: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return every field, ready for ``json.dumps``."""
        return {**asdict(self), "basis": list(self.basis)}


def forecast_decode(
    geometry: ModelGeometry, setting: DecodeSetting, *, disk: DiskSpeed, host: HostSpeed, curve: HitCurve
) -> Forecast:
    """Predict warm decode speed.

    Args:
        geometry: The model.
        setting: Pool share, drafts and lookahead.
        disk: Rate of cold parallel reads of one record.
        host: Time of a token that reads nothing.
        curve: Hit rate against pool share.
    """
    hit = 1.0 if setting.pool_share >= 1 else curve.hit_rate(setting.pool_share)
    tokens, verify, union = (_ACCEPTED_TOKENS, _VERIFY_FACTOR, _UNION_FACTOR) if setting.drafts else (1.0, 1.0, 1.0)
    waste = _LOOKAHEAD_WASTE if setting.lookahead else 1.0
    misses = geometry.layers * geometry.experts_per_token * (1 - hit) * union
    read_bytes = misses * waste * geometry.record_bytes
    stalled_layers = geometry.layers * min(1.0, misses / geometry.layers)
    disk_s = read_bytes / (_DISK_EFFICIENCY * disk.bytes_per_s) + host.stall_s * stalled_layers
    compute_s, sync_s = host.compute_s * verify, host.sync_s * verify
    if setting.lookahead:
        disk_s -= _OVERLAP_SHARE * min(disk_s, compute_s + sync_s)
    parts: dict[LimitingResource, float] = {"disk": disk_s, "host": sync_s, "compute": compute_s}
    rate = tokens / sum(parts.values())
    low, high = _ASSUMED_RANGE if host.evidence == "assumed" or curve.assumed else _RANGE
    return Forecast(
        tok_s=rate,
        low_tok_s=rate * low,
        high_tok_s=rate * high,
        limiting=max(parts, key=lambda name: parts[name]),
        disk_s=disk_s / tokens,
        host_s=sync_s / tokens,
        compute_s=compute_s / tokens,
        read_bytes=read_bytes / tokens,
        hit_rate=hit,
        basis=_basis(disk, host, curve),
    )


def rate_of_waits(geometry: ModelGeometry, *, read_bytes: float, wait_s: float, stall_s: float) -> float | None:
    """Return the disk rate that makes the forecast's wait equal a measured one; None when the wait is too short.

    Args:
        geometry: The model.
        read_bytes: Bytes read per token.
        wait_s: Seconds waited for them per token.
        stall_s: Fixed cost of a layer that waits; see `slotstream_planner.hosts.stall_s_per_layer`.
    """
    misses = read_bytes / geometry.record_bytes
    moving_s = wait_s - stall_s * min(geometry.layers, misses)
    return read_bytes / (_DISK_EFFICIENCY * moving_s) if moving_s > 0 and read_bytes > 0 else None


def forecast_prefill(
    geometry: ModelGeometry, *, pool_share: float, pass_tokens: int, disk: DiskSpeed, host: HostSpeed, curve: HitCurve
) -> Forecast:
    """Predict how fast a long prompt is read.

    Every pass sweeps the experts its tokens touch; passes of 256 to 1,024 tokens share sweeps.
    """
    scope = _SHARED_SCOPE_TOKENS.get(pass_tokens, pass_tokens)
    touched = 1 - math.exp(-geometry.experts_per_token * scope / geometry.experts)
    read_bytes = geometry.expert_set_bytes * touched * (1 - min(1.0, pool_share)) / scope
    parts: dict[LimitingResource, float] = {
        "disk": read_bytes / (_DISK_EFFICIENCY * disk.bytes_per_s),
        "host": host.sync_s / pass_tokens,
        "compute": host.prompt_s,
    }
    rate = 1 / sum(parts.values())
    low, high = _ASSUMED_RANGE if host.evidence == "assumed" or curve.assumed else _RANGE
    return Forecast(
        tok_s=rate,
        low_tok_s=rate * low,
        high_tok_s=rate * high,
        limiting=max(parts, key=lambda name: parts[name]),
        disk_s=parts["disk"],
        host_s=parts["host"],
        compute_s=parts["compute"],
        read_bytes=read_bytes,
        hit_rate=min(1.0, pool_share),
        basis=_basis(disk, host, curve),
    )


def _basis(disk: DiskSpeed, host: HostSpeed, curve: HitCurve) -> tuple[str, ...]:
    borrowed = " (another model's curve is assumed)" if curve.assumed else ""
    return (f"disk: {disk.label}", f"host: {host.label}", f"hit rate: {curve.source}{borrowed}")
