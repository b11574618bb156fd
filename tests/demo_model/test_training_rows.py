"""Packing, drawing and archiving of what the demo model is trained on and ends as."""

from pathlib import Path

import numpy as np
import pytest

from tools.demo_model.prepare import FOCUS_BIT, focus_mask, pack_rows
from tools.demo_model.rows import RowSampler, RowSet
from tools.demo_model.weights_archive import pack_weights, read_pieces, unpack_weights, write_pieces


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    return np.array(values, dtype=np.uint16)


def test_a_text_runs_on_into_the_next_row() -> None:
    rows = pack_rows([(ids(1, 2, 3, 4, 5, 6), True)], row_tokens=4)
    assert rows[:1].tolist() == [[1, 2, 3, 4]]
    assert rows[1, :2].tolist() == [5, 6]


def test_a_chat_starts_whole_in_a_row_and_its_head_fills_the_row_before() -> None:
    rows = pack_rows([(ids(1, 2, 3), False), (ids(7, 8, 9), False)], row_tokens=4)
    assert rows.tolist() == [[1, 2, 3, 7], [7, 8, 9, 1]]


def test_a_shorter_chat_further_on_fills_the_room_left() -> None:
    rows = pack_rows([(ids(1, 2, 3), False), (ids(7, 8, 9), False), (ids(5), False)], row_tokens=4)
    assert rows[0].tolist() == [1, 2, 3, 5]


def test_a_chat_longer_than_a_row_is_cut_once() -> None:
    rows = pack_rows([(ids(*range(1, 11)), False), (ids(20, 21), False)], row_tokens=4)
    assert rows.tolist() == [[20, 21, 1, 2], [1, 2, 3, 4]]


def test_only_the_assistant_words_and_their_end_are_in_focus() -> None:
    start, end, assistant, user, line = 100, 101, 50, 51, 9
    chat = ids(start, user, line, 1, 2, end, line, start, assistant, line, 3, 4, end, line)
    mask = focus_mask(chat, turn_start=start, turn_end=end, assistant=(assistant, line))
    assert chat[mask].tolist() == [3, 4, end]


def row_sets() -> tuple[RowSet, ...]:
    return (
        RowSet(source="stories", stage="pretrain", split="train", start=0, count=5),
        RowSet(source="tools", stage="finish", split="train", start=5, count=3),
    )


def test_every_row_of_a_group_comes_once_an_epoch() -> None:
    sampler = RowSampler(row_sets()[:1], {}, seed=3)
    drawn = sampler.draw(10)
    assert sorted(drawn[:5].tolist()) == sorted(drawn[5:].tolist()) == [0, 1, 2, 3, 4]


def test_a_source_without_a_share_is_left_out() -> None:
    sampler = RowSampler(row_sets(), {"tools": 1.0}, seed=3)
    assert set(sampler.draw(30).tolist()) == {5, 6, 7}


def test_shares_do_not_depend_on_how_many_rows_a_source_has() -> None:
    assert RowSampler(row_sets(), {"stories": 1.0, "tools": 3.0}, seed=3).shares.tolist() == [0.25, 0.75]


def test_a_mix_without_any_known_source_is_refused() -> None:
    with pytest.raises(ValueError, match="stories, tools"):
        RowSampler(row_sets(), {"poems": 1.0}, seed=3)


def test_skipping_draws_resumes_where_a_run_stopped() -> None:
    whole, resumed = RowSampler(row_sets(), {}, seed=4), RowSampler(row_sets(), {}, seed=4)
    first, second = whole.draw(8), whole.draw(8)
    resumed.skip(1, 8)
    assert resumed.draw(8).tolist() == second.tolist() != first.tolist()


def test_weights_survive_the_archive_and_its_pieces(tmp_path: Path) -> None:
    bits = np.random.default_rng(5).integers(0, 1 << 16, 3000, dtype=np.uint16)
    tensors = {"a": bits[:2000].reshape(40, 50), "b": bits[2000:]}
    pieces = write_pieces(pack_weights(tensors, threads=2), tmp_path, piece_bytes=1500)
    assert len(pieces) > 2
    restored = unpack_weights(read_pieces(tmp_path))
    assert restored.keys() == tensors.keys()
    assert all(np.array_equal(restored[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("token", [0, 8191])
def test_the_focus_bit_leaves_every_token_id_intact(token: int) -> None:
    assert (np.uint16(token) | np.uint16(FOCUS_BIT)) & (FOCUS_BIT - 1) == token
