"""How many tokens to draft before the next pass.

Drafting d tokens makes a pass of d + 1 rows and yields 1 + a1 + a1 a2 + ... tokens, where a_i is the share of i-th
drafts accepted once those before them were. A pass of more rows takes longer, on the processor and, when experts
stream, for the union of the experts its rows ask for. Which depth yields most tokens a second depends on the text, the
machine and what the pool holds, so `AdaptiveDepth` measures both sides while it runs.
"""

import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

DEFAULT_DEPTH: Final = 2
ADAPTIVE_LIMIT: Final = 4
"""Deepest that `AdaptiveDepth` goes unless asked for more."""

DEPTH_LIMIT: Final = 16

_SAMPLES: Final = 15
"""Passes of a depth that its median time is taken of."""

_MEMORY: Final = 0.98
"""What an accepted or refused draft still counts after the next one at its place."""

_FIRST_SAMPLES: Final = 3
"""Passes of a depth before its time is believed."""

_FIRST_PLAIN: Final = 24
"""Plain passes before the first draft: an engine's first passes find its pool empty, and say little about others."""

_LOOK_SHARE: Final = 0.0075
"""Share of the time of decoding that looks may lose, with what they make the head take in."""

_LOOK_EVERY: Final = 12
_LOOK_AT_LEAST_EVERY: Final = 192
"""Passes between two looks at another depth: the first look, and what doubling stops at while nothing changes."""

_FIRST_LOOK: Final = 3
"""Plain passes of a reply before the first look: while few rows wait for the head, it is cheap."""

_ROW_SHARE: Final = 0.02
"""Part of a plain pass that the head needs to take in a row, until that was measured."""

_PLAIN_PASSES_A_LOOK: Final = 8
"""While nothing is drafted, the depths are compared after every so many passes: that takes time too."""

_SWITCH_GAIN: Final = 1.03
"""A depth must be this much faster than the present one to take its place."""

_PRIOR_ACCEPTANCE: Final = 0.6
_PRIOR_TRIALS: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """What one pass took.

    Attributes:
        depth: Drafts that it verified; 0 for a plain pass.
        time_s: Drafting and verifying, from start to logits, without `caught_up_s`.
        wait_s: Part of it spent waiting for expert records.
        bytes_read: Bytes of expert records read in it, the draft head's included.
        caught_up_rows: Rows of plain passes that the head had to take in before.
        caught_up_s: How long that took: owed once for going back to drafts, not by every such pass.
        usual: Whether later passes of the depth are going to be like it; if not, its time is not learnt from.
    """

    depth: int
    time_s: float
    wait_s: float = 0.0
    bytes_read: int = 0
    caught_up_rows: int = 0
    caught_up_s: float = 0.0
    usual: bool = True


class DepthPolicy(Protocol):
    """Chooses the depth of every pass.  One reply at a time."""

    def begin(self) -> None:
        """A reply begins."""

    def choose(self, most: int, *, waiting: int = 0) -> int:
        """Return the number of tokens to draft, 0 to ``most``.

        Args:
            most: Tokens that may follow the next one.
            waiting: Rows that the draft head has to take in before it drafts.
        """

    def note(self, cost: PassCost, accepted: int) -> None:
        """Learn what the pass cost and how many of its drafts, from the first on, were accepted."""


class FixedDepth:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def begin(self) -> None:
        """See `DepthPolicy.begin`."""

    def choose(self, most: int, *, waiting: int = 0) -> int:
        """See `DepthPolicy.choose`."""
        return min(self._depth, most)

    def note(self, cost: PassCost, accepted: int) -> None:
        """See `DepthPolicy.note`."""


