"""Which tokens to guess, and how many of the guesses the next pass verifies.

Verifying d drafts makes a pass of d + 1 rows and yields 1 + a1 + a1 a2 + ... tokens, where a_i is the chance that the
i-th draft is right once those before it were. A pass of more rows takes longer, on the processor and, when experts
stream, for the union of the experts its rows ask for; guessing takes time as well. The probability that the draft head
gives its own guess says a draft's chance far better than any average over a text, so `GatedDepth` decides guess by
guess. Whether to guess at all it decides by what that brought lately.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from slotstream_core.generation.draft_costs import DraftCosts, PassCost

DEFAULT_DEPTH: Final = 2
GATED_LIMIT: Final = 4
"""Deepest that `GatedDepth` goes unless asked for more."""

DEPTH_LIMIT: Final = 16

_FIRST_PLAIN: Final = 4
"""Plain passes before an engine's first guess: by them everything else is judged."""

_FIRST_PLAIN_EVERY: Final = 12
_PLAIN_EVERY: Final = 48
"""After how many passes another plain one is made at the latest, to learn what a row adds to it: while little is known
of that, and later."""

_SHIFT_STEP: Final = 0.2
_LASTING_STEP: Final = 0.1
"""How far one guess that was right or wrong moves what is believed of a text, and of all texts."""

_NEXT_CONFIDENCE: Final = 0.95
"""How sure the next guess is expected to be, next to the present one."""

_WORTH_MEMORY: Final = 0.95
"""What a pass with guesses still counts for their worth after the next one."""

_LASTING_MEMORY: Final = 0.75
"""What was known of the worth of earlier replies still counts after the next one."""

_OUTCOME_SHARE: Final = 0.25
"""Part of a pass's worth that is taken of what came out; the rest is what was expected, which scatters less."""

_BEGIN_PASSES: Final = 6.0
_BEGIN_LEAST: Final = 0.1
_BEGIN_WORTH: Final = 0.2
"""As how many passes of which worth, in tokens, a reply begins: little, so that it is soon found out when a text is not
worth guessing, and not nothing."""

_LOOK_SHARE: Final = 0.005
"""Share of the time of decoding that looks may lose, with what they make the head take in."""

_LOOK_EVERY: Final = 16
_LOOK_AT_LEAST_EVERY: Final = 192
"""Plain passes between two looks at guesses: the first look, and what doubling stops at while they bring nothing."""

_FIRST_WATCHED: Final = 16
"""Passes of an engine that are all timed: the first ones may be slow, and must not be what prices rest on for long."""

_REST: Final = 7
"""While nothing is guessed, so many plain passes are made between two that are timed, and nothing is asked or told of
them: that would cost some hundredths of a small model's pass."""

_TAKEN_IN_SHARE: Final = 0.02
"""Part of a plain pass that the head needs to take in a row, until that was measured."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the guesses before a pass.

    Attributes:
        confidences: The head's own probability of each guess, verified or not.
        right: How many, from the first on, were what was drawn.
        judged: How many were compared with what was drawn: one more than were right, where there was one more.
    """

    confidences: tuple[float, ...] = ()
    right: int = 0
    judged: int = 0


class DepthPolicy(Protocol):
    """Decides what is guessed before every pass.  One reply at a time.

    Every decision rests on what is known before the pass, so none can favour a token.
    """

    def begin(self) -> None:
        """A reply begins."""

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        """Return whether to guess before the next pass.

        Args:
            most: Tokens that may follow the next one.
            waiting: Rows that the draft head has to take in before it guesses.
        """

    def goes_on(self, confidences: Sequence[float]) -> bool:
        """Return whether to make another guess after those of these probabilities, at least one."""

    def verified(self, confidences: Sequence[float]) -> int:
        """Return how many guesses, from the first on, the pass verifies."""

    def rest(self) -> int:
        """Return how many plain passes to make now without asking or telling; they count as made."""

    def note(self, cost: PassCost, outcome: Outcome) -> None:
        """Learn what the pass cost and what became of the guesses."""


