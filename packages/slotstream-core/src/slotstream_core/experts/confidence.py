"""How far the ranks of a forecast are to be believed, learned from what routers then chose."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.intp]

INSIDE: Final = 0.75
"""Share that a rank among those the router chooses is believed to be right before anything was learned."""

OUTSIDE: Final = 0.25
"""The same of the ranks after them."""

RATE: Final = 1 / 32
"""Weight of one forecast in the moving averages."""


class RankConfidence:
    """For one kind of forecast: how often the expert at each rank is chosen, as a moving average.

    Args:
        ranks: How many ranks are looked at.
        top: Experts the router chooses for a row; the first `top` ranks begin at `INSIDE`, others at `OUTSIDE`.
    """

    def __init__(self, *, ranks: int, top: int) -> None:
        self._shares = np.where(np.arange(ranks) < top, INSIDE, OUTSIDE)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """How often the expert at each rank was chosen, [ranks]; a copy."""
        return self._shares.copy()

    def learn(self, ranked: Ids, chosen: npt.NDArray[np.integer]) -> None:
        """Compare a forecast with what became of it.

        Args:
            ranked: Experts a row, likeliest first, [rows, ranks].
            chosen: What the router chose for all rows together, in any shape.
        """
        right = set(chosen.reshape(-1).tolist())
        found = [[expert in right for expert in row] for row in ranked.tolist()]  # np.isin takes five times as long
        self._shares += RATE * (np.array(found, np.float64).mean(axis=0) - self._shares)

    def believed(self, ranked: Ids, *, least: float) -> list[int]:
        """Return the distinct experts at ranks that are right at least so often, best ranks first.

        Args:
            ranked: Experts a row, likeliest first, [rows, ranks].
            least: Share from 0 to 1.
        """
        return list(dict.fromkeys(ranked[:, self._shares >= least].T.ravel().tolist()))


def rank_experts(logits: npt.NDArray[np.float32], count: int) -> Ids:
    """Return the `count` experts with the largest logits of every row, largest first, [rows, count]."""
    ranked: list[Ids] = []
    for row in logits:
        best = row.argpartition(len(row) - count)[len(row) - count :] if count < len(row) else np.arange(len(row))
        ranked.append(best[row[best].argsort()[::-1]])
    return np.array(ranked)
