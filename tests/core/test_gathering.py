"""Rows with an expert each on a backend whose kernels have limits: the same bits wherever the experts lie."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core.backend import CUDA_GATHERING, Backend, Gathering
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.experts.stacks import DenseStack, ExpertArrays, QuantizedStack, Stack
from slotstream_core.experts.sweeping import SweepOptions
from slotstream_core.models.qwen4_exp import gathering as gathering_module
from slotstream_core.models.qwen4_exp.gathering import LimitedProducts, compute_experts
from tests.core.qwen4_exp_models import limited_backend, open_model, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
LAYERS, EXPERTS, TOP = 4, 16, 4
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(300)]
HIDDEN, INNER, PLACES = 64, 64, 12
NEVER = 1 << 30
FEW = CUDA_GATHERING.few_at_once if Backend.detect().kind == "cuda" else 3  # where a device's kernels really change


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("quantized"), SETTINGS, bits=4, group_size=32)


@pytest.fixture(scope="module")
def unquantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("dense"), SETTINGS, bits=None, float_type="F32")


def limits(*, places: int, dense_rows: int = NEVER, few_pairs: int = 8) -> Gathering:
    return Gathering(
        few_at_once=FEW,
        few_pairs=few_pairs,
        counted_weights=places * HIDDEN * INNER,
        dense_rows=dense_rows,
        dense_mean_rows=0,
    )


def products_within(gathering: Gathering) -> LimitedProducts:
    return LimitedProducts(gathering, expert_count=PLACES)


def stacks(kind: str) -> ExpertArrays:
    def stack(rows: int, columns: int) -> Stack:
        weight = mx.random.normal((PLACES, rows, columns), key=mx.random.key(rows)) / columns**0.5
        if kind == "dense":
            return DenseStack(weight=weight)
        packed, scales, biases = mx.quantize(weight, group_size=32, bits=4)
        return QuantizedStack(weight=packed, scales=scales, biases=biases, bits=4, group_size=32)

    mx.random.seed(0)
    return ExpertArrays(gate=stack(INNER, HIDDEN), up=stack(INNER, HIDDEN), down=stack(HIDDEN, INNER))


def routed(rows: int) -> tuple[mx.array, mx.array]:
    """Rows and three different places for each, the first of them preferred."""
    rng = np.random.default_rng(rows)
    slots = np.stack([rng.choice(PLACES, 3, replace=False, p=np.arange(PLACES, 0, -1) / 78) for _ in range(rows)])
    return mx.random.normal((rows, HIDDEN), key=mx.random.key(rows)), mx.array(slots.astype(np.int32))


@contextmanager
def watched_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Pairs and places of every gathered product under way."""
    calls: list[tuple[int, int]] = []

    def watched(arrays: ExpertArrays, x: mx.array, slots: mx.array) -> mx.array:
        calls.append((slots.size, arrays.gate.weight.shape[0]))
        return compute_experts(arrays, x, slots)

    with monkeypatch.context() as patched:
        patched.setattr(gathering_module, "compute_experts", watched)
        yield calls


@pytest.mark.parametrize("kind", ["quantized", "dense"])
@pytest.mark.parametrize("places", [PLACES, 7, 1])
@pytest.mark.parametrize("dense_rows", [NEVER, 5, 1])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_every_way_through_the_experts_gives_their_outputs(kind: str, places: int, dense_rows: int, rows: int) -> None:
    arrays = stacks(kind)
    x, slots = routed(rows)
    expected = np.array(compute_experts(arrays, x[:, None, None, :], slots)[:, :, 0])
    products = products_within(limits(places=places, dense_rows=dense_rows))
    together = np.array(products.compute(arrays, x, slots))
    assert np.abs(together - expected).max() < 5e-5
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dense_rows", [NEVER, 5])
def test_outputs_do_not_depend_on_where_experts_lie_or_on_how_they_are_grouped(rows: int, dense_rows: int) -> None:
    arrays = stacks("quantized")
    x, slots = routed(rows)
    chosen, pair_rows = np.array(slots).reshape(-1), np.repeat(np.arange(rows), 3)
    whole = np.array(products_within(limits(places=PLACES, dense_rows=dense_rows)).compute(arrays, x, slots))
    for places in (PLACES, 6, 4):
        products = products_within(limits(places=places, dense_rows=dense_rows))
        assert np.array_equal(np.array(products.compute(arrays, x, slots)), whole)
        for group in (range(0, PLACES, 2), range(1, PLACES, 2)):
            pairs = np.flatnonzero(np.isin(chosen, group))
            outputs = products.compute_pairs(arrays, x, pair_rows[pairs], chosen[pairs], 3)
            assert np.array_equal(np.array(outputs), whole.reshape(-1, HIDDEN)[pairs])


