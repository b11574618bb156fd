"""Guessing that a text repeats itself: what followed its latest tokens before follows them once more."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_ALIKE: Final = 3
"""Latest tokens that must have stood next to each other before."""

_REACH: Final = 4096
"""Tokens of what was read before a reply that are searched, at most."""

_PLACED: Final = 192
_COMPARED: Final = 64
"""Of the older tokens, and of the latest, that are taken in beside one of the reply: 1% of a short pass."""

_MEMORY: Final = 0.95
"""What one comparison still counts after the next one."""

_SUPPOSED_RIGHT: Final = 0.5
_SUPPOSED_OF: Final = 2.0
"""What counts as having been compared before anything was: a quarter of two is too little to act on."""


class Repetition:
    """What a sequence says of its own next tokens.

    Looking takes no pass and no draft head, and every token is compared with what would have been said of it. So it is
    known how far to trust this before anything is staked on it. One reply.

    Args:
        ids: What was read before the reply.
    """

    def __init__(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        self._ids: list[int] = np.asarray(ids[-_REACH:], np.int64).tolist()
        self._after: dict[tuple[int, ...], int] = {}
        self._taken = _ALIKE
        self._right, self._of = _SUPPOSED_RIGHT, _SUPPOSED_OF

    def add(self, token: int) -> None:
        """A token of the reply."""
        self._ids.append(token)
        self._take_in()

    def guesses(self, most: int) -> list[int]:
        """The next ``most`` tokens; none where the latest ones are new. What came last goes on in itself.

        Of what was read before a reply a part is taken in with each of its first tokens, the oldest first.
        """
        if len(self._ids) - self._taken <= _COMPARED:
            self._take_in()
        if self._taken != len(self._ids):
            return []
        start = self._after.get(tuple(self._ids[-_ALIKE:]))
        if start is None:
            return []
        period = len(self._ids) - start
        return [self._ids[start + place % period] for place in range(most)]

    @property
    def chance(self) -> float:
        """How often the first of `guesses` was right lately."""
        return self._right / self._of

    def _take_in(self) -> None:
        """Take in what is new, as much as costs little: where older tokens stood, and what was said of the latest."""
        ids, first = self._ids, self._taken
        if first < len(ids) - _COMPARED:
            self._taken = min(len(ids) - _COMPARED, first + _PLACED)
            keys = zip(*(ids[first - back : self._taken] for back in range(_ALIKE, 0, -1)), strict=False)
            self._after.update(zip(keys, range(first, self._taken), strict=False))
            return
        for place in range(first, len(ids)):
            key = tuple(ids[place - _ALIKE : place])
            start = self._after.get(key)
            if start is not None:
                right = ids[start] == ids[place]
                self._right, self._of = self._right * _MEMORY + right, self._of * _MEMORY + 1
            self._after[key] = place
        self._taken = max(first, len(ids))
