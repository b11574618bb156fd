"""N-grams that launches add, run on the host: as MLX's operations do, or left to them; a state follows either way."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.errors import ExpertReadError, StateError
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.device.launch_proof import ngram_fault
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels
from slotstream_core.models.qwen4_exp.device.ngram import DeviceNgram
from slotstream_core.models.qwen4_exp.ngram import NgramLookUp, NgramState
from slotstream_core.models.qwen4_exp.ngram_rows import NgramTable
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.state.sequence import SequenceState
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator
from tests.core.device.test_launched import LAYERS, OWN, PROMPT, Opened, assert_close, opened

pytestmark = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

AT = [0, 2]
"""Layers with n-grams: before one of them a token begins, before the other the host may have to wait."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**OWN, "ple_layer_ids": [layer + 1 for layer in AT]}
    return write_synthetic(tmp_path_factory.mktemp("ngrams"), settings, bits=4, group_size=32)


@pytest.fixture(scope="module")
def launched(checkpoint: Path, kernels: DeviceKernels) -> Iterator[Opened]:
    with opened(checkpoint, kernels) as found:
        yield found


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[Opened]:
    """MLX's operations."""
    with opened(checkpoint, None) as found:
        yield found


def ngram_states(state: SequenceState) -> list[NgramState]:
    return [layer for layer in state.layers if isinstance(layer, NgramState)]


def the_layer(found: Opened) -> DeviceNgram:
    ngram = found.model._ngrams[AT[0]]
    assert isinstance(ngram, DeviceNgram)
    return ngram


def test_a_token_meets_its_ngrams_before_the_layers_that_have_them(
    launched: Opened, plain: Opened, target: EmulatedTarget
) -> None:
    states = [launched.prompt(), plain.prompt()]
    target.launches()
    for token in (11, 12, 11, 12, 13):  # the window is that of launched tokens in part, and written in turn
        assert_close(launched.token(token, states[0]), plain.token(token, states[1]))
        names = target.launches()
        assert [names.count(name) for name in ("embed", "ngram_unpack", "ngram_renew", "announce")] == [1, 2, 2, 1]
        assert names.index("embed") < names.index("ngram_unpack") < names.index("delta_step")
    for mine, theirs in zip(*map(ngram_states, states), strict=True):
        np.testing.assert_array_equal(mine.context, theirs.context)
        window, wanted = (np.array((state.window * 1).astype(mx.float32)) for state in (mine, theirs))
        np.testing.assert_allclose(window, wanted, atol=0.05 * np.abs(wanted).max())


