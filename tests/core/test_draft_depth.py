"""What is guessed and verified, on simulated texts and machines: seeded, so the same everywhere."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean

import pytest

from slotstream_core.generation.draft_costs import DraftCosts, PassCost
from slotstream_core.generation.draft_depth import Calibration, DepthPolicy, FixedDepth, GatedDepth, Outcome

REPLY = 200
REPLIES = 4
SEEDS = range(4)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A machine and a text.

    Attributes:
        row: Time that each draft adds to a pass, in plain passes.
        guess: Time of a guess.
        sure: Share of the places at which the head is sure, for the first and the second half of every reply.
        honest: Added to the log-odds of the head's probabilities: above 0, its guesses are better than it says.
        wait_share: Part of the time of a pass that it waits for records, its bytes being proportional.
        first_times: How much longer passes take until so many were made.
    """

    row: float = 0.35
    guess: float = 0.22
    sure: tuple[float, float] = (0.5, 0.5)
    honest: float = 0.0
    wait_share: float = 0.0
    first_times: tuple[float, int] = (1.0, 0)


PROSE = Simulated(sure=(0.7, 0.7))
MIXED = Simulated(sure=(0.45, 0.45))
HOPELESS = Simulated(sure=(0.02, 0.02))
CHEAP = Simulated(row=0.1, guess=0.05, sure=(0.6, 0.6))
DEAR = Simulated(row=0.9, guess=0.4, sure=(0.3, 0.3))
WAITING = Simulated(row=0.6, sure=(0.8, 0.8), wait_share=0.5)


