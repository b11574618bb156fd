"""When a server is in use, and when it may stop by itself."""

import os
import subprocess
import sys

import pytest

from slotstream_serve.activity import Activity, process_start
from slotstream_serve.errors import Refused, ServerStopping
from slotstream_serve.testing import ScriptedEngine
from tests.serve.conftest import ask, plain_app, service_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """Time and processes that tests move."""

    def __init__(self, idle_exit_s: float | None = 60.0) -> None:
        self.clock = Clock()
        self.processes: dict[int, float] = {7: 1.0, 8: 2.0}
        self.activity = Activity(idle_exit_s=idle_exit_s, clock=self.clock, started_of=self.processes.get)


def test_idle_time_counts_from_the_last_request() -> None:
    world = World()
    world.clock.now_s += 10
    assert world.activity.idle_s() == 10
    with world.activity.request():
        world.clock.now_s += 100
        assert world.activity.idle_s() == 0
        assert not world.activity.decide_idle_exit()
    assert world.activity.idle_s() == 0
    world.clock.now_s += 59
    assert not world.activity.decide_idle_exit()
    world.clock.now_s += 1
    assert world.activity.decide_idle_exit()


def test_a_registered_process_keeps_the_server_until_it_exits() -> None:
    world = World()
    assert world.activity.register(7) == 1
    assert world.activity.register(7) == 1
    assert world.activity.register(8) == 2
    world.clock.now_s += 1000
    assert world.activity.idle_s() == 0
    del world.processes[8]
    assert world.activity.clients() == 1
    world.processes[7] = 5.0  # another process has taken the id
    assert world.activity.clients() == 0
    assert world.activity.idle_s() == 0
    world.clock.now_s += 60
    assert world.activity.decide_idle_exit()


def test_a_decided_stop_refuses_every_request() -> None:
    world = World()
    world.clock.now_s += 60
    assert world.activity.decide_idle_exit()
    with pytest.raises(ServerStopping, match="the server is stopping"), world.activity.request():
        pass
    assert world.activity.active_requests == 0


def test_without_a_limit_the_server_never_stops_by_itself() -> None:
    world = World(idle_exit_s=None)
    world.clock.now_s += 1e9
    assert not world.activity.decide_idle_exit()


@pytest.mark.parametrize("pid", [0, -1, True, 7.0, "7", None, [], 99])
def test_what_is_no_running_process_is_refused(pid: object) -> None:
    with pytest.raises(Refused, match="pid"):
        World().activity.register(pid)


def test_real_processes_are_told_from_finished_ones() -> None:
    assert process_start(os.getpid()) is not None
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    assert process_start(finished.pid) is None
    assert process_start(2**40) is None


def test_clients_register_over_http(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    assert ask(app, "POST", "/slotstream/clients", json={"pid": os.getpid()}).json() == {"clients": 1}
    assert ask(app, "GET", "/slotstream/status").json()["clients"] == 1
    for wrong in ({"pid": 0}, {"pid": "1"}, {}, {"pid": 2**31 - 1}):
        response = ask(app, "POST", "/slotstream/clients", json=wrong)
        assert response.status_code == 400
        assert "pid" in response.json()["error"]


def test_reading_the_status_is_no_activity(hello: ScriptedEngine) -> None:
    app = plain_app(hello)
    activity = service_of(app).activity
    before = activity._last_use_s
    ask(app, "GET", "/slotstream/status")
    ask(app, "GET", "/metrics")
    assert activity._last_use_s == before
    ask(app, "GET", "/")
    assert activity._last_use_s > before
