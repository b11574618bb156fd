"""`slotstream chat`: the session with a scripted engine, and the command in a terminal."""

import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotstream_cli.chatting import Chat, ChatOptions, converse
from slotstream_core.generation.sampling import ORDINARY
from slotstream_planner import PlanRequest
from slotstream_serve.testing import Script, ScriptedEngine
from tests.cli.conftest import Invoke

WITHIN_S = 280.0


def options(**changes: Any) -> ChatOptions:
    values: dict[str, Any] = {
        "model": None,
        "request": PlanRequest(),
        "sampling": ORDINARY,
        "max_tokens": 0,
        "think": False,
        "system": "",
    }
    return ChatOptions(**{**values, **changes})


def session(*scripts: Script, window: int = 4096, **changes: Any) -> tuple[Chat, ScriptedEngine]:
    engine = ScriptedEngine(scripts, window_tokens=window)
    return Chat(engine, options(**changes)), engine


def test_a_follow_up_sends_the_whole_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    chat, engine = session(["Hi ", "there"], ["Ada"], system="Be brief.")
    assert chat.take("Hello, I am Ada")
    assert chat.take("Who am I?")
    assert capsys.readouterr().out == "Hi there\nAda\n"
    assert [turn.content for turn in chat.turns] == ["Hello, I am Ada", "Hi there", "Who am I?", "Ada"]
    prompt = engine.requests[1].prompt
    positions = [prompt.index(text) for text in ("Be brief.", "Hello, I am Ada", "Hi there", "Who am I?")]
    assert positions == sorted(positions)


def test_commands_are_obeyed_and_never_sent(capsys: pytest.CaptureFixture[str]) -> None:
    chat, engine = session(["x"])
    for line in ("", "  ", "/help", "/stats", "/system", "/image cat.png", "/nonsense", "/new"):
        assert chat.take(line)
    said = capsys.readouterr()
    assert (engine.requests, said.out) == ([], "")
    for words in ("/quit", "nothing has been answered", "no system message", "no vision tower"):
        assert words in said.err
    assert "there is no command /nonsense" in said.err
    assert not chat.take("/quit")


def test_a_new_system_message_begins_a_new_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    chat, engine = session(["one"], ["two"])
    chat.take("first words")
    chat.take("/system Speak Latin.")
    chat.take("second words")
    assert "first words" not in engine.requests[1].prompt
    assert "Speak Latin." in engine.requests[1].prompt
    chat.take("/system")
    assert "system message: Speak Latin." in capsys.readouterr().err


def test_statistics_count_the_last_reply_and_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _engine = session(["a", "b", "c"], ["d"])
    chat.take("one")
    chat.take("two")
    chat.take("/stats")
    said = capsys.readouterr().err
    assert re.search(r"last reply: .*; 1 reply tokens", said)
    assert re.search(r"session, 2 replies: .*; 4 reply tokens", said)
    assert "of 4,096 tokens used" in said


def test_a_message_with_a_slash_is_written_with_two() -> None:
    chat, _engine = session(["ok"])
    chat.take("//etc/hosts")
    assert chat.turns[0].content == "/etc/hosts"


@pytest.mark.parametrize("line", ["\udcff\udcfe", "/system \udce9"])
def test_a_line_outside_utf_8_is_dropped_and_the_conversation_goes_on(
    capsys: pytest.CaptureFixture[str], line: str
) -> None:
    chat, _engine = session(["hello"])
    assert chat.take(line)
    assert list(chat.turns) == []
    assert "not UTF-8" in capsys.readouterr().err
    assert chat.take("hi")
    assert [turn.content for turn in chat.turns] == ["hi", "hello"]


def test_thoughts_go_to_stderr_and_are_not_part_of_the_reply(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _engine = session(["hm</think>", "\n\nYes"], think=True)
    chat.take("Really?")
    said = capsys.readouterr()
    assert (said.out.strip(), "hm" in said.err) == ("Yes", True)
    assert chat.turns[1].content.strip() == "Yes"


def test_a_conversation_longer_than_the_window_can_be_begun_anew(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _engine = session(["ok"], window=120)
    chat.take("short")
    chat.take("long " * 100)
    assert "/new begins a new conversation" in capsys.readouterr().err
    assert [turn.content for turn in chat.turns] == ["short", "ok"]


def lines_of(*lines: str | BaseException) -> Callable[[str], str]:
    rest: Iterator[str | BaseException] = iter([*lines, EOFError()])

    def read(_prompt: str) -> str:
        line = next(rest)
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def test_an_interrupt_at_the_prompt_drops_the_line_only(capsys: pytest.CaptureFixture[str]) -> None:
    chat, engine = session(["ok"])
    converse(chat, lines_of(KeyboardInterrupt(), "hello"))
    assert len(engine.requests) == 1
    assert "Ctrl-D or /quit leaves" in capsys.readouterr().err


def test_an_interrupt_during_a_reply_keeps_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupting(ScriptedEngine):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            for at, event in enumerate(super().generate(*arguments, **options)):
                if at == 3:
                    signal.raise_signal(signal.SIGINT)
                yield event

    engine = Interrupting([["one ", "two ", "three ", "four "]])
    chat = Chat(engine, options())
    assert chat.take("count")
    assert "-- stopped" in capsys.readouterr().err
    said = chat.turns[1].content
    assert said.startswith("one ")
    assert "four" not in said


def test_lines_may_come_from_a_pipe(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke(
        "chat", "--model", tiny_model, "--max-tokens", "4", "--seed", "1", stdin="Hello\n/stats\n/quit\nmore\n"
    )
    assert result.exit_code == 0, result.stderr
    assert "session, 1 replies" in result.stderr
    assert "> " not in result.stdout


class Terminal:
    """The command in a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._here, there = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=there,
            stdout=there,
            stderr=there,
            env=environment,
            start_new_session=True,
        )
        os.close(there)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def until(self, pattern: str) -> str:
        """Read until a pattern appears in what has not been matched yet."""
        ends = time.monotonic() + WITHIN_S
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < ends, self.seen
            if select.select([self._here], [], [], 0.2)[0]:
                self.seen += os.read(self._here, 65_536).decode("utf-8", "replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)


def test_in_a_terminal_replies_can_be_stopped_and_lines_are_remembered(endless_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slotstream_cli", "chat", "--model", str(endless_model), "--seed", "1"]
    environment = {**os.environ, "SLOTSTREAM_ROOT_DIR": str(tmp_path), "TERM": "dumb"}
    terminal = Terminal([*command, "--max-tokens", "0", "--max-context", "40000"], environment)
    try:
        terminal.until(r"/help lists commands.*\n> ")
        terminal.type("Hello\n")
        terminal.until(r"Hello\r?\n.*\S")  # the reply has begun
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(r"-- stopped\r?\n.*> ")
        terminal.type("/quit\n")
        terminal.until("quit")
        assert terminal.process.wait(WITHIN_S) == 0
    finally:
        terminal.close()
    history = tmp_path / "chat-history"
    assert history.read_text().splitlines()[-2:] == ["Hello", "/quit"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
