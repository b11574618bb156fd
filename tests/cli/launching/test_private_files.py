"""Files of launches, records of servers, the model lock, and what a dry run hides."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest

from slotstream_cli.launching.errors import AgentRefused, LaunchError
from slotstream_cli.launching.private_files import read_text, write_text
from slotstream_cli.launching.records import LaunchState, is_slotstream, running
from slotstream_cli.launching.redaction import redacted_arguments, redacted_value
from slotstream_cli.locking import held_alone, lock_holder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    write_text(path, "x\r\n")
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)
    assert path.read_bytes() == b"x\r\n"
    assert read_text(path) == "x\r\n"


def test_a_link_stays_a_link_and_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "models.json", tmp_path / "models.json"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert (real.read_text(), mode(real)) == ("new", 0o640)
    assert [each.name for each in real.parent.iterdir()] == ["models.json"]


def test_files_that_cannot_be_read_or_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    assert read_text(tmp_path / "none") is None
    with pytest.raises(AgentRefused, match="not UTF-8"):
        read_text(tmp_path / "binary")
    for name in ("pipe", "."):
        with pytest.raises(AgentRefused, match="not an ordinary file"):
            read_text(tmp_path / name)
    with pytest.raises(LaunchError, match="cannot be made"):
        write_text(tmp_path / "file" / "x", "")
    with pytest.raises(LaunchError, match="cannot be written"):
        write_text(tmp_path, "x")


def test_a_record_is_believed_only_while_that_very_process_runs(tmp_path: Path) -> None:
    state = LaunchState(root=tmp_path, port=80)
    assert state.record() is None
    state.write_record(os.getpid())
    record = state.record()
    assert record is not None
    assert (record.pid, record.log) == (os.getpid(), tmp_path / "logs" / "serve-80.log")
    assert mode(state.record_file) == 0o600
    document = json.loads(state.record_file.read_text())
    state.record_file.write_text(json.dumps({**document, "started_seconds": document["started_seconds"] - 60}))
    assert state.record() is None
    for broken in ("", "[]", "{", '{"pid": "x"}', json.dumps({**document, "port": 81})):
        state.record_file.write_text(broken)
        assert state.record() is None


def test_a_process_that_has_ended_does_not_run_though_nobody_waited_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert running(child.pid) is not None
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert running(child.pid) is None
    assert running(child.pid) is None


def test_the_previous_log_is_kept(tmp_path: Path) -> None:
    state = LaunchState(root=tmp_path, port=11434)
    assert state.log.name == "serve.log"
    for text in (b"one", b"two", b"three"):
        descriptor = state.open_log()
        os.write(descriptor, text)
        os.close(descriptor)
    assert state.log.read_text() == "three"
    assert state.log.with_name("serve.log.1").read_text() == "two"
    assert mode(state.log) == 0o600


def test_two_launches_do_not_start_at_once(tmp_path: Path) -> None:
    state = LaunchState(root=tmp_path, port=80)
    waits: list[str] = []

    class Enough(Exception):
        pass

    def give_up() -> None:
        waits.append("waits")
        raise Enough

    with state.starting(waiting=give_up):
        with pytest.raises(Enough), state.starting(waiting=give_up):
            pass
        assert waits == ["waits"]
    with state.starting(waiting=give_up):
        assert waits == ["waits"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/bin/python /opt/bin/slotstream serve --port 1", True),
        ("slotstream serve", True),
        ("python -P -m slotstream_cli serve", True),
        ("python /x/slotstream_cli/__main__.py serve", True),
        ("slotstream run --prompt serve", False),
        ("vi slotstream", False),
        ("python -m http.server", False),
        ("", False),
    ],
)
def test_only_servers_are_taken_for_servers(line: str, expected: bool) -> None:
    assert is_slotstream(line.split()) is expected


def test_one_large_model_at_a_time(tmp_path: Path) -> None:
    lock, model = tmp_path / "lock", tmp_path / "model"
    model.mkdir()
    (model / "a.safetensors").write_bytes(b"x" * 100)
    with held_alone(model, path=lock, large_bytes=100):
        assert lock_holder(lock) == os.getpid()
        with (
            pytest.raises(click.ClickException, match=f"process {os.getpid()}.*slotstream stop"),
            held_alone(model, path=lock, large_bytes=100),
        ):
            pass
        with held_alone(model, path=lock, large_bytes=101):
            pass
    assert lock_holder(lock) is None
    assert lock_holder(tmp_path / "none") is None


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with (
        pytest.raises(click.ClickException, match="cannot be opened"),
        held_alone(tmp_path, path=tmp_path / "lock", large_bytes=1),
    ):
        pass
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ANTHROPIC_AUTH_TOKEN", "slotstream-local", "slotstream-local"),
        ("ANTHROPIC_AUTH_TOKEN", "abc", "(hidden)"),
        ("MAX_THINKING_TOKENS", "5", "5"),
        ("DB_PASSWD", "abc", "(hidden)"),
        (
            "X",
            '{"apiKey": "abc", "a": [{"cookie": "x", "maxTokens": 3}]}',
            '{"apiKey": "(hidden)", "a": [{"cookie": "(hidden)", "maxTokens": 3}]}',
        ),
        ("X", "plain", "plain"),
    ],
)
def test_values_that_could_be_secret_are_hidden(name: str, value: str, shown: str) -> None:
    assert redacted_value(name, value) == shown


def test_secrets_on_a_command_line_are_hidden() -> None:
    given = [
        "--api-key",
        "abc",
        "--token=abc",
        "-c",
        'x.api_key="abc"',
        "-c",
        'p={name="n", api_key="abc"}',
        "--max-tokens",
        "5",
    ]
    given += ["--settings", '{"env": {"SECRET": "abc", "MAX_OUTPUT_TOKENS": "5"}}', "-p", "abacus"]
    shown = redacted_arguments(given)
    assert "abc" not in " ".join(shown)
    assert shown[-6:-1] == ["--max-tokens", "5", "--settings", shown[-3], "-p"]
    assert shown[-3] == '{"env": {"SECRET": "(hidden)", "MAX_OUTPUT_TOKENS": "5"}}'
    assert shown[-1] == "abacus"
    assert '{name="n", ' in " ".join(shown)
