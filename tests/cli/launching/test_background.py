"""What a launch does about the server: decisions, and what it asks of one it starts."""

from pathlib import Path
from typing import Any

import pytest

from slotstream_cli.launching.asking import Probe, ServerPort
from slotstream_cli.launching.background import Background, Wishes, decide, serve_arguments
from slotstream_cli.launching.claude import ClaudeCode
from slotstream_cli.launching.errors import ServerRefused
from slotstream_cli.launching.hermes import Hermes
from slotstream_cli.launching.records import LaunchState
from tests.cli.launching.situations import served

PORT = 11434
IDLE = {"pid": 7, "active_requests": 0, "clients": 0, "memory_source": "auto", "memory_target_gb": 20.5}


def wishes(**changes: Any) -> Wishes:
    return Wishes(**{"agent": ClaudeCode(), **changes})


def running_server(window: int = 32_768) -> Probe:
    return Probe(kind="served", served=served(window_tokens=window))


def test_a_server_with_room_is_used_whoever_started_it() -> None:
    for pid in (None, 7):
        decision = decide(running_server(), IDLE, pid, PORT, wishes())
        assert (decision.action, decision.notes) == ("use", ())


def test_nothing_on_the_port_means_starting_one_unless_that_is_forbidden() -> None:
    assert decide(Probe(kind="absent"), None, None, PORT, wishes()).action == "start"
    with pytest.raises(ServerRefused, match=r"no Slotstream server answered on port 11434.*--no-start"):
        decide(Probe(kind="absent"), None, None, PORT, wishes(may_start=False))


@pytest.mark.parametrize(
    ("status", "pid", "changes", "words"),
    [
        (IDLE, None, {}, "slotstream stop"),
        (IDLE, 8, {}, "slotstream stop"),
        ({**IDLE, "clients": 1}, 7, {}, "another agent uses it"),
        ({**IDLE, "active_requests": 1}, 7, {}, "another agent uses it"),
        (IDLE, 7, {"may_start": False}, "slotstream stop"),
        (None, 7, {}, "slotstream stop"),
    ],
)
def test_a_window_too_small_is_refused_when_the_server_is_not_ours_or_in_use(
    status: dict[str, Any] | None, pid: int | None, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ServerRefused, match=words) as refused:
        decide(running_server(), status, pid, PORT, wishes(agent=Hermes(), **changes))
    assert "at least 65,536 tokens" in str(refused.value)
    assert "32,768" in str(refused.value)


def test_our_idle_server_with_a_window_too_small_is_started_again() -> None:
    decision = decide(running_server(), IDLE, 7, PORT, wishes(agent=Hermes()))
    assert (decision.action, decision.pid) == ("restart", 7)


def test_a_small_window_may_be_taken_on_purpose() -> None:
    decision = decide(running_server(4_096), IDLE, 7, PORT, wishes(any_window=True))
    assert decision.action == "use"
    assert "4,096" in decision.notes[-1]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("busy", "busy with every connection"),
        ("stopping", "has not ended yet"),
        ("locked", "SLOTSTREAM_API_KEY"),
        ("foreign", "is not Slotstream"),
    ],
)
def test_what_cannot_be_used_is_left_alone(kind: Any, words: str) -> None:
    with pytest.raises(ServerRefused, match=words):
        decide(Probe(kind=kind), None, 7, PORT, wishes())


def test_other_memory_settings_of_a_running_server_are_noted() -> None:
    (fixed,) = decide(running_server(), IDLE, None, PORT, wishes(memory_gb=12.0)).notes
    assert "20.5 GB (auto)" in fixed
    (limit,) = decide(running_server(), IDLE, None, PORT, wishes(memory_limit_gb=12.0)).notes
    assert "none" in limit
    same = {**IDLE, "memory_source": "--memory-gb", "memory_target_gb": 12, "memory_limit_gb": 9.5}
    assert decide(running_server(), same, None, PORT, wishes(memory_gb=12.0)).notes == ()
    assert decide(running_server(), same, None, PORT, wishes(memory_limit_gb=9.5)).notes == ()


def test_another_model_than_asked_is_noted() -> None:
    (other,) = decide(running_server(), IDLE, None, PORT, wishes(model="demo")).notes
    assert "serves qwen3.8-flash-next:4bit" in other
    for same in ("qwen3.8-flash-next:4bit", "/models/qwen3.8-flash-next:4bit/"):
        assert decide(running_server(), IDLE, None, PORT, wishes(model=same)).notes == ()


def test_a_new_server_gets_what_was_asked_with_every_digit() -> None:
    assert serve_arguments(wishes(), 80) == ["serve", "--port", "80", "--idle-exit", "30"]
    keeping = serve_arguments(wishes(prefix_cache=Path("/r/prefix-cache")), 80)
    assert keeping[-2:] == ["--prefix-cache-dir", "/r/prefix-cache"]
    asked = wishes(model="/m", max_context=65_536, memory_limit_gb=10.123456789, idle_exit_minutes=0.0)
    assert serve_arguments(asked, 80) == [
        *["serve", "--port", "80", "--model", "/m"],
        *["--max-context", "65536", "--memory-limit-gb", "10.123456789"],
    ]


def test_a_new_server_reads_from_the_copies_that_were_named() -> None:
    copies = wishes(mirrors=(Path("/disk one/model"), Path("/two")))
    assert serve_arguments(copies, 80)[-4:] == ["--mirror", "/disk one/model", "--mirror", "/two"]
    (note,) = decide(running_server(), IDLE, None, PORT, copies).notes
    assert "--mirror is for a new one" in note


class Stopping(ServerPort):
    """A port where a server stops while it is asked."""

    answers_left = 3

    def probe(self) -> Probe:
        """Say `stopping` three times, then nothing."""
        type(self).answers_left -= 1
        return Probe(kind="stopping" if self.answers_left > 0 else "absent")


def test_a_server_that_is_stopping_is_waited_for(tmp_path: Path) -> None:
    waits: list[float] = []
    state = LaunchState(root=tmp_path, port=1)
    background = Background(Stopping(port=1), state, say=lambda _line: None, pause=waits.append)
    decision, _probe = background.decision(wishes())
    assert decision.action == "start"
    assert waits == [0.25, 0.25]
