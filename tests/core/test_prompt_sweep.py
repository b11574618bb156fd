"""Prompt passes expert by expert: the same bits as with every expert in memory, however they are brought."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.engine import load
from slotstream_core.errors import ExpertReadError, GenerationCancelled, RequestError, SettingError, StateError
from slotstream_core.events import Finished, PromptProgress
from slotstream_core.experts import ExpertLayout, ExpertStats, StreamedExperts
from slotstream_core.experts.sweeping import SWEEPING, SweepGroup, SweepOptions, ring_size
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import PromptReader
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.models.qwen4_exp.reading import SWEEP_ROWS
from slotstream_core.models.qwen4_exp.sweep import SortedPairs
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from slotstream_core.options import ADMIT_VARIABLE, GROUP_VARIABLE, SWEEP_VARIABLE, EngineOptions
from slotstream_core.state.sequence import SequenceState
from slotstream_planner import PlanRequest
from tests.core.expert_files import ScriptedSource
from tests.core.leaving import CancelledAtThirdCheck
from tests.core.qwen4_exp_models import Logits, last_logits, open_drafting_model, open_model

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
LAYERS, EXPERTS, TOP = 4, 16, 4
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(558)]
PASSES = (256, 257, 40, 5)
"""Two that are swept even alone, one only beside others, and one too short for products on the host."""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("quantized"), SETTINGS, bits=4, group_size=32)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("dense"), SETTINGS, bits=None, float_type="F32")


def cut(ids: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    ends = np.cumsum(lengths).tolist()
    return [list(ids[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def read_together(model: Qwen4ExpModel, passes: Sequence[Sequence[int]], state: SequenceState) -> Logits:
    read = model.read(passes, state, ends_prompt=True, logits="all")
    steps = list(read.steps())
    assert steps[-1] == 1.0
    return np.array(read.result.logits)


def read_apart(model: Qwen4ExpModel, passes: Sequence[Sequence[int]], state: SequenceState) -> Logits:
    for ids in passes:
        logits = np.array(model.forward(ids, state, logits="all").logits)
    return logits


def stats_of(model: Qwen4ExpModel) -> ExpertStats:
    experts = model._experts
    assert isinstance(experts, StreamedExperts)
    return experts.stats


@pytest.mark.parametrize("kind", ["quantized", "dense"])
def test_a_swept_prompt_and_its_reply_equal_the_resident_ones_bit_for_bit(
    kind: str, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(kind)
    passes = cut(PROMPT, PASSES)
    with open_model(directory) as model:
        state = model.new_state()
        expected = read_apart(model, passes, state)
        reply = [last_logits(model, [token], state) for token in (3, 1, 4)]
    swept, off, small_groups = SweepOptions(), SweepOptions(enabled=False), SweepOptions(group_records=3)
    for slots, sweeping, read in (
        (2 * TOP, swept, read_together),
        (13, small_groups, read_together),
        (40, swept, read_apart),
        (40, off, read_together),
        (12, off, read_apart),
        (LAYERS * EXPERTS - 1, swept, read_together),
    ):
        with open_model(directory, slots=slots, sweeping=sweeping) as model:
            for temperature in ("cold", "warm"):
                state = model.new_state()
                setting = (slots, sweeping, read.__name__, temperature)
                assert np.array_equal(read(model, passes, state), expected), setting
            for token, row in zip((3, 1, 4), reply, strict=True):
                assert np.array_equal(last_logits(model, [token], state), row), setting


def test_passes_that_go_together_read_each_expert_once(quantized: Path) -> None:
    slots = 24
    passes = cut(PROMPT, PASSES)
    with open_model(quantized, slots=slots) as model:
        read_together(model, passes, model.new_state())
        together = stats_of(model)
    with open_model(quantized, slots=slots) as model:
        read_apart(model, passes, model.new_state())
        apart = stats_of(model)
    assert together.sweeps == LAYERS
    assert together.misses == LAYERS * EXPERTS
    assert together.swept_records - together.swept_in_vain == LAYERS * EXPERTS
    assert apart.sweeps == 2 * LAYERS
    assert apart.bytes_read > 2 * together.bytes_read


def test_a_state_kept_between_passes_continues_like_one_read_that_far(quantized: Path) -> None:
    passes = cut(PROMPT, PASSES)
    for slots in (None, 24):
        with open_model(quantized, slots=slots) as model:
            read = model.read(passes, model.new_state(), keep=(0, 2))
            list(read.steps())
            assert sorted(read.kept) == [0, 2]
            for number, kept in read.kept.items():
                alone = model.new_state()
                read_apart(model, passes[: number + 1], alone)
                assert kept.length == alone.length == sum(PASSES[: number + 1])
                following = [9, 8, 7]
                expected = np.array(model.forward(following, alone, logits="all").logits)
                assert np.array_equal(np.array(model.forward(following, kept, logits="all").logits), expected)


def test_the_streams_of_all_passes_come_back_in_order(quantized: Path) -> None:
    passes = cut(PROMPT, (256, 30))
    with open_model(quantized) as model:
        state = model.new_state()
        expected = np.concatenate([np.array(model.forward(ids, state).streams) for ids in passes])
    with open_model(quantized, slots=24) as model:
        read = model.read(passes, model.new_state())
        list(read.steps())
        assert np.array_equal(np.array(read.result.streams), expected)


def test_the_draft_head_follows_passes_that_go_together(tmp_path: Path) -> None:
    directory = write_synthetic(tmp_path, SETTINGS, bits=4, group_size=32, draft=True)
    passes = cut(PROMPT, (256, 40))
    with open_drafting_model(directory) as model:
        state = model.new_state()
        read_apart(model, passes[:1], state)
        after_first = model.draft(state.fork(), 7, 3)
        read_apart(model, passes[1:], state)
        expected = model.draft(state, 7, 3)
    with open_drafting_model(directory, slots=24, draft_slots=16) as model:
        state = model.new_state()
        read = model.read(passes, state, keep=[0])
        list(read.steps())
        assert model.draft(state, 7, 3) == expected
        assert model.draft(read.kept[0], 7, 3) == after_first


def test_a_prompt_left_in_the_middle_of_its_layers_leaks_nothing(quantized: Path) -> None:
    passes = cut(PROMPT, PASSES)
    with open_model(quantized, slots=24) as model:
        state = model.new_state()
        read = model.read(passes, state)
        steps = read.steps()
        next(steps)
        steps.close()
        with pytest.raises(StateError, match="run to the end"):
            _ = read.result
        with pytest.raises(StateError, match="half advanced"):
            model.forward([1], state)
        experts = model._experts
        assert isinstance(experts, StreamedExperts)
        experts.pool.check_integrity()
        assert not experts.pool.lent_count
        read_together(model, passes, model.new_state())


def test_a_failed_read_fails_its_prompt_and_the_next_one_works(quantized: Path) -> None:
    backend = Backend.detect()
    with Checkpoint.open(quantized) as checkpoint:
        layout = ExpertLayout.from_checkpoint(
            checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name
        )
        source = ScriptedSource(layout)
        with (
            StreamedExperts(source, slot_count=24, lane_count=2) as experts,
            Qwen4ExpModel(checkpoint, experts, backend, ngram_cache_bytes=1 << 20) as model,
        ):
            expected = read_together(model, cut(PROMPT, (300,)), model.new_state())
            source.failing = {(2, expert) for expert in range(EXPERTS)}
            experts.pool.forget()
            state = model.new_state()
            with pytest.raises(ExpertReadError, match="layer 2"):
                read_together(model, cut(PROMPT, (300,)), state)
            experts.pool.check_integrity()
            assert not experts.pool.lent_count
            with pytest.raises(StateError, match="half advanced"):
                model.forward([1], state)
            source.failing = set()
            assert np.array_equal(read_together(model, cut(PROMPT, (300,)), model.new_state()), expected)


def test_the_last_pass_leaves_a_pool_the_reply_finds_warm(quantized: Path) -> None:
    slots = 40
    with open_model(quantized, slots=slots) as model:
        read_together(model, cut(PROMPT, (300,)), model.new_state())
        assert stats_of(model).admitted >= (slots - ring_size(slots, EXPERTS)) // LAYERS
    with open_model(quantized, slots=slots, sweeping=SweepOptions(admits=False)) as model:
        read_together(model, cut(PROMPT, (300,)), model.new_state())
        assert stats_of(model).admitted == 0


def test_short_passes_go_through_the_pool(quantized: Path) -> None:
    with open_model(quantized, slots=24) as model:
        model.forward(PROMPT[: SWEEP_ROWS - 1], model.new_state())
        assert stats_of(model).sweeps == 0
        model.forward(PROMPT[:SWEEP_ROWS], model.new_state())
        assert stats_of(model).sweeps == LAYERS


def test_a_prompt_without_passes_or_with_an_empty_one_is_refused(quantized: Path) -> None:
    with open_model(quantized, slots=24) as model:
        empty: list[list[list[int]]] = [[], [[]], [[1, 2], []]]
        for passes in empty:
            with pytest.raises(RequestError, match="at least one"):
                model.read(passes, model.new_state())


def test_pairs_are_sorted_by_expert_and_stay_in_row_order() -> None:
    random = np.random.default_rng(5)
    chosen: npt.NDArray[np.int64] = random.permuted(np.tile(np.arange(300), (40, 1)), axis=1)[:, :6]
    sorted_pairs = SortedPairs(chosen, 300)
    for expert in range(299):
        pairs, slots = sorted_pairs.of(SweepGroup([expert, 299], [7, 9], lambda: None))
        wanted = [np.flatnonzero(chosen.reshape(-1) == each).tolist() for each in (expert, 299)]
        assert pairs.tolist() == wanted[0] + wanted[1]
        assert slots.tolist() == [7] * len(wanted[0]) + [9] * len(wanted[1])
    assert sorted_pairs.counts.sum() == chosen.size


class Recorded:
    """What a prompt reader told about states."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.logits: list[bool] = []

    def passed(self, state: SequenceState, logits: Logits | None) -> None:
        self.lengths.append(state.length)
        self.logits.append(logits is not None)


