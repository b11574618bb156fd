"""Which tokens to guess, and how many of the guesses the next pass verifies.

Verifying d drafts makes a pass of d + 1 rows and yields 1 + a1 + a1 a2 + ... tokens, where a_i is the chance that the
i-th draft is right once those before it were. A pass of more rows takes longer, on the processor and, when experts
stream, for the union of the experts its rows ask for; guessing takes time as well. The probability that the draft head
gives its own guess says a draft's chance far better than any average over a text, so `GatedDepth` decides guess by
guess. Whether to guess at all it decides by what that brought lately, and never with more at stake than may be lost.
Where a text repeats itself, guesses can be copied from it instead, which takes no time.
"""

import math
import operator
from collections.abc import Iterable, Sequence
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

_OUTCOME_SHARE: Final = 0.25
"""Part of what a pass gained that is taken of what came out; the rest is what was expected, which scatters less."""

_STREAK: Final = 0.5
_STREAK_MEMORY: Final = 0.9
"""What a streak of guesses is taken to have gained when it begins, in plain passes, and what each gain still counts
after the next one: a look is given up after one or two guesses that are no good."""

_OPENING_STREAK: Final = 0.4
"""The same for a streak that a reply begins with."""

_OPENINGS_APART: Final = 2
"""Every which of the replies after one that gained begins with guesses, until it is known what that brings."""

_LOSS_SHARE: Final = 0.01
_LOSS_FIRST: Final = 2.0
_LOSS_MOST: Final = 4.0
"""What guesses may lose, in plain passes: a share of those that are made, and at first about what one look costs, so
that an engine's first reply can have one; of what was not used, two looks are saved."""

_LOSS_WON: Final = 1.5
_WON_MOST: Final = 12.0
"""What a reply may lose at least while earlier ones gained more, about what one look costs, and how much of what they
gained is kept for that: otherwise texts that gain nothing use up what the next one that would needs to be found."""

_LOOK_AFTER: Final = 32
"""Plain passes before a look. Before its first thirty tokens a reply says little about those that follow: the head gets
better with what it has read, and most with texts that it will guess well."""

_LOOK_GUESSES: Final = 4
"""Guesses that a look must be able to pay for: what the head has to take in before costs as much as some of them."""

_LOOK_KEPT: Final = 1.0
"""What a reply's later looks must leave of what may be lost, in plain passes: the next reply is to have its first."""

_HELD_UP: Final = 2.0
"""A pass counts at most this many times what it was expected to add, and at least half of it: it was held up."""

_MISPRICED: Final = 4.0
"""One that adds more than so many times its price right after another that did is charged for all it took."""

_FIRST_WATCHED: Final = 16
"""Passes of an engine that are all timed: the first ones may be slow, and must not be what prices rest on for long."""

_REST: Final = 7
"""While nothing is guessed, so many plain passes are made between two that are timed, and nothing is asked or told of
them: that would cost some hundredths of a small model's pass."""


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

    Guesses may come from the text itself, for nothing, or one by one from the draft head; those of a pass have one
    origin, and an `Outcome` tells of the head's only.

    Every decision rests on what is known before the pass, so none can favour a token.
    """

    def begin(self) -> None:
        """A reply begins."""

    def copies(self, chance: float, most: int) -> int:
        """Return how many guesses copied from the text, of at most so many, the next pass verifies.

        Args:
            chance: Of each that it is right once those before it are.
            most: How many there are.
        """

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        """Return whether to guess before the next pass, which verifies nothing that was copied.

        Args:
            most: Tokens that may follow the next one.
            waiting: Rows that the draft head has to take in apart before it guesses.
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

    def copies(self, chance: float, most: int) -> int:
        """See `DepthPolicy.copies`: none, the draft head always guesses."""
        return 0

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


class Allowance:
    """What guesses may still lose next to plain decoding, in plain passes.

    It begins with `_LOSS_FIRST` and grows by `_LOSS_SHARE` of a pass with every plain pass, up to `_LOSS_MOST`; what
    guesses gain may be lost again in the same reply, and later ones have what is missing to `_LOSS_WON` from it. So as
    long as nothing is spent that is not left, n tokens of an engine never take more than (1 + `_LOSS_SHARE`) n +
    `_LOSS_FIRST` plain passes, and one reply of n tokens never more than (1 + `_LOSS_SHARE`) n + `_LOSS_MOST`.
    """

    def __init__(self) -> None:
        self._kept = _LOSS_FIRST
        self._gained = 0.0
        self._won = 0.0

    @property
    def gained(self) -> float:
        """What guesses gained in this reply."""
        return self._gained

    @property
    def left(self) -> float:
        """What may be lost now."""
        return self._kept + self._gained

    def begin(self) -> float:
        """Another reply begins: of what the last one gained, which is returned, it may lose no more than a look."""
        gained, self._gained = self._gained, 0.0
        self._kept += min(0.0, gained)
        self._won = min(self._won + max(0.0, gained), _WON_MOST)
        moved = max(0.0, min(self._won, _LOSS_WON - self._kept))
        self._kept, self._won = self._kept + moved, self._won - moved
        return gained

    def grow(self, passes: int) -> None:
        """Note so many plain passes."""
        self._kept = min(self._kept + _LOSS_SHARE * passes, _LOSS_MOST - min(0.0, self._gained))

    def settle(self, gain: float) -> None:
        """Note what a pass with guesses gained; what it lost is below 0."""
        self._gained += gain