class FixedDepth:
    """Always the same depth."""

    def __init__(self, depth: int) -> None:
        self.limit = depth

    def begin(self) -> None:
        """See `DepthPolicy.begin`."""

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        """See `DepthPolicy.starts`."""
        return min(self.limit, most) > 0

    def goes_on(self, confidences: Sequence[float]) -> bool:
        """See `DepthPolicy.goes_on`."""
        return len(confidences) < self.limit

    def verified(self, confidences: Sequence[float]) -> int:
        """See `DepthPolicy.verified`."""
        return len(confidences)

    def rest(self) -> int:
        """See `DepthPolicy.rest`."""
        return 0

    def note(self, cost: PassCost, outcome: Outcome) -> None:
        """See `DepthPolicy.note`."""


class Calibration:
    """The chance of a guess from the head's probability of it: its log-odds and a shift that is learnt.

    The shift follows the text quickly; the next one begins with what held for all of them.
    """

    def __init__(self) -> None:
        self._shift = 0.0
        self._lasting = 0.0

    def begin(self) -> None:
        """Another text begins."""
        self._shift = self._lasting

    def chance(self, confidence: float) -> float:
        """The chance that a guess is right, given that those before it are."""
        bounded = min(max(confidence, 0.005), 0.995)
        return 1 / (1 + (1 / bounded - 1) * math.exp(-self._shift))

    def note(self, outcome: Outcome) -> None:
        """Learn from the guesses that were compared with what was drawn."""
        for place, confidence in enumerate(outcome.confidences[: outcome.judged]):
            surprise = (place < outcome.right) - self.chance(confidence)
            self._shift += _SHIFT_STEP * surprise
            self._lasting += _LASTING_STEP * surprise


class Worth:
    """What passes with guesses bring lately next to plain ones, in tokens a pass.

    What they brought and what they did are kept apart from the prices, which get better known meanwhile.
    """

    def __init__(self) -> None:
        self._lasting = _BEGIN_WORTH
        self._noted = 0
        self._start()

    def begin(self, costs: DraftCosts) -> None:
        """Another text begins: what the last one came to is remembered."""
        if self._noted:
            self._lasting += (1 - _LASTING_MEMORY) * (self.expected(costs) - self._lasting)
        self._start()

    def _start(self) -> None:
        self._noted = 0
        self._passes = _BEGIN_PASSES
        self._tokens = _BEGIN_PASSES * min(max(self._lasting, _BEGIN_LEAST), _BEGIN_WORTH)
        self._rows, self._guesses = [0.0, 0.0], [0.0, 0.0]

    def note(self, tokens: float, *, rows: int, guesses: int, costs: DraftCosts) -> None:
        """Learn that a pass with so many ``guesses`` and added ``rows`` brought so many ``tokens`` more than one."""
        self._passes = self._passes * _WORTH_MEMORY + 1
        self._tokens = self._tokens * _WORTH_MEMORY + tokens
        for sums, count in ((self._rows, rows), (self._guesses, guesses)):
            sums[0] = sums[0] * _WORTH_MEMORY + min(count, 1)
            sums[1] = sums[1] * _WORTH_MEMORY + max(count - 1, 0)
        self._noted += 1

    def expected(self, costs: DraftCosts) -> float:
        """What the next such pass is expected to bring."""
        added_s = sum(count * costs.row_s(place) for place, count in enumerate(self._rows))
        added_s += sum(count * costs.guess_s(place) for place, count in enumerate(self._guesses))
        return (self._tokens - (added_s / costs.plain_s if added_s else 0.0)) / self._passes