class Acceptance:
    """Shares of drafts accepted, by place; recent drafts count most."""

    def __init__(self, limit: int) -> None:
        self._accepted = [_PRIOR_ACCEPTANCE * _PRIOR_TRIALS] * limit
        self._trials = [_PRIOR_TRIALS] * limit

    def note(self, depth: int, accepted: int) -> None:
        """Learn that of ``depth`` drafts the first ``accepted`` were."""
        for place in range(min(accepted + 1, depth)):
            self._accepted[place] = self._accepted[place] * _MEMORY + (place < accepted)
            self._trials[place] = self._trials[place] * _MEMORY + 1

    def soften(self) -> None:
        """Believe what is known a little less: another text begins."""
        for place, trials in enumerate(self._trials):
            if trials > _PRIOR_TRIALS:
                self._accepted[place] *= _PRIOR_TRIALS / trials
                self._trials[place] = _PRIOR_TRIALS

    def tokens(self, depth: int) -> float:
        """Tokens that a pass of this depth is expected to yield."""
        expected, all_before = 1.0, 1.0
        for place in range(depth):
            all_before *= self._accepted[place] / self._trials[place]
            expected += all_before
        return expected


class PassTimes:
    """Expected time of a pass by depth: the median of its computing, and its bytes at the time a byte makes wait."""

    def __init__(self, limit: int) -> None:
        self._computing: list[deque[float]] = [deque(maxlen=_SAMPLES) for _ in range(limit + 1)]
        self._bytes: list[float] = [0.0] * (limit + 1)
        self._wait_s = 0.0
        self._waited_bytes = 0.0

    def note(self, cost: PassCost) -> None:
        """Learn from one pass."""
        known = len(self._computing[cost.depth])
        self._computing[cost.depth].append(max(0.0, cost.time_s - cost.wait_s))
        weight = 1 / min(known + 1, _SAMPLES)
        self._bytes[cost.depth] += weight * (cost.bytes_read - self._bytes[cost.depth])
        self._wait_s = self._wait_s * _MEMORY + cost.wait_s
        self._waited_bytes = self._waited_bytes * _MEMORY + cost.bytes_read

    def samples(self, depth: int) -> int:
        """How many passes of a depth are remembered."""
        return len(self._computing[depth])

    def expected_s(self, depth: int) -> float | None:
        """Seconds of a pass of this depth, measured or from its neighbours on a straight line; None when unknown."""
        if self._computing[depth]:
            return self._measured_s(depth)
        known = [other for other, samples in enumerate(self._computing) if samples]
        below = [other for other in known if other < depth]
        above = [other for other in known if other > depth]
        if below and above:
            low, high = below[-1], above[0]
        elif len(below) >= 2:
            low, high = below[-2], below[-1]
        else:
            return None
        start, end = self._measured_s(low), self._measured_s(high)
        return start + max(0.0, end - start) * (depth - low) / (high - low)

    def _measured_s(self, depth: int) -> float:
        per_byte = self._wait_s / self._waited_bytes if self._waited_bytes else 0.0
        return statistics.median(self._computing[depth]) + self._bytes[depth] * per_byte


