"""Packed training rows in memory, and the order in which training sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class RowSet:
    """Rows of one group, uint16 [R, T], and where they start in the joined array."""

    source: str
    stage: str
    split: str
    start: int
    count: int


@dataclass(frozen=True, kw_only=True)
class RowLibrary:
    """Every group's rows in one array."""

    rows: npt.NDArray[np.uint16]
    sets: tuple[RowSet, ...]

    def chosen(self, *, split: str, stages: tuple[str, ...]) -> tuple[RowSet, ...]:
        """The non-empty groups of a split and of some stages."""
        return tuple(s for s in self.sets if s.split == split and s.stage in stages and s.count)


def load_rows(folder: Path) -> RowLibrary:
    """Read what ``prepare`` wrote."""
    summary = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    names = sorted(summary["groups"])

    def read(name: str) -> npt.NDArray[np.uint16]:
        return np.fromfile(folder / f"{name}.rows", dtype="<u2").reshape(-1, summary["row_tokens"])

    arrays = [read(name) for name in names]
    sets, start = [], 0
    for name, array in zip(names, arrays, strict=True):
        source, stage, split = name.rsplit(".", 2)
        sets.append(RowSet(source=source, stage=stage, split=split, start=start, count=len(array)))
        start += len(array)
    return RowLibrary(rows=np.concatenate(arrays), sets=tuple(sets))


def _share(rows: RowSet, totals: dict[str, int], weights: dict[str, float]) -> float:
    if not weights:
        return float(rows.count)
    return weights.get(rows.source, 0.0) * rows.count / totals[rows.source]


class RowSampler:
    """Draws row numbers: a group by its share, then that group's rows in a fresh order each epoch.

    Every process of a run makes the same draws and takes its own slice, so the order depends on the seed and the
    step alone, not on the number of processes.
    """

    def __init__(self, sets: tuple[RowSet, ...], weights: dict[str, float], *, seed: int) -> None:
        """``weights`` gives each source's share of all draws, up to a factor; empty, shares follow the row counts.

        Raises:
            ValueError: no group has a weight above 0.
        """
        totals: dict[str, int] = {}
        for rows in sets:
            totals[rows.source] = totals.get(rows.source, 0) + rows.count
        share = np.array([_share(rows, totals, weights) for rows in sets], dtype=np.float64)
        if not share.sum() > 0:
            raise ValueError(f"none of the sources {', '.join(sorted(totals))} has a weight above 0")
        self._sets = sets
        self.shares = share / share.sum()
        self._seed = seed
        self._drawn = np.zeros(len(sets), dtype=np.int64)
        self._random = np.random.default_rng(seed)
        self._orders: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Return ``count`` row numbers of the joined array, int64."""
        groups = self._random.choice(len(self._sets), size=count, p=self.shares)
        picked = np.empty(count, dtype=np.int64)
        for place, group in enumerate(groups):
            picked[place] = self._next_row(int(group))
        return picked

    def skip(self, draws: int, count: int) -> None:
        """Move past ``draws`` earlier draws of ``count`` rows, as after a restart."""
        for _ in range(draws):
            groups = self._random.choice(len(self._sets), size=count, p=self.shares)
            self._drawn += np.bincount(groups, minlength=len(self._sets))

    def epochs(self) -> dict[str, float]:
        """How often each group has been read so far."""
        return {
            f"{s.source}.{s.stage}": round(float(n) / s.count, 3) for s, n in zip(self._sets, self._drawn, strict=True)
        }

    def _next_row(self, group: int) -> int:
        rows = self._sets[group]
        epoch, place = divmod(int(self._drawn[group]), rows.count)
        self._drawn[group] += 1
        held = self._orders.get(group)
        if held is None or held[0] != epoch:
            order = np.random.default_rng([self._seed, group, epoch]).permutation(rows.count)
            held = self._orders[group] = (epoch, order)
        return rows.start + int(held[1][place])
