"""The draft head: parity with the head as it was trained, and what it keeps of a sequence."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.checkpoint.conversion import ConversionOptions, convert_checkpoint
from slotstream_core.checkpoint.storage import StorageOptions
from slotstream_core.checkpoint.synthesis import write_huggingface, write_synthetic
from slotstream_core.errors import ExpertReadError, RequestError
from slotstream_core.experts import StoredExperts
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.draft import DraftHead
from slotstream_core.models.qwen4_exp.draft_state import DraftState
from slotstream_core.models.qwen4_exp.moe import pass_leases
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.state.rows import RowSegment
from slotstream_core.state.sequence import SequenceState
from tests.core.qwen4_exp_models import alike, last_logits, open_drafting_model, open_model, run_passes
from tools.oracle.cases import DRAFT_CASES, ParityCase, draft_rows

GOLDENS = Path(__file__).parent / "goldens"
TOLERANCE = 2e-4
SETTINGS = {"vocab_size": 288, "indexer_budget": 16, "indexer_n_heads": 8, "num_experts": 16, "split_ngram_parts": 3}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(60)]


@pytest.fixture(scope="module", params=DRAFT_CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ParityCase:
    found = request.param
    assert isinstance(found, ParityCase)
    return found


@pytest.fixture(scope="module")
def converted(case: ParityCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(case.name)
    write_huggingface(root / "source", case.settings, draft=True)
    options = ConversionOptions(storage=StorageOptions(bits=None))
    return convert_checkpoint(root / "source", root / "converted", options).directory


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("tiny"), SETTINGS, bits=4, group_size=32, draft=True)


def head_of(model: Qwen4ExpModel) -> DraftHead:
    assert model.draft_head is not None
    return model.draft_head


def draft_state(state: SequenceState) -> DraftState:
    found = state.layers[-1]
    assert isinstance(found, DraftState)
    return found


def refuse(*_: object) -> int:
    raise OSError("the disk is gone")


def predict(
    head: DraftHead, attention: AttentionState, streams: mx.array, after: Sequence[int]
) -> tuple[npt.NDArray[np.float32], mx.array]:
    with pass_leases() as leases:
        own = head._advance(attention, streams, mx.array(np.array(after, np.int32)), leases)
        logits = head._outputs.logits(own)
        mx.eval(logits, own)
    return np.array(logits[0]), own


def test_first_and_second_drafts_equal_the_head_as_trained(case: ParityCase, converted: Path) -> None:
    with np.load(GOLDENS / f"{case.name}.npz") as golden, open_drafting_model(converted) as model:
        assert golden["ids"].tolist() == case.prompt()
        head, ids = head_of(model), case.prompt()
        streams = model.forward(ids, model.new_state(), logits="all").streams
        attention = head.new_state().attention
        for row in range(draft_rows(len(ids))):
            first, own = predict(head, attention, streams[row : row + 1], ids[row + 1 : row + 2])
            second, _ = predict(head, attention.fork(), own, ids[row + 2 : row + 3])
            assert np.abs(first - golden["first"][row]).max() <= TOLERANCE
            assert np.abs(second - golden["second"][row]).max() <= TOLERANCE


@pytest.mark.parametrize("lengths", [(60,), (1,), (40, 1, 1, 3, 1, 9, 1, 1, 1, 1, 1)], ids=str)
def test_drafts_do_not_depend_on_how_the_sequence_was_read(tiny: Path, lengths: tuple[int, ...]) -> None:
    with open_drafting_model(tiny) as model:
        state = model.new_state()
        run_passes(model, PROMPT, lengths, state)
        whole = model.new_state()
        last_logits(model, PROMPT, whole)
        head = head_of(model)
        rows, own = model.new_state(), head.new_state().attention
        streams = model.forward(PROMPT, rows).streams
        expected = []
        logits, streams = predict(head, own, streams, [*PROMPT[1:], 77])
        for _ in range(4):
            expected.append(int(logits.argmax()))
            logits, streams = predict(head, own, streams, expected[-1:])
        assert model.draft(state, 77, 4) == model.draft(whole, 77, 4) == expected


def test_a_guess_is_as_sure_as_the_vocabulary_says(tiny: Path) -> None:
    with open_drafting_model(tiny) as model:
        state, head = model.new_state(), head_of(model)
        streams = model.forward(PROMPT[:9], state).streams
        logits, _ = predict(head, head.new_state().attention, streams, [*PROMPT[1:9], 77])
        chances = np.exp(logits - logits.max())
        with closing(model.guesses(state, 77)) as guesses:
            guess = next(guesses)
    assert guess.token == int(logits.argmax())
    assert guess.confidence == pytest.approx(chances.max() / chances.sum(), rel=1e-4)


def test_drafting_twice_guesses_the_same_and_leaves_the_main_model_alone(tiny: Path) -> None:
    with open_drafting_model(tiny) as model, open_model(tiny) as plain:
        state, other = model.new_state(), plain.new_state()
        last_logits(model, PROMPT[:30], state)
        last_logits(plain, PROMPT[:30], other)
        assert model.draft(state, 5, 3) == model.draft(state, 5, 3)
        assert model.draft(state, 5, 2) == model.draft(state, 5, 3)[:2]
        assert state.length == 30
        assert np.array_equal(last_logits(model, [5], state), last_logits(plain, [5], other))


@pytest.mark.parametrize("kept", range(5))
def test_a_verified_pass_can_be_cut_anywhere_and_drafting_goes_on_as_if_it_had_never_been_longer(
    tiny: Path, kept: int
) -> None:
    with open_drafting_model(tiny) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        plain = state.fork()
        model.draft(state, PROMPT[30], 3)
        model.forward(PROMPT[30:34], state, record=True)
        state.trim(30 + kept)
        state.forget_passes()
        for token in PROMPT[30 : 30 + kept]:
            last_logits(model, [token], plain)
        assert model.draft(state, 9, 3) == model.draft(plain, 9, 3)
        assert alike(last_logits(model, [9, 8], state), last_logits(model, [9, 8], plain))
        assert model.draft(state, 7, 2) == model.draft(plain, 7, 2)


def test_catching_up_before_a_draft_changes_no_guess(tiny: Path) -> None:
    with open_drafting_model(tiny) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:20], state)
        assert model.catch_up(state) == 0
        for token in PROMPT[20:45]:
            model.forward([token], state, decode=True)
        other = state.fork()
        assert model.waiting_rows(state) == 25
        assert model.catch_up(state) == 25
        assert model.waiting_rows(state) == 0
        assert model.draft(state, 9, 3) == model.draft(other, 9, 3)
        assert model.catch_up(state) == 0


@pytest.mark.parametrize("alone", [7, 25])
def test_rows_that_are_only_remembered_leave_what_rows_leave_that_attend(tiny: Path, alone: int) -> None:
    first = 45 - alone
    with open_drafting_model(tiny) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:first], state)
        for token in PROMPT[first:45]:
            model.forward([token], state, decode=True)
        assert model.catch_up(state) == alone
        head = head_of(model)
        attended = head.new_state().attention
        streams = model.forward(PROMPT[:45], model.new_state()).streams
        predict(head, attended, streams[:-1], PROMPT[1:45])
    remembered = draft_state(state).attention
    assert remembered.length == attended.length == remembered.index.length == 44
    for name in ("keys", "values"):
        found, expected = (np.asarray(getattr(own, name))[:, :44] for own in (remembered, attended))
        assert np.abs(found - expected).max() < TOLERANCE
    blocks = 44 // remembered.index.ratio
    assert blocks
    found, expected = (np.asarray(own.index.blocks)[:blocks] for own in (remembered, attended))
    assert np.abs(found - expected).max() < TOLERANCE
    assert np.abs(np.asarray(remembered.index.tail) - np.asarray(attended.index.tail)).max(initial=0.0) < TOLERANCE


@pytest.fixture
def few_rows_wait(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows may wait for a draft, so few that short tests take rows in."""
    monkeypatch.setattr("slotstream_core.models.qwen4_exp.draft.WAITING_ROWS", 16)
    return 16