def test_a_reader_with_memory_to_spare_lets_passes_share_their_reads(quantized: Path) -> None:
    prompt = (PROMPT * 2)[:1_000]
    with open_model(quantized, slots=24) as model:
        plain = PromptReader(model, model.new_state(), prompt, 256)
        ends = [progress.done_tokens for progress in plain.passes(CancelToken())]
        assert ends == [256, 512, 768, 1000]
        apart = stats_of(model)
        told = Recorded()
        sharing = PromptReader(
            model, model.new_state(), prompt, 256, extra_tokens=10_000, keep=[512], passed=told.passed
        )
        assert [progress.done_tokens for progress in sharing.passes(CancelToken())][-1] == 1000
        together = stats_of(model).since(apart)
    assert sharing.last_logits is not None
    assert plain.last_logits is not None
    assert np.array_equal(sharing.last_logits, plain.last_logits)
    assert told.lengths == [512, 1000]
    assert told.logits == [False, True]
    assert together.sweeps == LAYERS
    assert apart.sweeps == 3 * LAYERS


def test_a_cancelled_prompt_stops_between_two_layers_and_gives_its_slots_back(quantized: Path) -> None:
    with open_model(quantized, slots=24) as model:
        experts = model._experts
        assert isinstance(experts, StreamedExperts)
        reader = PromptReader(model, model.new_state(), PROMPT, 256, extra_tokens=10_000)
        with pytest.raises(GenerationCancelled):
            list(reader.passes(CancelledAtThirdCheck()))
        assert experts.stats.sweeps == 2
        assert not experts.pool.lent_count
        experts.pool.check_integrity()


