"""How far the ranks of a forecast are to be believed, learned from what routers then chose."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

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

    Attributes:
        ranks: As given.
        memory: Where the shares are, [ranks]; compiled code moves them there as `learn` does.
    """

    def __init__(self, *, ranks: int, top: int) -> None:
        self.ranks = ranks
        self.memory = np.where(np.arange(ranks) < top, INSIDE, OUTSIDE)

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """How often the expert at each rank was chosen, [ranks]; a copy."""
        return self.memory.copy()

    def learn(self, ranked: Ids, chosen: npt.NDArray[np.integer]) -> None:
        """Compare a forecast with what became of it.

        Args:
            ranked: Experts a row, likeliest first, [rows, ranks].
            chosen: What the router chose for all rows together, in any shape.
        """
        right = set(chosen.reshape(-1).tolist())
        found = [[expert in right for expert in row] for row in ranked.tolist()]  # np.isin takes five times as long
        self.memory += RATE * (np.array(found, np.float64).mean(axis=0) - self.memory)

    def believed(self, ranked: Ids, *, least: float) -> list[int]:
        """Return the distinct experts at ranks that are right at least so often, best ranks first.

        Args:
            ranked: Experts a row, likeliest first, [rows, ranks].
            least: Share from 0 to 1.
        """
        return list(dict.fromkeys(ranked[:, self.memory >= least].T.ravel().tolist()))


def rank_experts(logits: Logits, count: int) -> Ids:
    """Return the `count` experts with the largest logits of every row, largest first, [rows, count].

    Of equal ones the lower id comes first; what is no number comes after every number.
    """
    return np.argsort(-logits, axis=1, kind="stable")[:, :count].astype(np.int32)
