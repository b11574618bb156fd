"""What passes and guesses take: properties of the machine and of what the pool holds, not of the text."""

from collections import deque
from dataclasses import dataclass
from statistics import median_high
from typing import Final

_SAMPLES: Final = 15
"""Plain passes that the middle is taken of."""

_NEAR: Final = 24
_NEAREST: Final = 8
"""Passes are compared with the plain ones among the latest 24, if there is one among the latest 8: a moment ago the
machine may have been faster or slower."""

_SUPPOSED_WEIGHT: Final = 8.0
"""As how many samples what was supposed counts next to those that were taken."""

_SETTLED: Final = 16.0
"""Samples from which on they are more than what was supposed."""

_SHARE_MEMORY: Final = 1 - 1 / 48
_PASS_MEMORY: Final = 1 - 1 / 1024
"""What a sample still counts after the next one, and after any pass: a price that was too high when it was learnt (an
empty pool, another request) would otherwise keep drafts from ever being tried again."""

_MEMORY: Final = 0.98
"""What the waiting of a pass still counts after the next one."""

_ROW_SHARE: Final = 0.35
"""Part of a plain pass that a draft is supposed to add to a pass."""

_GUESS_SHARE: Final = 0.2
"""The same for a guess."""

_CATCH_UP_SHARE: Final = 0.15
_CATCH_UP_ROW_SHARE: Final = 0.006
"""The same for what the head takes in before it guesses again, whatever it is, and for each row of that."""

_ROW_REACH: Final = 0.5
_GUESS_REACH: Final = 0.25
"""How far a sample may lie from what is believed, in plain passes: others are held up by something else. One that lies
further off on the same side as those before it may lie so much further for each of them."""


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """What one pass took, and the guesses before it.

    Attributes:
        depth: Drafts that it verified; 0 for a plain pass.
        time_s: The pass, from start to logits, and what giving up rejected rows took.
        wait_s: Part of it spent waiting for expert records.
        bytes_read: Bytes of expert records read in it.
        guesses_s: Each guess made before it, verified or not.
        caught_up_rows: Rows of plain passes that the head had to take in before.
        caught_up_s: How long that took: owed once for going back to drafts, not by every such pass.
        usual: Whether later passes of the depth are going to be like it; if not, its time is not learnt from.
    """

    depth: int
    time_s: float
    wait_s: float = 0.0
    bytes_read: int = 0
    guesses_s: tuple[float, ...] = ()
    caught_up_rows: int = 0
    caught_up_s: float = 0.0
    usual: bool = True

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.time_s + sum(self.guesses_s) + self.caught_up_s


class _Share:
    """A time in plain passes: the mean of what was supposed and of samples, of which the latest count most."""

    def __init__(self, supposed: float, reach: float) -> None:
        self._supposed, self._reach = supposed, reach
        self._sum = self._weight = 0.0
        self._latest = self._beyond = 0

    def note(self, now: int, sample: float) -> None:
        """Learn a sample, no further from what is believed than may be."""
        off = sample - self.value(now)
        reach = self._reach * (1 + abs(self._beyond) * (self._beyond * off > 0))
        bounded = max(0.0, sample - off + max(-reach, min(off, reach)))
        side = 0 if abs(off) <= self._reach else 1 if off > 0 else -1
        self._beyond = self._beyond + side if side * self._beyond >= 0 and side else side
        fading = _SHARE_MEMORY * self._faded(now)
        self._sum, self._weight = self._sum * fading + bounded, self._weight * fading + 1
        self._latest = now

    @property
    def weight(self) -> float:
        """As how many samples those count that were taken."""
        return self._weight

    def value(self, now: int) -> float:
        """What is believed after so many passes."""
        faded = self._faded(now)
        sums = self._supposed * _SUPPOSED_WEIGHT + self._sum * faded
        return sums / (_SUPPOSED_WEIGHT + self._weight * faded)

    def _faded(self, now: int) -> float:
        return _PASS_MEMORY ** (now - self._latest)


