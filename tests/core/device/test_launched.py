"""Layers launched whole, run on the host: they give what other ways through them give, whatever comes in between."""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.corrections import Correction
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import BackendError, DeviceHung, ExpertReadError, PoolError, StateError
from slotstream_core.experts import ExpertLayout, ResidentExperts, StreamedExperts
from slotstream_core.experts.confidence import Logits
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.lookahead import Lookahead
from slotstream_core.generation.decoding import logits_row
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.device.ends import LaunchedEmbedding
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, random_row
from slotstream_core.models.qwen4_exp.device.launching import TIMEOUT, LaunchedKernels, Signal
from slotstream_core.models.qwen4_exp.forecasting import Forecaster
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.models.qwen4_exp.moe import PassWatch, Shown
from slotstream_core.models.qwen4_exp.ngram import NgramLookUp
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_core.options import Tap
from slotstream_core.state.sequence import LayerState, SequenceState
from tests.core.device.emulation import COMPILER, EmulatedTarget, Emulator
from tests.core.device.test_device_kernels import DEVICE, SETTINGS, ArrivedExperts, offered
from tests.core.expert_files import ScriptedSource

pytestmark = pytest.mark.skipif(
    COMPILER is None or Backend.detect().kind == "cuda", reason="runs kernels on the host, with a C++ compiler"
)

LAYERS, DELTA_LAYERS, EXPERTS, TOP = 4, 3, 16, 3
OWN = {
    **SETTINGS,
    "num_hidden_layers": LAYERS,
    "full_attention_interval": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP,
    "ple_layer_ids": [2],
}
PROMPT = [5, 6, 7, 8, 9]
Row = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("launched"), OWN, bits=4, group_size=32)


@dataclass(frozen=True)
class Opened:
    model: Qwen4ExpModel
    experts: StreamedExperts
    source: ScriptedSource

    def prompt(self) -> SequenceState:
        state = self.model.new_state()
        self.model.forward(PROMPT, state)
        return state

    def token(self, token: int, state: SequenceState, *, decode: bool = False) -> Row:
        return logits_row(self.model.forward([token], state, decode=decode).logits)