class LookBudget:
    """What looks at guesses may cost: a share of the time of decoding, carried over from reply to reply.

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


class GatedDepth:
    """Guesses while a guess is worth its time, and verifies the guesses that are worth their rows.

    A token is worth a plain pass. A guess is verified when its chance is worth more than the row it adds, and followed
    by another while that would be worth its guess and its row. When passes with guesses have brought less than plain
    ones of late, none are made but for a look now and then; what looks lose stays within a budget, and they become
    rarer while they bring nothing.

    Attributes:
        limit: Most guesses before a pass.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._costs = DraftCosts()
        self._calibration = Calibration()
        self._worth = Worth()
        self._expected_worth = self._worth.expected(self._costs)
        self._budget = LookBudget(_LOOK_SHARE)
        self._taken_in_s: float | None = None
        self._first_plain = _FIRST_PLAIN
        self._most = 0
        self._looking = False
        self._since_look = 0
        self._interval = _LOOK_EVERY
        self._watched = 0
        self._watched_s = 0.0

    def begin(self) -> None:
        """See `DepthPolicy.begin`."""
        self._calibration.begin()
        self._worth.begin(self._costs)
        self._expected_worth = self._worth.expected(self._costs)
        self._since_look, self._interval = 0, _LOOK_EVERY

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        """See `DepthPolicy.starts`."""
        self._looking = False
        self._most = min(most, self.limit)
        costs = self._costs
        longest = _PLAIN_EVERY if costs.settled else _FIRST_PLAIN_EVERY
        if self._most < 1 or self._first_plain or costs.since_plain >= longest:
            return False
        if self._expected_worth > 0:
            return True
        self._since_look += 1
        if self._since_look >= self._interval:
            self._looking = self._budget.affords(self._owed_s(waiting) - self._expected_worth * costs.plain_s)
        return self._looking

    def goes_on(self, confidences: Sequence[float]) -> bool:
        """See `DepthPolicy.goes_on`."""
        made = len(confidences)
        if made >= self._most:
            return False
        gains = self._gains_s([*confidences, _NEXT_CONFIDENCE * confidences[-1]])
        return gains[-1] - self._costs.guess_s(made) > max(gains[:-1])

    def verified(self, confidences: Sequence[float]) -> int:
        """See `DepthPolicy.verified`."""
        gains = self._gains_s(confidences)
        return gains.index(max(gains))

    def rest(self) -> int:
        """See `DepthPolicy.rest`."""
        if self._watched < _FIRST_WATCHED or self._expected_worth > 0:
            return 0
        self._costs.pass_by(_REST)
        self._budget.pass_time(_REST * self._watched_s)
        self._since_look += _REST
        return _REST

    def note(self, cost: PassCost, outcome: Outcome) -> None:
        """See `DepthPolicy.note`."""
        self._costs.note(cost)
        self._watched += 1
        if not cost.depth:
            self._watched_s = cost.time_s
        self._budget.pass_time(cost.total_s)
        if cost.usual:
            self._first_plain = max(0, self._first_plain - 1)
        if cost.caught_up_rows:
            self._taken_in_s = cost.caught_up_s / cost.caught_up_rows
        if outcome.confidences and self._costs.plain_s:
            self._calibration.note(outcome)
            self._learn_worth(cost, outcome)

    def _chances(self, confidences: Sequence[float]) -> list[float]:
        """The chance of each guess that it and all before it are right."""
        return list(accumulate((self._calibration.chance(confidence) for confidence in confidences), operator.mul))

    def _gains_s(self, confidences: Sequence[float]) -> list[float]:
        """What verifying none, one, two and so on of the guesses is worth, less the time it adds to a pass."""
        plain_s, gains = self._costs.plain_s, [0.0]
        for place, chance in enumerate(self._chances(confidences)):
            gains.append(gains[-1] + chance * plain_s - self._costs.row_s(place))
        return gains

    def _learn_worth(self, cost: PassCost, outcome: Outcome) -> None:
        """Judge the guesses by usual prices: a pass that was held up says nothing about the text."""
        made, depth, costs = len(outcome.confidences), cost.depth, self._costs
        expected = sum(self._chances(outcome.confidences[:depth]))
        tokens = expected + _OUTCOME_SHARE * (min(outcome.right, depth) - expected)
        self._worth.note(tokens, rows=depth, guesses=made, costs=costs)
        self._expected_worth = self._worth.expected(costs)
        if self._looking:
            self._budget.lose(cost.total_s - costs.plain_s * (1 + min(outcome.right, depth)))
            self._look_ended(paid=tokens * costs.plain_s > costs.drafts_s(guesses=made, rows=depth))

    def _look_ended(self, *, paid: bool) -> None:
        if paid:  # look again at once
            self._since_look, self._interval = _LOOK_EVERY - 1, _LOOK_EVERY
        else:
            self._since_look = 0
            self._interval = min(2 * self._interval, _LOOK_AT_LEAST_EVERY)

    def _owed_s(self, waiting: int) -> float:
        """What the rows that wait for a look are expected to cost."""
        return waiting * (_TAKEN_IN_SHARE * self._costs.plain_s if self._taken_in_s is None else self._taken_in_s)