class DraftCosts:
    """Expected times of a plain pass, of the rows that drafts add to it, and of guesses.

    Rows and guesses are priced in plain passes a moment before, so that a machine that becomes slower makes nothing
    look dearer than it was, and slowly, since single passes are held up by other work. The first added row makes
    another kind of pass of it, and every further one adds about as much as the one before. What is read counts at the
    time a byte made wait.
    """

    def __init__(self) -> None:
        self._rows = (_Share(_ROW_SHARE, _ROW_REACH), _Share(_ROW_SHARE, _ROW_REACH))
        self._guesses = (_Share(_GUESS_SHARE, _GUESS_REACH), _Share(_GUESS_SHARE, _GUESS_REACH))
        self._catch_up = _Share(1.0, 1.0)  # of what is supposed
        self._plain: deque[tuple[int, float]] = deque(maxlen=_SAMPLES)
        self._computing_s = self._plain_s = 0.0
        self._rows_s, self._guesses_s = (0.0, 0.0), (0.0, 0.0)
        self._plain_bytes, self._row_bytes = 0.0, 0.0
        self._wait_s, self._waited_bytes = 0.0, 0.0
        self._passes = self._latest_plain = 0

    def pass_by(self, count: int) -> None:
        """Count plain passes that nobody timed."""
        self._passes += count
        self._latest_plain = self._passes

    def note(self, cost: PassCost) -> None:
        """Learn from one pass."""
        self._passes += 1
        if not cost.depth:
            self._latest_plain = self._passes
        if not cost.usual:
            return
        computing_s = max(0.0, cost.time_s - cost.wait_s)
        near = [seconds for place, seconds in self._plain if place >= self._passes - _NEAR]
        if near and self._plain[-1][0] >= self._passes - _NEAREST:
            self._learn_shares(cost, computing_s, median_high(near))
        self._learn_bytes(cost)
        if not cost.depth:
            self._plain.append((self._passes, computing_s))
            self._computing_s = median_high(seconds for _, seconds in self._plain)
        self._price()

    def _price(self) -> None:
        """What is asked for several times before the next pass."""
        byte_s = self._wait_s / self._waited_bytes if self._waited_bytes else 0.0
        reading_s, pace_s = max(0.0, self._row_bytes) * byte_s, self._computing_s
        first, further = (share.value(self._passes) * pace_s + reading_s for share in self._rows)
        self._rows_s = first, further
        first, further = (share.value(self._passes) * pace_s for share in self._guesses)
        self._guesses_s = first, further
        self._plain_s = pace_s + self._plain_bytes * byte_s

    def _learn_shares(self, cost: PassCost, computing_s: float, plain_s: float) -> None:
        """Learn the price of a row and of guesses, next to what a plain pass took."""
        now, depth = self._passes, cost.depth
        if depth == 1:
            self._rows[0].note(now, computing_s / plain_s - 1)
        elif depth:
            self._rows[1].note(now, (computing_s / plain_s - 1 - self._rows[0].value(now)) / (depth - 1))
        if cost.caught_up_rows:  # the head's weights are not at hand after a while without it
            self._catch_up.note(now, cost.caught_up_s / plain_s / _supposed_catch_up(cost.caught_up_rows))
        else:
            for place, seconds in enumerate(cost.guesses_s):
                self._guesses[place > 0].note(now, seconds / plain_s)

    def _learn_bytes(self, cost: PassCost) -> None:
        if cost.depth:
            of_a_row = (cost.bytes_read - self._plain_bytes) / cost.depth
            self._row_bytes += (of_a_row - self._row_bytes) / _SAMPLES
        else:
            self._plain_bytes += (cost.bytes_read - self._plain_bytes) / min(len(self._plain) + 1, _SAMPLES)
        self._wait_s = self._wait_s * _MEMORY + cost.wait_s
        self._waited_bytes = self._waited_bytes * _MEMORY + cost.bytes_read

    @property
    def since_plain(self) -> int:
        """How many passes were made since the latest plain one."""
        return self._passes - self._latest_plain

    @property
    def settled(self) -> bool:
        """Whether what passes with drafts take was seen more than now and then."""
        return sum(share.weight for share in self._rows) >= _SETTLED

    @property
    def plain_s(self) -> float:
        """Seconds of a plain pass; 0 while none is known."""
        return self._plain_s

    def row_s(self, place: int) -> float:
        """Seconds that the draft at this place adds to a pass."""
        return self._rows_s[place > 0]

    def guess_s(self, place: int) -> float:
        """Seconds of the guess at this place; the first takes in the rows of the pass before."""
        return self._guesses_s[place > 0]

    def catch_up_s(self, rows: int) -> float:
        """Seconds that the head needs to take in so many rows after a while without it."""
        return self._catch_up.value(self._passes) * _supposed_catch_up(rows) * self._computing_s

    def drafts_s(self, *, guesses: int, rows: int) -> float:
        """Seconds of so many guesses, and of so many added rows."""
        added_s = sum(self.guess_s(place) for place in range(guesses))
        return added_s + sum(self.row_s(place) for place in range(rows))


def _supposed_catch_up(rows: int) -> float:
    """What taking in so many rows is supposed to take, in plain passes."""
    return _CATCH_UP_SHARE + _CATCH_UP_ROW_SHARE * rows