class Text:
    """Places of a text, each with the head's probabilities of its next guesses and whether they would be right."""

    def __init__(self, where: Simulated, rng: random.Random) -> None:
        self._where, self._rng, self._places = where, rng, dict[tuple[int, int], tuple[float, bool]]()

    def guess(self, place: int, number: int) -> tuple[float, bool]:
        """The head's probability of a guess, and whether it is right."""
        if (place, number) not in self._places:
            sure = self._rng.random() < self._where.sure[2 * place // REPLY if place < REPLY else 1]
            confidence = self._rng.uniform(0.9, 0.995) if sure else self._rng.uniform(0.05, 0.5)
            odds = confidence / (1 - confidence) * 2.718281828**self._where.honest
            self._places[place, number] = confidence, self._rng.random() < odds / (1 + odds)
        return self._places[place, number]


def one_pass(policy: DepthPolicy, text: Text, where: Simulated, made: int, scale: float) -> tuple[int, float, bool]:
    """Make a pass as the decoder does; returns its accepted drafts, its time in plain passes, whether it guessed."""
    most = max(0, REPLY - made - 1)
    found: list[tuple[float, bool]] = []
    if policy.starts(most):
        found.append(text.guess(made, 0))
        while len(found) < most and policy.goes_on([confidence for confidence, _ in found]):
            found.append(text.guess(made + len(found), len(found)))
    confidences = tuple(confidence for confidence, _ in found)
    depth = policy.verified(confidences) if found else 0
    right = next((number for number, (_, hit) in enumerate(found) if not hit), len(found))
    right, judged = min(right, depth + 1), min(right + 1, depth + 1, len(found))
    pass_s = (1 + where.row * depth) * scale
    cost = PassCost(
        depth=depth,
        time_s=pass_s,
        wait_s=pass_s * where.wait_share,
        bytes_read=int(1e6 * pass_s * where.wait_share),
        guesses_s=(where.guess * scale,) * len(found),
    )
    policy.note(cost, Outcome(confidences=confidences, right=right, judged=judged))
    return min(right, depth), cost.total_s, bool(found)


def reply(policy: DepthPolicy, where: Simulated, rng: random.Random, passes: Iterator[int]) -> float:
    """Time of one reply in plain passes; passes vary by 5%, one in fifty takes twice as long."""
    policy.begin()
    text = Text(where, random.Random(rng.random()))
    time_s, made, rest = 0.0, 0, 0
    while made < REPLY:
        slow, until = where.first_times
        scale = rng.lognormvariate(0, 0.05) * (2 if rng.random() < 0.02 else 1) * (slow if next(passes) < until else 1)
        if rest:
            rest, made, time_s = rest - 1, made + 1, time_s + scale
            continue
        accepted, pass_s, guessed = one_pass(policy, text, where, made, scale)
        made += 1 + accepted
        time_s += pass_s
        rest = 0 if guessed else policy.rest()
    return time_s


def cost(make: Callable[[], DepthPolicy], *texts: Simulated) -> list[float]:
    """Mean time of replies to each of the texts in turn, by one fresh engine."""
    times: list[list[float]] = [[] for _ in texts]
    for seed in SEEDS:
        policy, rng, passes = make(), random.Random(seed), iter(range(10**9))
        for _ in range(REPLIES):
            for each, where in zip(times, texts, strict=True):
                each.append(reply(policy, where, rng, passes))
    return [mean(each) for each in times]


def gated() -> DepthPolicy:
    return GatedDepth(4)


def better_of_on_and_off(where: Simulated) -> float:
    return min(*cost(lambda: FixedDepth(0), where), *cost(lambda: FixedDepth(2), where))


@pytest.mark.parametrize(
    "where",
    [
        PROSE,
        MIXED,
        HOPELESS,
        CHEAP,
        DEAR,
        WAITING,
        replace(MIXED, honest=2.0),
        replace(MIXED, honest=-2.0),
        replace(HOPELESS, row=0.9, guess=0.5),
        replace(MIXED, sure=(0.9, 0.0)),
        replace(MIXED, sure=(0.0, 0.9)),
        replace(PROSE, first_times=(1.5, 30)),
        replace(HOPELESS, first_times=(3.0, 30)),
    ],
)
def test_auto_loses_at_most_two_per_cent_against_the_better_of_on_and_off(where: Simulated) -> None:
    assert cost(gated, where)[0] <= 1.02 * better_of_on_and_off(where)


def test_texts_in_turn_are_told_apart_reply_by_reply() -> None:
    texts = (PROSE, HOPELESS, MIXED, HOPELESS)
    for found, where in zip(cost(gated, *texts), texts, strict=True):
        assert found <= 1.02 * better_of_on_and_off(where)


@pytest.mark.parametrize("where", [PROSE, CHEAP])
def test_auto_is_faster_than_any_fixed_depth_where_the_head_knows_what_it_knows(where: Simulated) -> None:
    fixed = min(cost(partial(FixedDepth, depth), where)[0] for depth in range(5))
    assert cost(gated, where)[0] < 0.98 * fixed


def test_a_text_that_becomes_predictable_is_noticed() -> None:
    where = replace(MIXED, sure=(0.0, 0.95))
    assert cost(gated, where)[0] < 0.93 * cost(lambda: FixedDepth(0), where)[0]


def feed(policy: DepthPolicy, confidence: float, *, right: bool, row: float, guess: float, usual: bool = True) -> int:
    """A pass whose guesses all have this confidence and outcome; returns its depth."""
    made = 0
    if policy.starts(100):
        made = 1
        while policy.goes_on([confidence] * made):
            made += 1
    depth = policy.verified([confidence] * made) if made else 0
    outcome = Outcome(
        confidences=(confidence,) * made,
        right=min(made, depth + 1) if right else 0,
        judged=min(made, depth + 1) if right else min(made, 1),
    )
    cost = PassCost(depth=depth, time_s=1 + row * depth, guesses_s=(guess,) * made, usual=usual)
    policy.note(cost, outcome)
    return depth


def test_what_guesses_cost_where_they_are_never_worth_it_stays_below_two_hundredths_of_the_time() -> None:
    """Guesses that the head is sure of and that are never right, at high prices, with rows to take in before each."""
    policy, elapsed_s, lost_s, looks = GatedDepth(4), 0.0, 0.0, 0
    waiting = 0
    for step in range(6_000):
        if step % 300 == 0:
            policy.begin()
            waiting = 0
        made = int(policy.starts(8, waiting=waiting + 1))
        while made and policy.goes_on([0.9] * made):
            made += 1
        depth = policy.verified([0.9] * made) if made else 0
        caught_up = waiting if made else 0
        pass_cost = PassCost(
            depth=depth,
            time_s=1.0 + depth,
            guesses_s=(0.5,) * made,
            caught_up_rows=caught_up,
            caught_up_s=0.02 * caught_up,
        )
        policy.note(pass_cost, Outcome(confidences=(0.9,) * made, judged=min(made, 1)))
        waiting = 0 if made else waiting + 1
        elapsed_s += pass_cost.total_s
        lost_s += pass_cost.total_s - 1
        looks += made > 0
    assert looks > 5
    assert lost_s <= 0.02 * elapsed_s


def test_a_low_confidence_is_not_verified_and_a_high_one_is_followed_by_more() -> None:
    policy = GatedDepth(4)
    for _ in range(50):
        feed(policy, 0.97, right=True, row=0.3, guess=0.2)
    assert policy.starts(100)
    assert policy.verified([0.05]) == 0
    assert not policy.goes_on([0.05])
    assert policy.goes_on([0.99])
    assert policy.verified([0.99, 0.99, 0.05]) == 2


def test_a_head_that_is_wrong_about_itself_is_corrected_and_the_correction_lasts() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.begin()
        for _ in range(3):
            calibration.note(Outcome(confidences=(0.3,), right=1, judged=1))
    calibration.begin()
    assert calibration.chance(0.3) > 0.8
    assert calibration.chance(0.1) < calibration.chance(0.3) < calibration.chance(0.9) < 1


def test_while_nothing_is_guessed_seven_plain_passes_in_eight_are_left_alone() -> None:
    policy, timed, passes = GatedDepth(2), 0, 0
    for _ in range(64):
        feed(policy, 0.05, right=False, row=0.5, guess=0.5)
    while passes < 160:
        guessed = policy.starts(8)
        confidences = (0.05,) * guessed
        policy.note(
            PassCost(depth=0, time_s=1.0, guesses_s=(0.5,) * guessed),
            Outcome(confidences=confidences, judged=int(guessed)),
        )
        timed += 1
        passes += 1 + (0 if guessed else policy.rest())
    assert 18 <= timed <= 28


def test_guesses_that_nothing_was_drawn_for_teach_nothing() -> None:
    calibration, untouched = Calibration(), Calibration()
    calibration.note(Outcome(confidences=(0.4, 0.4), right=0, judged=0))
    assert calibration.chance(0.4) == untouched.chance(0.4)


def test_passes_that_another_mechanism_only_times_do_not_make_drafting_look_dearer() -> None:
    policy = GatedDepth(4)
    policy.begin()
    for _ in range(60):
        feed(policy, 0.97, right=True, row=0.2, guess=0.1)
    for _ in range(20):  # the passes of somebody's trial
        feed(policy, 0.97, right=True, row=9.0, guess=0.1, usual=False)
    assert mean(feed(policy, 0.97, right=True, row=0.2, guess=0.1) for _ in range(20)) >= 2


def test_prices_of_an_empty_pool_are_forgotten() -> None:
    """Every drafted pass is dear until the pool has filled; later, drafting is found to pay all the same."""
    policy = GatedDepth(4)
    policy.begin()
    depths = [feed(policy, 0.97, right=True, row=4.0 if step < 60 else 0.2, guess=0.1) for step in range(3_000)]
    assert mean(depths[:60]) < 0.15
    assert mean(depths[-500:]) > 2


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("confidences", [(0.99,) * 16, (0.5,) * 16, (0.99, 0.1) * 8])
def test_no_policy_guesses_more_than_allowed(most: int, confidences: tuple[float, ...]) -> None:
    for policy in (FixedDepth(16), GatedDepth(16)):
        policy.begin()
        for step in range(200):
            made = int(policy.starts(most))
            while 0 < made < most and policy.goes_on(confidences[:made]):
                made += 1
            assert made <= most
            depth = policy.verified(confidences[:made]) if made else 0
            assert 0 <= depth <= made
            right = depth if step % 3 else 0
            policy.note(
                PassCost(depth=depth, time_s=1.0 + 0.1 * depth, guesses_s=(0.1,) * made),
                Outcome(confidences=confidences[:made], right=right, judged=min(right + 1, made)),
            )


def test_passes_of_any_depth_teach_the_price_of_a_row() -> None:
    costs = DraftCosts()
    assert costs.plain_s == 0
    costs.note(PassCost(depth=0, time_s=1.0))
    assert 0 < costs.row_s(0) == costs.row_s(1) < 1
    for _ in range(100):
        costs.note(PassCost(depth=0, time_s=1.0))
        for depth in range(1, 5):
            costs.note(PassCost(depth=depth, time_s=1.5 + 0.4 * (depth - 1)))
    assert [costs.row_s(place) for place in range(3)] == pytest.approx([0.5, 0.4, 0.4], rel=0.15)
    assert costs.drafts_s(guesses=0, rows=3) == pytest.approx(1.3, rel=0.1)


def test_one_pass_that_was_held_up_changes_prices_little() -> None:
    costs = DraftCosts()
    costs.note(PassCost(depth=0, time_s=1.0))
    before = costs.drafts_s(guesses=2, rows=2)
    costs.note(PassCost(depth=1, time_s=9.0, guesses_s=(5.0,)))
    costs.note(PassCost(depth=0, time_s=1.0))
    costs.note(PassCost(depth=2, time_s=9.0, guesses_s=(0.2, 5.0)))
    costs.note(PassCost(depth=0, time_s=1.0))
    assert costs.drafts_s(guesses=2, rows=2) == pytest.approx(before, rel=0.15)


def test_a_machine_that_becomes_slower_while_everything_is_drafted_makes_nothing_dearer() -> None:
    costs, shares = DraftCosts(), []
    for scale in (1.0, 1.6):
        for step in range(200):
            depth = 0 if step % 50 == 0 else 2
            costs.note(PassCost(depth=depth, time_s=(1.0 + 0.3 * depth) * scale, guesses_s=(0.15 * scale,)))
        shares.append((costs.row_s(0) / costs.plain_s, costs.guess_s(0) / costs.plain_s))
    assert shares[1] == pytest.approx(shares[0], rel=0.05)


def test_guesses_after_rows_that_had_waited_do_not_teach_what_a_guess_takes() -> None:
    costs = DraftCosts()
    for _ in range(30):
        costs.note(PassCost(depth=0, time_s=1.0, guesses_s=(0.6,), caught_up_rows=20, caught_up_s=1.0))
    assert costs.guess_s(0) == pytest.approx(0.2)


def test_the_first_guess_and_those_after_it_have_their_own_price() -> None:
    costs = DraftCosts()
    costs.note(PassCost(depth=0, time_s=1.0))
    assert 0 < costs.guess_s(0) == costs.guess_s(1) < 1
    for _ in range(150):
        costs.note(PassCost(depth=0, time_s=1.0, guesses_s=(0.4, 0.2)))
    assert (costs.guess_s(0), costs.guess_s(1)) == pytest.approx((0.4, 0.2), abs=0.06)
    assert costs.guess_s(1) == costs.guess_s(3)


def test_bytes_that_a_pass_reads_cost_what_a_byte_made_others_wait() -> None:
    costs = DraftCosts()
    for _ in range(100):
        costs.note(PassCost(depth=0, time_s=2.0, wait_s=1.0, bytes_read=100))
        costs.note(PassCost(depth=1, time_s=3.0, wait_s=1.5, bytes_read=150))
    assert costs.plain_s == pytest.approx(2.0)
    assert costs.row_s(0) == pytest.approx(1.0, abs=0.1)
    for _ in range(90):  # the pool has warmed up: nothing is read any more
        costs.note(PassCost(depth=0, time_s=1.0))
    assert costs.plain_s == pytest.approx(1.0, abs=0.05)
