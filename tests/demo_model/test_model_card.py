"""The model card's tables come from results."""

from typing import Any

from tools.demo_model.card import TEMPLATE_PATH, fill_card


def results() -> dict[str, Any]:
    return {
        "tools": {"table": {"made_up": {"cases": 40, "names": 0.5, "exact": 0.25}}},
        "draft": {
            "accepted_of_offered": 0.8,
            "first_accepted": 0.9,
            "second_accepted_after_first": 0.7,
            "tokens_a_pass": 2.6,
        },
        "experts": {
            "lru_hit_rate_by_pool_share": {"0.1": 0.15, "0.5": 0.61},
            "share_of_picks_of_the_busiest_quarter_by_layer": [0.33, 0.5],
        },
        "heldout": {"bf16": {"weight_bytes": 84_000_000, "mean": 1.5, "losses": {}}},
        "samples": [{"request": "Hello!", "temperature": "0.0", "answer": "Hello!\n\nWell?"}],
    }


def test_every_place_in_the_card_is_filled() -> None:
    card = fill_card(TEMPLATE_PATH.read_text(encoding="utf-8"), results(), seconds=865.2, commit="abc1234")
    assert "@" not in card.replace("bfcl-eval", "")
    assert "| made up | 40 | 50% | 25% |" in card
    assert "| bf16 | 84,000,000 | 1.500 |" in card
    assert "commit abc1234" in card
    assert "> Hello!\n> \n> Well?" in card
