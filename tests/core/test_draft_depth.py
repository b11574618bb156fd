"""The depth controller on simulated texts and machines: seeded, so the same on every machine."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import pytest

from slotstream_core.generation.draft_depth import AdaptiveDepth, DepthPolicy, FixedDepth, PassCost, PassTimes

REPLY = 300
REPLIES = 3
SEEDS = range(10)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A machine and a text.

    Attributes:
        per_draft: Time that each draft adds to a pass, in plain passes.
        accepted: Share of drafts accepted, by place, for the first and the second half of every reply.
        wait_share: Part of the time of a pass that it waits for records, its bytes being proportional.
    """

    per_draft: float
    accepted: tuple[Sequence[float], Sequence[float]]
    wait_share: float = 0.0


def steady(per_draft: float, share: float, wait_share: float = 0.0) -> Simulated:
    shares = [share, 0.93 * share, 0.9 * share, 0.85 * share]
    return Simulated(per_draft=per_draft, accepted=(shares, shares), wait_share=wait_share)


def reply(policy: DepthPolicy, where: Simulated, rng: random.Random) -> float:
    """Time of one reply in plain passes; passes vary by 5%, one in fifty takes twice as long."""
    policy.begin()
    time_s, made = 0.0, 0
    while made < REPLY:
        depth = policy.choose(max(0, REPLY - made - 1))
        shares = where.accepted[2 * made // REPLY]
        accepted = 0
        while accepted < depth and rng.random() < shares[min(accepted, len(shares) - 1)]:
            accepted += 1
        pass_s = (1 + where.per_draft * depth) * rng.lognormvariate(0, 0.05) * (2 if rng.random() < 0.02 else 1)
        wait_s = pass_s * where.wait_share
        policy.note(PassCost(depth=depth, time_s=pass_s, wait_s=wait_s, bytes_read=int(1e6 * wait_s)), accepted)
        time_s += pass_s
        made += 1 + accepted
    return time_s


def cost(make: Callable[[], DepthPolicy], where: Simulated, seeds: range = SEEDS) -> float:
    """Mean time of some replies, after one about something else has been made."""

    def one(seed: int) -> float:
        policy, rng = make(), random.Random(seed)
        reply(policy, steady(where.per_draft, 0.6, where.wait_share), rng)
        return sum(reply(policy, where, rng) for _ in range(REPLIES))

    return mean(one(seed) for seed in seeds)


def better_of_on_and_off(where: Simulated) -> float:
    return min(cost(lambda: FixedDepth(0), where), cost(lambda: FixedDepth(2), where, range(16)))


@pytest.mark.parametrize(
    ("per_draft", "share", "wait_share"),
    [
        (0.16, 0.05, 0.0),
        (0.16, 0.5, 0.0),
        (0.16, 0.97, 0.0),
        (0.33, 0.05, 0.5),
        (0.33, 0.5, 0.0),
        (0.33, 0.7, 0.5),
        (0.6, 0.05, 0.0),
        (0.6, 0.5, 0.0),
        (0.6, 0.7, 0.5),
        (0.6, 0.97, 0.5),
        (1.0, 0.5, 0.0),
        (1.0, 0.97, 0.0),
    ],
)
def test_auto_loses_at_most_two_per_cent_against_the_better_of_on_and_off(
    per_draft: float, share: float, wait_share: float
) -> None:
    where = steady(per_draft, share, wait_share)
    better = better_of_on_and_off(where)
    assert cost(lambda: AdaptiveDepth(4), where) <= 1.02 * better


def test_auto_goes_deeper_than_the_default_where_that_pays() -> None:
    where = steady(0.1, 0.98)
    assert cost(lambda: AdaptiveDepth(4), where) < 0.95 * cost(lambda: FixedDepth(2), where)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_auto_follows_a_text_that_changes_half_way(order: tuple[int, int]) -> None:
    halves = ([0.97] * 4, [0.05] * 4)
    where = Simulated(per_draft=0.45, accepted=(halves[order[0]], halves[order[1]]))
    better = better_of_on_and_off(where)
    assert cost(lambda: AdaptiveDepth(4), where) < 0.97 * better


def test_auto_drafts_nothing_but_rare_looks_when_drafts_are_never_right() -> None:
    policy, rng, where = AdaptiveDepth(4), random.Random(1), steady(0.5, 0.0)
    reply(policy, where, rng)
    depths: list[int] = []
    choose = policy.choose

    def watched(most: int, *, waiting: int = 0) -> int:
        depths.append(choose(most, waiting=waiting))
        return depths[-1]

    policy.choose = watched  # type: ignore[method-assign]
    reply(policy, where, rng)
    assert sum(depth > 0 for depth in depths[20:]) <= 0.05 * len(depths)


@pytest.mark.parametrize("row_s", [0.0, 0.02])
def test_what_looks_cost_stays_below_a_hundredth_of_the_time_by_construction(row_s: float) -> None:
    """Drafts that are never right, at worst prices, and rows that the head must take in before each."""
    policy, plain_s, draft_s, first = AdaptiveDepth(4), 1.0, 1.0, 27
    elapsed_s = lost_s = 0.0
    waiting = looks = 0
    for step in range(6_000):
        if step % 300 == 0:
            policy.begin()
            waiting = 0
        depth = policy.choose(8, waiting=waiting + 1)
        rows = waiting if depth else 0
        cost = PassCost(depth=depth, time_s=plain_s + draft_s * depth, caught_up_rows=rows, caught_up_s=rows * row_s)
        policy.note(cost, 0)
        waiting = 0 if depth else waiting + 1
        if step >= first:  # before that, every depth is tried once
            elapsed_s += cost.time_s + cost.caught_up_s
            lost_s += depth * draft_s + cost.caught_up_s
            looks += depth > 0
            assert lost_s <= 0.01 * elapsed_s + 4 * draft_s + 300 * row_s
    assert looks
    assert lost_s <= 0.01 * elapsed_s


def test_rows_taken_in_for_a_look_do_not_make_drafting_look_dearer() -> None:
    """A head that pays is found although the first look after many plain passes takes a long time."""
    policy = AdaptiveDepth(2)
    policy.begin()
    waiting, depths = 40, []
    for _ in range(2_000):
        depth = policy.choose(8, waiting=waiting + 1)
        rows = waiting if depth else 0
        policy.note(PassCost(depth=depth, time_s=1 + 0.3 * depth, caught_up_rows=rows, caught_up_s=0.05 * rows), depth)
        waiting = 0 if depth else waiting + 1
        depths.append(depth)
    assert mean(depths[-500:]) > 1.9


def test_passes_that_another_mechanism_only_times_do_not_make_drafting_look_dearer() -> None:
    policy = AdaptiveDepth(4)
    policy.begin()
    for _ in range(60):
        depth = policy.choose(100)
        slow = 4.0 if depth else 1.0  # the first drafts fall into somebody's trial
        policy.note(PassCost(depth=depth, time_s=slow, usual=False), depth)
    for _ in range(60):
        depth = policy.choose(100)
        policy.note(PassCost(depth=depth, time_s=1.0 + 0.2 * depth), depth)
    assert policy.choose(100) >= 2


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_policy_drafts_more_than_allowed(most: int) -> None:
    for policy in (FixedDepth(16), AdaptiveDepth(16)):
        policy.begin()
        for step in range(200):
            depth = policy.choose(most)
            assert 0 <= depth <= most
            policy.note(PassCost(depth=depth, time_s=1.0 + 0.1 * depth), depth if step % 3 else 0)


def test_a_depth_never_tried_is_judged_by_its_neighbours() -> None:
    times = PassTimes(4)
    times.note(PassCost(depth=0, time_s=1.0))
    assert times.expected_s(3) is None
    times.note(PassCost(depth=2, time_s=2.0))
    assert times.expected_s(1) == pytest.approx(1.5)
    assert times.expected_s(4) == pytest.approx(3.0)


def test_bytes_that_a_pass_reads_cost_what_a_byte_made_others_wait() -> None:
    times = PassTimes(2)
    for _ in range(15):
        times.note(PassCost(depth=0, time_s=2.0, wait_s=1.0, bytes_read=100))
        times.note(PassCost(depth=2, time_s=3.0, wait_s=1.5, bytes_read=150))
    plain, deep = times.expected_s(0), times.expected_s(2)
    assert plain == pytest.approx(2.0)
    assert deep == pytest.approx(3.0)
    for _ in range(90):  # the pool has warmed up: nothing is read any more
        times.note(PassCost(depth=0, time_s=1.0))
    assert times.expected_s(0) == pytest.approx(1.0, abs=0.05)
