"""How often an expert is already in a slot, as a function of the share of experts that have one."""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotstream_planner.errors import ForecastError, GeometryError
from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.headers import read_json
from slotstream_planner.published import PUBLISHED_MODEL

__all__ = [
    "HitCurve",
    "RecordedProfile",
    "curve_for",
    "profile_path",
    "published_curve",
    "read_profile",
    "write_profile",
]

_PUBLISHED_POINTS: Final = (
    (0.05, 0.559),
    (0.08, 0.654),
    (0.12, 0.737),
    (0.16, 0.797),
    (0.20, 0.838),
    (0.25, 0.874),
    (0.30, 0.899),
    (0.36, 0.918),
    (0.45, 0.935),
    (0.55, 0.943),
    (0.64, 0.946),
    (0.75, 0.947),
    (0.90, 0.947),
    (1.00, 0.947),
)
_PUBLISHED_SOURCE: Final = "boyle 0.2.1 (Apache-2.0), data/curves.json, family qwen4_exp: per-layer LRU decode trace"
_PROFILE_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class HitCurve:
    """Hit rate of decode against the share of experts that have a slot.

    Attributes:
        points: (share, hit rate) pairs, both ascending; between them the curve is linear in the logarithm
            of the share.
        source: Where the points were measured.
        assumed: True when they were measured on another model.
    """

    points: tuple[tuple[float, float], ...]
    source: str
    assumed: bool = False

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        hits = [hit for _, hit in self.points]
        ordered = shares == sorted(set(shares)) and hits == sorted(hits)
        if (
            len(self.points) < 2
            or not ordered
            or not all(0 < s <= 1 for s in shares)
            or not all(0 <= h <= 1 for h in hits)
        ):
            raise ForecastError(
                f"a hit curve needs at least two ascending (share, hit rate) points between 0 and 1; {self.source} has "
                f"{list(self.points)}"
            )

    def hit_rate(self, share: float) -> float:
        """Return the hit rate of a pool that holds this share of the experts."""
        points = self.points
        if share >= points[-1][0]:
            return points[-1][1]
        last = next(index for index in range(1, len(points)) if share <= points[index][0])
        low, high = points[last - 1], points[last]
        slope = (high[1] - low[1]) / math.log(high[0] / low[0])
        return max(0.0, low[1] + slope * math.log(max(share, 1e-6) / low[0]))


@dataclass(frozen=True, kw_only=True)
class RecordedProfile:
    """What the engine measured of one model on this machine.

    Attributes:
        model: The model's name.
        curve: Hit rate against pool share.
        host_s_per_token: Time per token when nothing is read, without drafts; None when not measured.
        prompt_s_per_token: Compute time per token of a prompt pass; None when not measured.
        disk_bytes_per_s: Rate of expert reads in the engine; None when not measured.
        decode_tok_s: (share of the experts in slots, tokens per second) of the replies that were measured.
    """

    model: str
    curve: HitCurve
    host_s_per_token: float | None = None
    prompt_s_per_token: float | None = None
    disk_bytes_per_s: float | None = None
    decode_tok_s: tuple[tuple[float, float], ...] = ()


def published_curve(*, assumed: bool = False) -> HitCurve:
    """Return the published model's curve, marked when it stands in for another model's."""
    return HitCurve(points=_PUBLISHED_POINTS, source=_PUBLISHED_SOURCE, assumed=assumed)


def curve_for(geometry: ModelGeometry, profile: RecordedProfile | None) -> HitCurve:
    """Return the best curve there is: recorded here, published for this model, or assumed."""
    if profile is not None:
        return profile.curve
    is_published = geometry.built_in or geometry.name in (PUBLISHED_MODEL, "qwen38-flash-next-mlx-4bit")
    return published_curve(assumed=not is_published)


def profile_path(root: Path, model: str) -> Path:
    """Return where a model's profile lives under the directory of models and state."""
    return root / "profiles" / f"{model.replace(':', '-').replace('/', '-')}.json"


def read_profile(path: Path) -> RecordedProfile | None:
    """Return a recorded profile, or None when there is none.

    Raises:
        ForecastError: The file exists but is not a profile.
    """
    if not path.is_file():
        return None
    try:
        document = read_json(path)
    except GeometryError as error:
        raise ForecastError(f"{error}; delete the file to record it again") from error
    return _profile(document, path)


def _profile(document: dict[str, Any], path: Path) -> RecordedProfile:
    points = document.get("hit_curve")
    model = document.get("model")
    rates = [document.get(key) for key in ("host_s_per_token", "prompt_s_per_token", "disk_bytes_per_s")]
    speeds = document.get("decode_tok_s", [])  # files of earlier versions have none
    usable = (
        document.get("version") == _PROFILE_VERSION
        and isinstance(model, str)
        and _are_pairs(points)
        and _are_pairs(speeds)
        and all(rate is None or (_is_number(rate) and rate > 0) for rate in rates)
    )
    if not usable or not isinstance(points, list) or not isinstance(model, str):
        raise ForecastError(f"{path} is not a version {_PROFILE_VERSION} profile; delete the file to record it again")
    curve = HitCurve(points=tuple((float(s), float(h)) for s, h in points), source=f"recorded on this machine ({path})")
    return RecordedProfile(
        model=model,
        curve=curve,
        host_s_per_token=rates[0],
        prompt_s_per_token=rates[1],
        disk_bytes_per_s=rates[2],
        decode_tok_s=tuple((float(share), float(speed)) for share, speed in speeds),
    )


def _are_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(_is_number(number) for number in pair) for pair in value
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def write_profile(profile: RecordedProfile, path: Path) -> None:
    """Write a profile atomically, so that a reader sees the old one or the new one.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    document = {
        "version": _PROFILE_VERSION,
        "model": profile.model,
        "hit_curve": [list(point) for point in profile.curve.points],
        "host_s_per_token": profile.host_s_per_token,
        "prompt_s_per_token": profile.prompt_s_per_token,
        "disk_bytes_per_s": profile.disk_bytes_per_s,
        "decode_tok_s": [list(pair) for pair in profile.decode_tok_s],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(document, stream, indent=2)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink()
        raise