class Openings:
    """Which replies begin with guesses: those after one that gained by them, and fewer and fewer while that loses."""

    def __init__(self) -> None:
        self._passed_over = 0
        self._apart = _OPENINGS_APART
        self._open = False

    def begin(self, gained: float) -> bool:
        """Return whether to guess from the first token on, after a reply that ``gained`` so much."""
        if self._open:
            self._learn(paid=gained > 0)
        if gained > 0:
            self._passed_over += 1
            self._open = self._passed_over >= self._apart
        return self._open

    def ended(self, gained: float) -> None:
        """The streak of guesses ended when the reply had ``gained`` so much."""
        if self._open:
            self._learn(paid=gained > 0)

    def _learn(self, *, paid: bool) -> None:
        self._open, self._passed_over = False, 0
        self._apart = 1 if paid else 2 * self._apart


class GatedDepth:
    """Guesses while a guess is worth its time, and verifies the guesses that are worth their rows.

    A token is worth a plain pass. A guess is verified when its chance is worth more than the row it adds, and followed
    by another while that would be worth its guess and its row. Replies begin plainly. After `_LOOK_AFTER` plain passes
    a look at guesses is made, and a streak of them goes on while they gain: by the prices of the last about ten passes,
    three quarters of what they were expected to bring and one quarter of what they brought.

    Copied guesses are verified as far as their chances are worth their rows, before any other is thought of. What they
    gain is theirs to lose again in the reply, and pays for no look.

    No guess is made and no row added that could not be paid if every guess were wrong (`Allowance`). So wherever passes
    take what they are priced at, decoding is never slower than without guesses by more than 1% and two passes, however
    the text changes and whatever the head claims; 1% and four passes over one reply. A pass that takes longer may
    overdraw, which has to be made good before the next guess; it is charged for no more than twice its price, since
    something else held it up, unless the one before it took four times its price as well.

    Attributes:
        limit: Most guesses before a pass.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._costs = DraftCosts()
        self._calibration = Calibration()
        self._allowance = Allowance()
        self._openings = Openings()
        self._first_plain = _FIRST_PLAIN
        self._most = 0
        self._left = 0.0
        self._copied = 0.0
        self._streak = 0.0
        self._looked = False
        self._since_look = 0
        self._rested = 0
        self._mispriced = False
        self._watched = 0

    def begin(self) -> None:
        """See `DepthPolicy.begin`."""
        self._calibration.begin()
        opens = self._openings.begin(self._allowance.begin())
        self._streak, self._since_look, self._rested = _OPENING_STREAK if opens else 0.0, 0, 0
        self._looked = opens
        self._copied = 0.0

    def copies(self, chance: float, most: int) -> int:
        """See `DepthPolicy.copies`."""
        self._grow()
        if self._is_plain():
            return 0
        left = self._allowance.left + max(0.0, self._copied)
        chances = accumulate([chance] * min(most, self.limit), operator.mul)
        return self._worth(chances, left)

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        """See `DepthPolicy.starts`."""
        self._grow()
        self._most, costs = min(most, self.limit), self._costs
        if self._most < 1 or self._is_plain():
            return False
        guess = costs.guess_s(0) / costs.plain_s
        self._left = self._allowance.left - guess - (costs.catch_up_s(waiting) / costs.plain_s if waiting else 0.0)
        if self._streak > 0:
            if self._left < 0:
                self._end_streak()
            return self._left >= 0
        self._since_look += 1
        kept_back = _LOOK_KEPT * self._looked
        if self._since_look < _LOOK_AFTER or self._left < (_LOOK_GUESSES - 1) * guess + kept_back:
            return False
        self._streak, self._looked = _STREAK, True
        return True

    def goes_on(self, confidences: Sequence[float]) -> bool:
        """See `DepthPolicy.goes_on`."""
        made = len(confidences)
        if made >= self._most or self._price(guesses=made + 1, rows=made + 1) > self._left:
            return False
        gains = self._gains([*confidences, _NEXT_CONFIDENCE * confidences[-1]])
        return gains[-1] - self._costs.guess_s(made) / self._costs.plain_s > max(gains[:-1])

    def verified(self, confidences: Sequence[float]) -> int:
        """See `DepthPolicy.verified`."""
        return self._worth(self._chances(confidences), self._left - self._price(guesses=len(confidences), rows=0))

    def rest(self) -> int:
        """See `DepthPolicy.rest`."""
        if self._watched < _FIRST_WATCHED or self._streak > 0:
            return 0
        self._costs.pass_by(_REST)
        self._since_look += _REST
        self._rested = _REST
        return _REST

    def note(self, cost: PassCost, outcome: Outcome) -> None:
        """See `DepthPolicy.note`."""
        if outcome.confidences and self._costs.plain_s:
            self._calibration.note(outcome)
            self._settle(cost, outcome)
        elif cost.depth and self._costs.plain_s:
            self._settle_copies(cost, outcome)
        elif not outcome.confidences:
            self._allowance.grow(1)
        self._costs.note(cost)
        self._watched += 1
        if cost.usual:
            self._first_plain = max(0, self._first_plain - 1)

    def _grow(self) -> None:
        """Note the plain passes that were made without asking."""
        self._allowance.grow(self._rested)
        self._rested = 0

    def _is_plain(self) -> bool:
        """Whether the next pass is a plain one, from which prices are learnt."""
        costs = self._costs
        return bool(self._first_plain) or costs.since_plain >= (_PLAIN_EVERY if costs.settled else _FIRST_PLAIN_EVERY)

    def _worth(self, chances: Iterable[float], left: float) -> int:
        """How many guesses of these chances gain most by their rows, of those that ``left`` pays for."""
        gains, paid = [0.0], 0.0
        for place, chance in enumerate(chances):
            row = self._costs.row_s(place) / self._costs.plain_s
            paid += row
            if paid > left:
                break
            gains.append(gains[-1] + chance - row)
        return gains.index(max(gains))

    def _price(self, *, guesses: int, rows: int) -> float:
        """What so many guesses after the first, which is paid, and so many rows add to a pass, in plain passes."""
        costs = self._costs
        return (costs.drafts_s(guesses=guesses, rows=rows) - costs.guess_s(0)) / costs.plain_s

    def _chances(self, confidences: Sequence[float]) -> list[float]:
        """The chance of each guess that it and all before it are right."""
        return list(accumulate((self._calibration.chance(confidence) for confidence in confidences), operator.mul))

    def _gains(self, confidences: Sequence[float]) -> list[float]:
        """What verifying none, one, two and so on of the guesses is worth, less what it adds to a pass."""
        plain_s, gains = self._costs.plain_s, [0.0]
        for place, chance in enumerate(self._chances(confidences)):
            gains.append(gains[-1] + chance - self._costs.row_s(place) / plain_s)
        return gains

    def _settle(self, cost: PassCost, outcome: Outcome) -> None:
        """Charge what the guesses took, and judge the streak by usual prices: the text is not to blame for the rest."""
        costs, depth = self._costs, cost.depth
        right = min(outcome.right, depth)
        drafts_s = costs.drafts_s(guesses=len(outcome.confidences), rows=depth)
        priced_s = drafts_s + (costs.catch_up_s(cost.caught_up_rows) if cost.caught_up_rows else 0.0)
        self._allowance.settle(right - self._charge(cost, priced_s))
        expected = sum(self._chances(outcome.confidences[:depth]))
        gain = expected + _OUTCOME_SHARE * (right - expected) - drafts_s / costs.plain_s
        self._streak = self._streak * _STREAK_MEMORY + gain
        if self._streak <= 0 or self._allowance.left <= 0:
            self._end_streak()

    def _settle_copies(self, cost: PassCost, outcome: Outcome) -> None:
        """Charge what copied guesses lost on the whole in this reply."""
        lost = min(0.0, self._copied)
        self._copied += outcome.right - self._charge(cost, self._costs.drafts_s(guesses=0, rows=cost.depth))
        self._allowance.settle(min(0.0, self._copied) - lost)

    def _charge(self, cost: PassCost, priced_s: float) -> float:
        """What a pass is charged that was to add so much to a plain one, in plain passes."""
        added_s = cost.total_s - self._costs.plain_s if cost.usual else priced_s
        taken_s = min(max(added_s, priced_s / _HELD_UP), priced_s * _HELD_UP)
        mispriced, before = added_s > _MISPRICED * priced_s, self._mispriced
        self._mispriced = mispriced
        return (added_s if mispriced and before else taken_s) / self._costs.plain_s

    def _end_streak(self) -> None:
        self._openings.ended(self._allowance.gained)
        self._streak, self._since_look, self._mispriced = 0.0, 0, False