def test_rows_that_are_taken_in_do_not_pile_up(tiny: Path, few_rows_wait: int) -> None:
    with open_drafting_model(tiny) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        assert draft_state(state).streams.shape[0] == 1
        for token in PROMPT[:25]:
            model.forward([token], state, decode=True)
            own = draft_state(state)
            assert own.length - own.first <= few_rows_wait
        model.draft(state, 3, 2)
        last_logits(model, [3], state)
        model.draft(state, 4, 2)
        assert draft_state(state).streams.shape[0] <= 2
        assert draft_state(state).length == state.length


@pytest.mark.parametrize("length", [0, 1, 2, 4, 5, 8, 9, 20, 21])
@pytest.mark.parametrize("drafted", [False, True])
def test_a_kept_state_drafts_and_goes_on_like_the_one_it_was_taken_of(tiny: Path, length: int, drafted: bool) -> None:
    with open_drafting_model(tiny) as model:
        state, restored = model.new_state(), model.new_state()
        if length:
            last_logits(model, PROMPT[:length], state)
        if drafted and length:
            model.draft(state, 3, 2)
        restored.restore(state.snapshot())
        longer = state.fork()
        for which in (state, restored):
            run_passes(model, PROMPT[length : length + 11], (3, 1), which)
        assert model.draft(state, 7, 4) == model.draft(restored, 7, 4)
        if length:
            again = model.new_state()
            run_passes(model, PROMPT[length : length + 11], (6,), longer)
            again.restore(longer.snapshot(state_segments(model, length)))
            assert model.draft(again, 7, 4) == model.draft(state, 7, 4)


