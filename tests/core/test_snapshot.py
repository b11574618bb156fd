"""Snapshots of sequence states: exact, shared between branches, and refused where they do not belong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import StateError
from slotstream_core.experts import ExpertLayout, ResidentExperts, StoredExperts
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from slotstream_core.state.rows import HostArray, RowSegment, StateSnapshot, host_dtype, segments_until
from slotstream_core.state.sequence import SequenceState
from tests.core.qwen4_exp_models import last_logits, open_model, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(64)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("dense"), SETTINGS, bits=None, float_type="F32")


def resumed(model: Qwen4ExpModel, snapshot: StateSnapshot) -> SequenceState:
    state = model.new_state()
    state.restore(snapshot)
    return state


def segment_bounds(segments: Sequence[RowSegment]) -> list[tuple[int, int]]:
    return [(segment.start, segment.end) for segment in segments]


@pytest.mark.parametrize("length", [3, 22, 32, 47])
def test_a_restored_state_goes_on_bit_for_bit(dense: Path, length: int) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:length], state)
        snapshot = state.snapshot()
        copy = resumed(model, snapshot)
        assert copy.length == snapshot.length == length
        shapes = [[array.shape for array in each.arrays()] for each in (state, copy)]
        assert shapes[0] == shapes[1]
        lengths = (5, 1, 1, 7, 1)
        on_copy = run_passes(model, PROMPT[length:], lengths, copy)
        assert np.array_equal(on_copy, run_passes(model, PROMPT[length:], lengths, state))


def test_what_a_state_does_next_leaves_its_snapshot_alone(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:20], state)
        snapshot = state.snapshot()
        expected = last_logits(model, PROMPT[20:30], resumed(model, snapshot))
        run_passes(model, PROMPT[30:60], (9, 1, 1), state)
        run_passes(model, PROMPT[40:60], (9, 1), resumed(model, snapshot))
        assert np.array_equal(last_logits(model, PROMPT[20:30], resumed(model, snapshot)), expected)
        with pytest.raises(ValueError, match="read-only"):
            snapshot.fixed["0/memory"].values[...] = 0


def test_a_later_snapshot_copies_only_the_rows_it_adds(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        first = state.snapshot()
        last_logits(model, PROMPT[30:50], state)
        second = state.snapshot(first.segments)
        assert second.segments[0] is first.segments[0]
        assert segment_bounds(second.segments) == [(0, 30), (30, 50)]
        assert second.row_bytes * 30 > first.row_bytes * 49
        alone = state.snapshot()
        after, expected = (last_logits(model, PROMPT[50:], resumed(model, each)) for each in (second, alone))
        assert np.array_equal(after, expected)


def test_branches_share_the_rows_of_their_common_beginning(dense: Path) -> None:
    with open_model(dense) as model:
        root = model.new_state()
        last_logits(model, PROMPT[:24], root)
        trunk = root.snapshot()
        branches = []
        for tokens in (PROMPT[24:40], PROMPT[40:60]):
            state = resumed(model, trunk)
            last_logits(model, tokens, state)
            branches.append(state.snapshot(trunk.segments))
        owned = {id(segment): segment.byte_size for branch in branches for segment in branch.segments}
        assert sum(owned.values()) < sum(branch.row_bytes for branch in branches)
        assert branches[0].segments[0] is branches[1].segments[0]


def test_a_shorter_snapshot_uses_a_part_of_known_rows(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:18], state)
        short = state.snapshot()
        last_logits(model, PROMPT[18:60], state)
        whole = state.snapshot()
        again = model.new_state()
        last_logits(model, PROMPT[:18], again)
        shared = again.snapshot(whole.segments)
        assert segment_bounds(shared.segments) == [(0, 18)]
        assert shared.segments[0].owner is whole.segments[0]
        for name, array in shared.segments[0].rows.items():
            assert np.shares_memory(array.values, whole.segments[0].rows[name].values) or not array.values.size
        after, expected = (last_logits(model, PROMPT[18:40], resumed(model, each)) for each in (short, shared))
        assert np.array_equal(after, expected)


def test_segments_end_where_they_are_cut(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        first = state.snapshot()
        last_logits(model, PROMPT[30:50], state)
        segments = state.snapshot(first.segments).segments
    assert segment_bounds(segments_until(segments, 41)) == [(0, 30), (30, 41)]
    assert segment_bounds(segments_until(segments, 30)) == [(0, 30)]
    assert segments_until(segments, 0) == ()
    with pytest.raises(StateError, match="tokens 10 to 60 are not in a segment of 0 to 30"):
        segments[0].part(10, 60)


def test_a_snapshot_is_refused_by_another_model_and_by_a_state_in_use(dense: Path, tmp_path: Path) -> None:
    other = write_synthetic(tmp_path / "other", SETTINGS, bits=None, float_type="F32", seed=1)
    with open_model(dense) as model, open_model(other) as stranger:
        state = model.new_state()
        last_logits(model, PROMPT[:20], state)
        snapshot = state.snapshot()
        with pytest.raises(StateError, match="belongs to another model"):
            stranger.new_state().restore(snapshot)
        with pytest.raises(StateError, match="this one has 20 tokens"):
            state.restore(snapshot)
        missing = {name: array for name, array in snapshot.fixed.items() if name != "1/window"}
        with pytest.raises(StateError, match="no array 1/window"):
            model.new_state().restore(replace(snapshot, fixed=missing))
        keys = next(name for name in snapshot.segments[0].rows if name.endswith("/keys"))
        short = HostArray(dtype="float32", values=snapshot.segments[0].rows[keys].values[:, :7])
        rows = {**snapshot.segments[0].rows, keys: short}
        with pytest.raises(StateError, match="belongs to another model"):
            model.new_state().restore(replace(snapshot, segments=(replace(snapshot.segments[0], rows=rows),)))


def test_sixteen_bit_states_are_kept_as_their_bits(tmp_path: Path) -> None:
    here = Backend.detect().kind
    backend = Backend(kind="metal" if here == "cpu" else here, compute_dtype=mx.bfloat16)
    with Checkpoint.open(write_synthetic(tmp_path / "4bit", SETTINGS, bits=4, group_size=32)) as checkpoint:
        layout = ExpertLayout.from_checkpoint(
            checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name
        )
        experts = ResidentExperts(StoredExperts(layout), lane_count=1)
        with Qwen4ExpModel(checkpoint, experts, backend) as model:
            state = model.new_state()
            last_logits(model, PROMPT[:21], state)
            snapshot = state.snapshot()
            kept = {array.dtype for array in snapshot.segments[0].rows.values()}
            assert kept == {"bfloat16"}
            assert host_dtype("bfloat16") == np.uint16
            assert {array.dtype for array in snapshot.fixed.values()} == {"bfloat16", "float32", "int64"}
            copy = resumed(model, snapshot)
            assert [array.dtype for array in copy.arrays()] == [array.dtype for array in state.arrays()]
            again, expected = (last_logits(model, PROMPT[21:30], each) for each in (copy, state))
            assert np.array_equal(again, expected)
    with pytest.raises(StateError, match="no complex64 elements"):
        host_dtype("complex64")
