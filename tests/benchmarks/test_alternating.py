"""Texts of one reply leave it in different ways in turn, and each way's time is that of its own intervals."""

from collections.abc import Mapping

import pytest

from benchmarks.online.alternating import Alternation, Plan
from slotstream_core.events import TextDelta
from slotstream_serve.testing import ScriptedEngine

WAYS = ("alone", "piped", "served")
PLAN = Plan(ways=WAYS, block_tokens=4, settling_tokens=1)
COST_S = {"": 9.0, "alone": 1.0, "piped": 2.0, "served": 5.0}


class Run:
    """Plays a reply whose clock moves by what the way of the last text costs."""

    def __init__(self, turn: int, texts: int) -> None:
        self.now_s = 0.0
        self.way = ""
        self.entered: list[str] = []
        self.piped: list[str] = []
        self.seconds: Mapping[str, float] = {}
        alternation = Alternation(
            plan=PLAN,
            turn=turn,
            enter=self.enter,
            pipe=self.piped.append,
            ended=self.end,
            served=frozenset({"served"}),
            clock=self.clock,
        )
        script = [f"{number} " for number in range(texts)]
        events = alternation.events(ScriptedEngine([script]).generate([1, 2]))
        self.served = [event.text for event in events if isinstance(event, TextDelta)]

    def clock(self) -> float:
        self.now_s += COST_S[self.way]
        return self.now_s

    def enter(self, way: str) -> None:
        self.entered.append(way)
        self.way = way

    def end(self, seconds: Mapping[str, float]) -> None:
        self.seconds = dict(seconds)


@pytest.mark.parametrize("turn", range(4))
def test_each_way_is_charged_with_its_own_intervals(turn: int) -> None:
    run = Run(turn, PLAN.tokens)
    assert run.seconds == {way: COST_S[way] for way in WAYS}


def test_blocks_come_in_palindromes_and_every_way_stands_at_every_place() -> None:
    orders = [PLAN.order(turn) for turn in range(len(WAYS))]
    for order in orders:
        assert order[0] == ""
        assert order[1:] == order[:0:-1]
    assert all({order[place] for order in orders} == set(WAYS) for place in range(1, 4))


def test_texts_go_where_their_block_says() -> None:
    run = Run(0, PLAN.tokens)
    numbers = range(PLAN.tokens)
    order = PLAN.order(0)
    expected = {way: [f"{n} " for n in numbers if order[min(n // 4, 6)] == way] for way in ("", *WAYS)}
    assert run.piped == expected["piped"]
    assert run.served == [*expected[""], *expected["served"]]
    assert run.entered == order + order[-1:]


def test_a_reply_that_ends_early_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="ended after"):
        Run(0, 20)