def test_rows_are_read_by_compiled_code(launched: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotstream_core.models.qwen4_exp.ngram_rows._read_exactly", None)  # what Python reads with
    state = launched.prompt()
    misses = the_layer(launched).cache.misses
    launched.token(23, state)
    assert the_layer(launched).cache.misses > misses


def test_layers_before_are_under_way_while_rows_are_read(
    launched: Opened, target: EmulatedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[list[str]] = []
    packed = NgramLookUp.packed

    def noted(look_up: NgramLookUp, token: int) -> npt.NDArray[np.uint8]:
        waited.append(target.launches())
        return packed(look_up, token)

    monkeypatch.setattr(NgramLookUp, "packed", noted)
    state = launched.prompt()
    target.launches()
    launched.token(11, state)
    assert [part.count("experts_outer") for part in waited] == [0, AT[1]]
    assert target.launches()[:2] == ["take_table", "ngram_unpack"]


def test_a_sequence_may_go_either_way_in_turn_fork_and_go_back(launched: Opened, plain: Opened) -> None:
    states = [launched.prompt(), plain.prompt()]
    for token in (11, 12):
        launched.token(token, states[0])
        plain.token(token, states[1])
    before, kept = states[0].fork(), states[0].snapshot()
    for found, state in zip((launched, plain), states, strict=True):
        found.model.forward([13, 14, 15], state, record=True)
        state.trim(len(PROMPT) + 3)
    then = [found.token(16, state) for found, state in zip((launched, plain), states, strict=True)]
    assert_close(*then)
    restored = launched.model.new_state()
    restored.restore(kept)
    first = launched.token(13, before)
    np.testing.assert_array_equal(launched.token(13, restored), first)
    again = before.fork()
    second = launched.token(16, before)
    np.testing.assert_array_equal(launched.token(16, again), second)
    np.testing.assert_array_equal(launched.token(16, restored), second)


def test_a_row_that_cannot_be_read_fails_its_pass_alone(
    launched: Opened, behind: EmulatedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = launched.prompt()
    fork, other = state.fork(), launched.prompt()
    read, later = NgramTable.read, launched.model._ngrams[AT[1]]._table
    with monkeypatch.context() as patch:

        def refuse(table: NgramTable, rows: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> None:
            if table is later:
                raise ExpertReadError("no such row")
            read(table, rows, out)

        patch.setattr(NgramTable, "read", refuse)
        behind.launches()
        with pytest.raises(ExpertReadError, match="no such row"):
            launched.token(271, state)
    assert not behind.left_launches()
    assert "ngram_unpack" in behind.launches()  # of the layer before
    with pytest.raises(StateError, match="half advanced"):
        launched.token(271, state)
    np.testing.assert_array_equal(launched.token(271, fork), launched.token(271, other))


@pytest.mark.parametrize("why", ["proof", "rows"])
def test_ngrams_that_cannot_be_launched_are_left_to_the_operations(
    checkpoint: Path,
    kernels: DeviceKernels,
    emulator: Emulator,
    target: EmulatedTarget,
    launched: Opened,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    own = DeviceKernels(emulator, launched=LaunchedKernels(target))
    own.verdicts |= {known: True for known in kernels.verdicts if known[0] != "launched n-grams"}
    if why == "proof":
        monkeypatch.setattr(emulator, "spoil", (("renewed[channel] =", "renewed[0] ="),))
    else:
        monkeypatch.setattr(NgramTable, "record_layout", lambda _: None)
    with caplog.at_level(logging.WARNING), opened(checkpoint, own) as found:
        state = found.prompt()
        target.launches()
        mine = found.token(11, state)
        names = target.launches()
    assert "ngram_renew" not in names
    assert "embed" not in names  # the first layer begins with streams that MLX adds to
    assert names.count("publish_ids") == LAYERS
    assert_close(mine, launched.token(11, launched.prompt()))
    wanted = ["n-grams are not launched: of n-grams, result 0 is"] if why == "proof" else []
    assert [record.getMessage()[: len(wanted[0])] for record in caplog.records] == wanted


@pytest.mark.parametrize(("bits", "apart"), [(4, False), (8, True)])
def test_the_kernels_agree_with_the_operations_whatever_weights_and_rows_are_stored_as(
    tmp_path: Path,
    emulator: Emulator,
    target: EmulatedTarget,
    monkeypatch: pytest.MonkeyPatch,
    bits: int,
    apart: bool,
) -> None:
    def separate(parts: Sequence[Projection]) -> list[tuple[Projection, list[int]]]:
        return [(part, [part.out_features]) for part in parts]

    if apart:
        monkeypatch.setattr("slotstream_core.models.qwen4_exp.projections.stack_projections", separate)
    settings = {**OWN, "ple_layer_ids": [1]}
    directory = write_synthetic(tmp_path, settings, bits=bits, group_size=32)
    with opened(directory, DeviceKernels(emulator)) as found:
        assert ngram_fault(LaunchedKernels(target), the_layer(found)) is None


@pytest.mark.parametrize(
    "spoilt",
    [
        ("(1 << BITS) - 1", "1"),
        ("* (q *", "* (0 *"),
        ("total[1] / HIDDEN", "1.0f"),
        ("+ sum * slotstream_logistic(sum)", ""),
        ("taps[row / DILATION * CHANNELS", "taps[row * CHANNELS"),
        ("next_window[(row - 1)", "next_window[row"),
        ("channel] = now", "channel] = window[channel]"),
    ],
)
def test_whatever_goes_wrong_in_the_kernels_shows(
    launched: Opened,
    emulator: Emulator,
    target: EmulatedTarget,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: tuple[str, str],
) -> None:
    monkeypatch.setattr(emulator, "spoil", (spoilt,))
    fault = ngram_fault(LaunchedKernels(target), the_layer(launched))
    assert fault is not None
    assert fault.startswith("of n-grams, result")
