"""Which of equal scores are selected: recorded choices of PyTorch's `topk`, and what any choice must satisfy."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.models.qwen4_exp.tied_blocks import select_largest

RECORDED = Path(__file__).parent / "goldens" / "tied-blocks.json"


def test_the_choice_among_equals_is_pytorchs() -> None:
    records = json.loads(RECORDED.read_text())
    assert len(records) == 120
    for record in records:
        scores = [float(digit) for digit in record["scores"]]
        assert select_largest(scores, record["count"]) == record["chosen"]
    earliest = [
        sorted(sorted(range(len(r["scores"])), key=lambda i: (-int(r["scores"][i]), i))[: r["count"]]) for r in records
    ]
    assert sum(first != record["chosen"] for first, record in zip(earliest, records, strict=True)) > 40


@settings(max_examples=100)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=150), st.data())
def test_no_score_left_out_exceeds_one_that_was_taken(scores: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(scores)))
    chosen = select_largest([float(score) for score in scores], count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert sorted((scores[i] for i in chosen), reverse=True) == sorted(scores, reverse=True)[:count]


def test_an_order_that_defeats_partitioning_falls_back_to_a_heap() -> None:
    killer = [float(i // 2 if i % 2 else i // 2 + 40) for i in range(80)]
    for scores in (killer, killer[::-1], sorted(killer), sorted(killer, reverse=True)):
        for count in (2, 40, 79):
            chosen = select_largest(scores, count)
            assert sorted(scores[i] for i in chosen) == sorted(scores)[-count:]