@contextmanager
def opened(checkpoint: Path, kernels: DeviceKernels | None, slots: int = LAYERS * EXPERTS // 2) -> Iterator[Opened]:
    with offered(kernels), Checkpoint.open(checkpoint) as stored:
        layout = ExpertLayout.from_checkpoint(stored, trunk_modules(LAYERS), float_name="BF16")
        with (
            ScriptedSource(layout) as source,
            ArrivedExperts(source, slot_count=slots, lane_count=1, ahead_lane_count=1) as experts,
            build_model(stored, experts, DEVICE) as model,
        ):
            yield Opened(model, experts, source)
            experts.pool.check_integrity()


@pytest.fixture(scope="module")
def launched(checkpoint: Path, kernels: DeviceKernels) -> Iterator[Opened]:
    with opened(checkpoint, kernels) as found:
        yield found


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[Opened]:
    """MLX's operations."""
    with opened(checkpoint, None) as found:
        yield found


def assert_near(mine: Row, theirs: Row) -> None:
    assert np.linalg.norm(mine - theirs) < 0.03 * np.linalg.norm(theirs)


def assert_close(mine: Row, theirs: Row) -> None:
    assert_near(mine, theirs)
    assert mine.argmax() == theirs.argmax()


def test_launched_rows_give_the_ids_of_the_operations_and_the_same_bits_wherever_the_experts_lie(
    checkpoint: Path, kernels: DeviceKernels, launched: Opened, plain: Opened, target: EmulatedTarget
) -> None:
    states = [launched.prompt(), plain.prompt()]
    target.launches()
    tokens, token, rows = [], 11, []
    for _ in range(2):
        tokens.append(token)
        mine, theirs = launched.token(token, states[0]), plain.token(token, states[1])
        assert_close(mine, theirs)
        token = int(mine.argmax())
        rows.append(mine)
    a_token = {name: count / 2 for name, count in Counter(target.launches()).items()}
    assert a_token == {
        "streams_down": 2 * LAYERS + 1,  # the final mixer reads them as well
        "streams_up": 2 * LAYERS + 1,
        "streams_inject": 2 * LAYERS,
        "row_products": 2 * LAYERS + 2,  # the output head and the n-grams have one, too
        "embed": 1,
        "ngram_unpack": 1,
        "ngram_gate": 1,
        "ngram_renew": 1,
        "publish_logits": 1,
        "delta_step": DELTA_LAYERS,
        "attend_prepare": 1,
        "attend_parts": 1,
        "attend_join": 1,
        "router_logits": LAYERS,
        "choose_experts": LAYERS,
        "publish_ids": LAYERS,
        "place_slots": LAYERS,
        "experts_inner": LAYERS,
        "experts_outer": LAYERS,
        "announce": 1,
        "take_table": LAYERS + 2,  # where experts or n-grams are waited for, and at the beginning
    }
    with offered(kernels), Checkpoint.open(checkpoint) as stored:
        layout = ExpertLayout.from_checkpoint(stored, trunk_modules(LAYERS), float_name="BF16")
        with ScriptedSource(layout) as source:
            resident = ResidentExperts(source, lane_count=1)
            with build_model(stored, resident, DEVICE) as model:
                state = model.new_state()
                model.forward(PROMPT, state)
                for given, row in zip(tokens, rows, strict=True):
                    np.testing.assert_array_equal(logits_row(model.forward([given], state).logits), row)
    assert "publish_ids" not in target.launches()


def test_a_token_leaves_its_logits_and_streams_to_who_holds_them(launched: Opened, plain: Opened) -> None:
    states = [launched.prompt(), plain.prompt()]
    mine, theirs = (found.model.forward([11], state) for found, state in zip((launched, plain), states, strict=True))
    reply = launched.model.forward([12], states[0], decode=True)
    row = logits_row(reply.logits)
    launched.token(13, states[0])
    assert mine.logits.dtype == mx.float32
    assert_close(logits_row(mine.logits), logits_row(theirs.logits))
    assert_near(np.array(mine.streams.astype(mx.float32)), np.array(theirs.streams.astype(mx.float32)))
    np.testing.assert_array_equal(logits_row(reply.logits), row)
    with pytest.raises(StateError, match="not kept"):
        _ = reply.streams


@pytest.mark.parametrize(
    ("spoilt", "key", "kernel", "message"),
    [
        ("slotstream_float(logits[place])", "launched head", "publish_logits", "of the output head, result 0 is"),
        ("streams[s * COLUMNS + place] = value;", "launched embedding", "embed", "of the embedding, result 0 is"),
    ],
)
def test_an_end_that_does_not_prove_itself_is_left_to_the_operations(
    checkpoint: Path,
    kernels: DeviceKernels,
    emulator: Emulator,
    target: EmulatedTarget,
    launched: Opened,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: str,
    key: str,
    kernel: str,
    message: str,
) -> None:
    monkeypatch.setattr(emulator, "spoil", ((spoilt, "0;"),))
    own = DeviceKernels(emulator, launched=LaunchedKernels(target))
    own.verdicts |= {known: True for known in kernels.verdicts if known[0] != key}
    with caplog.at_level(logging.WARNING), opened(checkpoint, own) as found:
        state = found.prompt()
        target.launches()
        mine = found.token(11, state)
        names = target.launches()
    assert kernel not in names
    assert names.count("publish_ids") == LAYERS
    assert_close(mine, launched.token(11, launched.prompt()))
    assert [message in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_an_embedding_goes_into_every_stream_whatever_it_is_stored_as(
    checkpoint: Path, target: EmulatedTarget, bits: int
) -> None:
    with Checkpoint.open(checkpoint) as stored:
        config = stored.config
    weight = random_row(9, config.hidden_size)
    matrix = Projection(weight)
    if bits:
        packed, scales, biases = mx.quantize(weight, group_size=32, bits=bits)
        matrix = Projection(packed, scales=scales, biases=biases, bits=bits, group_size=32)
    program = LaunchedKernels(target).program()
    streams = program.scratch((1, config.hc_count, config.hidden_size), mx.bfloat16)
    embedding = LaunchedEmbedding(program, config, matrix)
    embedding.add(streams)
    for token in (3, 8):
        embedding.choose(token)
        program.run()
        wanted = np.array(matrix.rows(mx.array([token])).astype(mx.float32))
        for row in np.array((streams * 1).astype(mx.float32))[0]:
            np.testing.assert_allclose(row, wanted[0], rtol=0.01, atol=0.01)


def test_blocks_are_chosen_from_where_a_row_cannot_see_all_of_them(
    launched: Opened, plain: Opened, target: EmulatedTarget
) -> None:
    states = [found.model.new_state() for found in (launched, plain)]
    for found, state in zip((launched, plain), states, strict=True):
        found.model.forward(list(range(20, 37)), state)
    target.launches()
    for length in range(17, 22):
        assert_close(launched.token(length, states[0]), plain.token(length, states[1]))
        names = target.launches()
        assert names.count("attend_parts") == 1
        assert names.count("score_blocks") == names.count("choose_blocks") == (length >= 19)


def test_forks_and_kept_states_see_nothing_of_each_other(launched: Opened) -> None:
    state = launched.prompt()
    launched.token(11, state)
    fork, kept = state.fork(), state.snapshot()
    first = launched.token(12, state)
    then = launched.token(13, state)
    np.testing.assert_array_equal(launched.token(12, fork), first)
    restored = launched.model.new_state()
    restored.restore(kept)
    np.testing.assert_array_equal(launched.token(12, restored), first)
    later = fork.fork()
    np.testing.assert_array_equal(launched.token(13, fork), then)
    np.testing.assert_array_equal(launched.token(13, restored), then)
    np.testing.assert_array_equal(launched.token(13, later), then)


def test_a_sequence_may_go_through_layers_either_way_in_turn(
    launched: Opened, plain: Opened, target: EmulatedTarget
) -> None:
    states = [launched.prompt(), plain.prompt()]
    for token in (11, 12):
        assert_close(launched.token(token, states[0]), plain.token(token, states[1]))
    before = states[0].fork()
    target.launches()
    for opened_model, state in zip((launched, plain), states, strict=True):
        opened_model.model.forward([13, 14, 15], state, record=True)
        state.trim(len(PROMPT) + 3)
    assert not target.launches()
    assert_close(launched.token(16, states[0]), plain.token(16, states[1]))
    assert "delta_step" in target.launches()
    launched.model.forward([17, 18], states[0], record=True)
    again = before.fork()
    launched.model.forward([13, 14], again, record=True)
    again.trim(len(PROMPT) + 2)
    np.testing.assert_array_equal(launched.token(16, again), launched.token(16, before))


def test_a_record_that_cannot_be_read_fails_its_pass_alone(launched: Opened, behind: EmulatedTarget) -> None:
    state = launched.prompt()
    launched.token(11, state)
    fork = state.fork()
    launched.experts.pool.forget()
    launched.source.failing = {(2, expert) for expert in range(EXPERTS)}
    with pytest.raises(ExpertReadError):
        launched.token(12, state)
    assert not behind.left_launches()
    launched.source.failing = set()
    with pytest.raises(StateError, match="half advanced"):
        launched.token(12, state)
    launched.experts.pool.check_integrity()
    after = launched.token(12, fork)
    other = launched.prompt()
    launched.token(11, other)
    np.testing.assert_array_equal(launched.token(12, other), after)


def test_a_pool_may_move_between_tokens(checkpoint: Path, kernels: DeviceKernels, launched: Opened) -> None:
    with opened(checkpoint, kernels, slots=LAYERS * EXPERTS // 2) as moving:
        states = [launched.prompt(), moving.prompt()]
        for token, slots in ((11, 24), (12, LAYERS * EXPERTS), (13, 16)):
            moving.experts.resize(slots)
            if slots == LAYERS * EXPERTS:
                moving.experts.load_all()
            np.testing.assert_array_equal(moving.token(token, states[1]), launched.token(token, states[0]))


@pytest.mark.parametrize("named", [0, 1])
def test_a_pool_whose_addresses_could_not_be_named_is_named_by_the_next_token(
    checkpoint: Path,
    kernels: DeviceKernels,
    launched: Opened,
    target: EmulatedTarget,
    monkeypatch: pytest.MonkeyPatch,
    named: int,
) -> None:
    with opened(checkpoint, kernels) as moving:
        state, other = moving.prompt(), launched.prompt()
        for found, each in ((moving, state), (launched, other)):
            found.token(11, each)
        moving.experts.resize(LAYERS * EXPERTS)
        moving.experts.load_all()
        moving.token(12, state.fork())  # makes the program
        moving.experts.resize(LAYERS * EXPERTS // 2)
        moving.experts.resize(LAYERS * EXPERTS)
        moving.experts.load_all()
        addresses, calls = target.addresses, itertools.count()

        def refuse(arrays: Sequence[mx.array]) -> list[int]:
            if next(calls) == named:  # those of the experts, or those of their places
                raise BackendError("no address")
            return addresses(arrays)

        fork = state.fork()
        with monkeypatch.context() as patch:
            patch.setattr(target, "addresses", refuse)
            with pytest.raises(BackendError, match="no address"):
                moving.token(12, fork)
        np.testing.assert_array_equal(moving.token(12, state), launched.token(12, other))


def made_up_correction() -> Correction:
    random, rank, hidden = np.random.default_rng(0), 4, 64
    return Correction(
        a=random.normal(0, 0.1, (LAYERS - 1, hidden, rank)).astype(np.float16),
        b=random.normal(0, 0.1, (LAYERS - 1, rank, EXPERTS)).astype(np.float16),
        mu=random.normal(0, 0.1, (LAYERS - 1, hidden)).astype(np.float32),
        delta=random.normal(0, 0.1, (LAYERS - 1, EXPERTS)).astype(np.float32),
    )


@pytest.mark.parametrize(("tap", "corrected"), [("boundary", False), ("attention", False), ("attention", True)])
def test_forecasts_are_those_of_the_operations_and_change_no_bit(
    launched: Opened,
    plain: Opened,
    target: EmulatedTarget,
    monkeypatch: pytest.MonkeyPatch,
    tap: Tap,
    corrected: bool,
) -> None:
    monkeypatch.setattr(StreamedExperts, "open_run", lambda experts, top: None)  # compiled code shows nobody its logits
    target.launches()
    correction = made_up_correction() if corrected else None
    rows, forecasts = [], []
    for number, found in enumerate((launched, launched, plain)):
        lookahead = Noted(found.experts.pool, top=TOP, mode="off" if number == 0 else "on")
        found.model.look_ahead(Forecaster(found.model.layers, lookahead, DEVICE, correction=correction, tap=tap))
        state = found.prompt()
        found.experts.pool.forget()
        before = found.experts.stats
        rows.append(found.token(11, state, decode=True))
        read_ahead = found.experts.stats.since(before).ahead_records
        assert (read_ahead > 0) == (number > 0)
        forecasts.append(lookahead.noted)
    names = target.launches()
    assert names.count("publish_forecast") == LAYERS - 1
    assert names.count("correct_forecast") == (LAYERS if corrected else 0)  # one proves the others
    np.testing.assert_array_equal(rows[0], rows[1])
    assert_close(rows[1], rows[2])
    assert list(forecasts[1]) == list(forecasts[2]) == list(range(1, LAYERS))
    for layer in forecasts[1]:
        assert_near(forecasts[1][layer], forecasts[2][layer])


def test_layers_are_not_launched_while_forecasts_have_corrections_that_do_not_prove_themselves(
    checkpoint: Path,
    kernels: DeviceKernels,
    emulator: Emulator,
    target: EmulatedTarget,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulator, "spoil", (("+ delta[expert]", "+ 9.0f"),))
    own = DeviceKernels(emulator, launched=LaunchedKernels(target))
    own.verdicts |= {known: True for known in kernels.verdicts if known[0] != "launched corrections"}
    with caplog.at_level(logging.WARNING), opened(checkpoint, own) as found:
        lookahead = Noted(found.experts.pool, top=TOP, mode="on")
        found.model.look_ahead(Forecaster(found.model.layers, lookahead, DEVICE, correction=made_up_correction()))
        state = found.prompt()
        target.launches()
        found.token(11, state, decode=True)
        assert "delta_step" not in target.launches()
        assert list(lookahead.noted) == list(range(1, LAYERS))
        found.token(12, state)
        assert "delta_step" in target.launches()
    assert ["of corrected forecasts" in record.getMessage() for record in caplog.records] == [True]


class Noted(Lookahead):
    """Notes what is forecast."""

    noted: dict[int, Row]

    def begin_pass(self, rows: int) -> bool:
        """See `Lookahead.begin_pass`."""
        self.noted = {}
        return super().begin_pass(rows)

    def foresee(self, target: int, logits: Logits, *, distance: int) -> int:
        """See `Lookahead.foresee`."""
        self.noted[target] = logits[0].copy()
        return super().foresee(target, logits, distance=distance)


class Spectator:
    """A `PassWatch` that notes the layers whose routers it sees."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def entering(self, layer: int, streams: mx.array) -> None:
        """See `PassWatch.entering`."""

    def attended(self, layer: int, streams: Shown) -> None:
        """See `PassWatch.attended`."""

    def routing(self, layer: int, x: Shown) -> None:
        """See `PassWatch.routing`."""
        self.seen.append(layer)

    def arrays(self) -> list[mx.array]:
        """See `PassWatch.arrays`."""
        return []

    def requested(self, layer: int, experts: npt.NDArray[np.integer]) -> None:
        """See `PassWatch.requested`."""


def test_who_watches_a_pass_sees_every_layer(launched: Opened, target: EmulatedTarget) -> None:
    state, watch = launched.prompt(), Spectator()
    seen: PassWatch = watch
    target.launches()
    launched.model.forward([11], state, watch=seen)
    assert watch.seen == list(range(LAYERS))
    assert not target.launches()


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ((("y_0[first + i] = ", "y_0[first + i] = __float2bfloat16(0.0f); //"),), "of layer 0, result 0 is"),
        ((("word[0] = (unsigned int)number", "(void)number"),), "ended with the number 0 instead of 1"),
    ],
)
def test_layers_that_do_not_prove_themselves_are_not_launched(
    checkpoint: Path,
    kernels: DeviceKernels,
    emulator: Emulator,
    target: EmulatedTarget,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: Sequence[tuple[str, str]],
    message: str,
) -> None:
    monkeypatch.setattr(emulator, "spoil", tuple(spoilt))
    own = DeviceKernels(emulator, launched=LaunchedKernels(target))
    own.verdicts |= {key: True for key in kernels.verdicts if key[0] != "launched layers"}
    with caplog.at_level(logging.WARNING), opened(checkpoint, own) as found:
        state = found.prompt()
        target.launches()
        found.token(11, state)
        assert not target.launches()
    assert [record.getMessage().count(message) for record in caplog.records if record.name == "slotstream.device"] == [
        1
    ]


def test_a_launch_that_the_device_refuses_leaves_a_usable_model(launched: Opened, target: EmulatedTarget) -> None:
    state = launched.prompt()
    fork = state.fork()
    target.launches()
    target.refuse(from_launch=20)
    with pytest.raises(BackendError, match="the CUDA runtime says 719"):
        launched.token(11, state)
    target.refuse(from_launch=-1)
    with pytest.raises(StateError):
        launched.token(11, state)
    launched.token(11, fork)


def launched_arrays(layer: LayerState) -> list[mx.array]:
    """What a launched row writes of a layer's state."""
    if isinstance(layer, AttentionState) and layer.buffers is not None:
        return list(layer.buffers.arrays)
    if isinstance(layer, DeltaState) and layer.buffers is not None:
        return [*layer.buffers.windows, layer.buffers.memory]
    return []


@pytest.mark.parametrize("failing", [False, True])
def test_a_device_that_hangs_is_given_up_and_nothing_it_works_on_is_freed(
    checkpoint: Path,
    kernels: DeviceKernels,
    target: EmulatedTarget,
    monkeypatch: pytest.MonkeyPatch,
    *,
    failing: bool,
) -> None:
    """Whether it hangs in the middle of a row, or is found to when rows of n-grams could not be read."""
    given_up: list[int] = []
    failure = Signal.failure

    def told(signal: Signal, code: int, number: int, *, timeout_s: float = 0.01) -> Exception:
        given_up.extend([number] * (code == TIMEOUT))
        return failure(signal, code, number, timeout_s=timeout_s)

    def fail(*_: object) -> None:
        raise ExpertReadError("a row could not be read")

    monkeypatch.setattr(Signal, "failure", told)
    monkeypatch.setattr(Signal.wait, "__kwdefaults__", {"timeout_s": 0.01})
    for module in ("launching", "route"):
        monkeypatch.setattr(f"slotstream_core.models.qwen4_exp.device.{module}.SIGNAL_TIMEOUT_S", 0.01)
    with opened(checkpoint, kernels) as found:
        state = found.prompt()
        target.launches()
        found.token(11, state)
        published = [place for place, name in enumerate(target.launches()) if name == "publish_ids"]
        # the first layer's ids come, or those of the first two, and nothing after them
        target.hang(from_launch=published[0] + 1 if failing else published[2])
        if failing:
            monkeypatch.setattr(NgramLookUp, "packed", fail)
        written = [weakref.ref(array) for layer in state.layers[1:] for array in launched_arrays(layer)]
        assert len(written) == 4 + 3 * (DELTA_LAYERS - 1)
        slots = weakref.ref(found.experts.arrays(0).gate.weight)
        with pytest.raises(DeviceHung, match="the GPU has not answered for 0.01 s"):
            found.token(12, state)
        target.hang(from_launch=-1)
        assert len(given_up) == 1
        del state
        gc.collect()
        assert all(array() is not None for array in written)
        with pytest.raises(PoolError, match="while 1 requests hold slots"):  # whose experts may be at work
            found.experts.resize(LAYERS * EXPERTS)
    del found
    gc.collect()
    assert slots() is not None
