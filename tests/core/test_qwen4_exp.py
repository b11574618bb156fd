"""States, streaming and the n-gram rows of the text model, on tiny random checkpoints."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import ExpertReadError, RequestError, StateError
from slotstream_core.experts import ExpertArrays, ExpertLayout, Lease, ResidentExperts, StoredExperts
from slotstream_core.experts.stacks import Slots
from slotstream_core.models.qwen4_exp.delta_rule import advance_chunked, advance_one, invert_unit_lower
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.models.qwen4_exp.host_products import HostMatrix, HostThreads, attend
from slotstream_core.models.qwen4_exp.ngram import NgramHash
from slotstream_core.models.qwen4_exp.ngram_rows import RowCache
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel, expert_modules
from tests.core.qwen4_exp_models import alike, last_logits, open_model, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
LAYERS, EXPERTS, TOP = 4, 16, 4
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(48)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("dense"), SETTINGS, bits=None, float_type="F32")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("quantized"), SETTINGS, bits=4, group_size=32)


@pytest.mark.parametrize("kind", ["dense", "quantized"])
def test_streamed_logits_equal_resident_ones_bit_for_bit_at_every_pool_size(
    kind: str, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(kind)
    lengths = (40, 1, 1, 3, 1, 1, 1)
    with open_model(directory) as model:
        expected = run_passes(model, PROMPT, lengths, model.new_state())
    for slots in (2 * TOP, 2 * TOP + 3, 24, LAYERS * EXPERTS - 1, LAYERS * EXPERTS):
        with open_model(directory, slots=slots) as model:
            logits = run_passes(model, PROMPT, lengths, model.new_state())
        assert np.array_equal(logits, expected), f"{slots} slots"


def test_a_quantised_checkpoint_reads_its_prompt_alike_in_one_pass_and_token_by_token(quantized: Path) -> None:
    with open_model(quantized) as model:
        together = run_passes(model, PROMPT, (100,), model.new_state())
        apart = run_passes(model, PROMPT, (1,), model.new_state())
    assert np.isfinite(together).all()
    assert together.std() > 0.05
    assert np.abs(together - apart).max() < 2e-4


def test_the_last_logits_are_the_last_row_of_all_logits(dense: Path) -> None:
    with open_model(dense) as model:
        everything = run_passes(model, PROMPT, (100,), model.new_state())
        last = last_logits(model, PROMPT, model.new_state())
    assert np.abs(everything[-1] - last).max() < 1e-5


def test_a_fork_and_its_origin_do_not_see_each_other(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        fork = state.fork()
        last_logits(model, [9, 8, 7, 6, 5], state)
        on_fork = last_logits(model, PROMPT[30:34], fork)
        fresh = model.new_state()
        last_logits(model, PROMPT[:30], fresh)
        alone = last_logits(model, PROMPT[30:34], fresh)
    assert np.array_equal(on_fork, alone)
    assert (state.length, fork.length) == (35, 34)


@pytest.mark.parametrize("kept", range(6))
def test_a_recorded_pass_can_be_cut_at_any_of_its_positions(dense: Path, kept: int) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT[:30], state)
        plain = state.fork()
        model.forward(PROMPT[30:35], state, record=True)
        assert state.possible_lengths() == range(30, 36)
        state.trim(30 + kept)
        for token in PROMPT[30 : 30 + kept]:
            last_logits(model, [token], plain)
        cut = run_passes(model, [3, 1, 4, 1, 5], (1,), state)
        never_seen = run_passes(model, [3, 1, 4, 1, 5], (1,), plain)
    assert alike(cut, never_seen)
    assert state.length == 35 + kept


def test_cutting_twice_inside_one_recorded_pass_works(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        model.forward(PROMPT[:6], state, record=True)
        state.trim(5)
        state.trim(2)
        fresh = model.new_state()
        run_passes(model, PROMPT[:2], (1,), fresh)
        assert alike(last_logits(model, [77], state), last_logits(model, [77], fresh))


def test_a_layer_that_recorded_nothing_says_so() -> None:
    state = DeltaState(window=mx.zeros((3, 4)), memory=mx.zeros((2, 4, 4)))
    with pytest.raises(StateError, match="kept no state for 5 tokens"):
        state.trim(5)


def test_an_unrecorded_pass_cannot_be_cut(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        last_logits(model, PROMPT, state)
        with pytest.raises(StateError, match="has 48 tokens and cannot be cut to 40; possible are 48 to 48"):
            state.trim(40)
        model.forward([1, 2], state, record=True)
        state.forget_passes()
        with pytest.raises(StateError, match="cannot be cut to 49"):
            state.trim(49)


def test_a_state_holds_its_caches_in_steps_and_says_how_large_they_are(dense: Path) -> None:
    with open_model(dense) as model:
        state = model.new_state()
        empty = state.byte_size()
        last_logits(model, PROMPT, state)
        first = state.byte_size()
        last_logits(model, PROMPT, state)
        assert empty < first
        heads, head_dim, float_bytes = 2, 32, 4
        assert 2 * 1024 * heads * head_dim * float_bytes < first < 4 * 1024 * heads * head_dim * float_bytes
        assert state.byte_size() < first + 16 * 64  # at most a few raw index keys more


def test_the_cache_grows_past_its_first_step_without_changing_results(dense: Path) -> None:
    ids = (PROMPT * 22)[:1030]
    with open_model(dense) as model:
        state = model.new_state()
        model.forward(ids[:1020], state)
        stepped = run_passes(model, ids[1020:], (1,), state)
        other = model.new_state()
        model.forward(ids[:1020], other)
        together = run_passes(model, ids[1020:], (10,), other)
    assert np.abs(stepped - together).max() < 2e-4


def test_a_state_of_another_model_is_refused(dense: Path, quantized: Path) -> None:
    with open_model(dense) as first, open_model(quantized) as second:
        state = first.new_state()
        with pytest.raises(StateError, match="belongs to another model"):
            second.forward([1], state)


@pytest.mark.parametrize("ids", [[], [-1], [288]])
def test_ids_that_are_no_tokens_are_refused(dense: Path, ids: list[int]) -> None:
    with open_model(dense) as model, pytest.raises(RequestError, match="token id"):
        model.forward(ids, model.new_state())


def test_tokens_before_an_end_of_document_do_not_reach_the_ngrams_after_it() -> None:
    eos = 99
    hashing = NgramHash(
        multipliers=np.array([3, 5, 7]),
        head_sizes=np.array([101, 103, 107, 109]),
        head_offsets=np.array([0, 101, 204, 311]),
        eos_id=eos,
    )
    start = np.full(2, eos)
    after = hashing.rows(start, np.array([4, 5, eos, 6, 7, 8]))
    assert np.array_equal(after[3:], hashing.rows(start, np.array([6, 7, 8])))
    assert not np.array_equal(after[4:], hashing.rows(np.array([eos, 5]), np.array([7, 8])))
    bigram, trigram = 8 * 3 ^ 7 * 5, 8 * 3 ^ 7 * 5 ^ 6 * 7
    assert after[5].tolist() == [bigram % 101, bigram % 103 + 101, trigram % 107 + 204, trigram % 109 + 311]


def test_ngram_hashes_wrap_like_64_bit_integers_and_stay_inside_their_head() -> None:
    factors = [2**62 + 1, 2**61 + 3]
    hashing = NgramHash(multipliers=np.array(factors), head_sizes=np.array([97]), head_offsets=np.array([10]), eos_id=0)
    mixed = (250_000 * factors[0] ^ 249_999 * factors[1]) % 2**64
    signed = mixed - 2**64 if mixed >= 2**63 else mixed
    assert hashing.rows(np.array([249_999]), np.array([250_000])).tolist() == [[signed % 97 + 10]]


class CountedRows:
    """Rows of four bytes that hold their own number; fails on the rows it is told to."""

    row_bytes = 4

    def __init__(self) -> None:
        self.read_rows: list[int] = []
        self.failing: set[int] = set()

    def read(self, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
        if self.failing & set(rows.tolist()):
            raise ExpertReadError("row cannot be read")
        self.read_rows += rows.tolist()
        out[:] = rows.astype("<u4").view(np.uint8).reshape(-1, 4)


def test_the_row_cache_is_bounded_and_reads_dropped_rows_again_alike() -> None:
    rows = CountedRows()
    with ThreadPoolExecutor(2) as lanes:
        cache = RowCache(rows, 40, lanes)
        for wanted in ([1, 2, 3], [2, 3, 4], list(range(100, 160)), [1, 2, 159], [159]):
            packed = cache.fetch(np.array(wanted))
            assert packed.view("<u4")[:, 0].tolist() == wanted
            assert cache.kept_bytes <= 40
    assert cache.hits == 2 + 1 + 1
    assert sorted(rows.read_rows) == sorted([1, 2, 3, 4, *range(100, 160), 1, 2])


def test_the_rows_read_first_are_the_ones_dropped_first() -> None:
    rows, random = CountedRows(), np.random.default_rng(8)
    kept: list[int] = []
    misses = 0
    with ThreadPoolExecutor(2) as lanes:
        cache = RowCache(rows, 4 * 37, lanes)
        for _ in range(300):
            wanted = random.choice(90, int(random.integers(1, 60)), replace=False)
            assert cache.fetch(wanted).view("<u4")[:, 0].tolist() == wanted.tolist()
            missing = [row for row in wanted.tolist() if row not in kept]
            misses += len(missing)
            kept = (kept + missing)[-37:]
            assert (cache.misses, cache.kept_bytes) == (misses, 4 * len(kept))


def test_a_failed_row_read_is_raised_and_leaves_nothing_in_the_cache() -> None:
    rows = CountedRows()
    rows.failing = {30}
    with ThreadPoolExecutor(2) as lanes:
        cache = RowCache(rows, 4000, lanes)
        with pytest.raises(ExpertReadError):
            cache.fetch(np.arange(40))
        assert cache.kept_bytes == 0
        rows.failing = set()
        assert cache.fetch(np.arange(40)).view("<u4")[:, 0].tolist() == list(range(40))


def test_a_model_with_a_tiny_row_cache_computes_the_same(quantized: Path) -> None:
    with open_model(quantized, ngram_cache_bytes=1) as small, open_model(quantized) as large:
        assert np.array_equal(
            run_passes(small, PROMPT, (20, 1), small.new_state()), run_passes(large, PROMPT, (20, 1), large.new_state())
        )


def _delta_inputs(tokens: int, *, repeat_keys: bool) -> dict[str, npt.NDArray[np.float32]]:
    draw = np.random.default_rng(tokens)
    keys = draw.normal(size=(2, tokens, 8))
    if repeat_keys:
        keys[:] = keys[:, :1]
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    inputs = {
        "q": draw.normal(size=(2, tokens, 8)),
        "k": keys,
        "v": draw.normal(size=(4, tokens, 6)),
        "log_decay": -0.2 * draw.random((4, tokens)) * (not repeat_keys),
        "beta": 0.99 * np.ones((4, tokens)) if repeat_keys else draw.random((4, tokens)),
        "state": draw.normal(size=(4, 6, 8)),
    }
    return {name: value.astype(np.float32) for name, value in inputs.items()}


def _delta_reference(x: dict[str, npt.NDArray[np.float32]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The recurrence as its definition says, in float64."""
    state = x["state"].astype(np.float64)
    outputs = np.zeros((*x["beta"].shape, 6))
    for t in range(outputs.shape[1]):
        for head in range(4):
            k, q = x["k"][head // 2, t].astype(np.float64), x["q"][head // 2, t].astype(np.float64)
            state[head] *= np.exp(np.float64(x["log_decay"][head, t]))
            state[head] += x["beta"][head, t] * np.outer(x["v"][head, t] - state[head] @ k, k)
            outputs[head, t] = state[head] @ q
    return outputs, state


@pytest.mark.parametrize("repeat_keys", [False, True], ids=["any-keys", "one-key-repeated"])
@pytest.mark.parametrize("tokens", [2, 16, 50])
def test_the_chunked_delta_rule_equals_the_recurrence(tokens: int, repeat_keys: bool) -> None:
    x = _delta_inputs(tokens, repeat_keys=repeat_keys)
    a = {name: mx.array(value) for name, value in x.items()}
    expected, final = _delta_reference(x)
    outputs, state = advance_chunked(a["state"], a["q"], a["k"], a["v"], a["log_decay"], a["beta"], 16)
    assert np.abs(np.array(outputs) - expected).max() < 2e-5
    assert np.abs(np.array(state) - final).max() < 2e-5


def test_one_token_of_the_delta_rule_equals_the_recurrence() -> None:
    x = _delta_inputs(1, repeat_keys=False)
    a = {name: mx.array(value) for name, value in x.items()}
    q, k, v, decay, beta = (a[name][:, 0] for name in ("q", "k", "v", "log_decay", "beta"))
    output, state = advance_one(a["state"], q, k, v, mx.exp(decay), beta)
    expected, final = _delta_reference(x)
    assert np.abs(np.array(output) - expected[:, 0]).max() < 1e-5
    assert np.abs(np.array(state) - final).max() < 1e-5


def test_the_inverse_of_a_unit_lower_matrix_ignores_what_is_not_below_the_diagonal() -> None:
    matrix = np.random.default_rng(5).normal(size=(3, 8, 8)).astype(np.float32)
    lower = np.tril(matrix, -1) + np.eye(8)
    assert np.abs(np.array(invert_unit_lower(mx.array(matrix))) @ lower - np.eye(8)).max() < 1e-3


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_of_many_rows_on_the_host_equal_the_unpacked_matrix(bits: int) -> None:
    draw = np.random.default_rng(bits)
    packed = mx.quantize(mx.array(draw.normal(size=(3, 96, 64)).astype(np.float32)), 32, bits)
    mx.eval(*packed)
    stack = HostMatrix(*packed, bits=bits, group_size=32)
    single = HostMatrix(*(array[1] for array in packed), bits=bits, group_size=32)
    rows = draw.normal(size=(9, 64)).astype(np.float32)
    expected = rows @ np.array(mx.dequantize(*packed, group_size=32, bits=bits))[1].T
    threads = HostThreads(2)
    try:
        assert np.abs(stack.multiply_member(1, rows) - expected).max() < 1e-4
        assert np.abs(single.multiply(rows, threads) - expected).max() < 1e-4
    finally:
        threads.close()


def test_attention_on_the_host_equals_the_one_of_mlx() -> None:
    draw = np.random.default_rng(2)
    q, keys, values = (draw.normal(size=(h, n, 16)).astype(np.float32) for h, n in ((6, 12), (2, 30), (2, 30)))
    mask = np.tril(np.ones((12, 30), bool), 18)
    mask[:, 3:7] = False
    expected = mx.fast.scaled_dot_product_attention(
        *(mx.array(x)[None] for x in (q, keys, values)), scale=0.25, mask=mx.array(mask)
    )
    threads = HostThreads(2)
    result = attend(q, keys, values, mask, 0.25, threads)
    threads.close()
    assert np.abs(result - np.array(expected)[0]).max() < 1e-5


def test_host_products_do_not_depend_on_the_number_of_threads() -> None:
    draw = np.random.default_rng(1)
    packed = mx.quantize(mx.array(draw.normal(size=(1500, 512)).astype(np.float32)), 32, 4)
    mx.eval(*packed)
    matrix = HostMatrix(*packed, bits=4, group_size=32)
    rows = draw.normal(size=(40, 512)).astype(np.float32)
    results = []
    for count in (1, 3):
        threads = HostThreads(count)
        with threads.single_threaded_blas():
            results.append(matrix.multiply(rows, threads))
        threads.close()
    assert np.array_equal(results[0], results[1])


class CountedLease:
    """A resident lease that counts, and fails to arrive when told to."""

    def __init__(self, inner: Lease, experts: "CountedExperts") -> None:
        self._inner = inner
        self._experts = experts

    @property
    def slots(self) -> npt.NDArray[np.int32]:
        return self._inner.slots

    def late(self) -> list[int]:
        return self._inner.late()

    def wait(self) -> None:
        self._experts.waits += 1
        if self._experts.waits == self._experts.fail_at:
            raise ExpertReadError("record cannot be read")

    def release(self) -> None:
        self._experts.held.discard(self)


class CountedExperts:
    """Resident experts behind the streaming seam."""

    def __init__(self, inner: ResidentExperts, group_limit: int) -> None:
        self._inner = inner
        self.group_limit = group_limit
        self.held: set[CountedLease] = set()
        self.most_held = 0
        self.waits = 0
        self.fail_at = 0

    def arrays(self, layer: int) -> ExpertArrays:
        return self._inner.arrays(layer)

    def places(self, layer: int) -> None:
        return None

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> None:
        return None

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> CountedLease:
        assert len(np.unique(experts)) <= self.group_limit
        lease = CountedLease(self._inner.request(layer, experts), self)
        self.held.add(lease)
        self.most_held = max(self.most_held, len(self.held))
        return lease

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> CountedLease:
        return self.request(layer, experts, threads=threads)

    def open_run(self, top: int) -> None:
        return None


@contextmanager
def counted_model(directory: Path, group_limit: int) -> Iterator[tuple[Qwen4ExpModel, CountedExperts]]:
    backend = Backend(kind="cpu", compute_dtype=mx.float32)
    with Checkpoint.open(directory) as checkpoint:
        layout = ExpertLayout.from_checkpoint(
            checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name
        )
        experts = CountedExperts(ResidentExperts(StoredExperts(layout), lane_count=1), group_limit)
        with Qwen4ExpModel(checkpoint, experts, backend) as model:
            yield model, experts


@pytest.mark.parametrize(("group_limit", "most"), [(EXPERTS, 1), (3, 2)])
def test_a_pass_holds_at_most_two_groups_and_gives_every_lease_back(dense: Path, group_limit: int, most: int) -> None:
    with counted_model(dense, group_limit) as (model, experts):
        model.forward(PROMPT, model.new_state())
        assert experts.most_held == most
        assert not experts.held


@pytest.mark.parametrize("group_limit", [EXPERTS, 3])
@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_failed_read_gives_every_lease_back_and_only_a_fork_can_go_on(
    dense: Path, group_limit: int, fail_at: int
) -> None:
    with counted_model(dense, group_limit) as (model, experts):
        state = model.new_state()
        model.forward(PROMPT[:20], state)
        fork = state.fork()
        experts.fail_at = experts.waits + fail_at
        with pytest.raises(ExpertReadError):
            model.forward(PROMPT[20:], state)
        assert not experts.held
        with pytest.raises(StateError, match="failed after token 20 and left it half advanced"):
            model.forward([1], state)
        with pytest.raises(StateError, match="half advanced"):
            state.trim(20)
        after = last_logits(model, PROMPT[20:], fork)
        fresh = model.new_state()
        model.forward(PROMPT[:20], fresh)
        assert np.array_equal(after, last_logits(model, PROMPT[20:], fresh))


def test_sixteen_bit_backends_keep_logits_and_recurrent_state_in_float32(quantized: Path) -> None:
    results = []
    for backend in (
        Backend(kind="cpu", compute_dtype=mx.float32),
        Backend(kind="metal", compute_dtype=mx.bfloat16),
    ):
        with Checkpoint.open(quantized) as checkpoint:
            layout = ExpertLayout.from_checkpoint(
                checkpoint, expert_modules(checkpoint.config), float_name=backend.float_name
            )
            experts = ResidentExperts(StoredExperts(layout), lane_count=1)
            with Qwen4ExpModel(checkpoint, experts, backend) as model:
                state = model.new_state()
                result = model.forward(PROMPT[:20], state, logits="all")
                assert (result.logits.dtype, result.streams.dtype) == (mx.float32, backend.compute_dtype)
                deltas = [layer for layer in state.layers if isinstance(layer, DeltaState)]
                assert len(deltas) == 3
                assert all(layer.memory.dtype == mx.float32 for layer in deltas)
                assert all(layer.window.dtype == backend.compute_dtype for layer in deltas)
                results.append(np.array(result.logits))
    assert np.abs(results[0] - results[1]).max() < 0.5 * results[0].std()
