"""Layers computed at once on the host: MLX's results, and the same bits for a row alone and among others."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core import _native
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.models.qwen4_exp.eager import attention, checking, products
from slotstream_core.models.qwen4_exp.eager.experts import EagerExpertLayer
from slotstream_core.models.qwen4_exp.eager.host import NATIVE_ROWS, EagerHost
from slotstream_core.models.qwen4_exp.host_products import HostThreads
from slotstream_core.models.qwen4_exp.moe import ExpertLayer
from slotstream_core.models.qwen4_exp.projections import Projection
from tests.core.qwen4_exp_models import open_model, run_passes

SETTINGS = {"vocab_size": 288, "indexer_n_heads": 8, "indexer_budget": 16, "num_experts": 16, "split_ngram_parts": 3}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(60)]
TOLERANCE = 2e-4

pytestmark = pytest.mark.skipif(Backend.detect().kind != "cpu", reason="MLX computes on a GPU here")


@pytest.fixture(scope="module", params=["dense", "4 bits", "8 bits"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("eager")
    if request.param == "dense":
        return write_synthetic(directory, SETTINGS, bits=None, float_type="F32")
    return write_synthetic(directory, SETTINGS, bits=int(request.param[0]), group_size=32)


def test_logits_are_those_of_mlx_in_every_kind_of_pass(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (48, 1, 1, 3, 5, 1, 1)
    found = {}
    for choice in ("0", "1", "scalar"):
        monkeypatch.setenv("SLOTSTREAM_NATIVE", choice)
        with open_model(checkpoint) as model:
            kinds = {type(layer.experts) for layer in model.layers}
            assert kinds == {ExpertLayer if choice == "0" else EagerExpertLayer}
            found[choice] = run_passes(model, PROMPT, lengths, model.new_state())
    assert np.abs(found["1"] - found["0"]).max() < TOLERANCE
    assert np.abs(found["scalar"] - found["0"]).max() < TOLERANCE


@pytest.mark.usefixtures("compiled_code_on")
def test_a_token_has_the_same_logits_alone_and_among_seven_others(checkpoint: Path) -> None:
    with open_model(checkpoint) as model:
        state = model.new_state()
        run_passes(model, PROMPT[:40], (40,), state)
        expected = run_passes(model, PROMPT[40:48], (1,), state.fork())
        for together in (2, 5, 8):
            assert np.array_equal(run_passes(model, PROMPT[40:48], (together,), state.fork()), expected)


def test_a_recorded_pass_has_the_logits_of_single_tokens_and_can_be_gone_on_from_inside(checkpoint: Path) -> None:
    with open_model(checkpoint) as model:
        state = model.new_state()
        run_passes(model, PROMPT[:40], (40,), state)
        alone = run_passes(model, PROMPT[40:50], (1,), state.fork())
        recorded = np.array(model.forward(PROMPT[40:46], state, logits="all", record=True).logits)
        state.trim(43)
        after = run_passes(model, PROMPT[43:50], (1,), state)
    assert np.array_equal(recorded, alone[:6])
    assert np.array_equal(after, alone[3:])


@pytest.mark.usefixtures("compiled_code_on")
def test_attention_has_the_same_bits_in_one_call_and_in_parts(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    at_once = attention.EagerAttention.advance

    def advance(*args: object, **settings: object) -> bool:
        taken.append(at_once(*args, **settings))  # type: ignore[arg-type]
        return taken[-1]

    def logits() -> list[npt.NDArray[np.float32]]:
        with open_model(checkpoint) as model:
            state = model.new_state()
            found = [run_passes(model, PROMPT[:12], (7, 1, 4), state)]
            found.append(np.array(model.forward(PROMPT[12:18], state, logits="all", record=True).logits))
            state.trim(14)
            return [*found, run_passes(model, PROMPT[14:30], (1,), state)]

    monkeypatch.setattr(attention.EagerAttention, "advance", advance)
    whole = logits()
    assert set(taken) == {True, False}  # keys are chosen in the end
    monkeypatch.setattr(attention.EagerAttention, "advance", lambda *_, **__: False)
    assert all(np.array_equal(one, other) for one, other in zip(whole, logits(), strict=True))


@pytest.mark.parametrize("experts", ["in memory", "streamed"])
@pytest.mark.usefixtures("compiled_code_on")
def test_long_passes_have_the_same_bits_wherever_they_end(checkpoint: Path, experts: str) -> None:
    prompt = (PROMPT * 4)[:200]
    slots = None if experts == "in memory" else 10
    with open_model(checkpoint) as model:
        state = model.new_state()
        expected = run_passes(model, prompt, (200,), state)
        after = [np.array(array) for layer in state.layers for array in layer.arrays()]
    with open_model(checkpoint, slots=slots) as model:
        for cuts in ((100, 100), (33, 134, 33), (70, 50, 80)):
            state = model.new_state()
            assert np.array_equal(run_passes(model, prompt, cuts, state), expected)
            found = [np.array(array) for layer in state.layers for array in layer.arrays()]
            assert all(np.array_equal(mine, other) for mine, other in zip(found, after, strict=True))


@pytest.mark.usefixtures("compiled_code_on")
def test_a_recorded_pass_of_many_rows_can_be_gone_on_from_inside(checkpoint: Path) -> None:
    rows = NATIVE_ROWS + 4
    with open_model(checkpoint) as model:
        state = model.new_state()
        run_passes(model, PROMPT[:10], (10,), state)
        whole = run_passes(model, PROMPT[10 : 10 + rows], (rows,), state.fork())
        cut = state.fork()
        run_passes(model, PROMPT[10:33], (23,), cut)
        recorded = np.array(model.forward(PROMPT[10 : 10 + rows], state, logits="all", record=True).logits)
        state.trim(33)
        after, expected = (run_passes(model, PROMPT[33:40], (1,), each) for each in (state, cut))
    assert np.abs(recorded - whole).max() < TOLERANCE
    assert np.abs(after - expected).max() < TOLERANCE


def test_pieces_that_disagree_are_not_used(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "TOLERANCE", 0.0)
    with open_model(checkpoint) as model:
        assert {type(layer.experts) for layer in model.layers} == {ExpertLayer}


def test_compiled_reads_bring_the_rows_that_python_reads_and_leave_it_what_they_cannot_read(checkpoint: Path) -> None:
    with open_model(checkpoint) as model:
        table = next(iter(model._ngrams.values()))._table
        rows = np.arange(0, 5 * table.row_count, 7, dtype=np.int64) % table.row_count
        calls: list[int] = []

        def counted(*arguments: Any) -> int:
            calls.append(_native.read_rows(*arguments))
            return calls[-1]

        def read(compiled: Callable[..., int]) -> npt.NDArray[np.uint8]:
            table.read_with(compiled)
            out = np.zeros((len(rows), table.row_bytes), np.uint8)
            table.read(rows, out)
            return out

        expected = read(lambda *_: 0)
        assert expected.any()
        assert np.array_equal(read(counted), expected)
        assert calls == [len(rows)]
        table._places[-1, :, 1] += 1 << 40  # behind the end of the file
        assert np.array_equal(read(counted), expected)
        assert calls[-1] == 0


@pytest.mark.usefixtures("compiled_code_on")
@pytest.mark.parametrize("bits", [0, 4])
def test_every_array_of_a_compiled_map_is_put_on_large_pages(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scales, biases = mx.ones((24, 64)), None, None
    if bits:
        weight, scales, biases = mx.quantize(weight, group_size=64, bits=bits)
    projection = Projection(weight, scales=scales, biases=biases, bits=bits, group_size=64 if bits else 0)
    asked: list[tuple[int, int]] = []

    def ask(memory: memoryview) -> None:
        asked.append((np.frombuffer(memory, np.uint8).ctypes.data, memory.nbytes))

    monkeypatch.setattr(products, "use_large_pages", ask)
    with closing(HostThreads(1)) as threads:
        host = EagerHost.load(threads, {})
        assert host is not None
        with closing(host):
            assert products.EagerMap(projection, host).handle
    arrays = [np.asarray(array) for array in (weight, scales, biases) if array is not None]
    assert asked == [(array.ctypes.data, array.nbytes) for array in arrays]
