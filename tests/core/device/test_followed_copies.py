"""Kernels wait themselves for copies that bring their experts, and read the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import BackendError
from slotstream_core.experts import ExpertLayout, StoredExperts, StreamedExperts
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.leases import PoolLease
from slotstream_core.experts.lookahead import Lookahead, Mode
from slotstream_core.generation.decoding import logits_row
from slotstream_core.models.qwen4_exp.device import route
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.forecasting import Forecaster
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.models.registry import build_model
from slotstream_core.state.sequence import SequenceState
from tests.core.device.emulation import EmulatedTarget
from tests.core.device.test_device_kernels import DEVICE, ArrivedExperts, offered
from tests.core.device.test_launched import EXPERTS, LAYERS, PROMPT, TOP, Row
from tests.core.device.test_route import SLOTS, Way, checkpoint, pytestmark, ways
from tests.core.native.test_device_lanes import STREAM
from tests.core.pinning_device import PinningDevice
from tests.core.twin_pools import finish_tickets

__all__ = ["checkpoint", "pytestmark", "ways"]  # fixtures, and what all of this needs


class FollowedDevice(PinningDevice):
    """A device whose kernels wait for copies themselves: what they wait for is there when they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.followed = 0
        self.refuses_to_follow = False
        self._marked: dict[int, int] = {}
        functions = (STREAM(self._event), FOLLOW(self._record), FOLLOW_FLAGS(self._follow))
        self._kept_too = functions
        addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
        assert self.copies is not None
        self.copies = replace(self.copies, event=addresses[0], record=addresses[1], follow=addresses[2])

    def _event(self, place: ctypes._Pointer[ctypes.c_void_p], flags: int) -> int:
        place[0] = ctypes.c_void_p(1000 + len(self._marked))
        self._marked[1000 + len(self._marked)] = 0
        return 0 if flags == 2 else 1

    def _record(self, event: int, stream: int) -> int:
        self._marked[event] = stream
        return 0

    def _follow(self, stream: int, event: int, flags: int) -> int:
        assert (stream, flags) == (EmulatedTarget.stream, 0)
        if self.refuses_to_follow:
            return 1
        with self._lock:
            self.followed += 1
            for target, _, data in self._begun[self._marked[event]]:
                ctypes.memmove(target, data, len(data))
        return 0


FOLLOW = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
FOLLOW_FLAGS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


@dataclass
class Followed:
    """A launched model whose experts a device fetches from pinned files."""

    model: Qwen4ExpModel
    experts: StreamedExperts
    device: FollowedDevice

    def token(self, token: int, state: SequenceState) -> Row:
        return logits_row(self.model.forward([token], state, decode=True).logits)

    def prompt(self) -> SequenceState:
        state = self.model.new_state()
        self.model.forward(PROMPT, state)
        self.experts.pool.forget()
        return state


@pytest.fixture
def followed(checkpoint: Path, kernels: DeviceKernels) -> Iterator[Followed]:
    device = FollowedDevice()
    with offered(kernels), Checkpoint.open(checkpoint) as stored:
        layout = ExpertLayout.from_checkpoint(stored, trunk_modules(LAYERS), float_name="BF16")
        with (
            StoredExperts(layout) as source,
            ArrivedExperts(source, slot_count=SLOTS, lane_count=2, ahead_lane_count=1, memory=device) as experts,
            build_model(stored, experts, DEVICE) as model,
        ):
            assert experts.mapped is not None
            experts.mapped.pin(1 << 40)
            assert experts.mapped.finished.wait(240)
            for layer in range(LAYERS):
                experts.pool.found_sound(layer, range(EXPERTS))  # scales that are to be checked are read
            yield Followed(model, experts, device)
            device.open_gate.set()
            experts.pool.drop_tickets()
            finish_tickets(experts.pool)
            experts.pool.check_integrity()


def hold_ends_back(device: FollowedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no thread of the host sees the end of a copy before somebody waits for a lease."""
    wait = PoolLease.wait

    def open_and_wait(lease: PoolLease) -> None:
        device.open_gate.set()
        wait(lease)
        device.open_gate.clear()

    monkeypatch.setattr(PoolLease, "wait", open_and_wait)
    device.open_gate.clear()


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("held_back", [False, True])
def test_kernels_wait_for_copies_themselves_and_read_the_same_bits(
    followed: Followed, ways: tuple[Way, Way], monkeypatch: pytest.MonkeyPatch, mode: Mode, held_back: bool
) -> None:
    lookahead = Lookahead(followed.experts.pool, top=TOP, mode=mode)
    followed.model.look_ahead(Forecaster(followed.model.layers, lookahead, DEVICE))
    states = [followed.prompt(), ways[1].found.prompt()]
    before = followed.experts.stats
    if held_back:
        monkeypatch.setattr(route, "WAIT_MS", 0)
        hold_ends_back(followed.device, monkeypatch)
    for token in (11, 12, 13, 14):
        mine, theirs = followed.token(token, states[0]), ways[1].token(token, states[1])
        np.testing.assert_array_equal(mine, theirs)
    followed.device.open_gate.set()
    seen = followed.experts.stats.since(before)
    assert followed.device.followed >= LAYERS or not held_back
    record_bytes = followed.experts.layout.record_bytes
    assert seen.bytes_read - seen.ahead_bytes == (seen.misses * record_bytes)
    assert (seen.ahead_used + seen.ahead_joined > 0) == (mode == "on")
    followed.experts.pool.check_integrity()


def test_what_cannot_be_followed_is_waited_for(followed: Followed, ways: tuple[Way, Way]) -> None:
    followed.device.refuses_to_follow = True
    states = [followed.prompt(), ways[1].found.prompt()]
    for token in (11, 12):
        np.testing.assert_array_equal(followed.token(token, states[0]), ways[1].token(token, states[1]))
    assert not followed.device.followed


@pytest.mark.parametrize("from_finish", [1, 2, LAYERS])
def test_a_copy_that_kernels_waited_for_and_that_fails_ends_its_pass(followed: Followed, from_finish: int) -> None:
    device, state = followed.device, followed.prompt()
    fork = state.fork()
    finishes = device.finishes
    device.finish_code = lambda number: 719 if number >= finishes + from_finish else 0
    with pytest.raises(BackendError, match="719"):
        followed.token(11, state)
    device.finish_code = lambda number: 0
    followed.experts.pool.check_integrity()
    followed.token(11, fork)


def test_a_launch_that_is_refused_gives_up_what_kernels_were_to_wait_for(
    followed: Followed, target: EmulatedTarget
) -> None:
    device, state = followed.device, followed.prompt()
    fork = state.fork()
    target.launches()
    followed.token(11, state.fork())
    second = target.launches().index("place_slots")  # where the first layer's experts begin
    followed.experts.pool.forget()
    before = device.followed
    device.open_gate.clear()  # nobody on the host sees a copy's end
    target.refuse(from_launch=second)
    with pytest.raises(BackendError, match="the CUDA runtime says 719"):
        followed.token(11, state)
    target.refuse(from_launch=-1)
    assert device.followed == before + 1
    followed.experts.pool.check_integrity()
    device.open_gate.set()
    followed.token(11, fork)