def test_a_short_pass_stops_between_two_layers_too(quantized: Path) -> None:
    prompt = PROMPT[: SWEEP_ROWS - 1]
    with open_model(quantized, slots=24) as model:
        expected = np.asarray(model.forward(prompt, model.new_state()).logits)
        state, before = model.new_state(), stats_of(model)
        with pytest.raises(GenerationCancelled):
            list(PromptReader(model, state, prompt, 256).passes(CancelledAtThirdCheck()))
        assert 0 < stats_of(model).since(before).requests < before.requests
        with pytest.raises(StateError, match="half advanced"):
            model.forward(prompt, state)
        experts = model._experts
        assert isinstance(experts, StreamedExperts)
        experts.pool.check_integrity()
        experts.resize(20)  # refused while anything holds a slot
        assert np.array_equal(np.asarray(model.forward(prompt, model.new_state()).logits), expected)


def test_an_engine_replies_alike_with_and_without_sweeps(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [(11 * i * i + i) % 250 for i in range(700)]
    request = PlanRequest(experts_per_layer=6, max_context=1024, prefill_chunk=256)

    def reply(swept: str) -> tuple[list[int], tuple[int, ...], int]:
        monkeypatch.setenv(SWEEP_VARIABLE, swept)
        with load(tiny_model, request=request) as engine:
            first = list(engine.generate(prompt, sampling=GREEDY, max_tokens=6))
            (*_, last) = engine.generate([*prompt, 7, 8, 9], sampling=GREEDY, max_tokens=6)
        done = [event.done_tokens for event in first if isinstance(event, PromptProgress)]
        assert isinstance(first[-1], Finished)
        assert isinstance(last, Finished)
        return done, first[-1].token_ids + last.token_ids, first[-1].experts.bytes_read

    swept_progress, swept_ids, swept_bytes = reply("1")
    pool_progress, pool_ids, pool_bytes = reply("0")
    assert swept_ids == pool_ids
    assert swept_bytes < pool_bytes
    assert pool_progress == [0, 256, 512, 700]
    assert swept_progress[-1] == 700


def test_the_documented_variables_choose_how_prompts_are_swept() -> None:
    assert EngineOptions.from_environment({}).sweep == SWEEPING
    read = EngineOptions.from_environment({SWEEP_VARIABLE: "0", ADMIT_VARIABLE: "0", GROUP_VARIABLE: "12"}).sweep
    assert read == SweepOptions(enabled=False, admits=False, group_records=12)
    for name, value in ((SWEEP_VARIABLE, "no"), (ADMIT_VARIABLE, ""), (GROUP_VARIABLE, "0"), (GROUP_VARIABLE, "513")):
        with pytest.raises(SettingError, match=name):
            EngineOptions.from_environment({name: value})