def test_no_call_of_many_pairs_is_given_more_places_than_its_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = stacks("quantized")
    with watched_calls(monkeypatch) as calls:
        for rows in (1, 2, 3, 40):
            mx.eval(products_within(limits(places=5, dense_rows=9)).compute(arrays, *routed(rows)))
    few = [places for pairs, places in calls if pairs <= FEW]
    many = [places for pairs, places in calls if pairs > FEW]
    assert set(few) == {PLACES}
    assert many
    assert max(many) == 5


def test_only_passes_of_many_pairs_wait_for_the_routing() -> None:
    arrays, products = stacks("quantized"), products_within(limits(places=5, dense_rows=1))

    def traced(x: mx.array, slots: mx.array) -> mx.array:
        return products.compute(arrays, x, slots)

    assert mx.compile(traced)(*routed(2)).shape == (2, 3, HIDDEN)
    with pytest.raises(ValueError, match="eval"):
        mx.compile(traced)(*routed(3))


def test_experts_are_unpacked_only_in_passes_of_enough_rows_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = stacks("quantized")
    gathering = replace(limits(places=PLACES, dense_rows=1), dense_mean_rows=10)
    products = products_within(gathering)
    gathered = {}
    for rows in (39, 40):  # 9.75 and 10 rows an expert
        with watched_calls(monkeypatch) as calls:
            mx.eval(products.compute(arrays, *routed(rows)))
        gathered[rows] = sum(pairs for pairs, _ in calls)
    assert gathered == {39: 39 * 3, 40: 0}


@pytest.mark.parametrize(("kind", "dense_rows"), [("quantized", NEVER), ("quantized", 24), ("unquantized", 24)])
def test_streaming_equals_residence_bit_for_bit_with_pools_of_one_two_and_three_parts(
    kind: str, dense_rows: int, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(kind)
    lengths = (256, 40, 1, 2, 1)
    whole = Gathering(few_at_once=7, few_pairs=12, counted_weights=NEVER, dense_rows=dense_rows, dense_mean_rows=8)
    with open_model(directory, backend=limited_backend(whole)) as model:
        expected = run_passes(model, PROMPT, lengths, model.new_state())
        weights = NEVER // products_within(whole).part_places(model._experts.arrays(0))
    for parts, slots, sweeps in ((2, 13, False), (3, 40, True), (3, LAYERS * EXPERTS, True)):
        limited = limited_backend(replace(whole, counted_weights=weights * -(-slots // parts)))
        with open_model(directory, slots=slots, sweeping=SweepOptions(enabled=sweeps), backend=limited) as model:
            assert (
                -(-slots // products_within(limited.gathering or whole).part_places(model._experts.arrays(0))) == parts
            )
            for temperature in ("cold", "warm") if sweeps and slots < LAYERS * EXPERTS else ("cold",):
                logits = run_passes(model, PROMPT, lengths, model.new_state())
                assert np.array_equal(logits, expected), (parts, slots, temperature)


def test_unpacked_experts_read_a_prompt_as_packed_ones_do(quantized: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = limits(places=EXPERTS * LAYERS)
    logits: list[Any] = []
    batches: list[int] = []
    compute = gathering_module._dense_outputs

    def counted(arrays: ExpertArrays, *rest: Any) -> mx.array:
        batches.append(len(logits))
        return compute(arrays, *rest)

    monkeypatch.setattr(gathering_module, "_dense_outputs", counted)
    for gathering in (packed, replace(packed, dense_rows=2)):
        with open_model(quantized, backend=limited_backend(gathering)) as model:
            logits.append(run_passes(model, PROMPT[:120], (120,), model.new_state()))
    assert set(batches) == {1}  # only the second model unpacked experts
    assert np.abs(logits[0] - logits[1]).max() < 2e-4


def test_of_the_published_experts_cuda_tells_2621_apart() -> None:
    def stack(rows: int, columns: int) -> Stack:
        scales = mx.zeros((1, rows, columns // 64))
        weight = mx.zeros((1, rows, columns // 8), dtype=mx.uint32)
        return QuantizedStack(weight=weight, scales=scales, biases=scales, bits=4, group_size=64)

    arrays = ExpertArrays(gate=stack(640, 2560), up=stack(640, 2560), down=stack(2560, 640))
    assert products_within(CUDA_GATHERING).part_places(arrays) == 2621
