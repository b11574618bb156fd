"""What guesses may cost where they bring nothing, and how soon they begin where they do, by scripts."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.generation.draft_costs import PassCost
from slotstream_core.generation.draft_depth import Allowance, GatedDepth, Outcome

REPLY = 200

Script = Callable[["Decoding"], tuple[float, bool]]
"""How sure the head is of its next guess, and whether it is right."""


@dataclass(kw_only=True)
class Decoding:
    """One engine on a machine whose plain pass takes a second and whose other prices are what is supposed of them.

    Attributes:
        script: Chooses every guess, knowing everything so far.
        scale: How many times as much as supposed everything takes that guesses add.
        policy: Decides.
        tokens: Made so far.
        time_s: What they took.
        reply_tokens: Of the reply under way.
        reply_s: What it took so far.
        waiting: Rows that the head has not taken in; five are no trouble.
        copied: How sure it seems that the text repeats itself, and whether it does; None where nothing can be copied.
        guessed: Places of this reply before which guesses were made.
        verified: Places of this reply at which guesses were verified.
        worst: The most that was lost so far beyond 1% of the time of plain decoding: of the engine, and of a reply.
    """

    script: Script
    scale: float = 1.0
    policy: GatedDepth = field(default_factory=lambda: GatedDepth(4))
    tokens: int = 0
    time_s: float = 0.0
    reply_tokens: int = 0
    reply_s: float = 0.0
    waiting: int = 1
    copied: Script | None = None
    guessed: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    worst: tuple[float, float] = (0.0, 0.0)

    @property
    def gained(self) -> float:
        """What this reply gained by guesses so far, in plain passes."""
        return self.reply_tokens - self.reply_s

    def reply(self, tokens: int = REPLY) -> None:
        """Make a reply."""
        self.policy.begin()
        self.reply_tokens, self.reply_s, self.waiting = 0, 0.0, 1
        self.guessed, self.verified = [], []
        rest = 0
        while self.reply_tokens < tokens:
            if rest:
                rest -= 1
                self._made(1, 1.0)
                continue
            guessed = self._pass(tokens - self.reply_tokens - 1)
            rest = 0 if guessed else self.policy.rest()

    def _pass(self, most: int) -> bool:
        if self._copies(most):
            return True
        found: list[tuple[float, bool]] = []
        waiting = self.waiting if self.waiting > 5 else 0
        if self.policy.starts(most, waiting=waiting):
            found.append(self.script(self))
            while len(found) < most and self.policy.goes_on([sure for sure, _ in found]):
                found.append(self.script(self))
        confidences = tuple(sure for sure, _ in found)
        depth = self.policy.verified(confidences) if found else 0
        right = next((place for place, (_, hit) in enumerate(found) if not hit), len(found))
        caught_up = waiting if found else 0
        cost = PassCost(
            depth=depth,
            time_s=1 + 0.35 * depth * self.scale,
            guesses_s=(0.2 * self.scale,) * len(found),
            caught_up_rows=caught_up,
            caught_up_s=(0.15 + 0.006 * caught_up) * self.scale if caught_up else 0.0,
        )
        judged = min(right + 1, depth + 1, len(found))
        self.policy.note(cost, Outcome(confidences=confidences, right=min(right, judged), judged=judged))
        if found:
            self.guessed.append(self.reply_tokens)
            self.waiting = 0
        if depth:
            self.verified.append(self.reply_tokens)
        self._made(1 + min(right, depth), cost.total_s)
        return bool(found)

    def _copies(self, most: int) -> bool:
        chance, hit = self.copied(self) if self.copied else (0.0, False)
        depth = self.policy.copies(chance, min(4, most)) if most > 0 and self.copied else 0
        if depth:
            cost = PassCost(depth=depth, time_s=1 + 0.35 * depth * self.scale)
            self.policy.note(cost, Outcome(right=depth * hit))
            self._made(1 + depth * hit, cost.total_s)
        return depth > 0

    def _made(self, tokens: int, seconds: float) -> None:
        self.waiting += tokens
        self.tokens, self.time_s = self.tokens + tokens, self.time_s + seconds
        self.reply_tokens, self.reply_s = self.reply_tokens + tokens, self.reply_s + seconds
        engine, reply = self.time_s - 1.01 * self.tokens, self.reply_s - 1.01 * self.reply_tokens
        self.worst = max(self.worst[0], engine), max(self.worst[1], reply)


def sure_and_wrong(_: Decoding) -> tuple[float, bool]:
    return 0.99, False


def sure_and_right(_: Decoding) -> tuple[float, bool]:
    return 0.97, True


def unsure_and_wrong(_: Decoding) -> tuple[float, bool]:
    return 0.3, False


def right_until_it_gained(decoding: Decoding) -> tuple[float, bool]:
    """Lures, then disappoints for as long as that is paid for."""
    return 0.99, decoding.gained < 3


def right_in_every_other_reply(decoding: Decoding) -> tuple[float, bool]:
    return 0.99, decoding.tokens // REPLY % 2 == 0


def right_at_the_first_look_only(decoding: Decoding) -> tuple[float, bool]:
    return 0.95, not decoding.guessed


def right_only_where_the_head_doubts(decoding: Decoding) -> tuple[float, bool]:
    odd = decoding.tokens % 2 == 1
    return 0.05 if odd else 0.99, odd


SCRIPTS: list[Script] = [
    sure_and_wrong,
    unsure_and_wrong,
    right_until_it_gained,
    right_in_every_other_reply,
    right_at_the_first_look_only,
    right_only_where_the_head_doubts,
]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("tokens", [20, REPLY, 3_000])
def test_guesses_never_lose_more_than_a_hundredth_of_plain_decoding_and_two_passes(script: Script, tokens: int) -> None:
    decoding = Decoding(script=script)
    for _ in range(3_000 // tokens):
        decoding.reply(tokens)
    assert decoding.worst[0] <= 2.0 + 1e-6
    assert decoding.worst[1] <= 4.0 + 1e-6


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("copied", SCRIPTS)
def test_that_holds_for_copied_guesses_beside_those_of_the_head(script: Script, copied: Script) -> None:
    decoding = Decoding(script=script, copied=copied)
    for _ in range(15):
        decoding.reply()
    assert decoding.worst[0] <= 2.0 + 1e-6
    assert decoding.worst[1] <= 4.0 + 1e-6


def test_a_text_that_repeats_itself_is_copied_from_the_first_price_on_and_pays_for_no_look() -> None:
    decoding, alone = (
        Decoding(script=unsure_and_wrong, copied=copied)
        for copied in (lambda now: (0.9, True) if now.reply_tokens % 40 < 20 else (0.1, False), None)
    )
    for _ in range(5):
        decoding.reply()
        alone.reply()
        assert len(decoding.guessed) <= len(alone.guessed) + 3
    assert decoding.gained > 20 > 0 > alone.gained


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 150)), min_size=1, max_size=10),
    st.integers(0, 2**32),
)
def test_that_holds_whatever_the_head_claims_and_however_the_text_changes(
    pieces: list[tuple[float, float, int]], seed: int
) -> None:
    rng = random.Random(seed)
    now = pieces[0]
    decoding = Decoding(script=lambda _: (now[0], rng.random() < now[1]))
    for now in pieces:
        decoding.reply(now[2])
    assert decoding.worst[0] <= 2.0 + 1e-6
    assert decoding.worst[1] <= 4.0 + 1e-6


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_where_prices_have_to_be_learnt_that_costs_three_passes_more(script: Script, scale: float) -> None:
    decoding = Decoding(script=script, scale=scale)
    for _ in range(30):
        decoding.reply()
    assert decoding.worst[0] <= 5.0


def test_a_fresh_engine_guesses_a_text_that_pays_before_its_fiftieth_token() -> None:
    decoding = Decoding(script=sure_and_right)
    decoding.reply()
    assert decoding.guessed[0] < 50
    assert decoding.verified[0] < 50
    assert decoding.gained > 50


def test_a_text_that_pays_is_found_in_time_after_replies_that_did_not() -> None:
    decoding = Decoding(script=sure_and_wrong)
    for _ in range(20):
        decoding.reply()
    decoding.script = sure_and_right
    decoding.reply()
    assert decoding.verified[0] < 100
    assert decoding.gained > 40


def test_where_every_reply_pays_from_the_first_token_on_replies_come_to_begin_with_guesses() -> None:
    decoding = Decoding(script=sure_and_right)
    for _ in range(4):
        decoding.reply()
    for _ in range(3):
        decoding.reply()
        assert decoding.verified[0] == 0


def test_replies_that_pay_only_later_come_to_begin_plainly() -> None:
    decoding = Decoding(script=lambda now: (0.97, now.reply_tokens >= 24))
    begun = []
    for _ in range(40):
        decoding.reply()
        begun.append(bool(decoding.guessed) and decoding.guessed[0] < 24)
        assert begun[-1] or decoding.gained > 20
    assert 2 <= sum(begun) <= 6


def test_winnings_may_be_lost_again_in_their_reply() -> None:
    allowance = Allowance()
    allowance.settle(10.0)
    assert allowance.left == pytest.approx(12.0)
    allowance.settle(-11.0)
    assert allowance.left == pytest.approx(1.0)


def test_a_later_reply_may_lose_one_look_of_them() -> None:
    allowance = Allowance()
    allowance.settle(4.0)
    assert allowance.begin() == pytest.approx(4.0)
    assert allowance.left == pytest.approx(2.0)
    lost = 0.0
    for left in (1.5, 1.5, 1.5, 0.0):
        lost += allowance.left - 0.1
        allowance.settle(0.1 - allowance.left)
        allowance.begin()
        assert allowance.left == pytest.approx(left, abs=0.3)
    assert lost + allowance.left == pytest.approx(6.0)


def test_what_may_be_lost_grows_with_plain_passes_up_to_two_looks() -> None:
    allowance = Allowance()
    allowance.grow(100)
    assert allowance.left == pytest.approx(3.0)
    allowance.grow(1_000)
    assert allowance.left == pytest.approx(4.0)
    allowance.settle(-4.0)
    allowance.grow(1_000)
    assert allowance.left == pytest.approx(4.0)
