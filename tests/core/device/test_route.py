"""A layer in one compiled call leaves logits, books and what forecasts taught as the same layer step by step does."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.errors import BackendError, ExpertReadError, PoolError
from slotstream_core.experts import StreamedExperts
from slotstream_core.experts.compiled_requests import CompiledRun
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.lookahead import Lookahead
from slotstream_core.models.qwen4_exp.device import route
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.device.route import Outcome, RoutedRow
from slotstream_core.models.qwen4_exp.forecasting import Forecaster
from slotstream_core.native.binding import library_path
from slotstream_core.state.sequence import SequenceState
from tests.core.device.emulation import COMPILER, EmulatedTarget
from tests.core.device.test_device_kernels import DEVICE
from tests.core.device.test_launched import EXPERTS, LAYERS, OWN, TOP, Opened, Row, opened
from tests.core.expert_files import ScriptedSource
from tests.core.twin_pools import TIMES, finish_tickets, state_of

pytestmark = [
    pytest.mark.skipif(
        COMPILER is None or library_path() is None or Backend.detect().kind == "cuda",
        reason="runs kernels on the host, with C and C++ compilers",
    ),
    pytest.mark.usefixtures("compiled_code_on"),
]

SLOTS = 20  # fewer than two thirds of the records: hits, misses and evictions


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("routed"), OWN, bits=4, group_size=32)


@dataclass
class Way:
    """A model, how it comes to its experts, and what the compiled calls came to."""

    found: Opened
    lookahead: Lookahead
    compiled: bool
    outcomes: list[int]

    def token(self, token: int, state: SequenceState) -> Row:
        with pytest.MonkeyPatch.context() as patch:
            if not self.compiled:
                patch.setattr(StreamedExperts, "open_run", lambda experts, top: None)
            return self.found.token(token, state, decode=True)

    def books(self) -> tuple[object, ...]:
        pool = self.found.experts.pool
        pool.check_integrity()
        counts = [value for count, value in enumerate(pool._residency.counts) if count not in TIMES]
        shares = {kind: found.shares.tolist() for kind, found in self.lookahead._confidences.items()}
        return state_of(pool._residency), counts, pool._tickets.slots, shares


@pytest.fixture
def ways(checkpoint: Path, kernels: DeviceKernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Way, Way]]:
    """The compiled way, and step by step."""
    outcomes: list[int] = []
    taken = RoutedRow._take_compiled

    def noted(self: RoutedRow, *arguments: object, **named: object) -> object:
        lease = taken(self, *arguments, **named)  # type: ignore[arg-type]
        outcomes.append(Outcome.PLACED if lease is None else Outcome.ASKED)
        return lease

    monkeypatch.setattr(RoutedRow, "_take_compiled", noted)
    with ExitStack() as stack:
        made = []
        for compiled in (True, False):
            found = stack.enter_context(opened(checkpoint, kernels, slots=SLOTS))
            lookahead = Lookahead(found.experts.pool, top=TOP, mode="on")
            found.model.look_ahead(Forecaster(found.model.layers, lookahead, DEVICE))
            made.append(Way(found, lookahead, compiled, outcomes))
        yield made[0], made[1]


def one_record_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing read ahead that is still under way when it is asked for: then both ways count alike."""
    foresee = Lookahead.foresee
    foreseen = Lookahead.foreseen

    def foresee_and_finish(self: Lookahead, *arguments: object, **named: object) -> int:
        issued = foresee(self, *arguments, **named)  # type: ignore[arg-type]
        finish_tickets(self._pool)
        return issued

    def foreseen_and_finished(self: Lookahead, *arguments: object) -> None:
        foreseen(self, *arguments)  # type: ignore[arg-type]
        finish_tickets(self._pool)

    monkeypatch.setattr(Lookahead, "foresee", foresee_and_finish)
    monkeypatch.setattr(Lookahead, "foreseen", foreseen_and_finished)


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_compiled_call_leaves_the_same_books_and_bits(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    one_record_at_a_time(monkeypatch)
    states = [way.found.prompt() for way in ways]
    for way in ways:
        way.lookahead.mode = "on" if mode == "on" else "off"
        way.found.experts.pool.forget()
    before = ways[0].found.experts.stats
    for token in (11, 12, 13, 14, 15):
        mine, theirs = [way.token(token, state) for way, state in zip(ways, states, strict=True)]
        np.testing.assert_array_equal(mine, theirs)
        assert ways[0].books() == ways[1].books()
    seen = ways[0].found.experts.stats.since(before)
    assert ways[0].outcomes == [Outcome.PLACED] * 5 * LAYERS
    assert min(seen.hits, seen.misses, seen.evictions) > 0
    assert (seen.ahead_used > 0) == (mode == "on")


class Hesitating:
    """Reads that each wait a moment for another one, so that what is read ahead is on its way when it is asked for."""

    def __init__(self, source: ScriptedSource) -> None:
        self._read = source.read
        self._next = threading.Event()

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._next.set()
        self._next = threading.Event()
        self._next.wait(0.1)
        return self._read(fd, buffers, offset)


def test_reads_that_are_joined_are_waited_for_and_counted(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [way.found.prompt() for way in ways]
    for way in ways:
        way.found.experts.pool.forget()
        monkeypatch.setattr(way.found.source, "read", Hesitating(way.found.source).read)
    for token in range(11, 15):
        mine, theirs = [way.token(token, state) for way, state in zip(ways, states, strict=True)]
        np.testing.assert_array_equal(mine, theirs)
    totals = [way.found.experts.stats for way in ways]
    for way in ways:
        way.found.experts.pool.drop_tickets()
        finish_tickets(way.found.experts.pool)
        way.found.experts.pool.check_integrity()
        stats = way.found.experts.stats
        ends = (stats.ahead_used, stats.ahead_joined, stats.ahead_retracted, stats.ahead_wasted)
        assert stats.ahead_records == sum(ends)
        assert stats.bytes_read >= stats.ahead_bytes > 0
    assert min(stats.ahead_joined for stats in totals) > 0
    assert totals[0].requests == totals[1].requests


@pytest.mark.parametrize("late", [False, True])
def test_a_record_that_fails_is_told_as_step_by_step(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    if late:
        monkeypatch.setattr(route, "WAIT_MS", 0)
    errors = []
    for way in ways:
        way.lookahead.mode = "off"
        state = way.found.prompt()
        fork = state.fork()
        way.found.experts.pool.forget()
        way.found.source.failing = {(2, expert) for expert in range(EXPERTS)}
        with pytest.raises(ExpertReadError) as raised:
            way.token(11, state)
        errors.append(str(raised.value))
        way.found.source.failing = set()
        way.found.experts.pool.check_integrity()
        assert way.found.experts.stats.failed_records == TOP
        way.token(11, fork)
    assert errors[0] == errors[1]
    assert Outcome.ASKED in ways[0].outcomes


def test_records_that_are_late_are_waited_for_outside_the_call(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "WAIT_MS", 0)
    states = [way.found.prompt() for way in ways]
    gate, me, held = threading.Event(), threading.get_ident(), []
    wait, finish = PoolLease.wait, CompiledRun.finish

    def open_and_wait(lease: PoolLease) -> None:
        gate.set()
        wait(lease)
        gate.clear()

    def finish_and_count(run: CompiledRun, *, refused: bool) -> PoolLease | None:
        lease = finish(run, refused=refused)
        held.append(sum(len(each.held_slots) for each in ways[0].found.experts.pool._leases))
        return lease

    for way in ways:
        way.found.experts.pool.forget()
        read = way.found.source.read

        def read_when_open(fd: int, buffers: Sequence[memoryview], offset: int, read: Callable[..., int] = read) -> int:
            if threading.get_ident() != me:
                gate.wait()
            return read(fd, buffers, offset)

        monkeypatch.setattr(way.found.source, "read", read_when_open)
    monkeypatch.setattr(PoolLease, "wait", open_and_wait)
    monkeypatch.setattr(CompiledRun, "finish", finish_and_count)
    for token in (11, 12, 13):
        mine, theirs = [way.token(token, state) for way, state in zip(ways, states, strict=True)]
        np.testing.assert_array_equal(mine, theirs)
    gate.set()
    outcomes = ways[0].outcomes
    assert (Outcome.ASKED, Outcome.ASKED) in pairwise(outcomes)
    assert len(held) == outcomes.count(Outcome.ASKED)
    assert max(held) == TOP  # the layer before has given back what it held
    for way in ways:
        finish_tickets(way.found.experts.pool)
        way.found.experts.pool.check_integrity()


def test_a_refused_request_is_told_in_python_s_words_and_leaves_a_usable_model(ways: tuple[Way, Way]) -> None:
    way = ways[0]
    state = way.found.prompt()
    fork = state.fork()
    pool = way.found.experts.pool
    pool.forget()
    lent = pool.lend(SLOTS - TOP + 1)
    with pytest.raises(PoolError, match="need 3 more slots, and 2 of 20 are not held"):
        way.token(11, state)
    pool.check_integrity()
    pool.take_back(lent)
    np.testing.assert_array_equal(way.token(11, fork), ways[1].token(11, ways[1].found.prompt()))


def test_a_device_that_fails_before_ids_or_forecast_is_told(ways: tuple[Way, Way], target: EmulatedTarget) -> None:
    way = ways[0]
    state = way.found.prompt()
    fork = state.fork()
    target.launches()
    target.refuse(from_launch=20)
    with pytest.raises(BackendError, match="the CUDA runtime says 719"):
        way.token(11, state)
    target.refuse(from_launch=-1)
    way.found.experts.pool.check_integrity()
    way.token(11, fork)


def test_a_device_that_runs_behind_its_host_computes_the_same_bits(
    ways: tuple[Way, Way], behind: EmulatedTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_record_at_a_time(monkeypatch)
    for way in ways:
        way.found.experts.pool.forget()
    states = [way.found.prompt() for way in ways]
    forks = [state.fork() for state in states]
    for token in (11, 12, 13):
        for pair in (states, forks):
            mine, theirs = [way.token(token, state) for way, state in zip(ways, pair, strict=True)]
            np.testing.assert_array_equal(mine, theirs)
            assert ways[0].books() == ways[1].books()
    assert not behind.left_launches()


def test_a_pass_that_fails_returns_when_nothing_is_under_way_though_the_device_refuses_launches(
    ways: tuple[Way, Way], behind: EmulatedTarget
) -> None:
    state = ways[0].found.prompt()
    behind.launches()
    wanted = ways[0].token(11, state.fork())
    count = len(behind.launches())
    for refused in range(3, count, count // 7):
        ways[0].found.experts.pool.forget()
        behind.refuse(from_launch=refused)
        with pytest.raises(BackendError, match="the CUDA runtime says 719"):
            ways[0].token(11, state.fork())
        assert not behind.left_launches()
        ways[0].found.experts.pool.check_integrity()
        behind.refuse(from_launch=-1)
        assert len(behind.launches()) == refused
    np.testing.assert_array_equal(ways[0].token(11, state.fork()), wanted)


@pytest.mark.parametrize("call", range(1, LAYERS + 1))
def test_an_interrupt_between_two_layers_returns_when_what_was_launched_ahead_is_done(
    ways: tuple[Way, Way], behind: EmulatedTarget, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    way = ways[0]
    state = way.found.prompt()
    left: list[int] = []

    def interrupt(take: Callable[[], object]) -> object:
        stopped = take()
        if around.calls < call:
            return stopped
        left.append(behind.left_launches())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        around = Around(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            way.token(11, state.fork())
    assert not behind.left_launches()
    assert (left[0] > 0) == (call in (2, 3))  # n-grams come before the second layer, and nothing after the last
    assert not way.found.experts.pool._leases
    np.testing.assert_array_equal(way.token(11, state), ways[1].token(11, ways[1].found.prompt()))


def test_of_several_forecasts_each_learns_from_what_its_own_layer_chose(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    one_record_at_a_time(monkeypatch)
    begin_pass = Lookahead.begin_pass

    def begin_and_foresee(self: Lookahead, rows: int) -> bool:
        active = begin_pass(self, rows)
        for layer in range(LAYERS):
            confidence = self._confidence(layer, 0)
            ranked = np.arange(confidence.ranks, dtype=np.int32).reshape(1, -1)
            self._forecasts.setdefault(layer, []).append((confidence, ranked))
        return active

    monkeypatch.setattr(Lookahead, "begin_pass", begin_and_foresee)
    states = [way.found.prompt() for way in ways]
    for token in (11, 12, 13):
        mine, theirs = [way.token(token, state) for way, state in zip(ways, states, strict=True)]
        np.testing.assert_array_equal(mine, theirs)
        assert ways[0].books()[-1] == ways[1].books()[-1]


class Around:
    """Something that happens around a compiled call, which it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[Callable[[], object]], object]) -> None:
        native = importlib.import_module("slotstream_core._native")
        taken = native.take_layer
        self.calls = 0

        def take(*arguments: object) -> object:
            self.calls += 1
            return act(lambda: taken(*arguments))

        monkeypatch.setattr(native, "take_layer", take)


def test_an_interrupt_that_is_raised_as_a_compiled_call_returns_leaves_no_record_unread(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = ways[0]
    state = way.found.prompt()
    fork, pool = state.fork(), way.found.experts.pool
    pool.forget()
    finish_tickets(pool)
    gate, me, read = threading.Event(), threading.get_ident(), way.found.source.read

    def read_when_open(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if threading.get_ident() != me:
            gate.wait()
        return read(fd, buffers, offset)

    monkeypatch.setattr(way.found.source, "read", read_when_open)

    def interrupt(call: Callable[[], object]) -> object:
        if (stopped := call()) is None:
            return None
        assert stopped == (Outcome.ASKED, 0, 0)
        raise KeyboardInterrupt

    def go_on() -> None:
        for token in range(11, 16):  # who waits may read all of a layer, but nothing ahead
            way.token(token, state)

    with monkeypatch.context() as patch:
        patch.setattr(route, "WAIT_MS", 0)
        Around(patch, interrupt)
        with pytest.raises(KeyboardInterrupt):
            go_on()
    pool.check_integrity()
    gate.set()
    np.testing.assert_array_equal(way.token(11, fork), ways[1].token(11, ways[1].found.prompt()))
    finish_tickets(pool)
    pool._under_way.finish()
    pool.check_integrity()
    assert not pool._leases
    assert pool._residency.idle == SLOTS


def test_what_was_requested_after_a_refusal_is_given_back_when_the_forecast_fails(
    ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = ways[0]
    state = way.found.prompt()
    pool = way.found.experts.pool
    pool.forget()

    def refuse(call: Callable[[], object]) -> object:
        lent = pool.lend(SLOTS)
        assert call() == (Outcome.REFUSED, 0, 0)
        pool.take_back(lent)
        return Outcome.REFUSED, 0, 0

    def fail(*_: object) -> None:
        raise BackendError("no forecast")

    Around(monkeypatch, refuse)
    monkeypatch.setattr(Forecaster, "forecast_published", fail)
    with pytest.raises(BackendError, match="no forecast"):
        way.token(11, state)
    pool._under_way.finish()
    pool.check_integrity()
    assert not pool._leases
    assert pool._residency.idle == SLOTS


def test_closing_the_experts_between_two_layers_is_told(ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch) -> None:
    way = ways[0]
    state = way.found.prompt()
    way.found.experts.pool.forget()

    def close(call: Callable[[], object]) -> object:
        if around.calls == 2:
            way.found.experts.close()
        return call()

    around = Around(monkeypatch, close)
    with pytest.raises(ExpertReadError, match="cancelled before it started|is closed"):
        way.token(11, state)
    assert around.calls == 2
    way.found.experts.pool.check_integrity()