def state_segments(model: Qwen4ExpModel, length: int) -> tuple[RowSegment, ...]:
    shorter = model.new_state()
    last_logits(model, PROMPT[:length], shorter)
    return shorter.snapshot().segments


@pytest.mark.parametrize("draft_slots", [8, 9, 16])
def test_a_head_whose_experts_stream_guesses_what_a_resident_one_does(tiny: Path, draft_slots: int) -> None:
    def guesses(model: Qwen4ExpModel) -> list[list[int]]:
        state, found = model.new_state(), []
        last_logits(model, PROMPT[:20], state)
        for token in PROMPT[20:30]:
            found.append(model.draft(state, token, 4))
            last_logits(model, [token], state)
        return found

    with open_drafting_model(tiny) as model:
        expected = guesses(model)
    with open_drafting_model(tiny, slots=16, draft_slots=draft_slots) as model:
        assert guesses(model) == expected


def test_drafting_without_a_head_or_a_sequence_is_refused(tiny: Path) -> None:
    with open_model(tiny) as model, pytest.raises(RequestError, match="without its draft head"):
        model.draft(model.new_state(), 1, 1)
    with open_drafting_model(tiny) as model:
        with pytest.raises(RequestError, match="before any token"):
            model.draft(model.new_state(), 1, 2)
        state = model.new_state()
        last_logits(model, [1], state)
        with pytest.raises(RequestError, match="outside the vocabulary"):
            model.draft(state, 10**6, 1)


@pytest.mark.usefixtures("read_by_python")
def test_a_failed_draft_read_leaves_state_and_model_usable(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_drafting_model(tiny, draft_slots=8) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:20], state)
        plain = state.fork()
        with monkeypatch.context() as broken:
            broken.setattr(StoredExperts, "read", refuse)
            with pytest.raises(ExpertReadError):
                model.draft(state, 5, 3)
        assert model.draft(state, 5, 3) == model.draft(plain, 5, 3)
        assert np.array_equal(last_logits(model, [5], state), last_logits(model, [5], plain))


def test_a_long_verified_pass_can_be_cut_anywhere(tiny: Path, few_rows_wait: int) -> None:
    rows = few_rows_wait + 4
    with open_drafting_model(tiny) as model:
        start = model.new_state()
        last_logits(model, PROMPT[:22], start)
        for kept in (0, 1, 7, rows):
            state, plain = start.fork(), start.fork()
            model.forward(PROMPT[22 : 22 + rows], state, record=True, decode=True)
            state.trim(22 + kept)
            if kept:
                run_passes(model, PROMPT[22 : 22 + kept], (1,), plain)
            assert model.draft(state, 9, 3) == model.draft(plain, 9, 3)