class LookBudget:
    """What looks at other depths may cost: a share of the time of decoding, carried over from reply to reply.

    The one look that oversteps it is the last one until the share has grown past what was spent.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._elapsed_s = 0.0
        self._lost_s = 0.0

    def pass_time(self, seconds: float) -> None:
        """Note that decoding went on for so long."""
        self._elapsed_s += seconds

    def lose(self, seconds: float) -> None:
        """Charge what a look cost next to the tokens it brought; one that won gives back what others lost."""
        self._lost_s = max(0.0, self._lost_s + seconds)

    def affords(self, seconds: float) -> bool:
        """Whether a look that is expected to cost so much may be made."""
        return self._lost_s + seconds <= self._share * self._elapsed_s


class AdaptiveDepth:
    """Chooses the depth that yields most tokens a second by what was measured, 0 when drafting does not pay.

    Now and then another depth is tried. What such looks lose against the best depth, and what the head must take in
    for them, stays below a hundredth of the time of decoding, and they become rarer while they change nothing.

    Attributes:
        limit: Deepest that it goes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._acceptance = Acceptance(limit)
        self._times = PassTimes(limit)
        self._best = 0
        self._budget = LookBudget(_LOOK_SHARE)
        self._row_s: float | None = None
        self._since_look = 0
        self._interval = _LOOK_EVERY
        self._look_up = True
        self._look_plain = False
        self._first_plain = _FIRST_PLAIN
        self._trial: int | None = None

    def begin(self) -> None:
        """See `DepthPolicy.begin`."""
        self._acceptance.soften()
        self._settle()
        self._interval = _LOOK_EVERY if self._best else _FIRST_LOOK
        self._since_look = 0

    def choose(self, most: int, *, waiting: int = 0) -> int:
        """See `DepthPolicy.choose`."""
        self._trial = None
        first = min(DEFAULT_DEPTH, self.limit)
        if self._first_plain:
            return 0
        if self._times.samples(first) < _FIRST_SAMPLES and first <= most:
            return first
        if self._since_look >= self._interval:
            other = self._other_depth()
            if other is not None and other <= most and self._budget.affords(self._expected_loss_s(other, waiting)):
                self._trial = other
                return other
        return min(self._best, most)

    def note(self, cost: PassCost, accepted: int) -> None:
        """See `DepthPolicy.note`."""
        best, tried = self._best, cost.depth == self._trial
        pace = self._pace(best) if tried else None
        self._acceptance.note(cost.depth, accepted)
        if cost.usual:
            self._times.note(cost)
            self._first_plain = max(0, self._first_plain - 1)
        self._budget.pass_time(cost.time_s + cost.caught_up_s)
        if cost.caught_up_rows:
            self._row_s = cost.caught_up_s / cost.caught_up_rows
            self._budget.lose(cost.caught_up_s)
        self._since_look += 1
        if cost.depth or best or tried or self._since_look % _PLAIN_PASSES_A_LOOK == 0:
            self._settle()
        if tried:
            self._look_ended(
                0.0 if pace is None or not cost.usual else cost.time_s - (1 + accepted) / pace,
                changed=self._best != best,
            )
        self._trial = None

    def _look_ended(self, lost_s: float, *, changed: bool) -> None:
        self._budget.lose(lost_s)
        if lost_s < 0:  # it was worth it: look again at once
            self._interval, self._look_up = _LOOK_EVERY, not self._look_up
            self._since_look = _LOOK_EVERY
        else:
            self._since_look = 0
            self._interval = _LOOK_EVERY if changed else min(2 * self._interval, _LOOK_AT_LEAST_EVERY)

    def _pace(self, depth: int) -> float | None:
        """Expected tokens a second."""
        time_s = self._times.expected_s(depth)
        return None if not time_s else self._acceptance.tokens(depth) / time_s

    def _settle(self) -> None:
        paces = {depth: pace for depth in range(self.limit + 1) if (pace := self._pace(depth)) is not None}
        if not paces:
            return
        fastest = max(paces, key=lambda depth: paces[depth])
        present = paces.get(self._best)
        if present is None or paces[fastest] > present * _SWITCH_GAIN:
            self._best = fastest

    def _other_depth(self) -> int | None:
        """The depth to look at next: by turns one more than the best and less, which is none every other time.

        Plain passes are what drafting is judged by, and the first ones found the pool empty.
        """
        self._look_up = not self._look_up
        up = self._best + 1 if self._best < self.limit else None
        down = self._best - 1 if self._best > 0 else None
        if down is not None and not self._look_up:
            self._look_plain = not self._look_plain
            down = 0 if self._look_plain else down
        if self._look_up:
            return up if up is not None else down
        return down if down is not None else up

    def _expected_loss_s(self, depth: int, waiting: int) -> float:
        """What a look is expected to cost, with the rows that wait for it."""
        time_s, pace, plain_s = self._times.expected_s(depth), self._pace(self._best), self._times.expected_s(0)
        if time_s is None or pace is None or plain_s is None:
            return 0.0
        row_s = _ROW_SHARE * plain_s if self._row_s is None else self._row_s
        owed_s = waiting * row_s if depth and waiting > depth + 1 else 0.0
        return owed_s + max(0.0, time_s - self._acceptance.tokens(depth) / pace)
