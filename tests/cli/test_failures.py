"""What the system refuses, in the middle of any command, is one sentence; so is Ctrl-C; nothing is a traceback."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from slotstream_cli.failures import shown_failures, system_sentence
from slotstream_cli.files import check_writable, write_text_atomically
from tests.cli.conftest import Invoke

NEEDS_ROOT = (
    ("run",),
    ("chat",),
    ("serve", "--port", "0"),
    ("doctor", "--no-probe"),
    ("pull", "demo"),
    ("pull", "demo", "--verify"),
    ("prefix-cache",),
    ("stop",),
    ("launch", "--dry-run", "pi"),
    ("calibrate",),
    ("context-check",),
    ("elastic-check",),
    ("elastic-drill",),
    ("sweep-check",),
    ("mtp-check",),
    ("template-check",),
    ("lookahead-fit",),
    ("lookahead-report",),
)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "check its permissions"),
        (errno.EROFS, "a disk that can be written"),
        (errno.ENOTDIR, "a file stands where a directory belongs"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "reports damage"),
        (errno.ENOSPC, "free some space"),
        (errno.ELOOP, "symbolic links"),
    ],
)
def test_what_the_system_refuses_becomes_a_sentence_with_path_and_reason(number: int, words: str) -> None:
    with pytest.raises(click.ClickException) as shown, shown_failures():
        raise OSError(number, os.strerror(number), "/some/where")
    assert words in shown.value.message
    assert shown.value.message.startswith("/some/where: ")
    assert f"({errno.errorcode[number]})" in shown.value.message


def test_both_paths_of_a_rename_are_named() -> None:
    assert system_sentence(PermissionError(errno.EPERM, "not permitted", "/a", None, "/b")).startswith("/a to /b: ")


def test_a_system_error_without_a_number_keeps_its_words() -> None:
    assert system_sentence(OSError("the cable is loose")) == "the cable is loose"


def test_a_reader_that_left_is_not_an_error_to_talk_about() -> None:
    with pytest.raises(BrokenPipeError), shown_failures():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_ends_with_130(interruption: BaseException) -> None:
    with pytest.raises(click.exceptions.Exit) as ended, shown_failures():
        raise interruption
    assert ended.value.exit_code == 130


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), shown_failures():
        raise ZeroDivisionError


def test_memory_and_encoding_that_are_missing_say_what_to_do() -> None:
    with pytest.raises(click.ClickException, match="smaller --memory-gb"), shown_failures():
        raise MemoryError
    with pytest.raises(click.ClickException, match="PYTHONIOENCODING=utf-8"), shown_failures():
        "ä".encode("ascii")


@pytest.mark.parametrize("command", NEEDS_ROOT, ids=" ".join)
def test_a_root_that_is_a_file_is_one_sentence_from_every_command(
    command: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "a-file"
    root.write_text("")
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(root))
    result = invoke(*command)
    assert result.exit_code == 1, result.output
    assert f"SLOTSTREAM_ROOT_DIR, {root}, is no directory" in result.stderr


def test_an_unknown_home_says_what_to_set(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", "~nobody-of-this-name/models")
    result = invoke("run")
    assert result.exit_code == 1
    assert "set HOME or SLOTSTREAM_ROOT_DIR" in result.stderr


def run_shell(line: str) -> subprocess.CompletedProcess[str]:
    program = shlex.join([sys.executable, "-m", "slotstream_cli"])
    script = f"set -o pipefail; {line.replace('slotstream', program, 1)}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, errors="replace", check=False)


def test_a_pipe_that_closes_early_ends_the_reply_without_a_word(tiny_model: Path) -> None:
    ended = run_shell(f"slotstream run --model {tiny_model} --max-tokens 2000 2>/dev/stderr | head -c 1")
    assert "Traceback" not in ended.stderr
    assert "rror" not in ended.stderr


def test_too_few_open_files_is_one_sentence(tiny_model: Path) -> None:
    ended = run_shell(f"slotstream --version > /dev/null; ulimit -n 4; exec {sys.executable} -m slotstream_cli run "
                      f"--model {tiny_model}")  # fmt: skip
    assert ended.returncode == 1
    assert "Too many open files" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_chat_without_stdout_says_so(tiny_model: Path) -> None:
    ended = run_shell(f"slotstream chat --model {tiny_model} >&-")
    assert ended.returncode == 1
    assert "stdout is closed" in ended.stderr


@pytest.mark.parametrize("kind", ["directory", "pipe", "missing parent", "file as parent"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(
    kind: str, invoke: Invoke, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    if kind == "directory":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "missing parent":
        place = place / "deeper" / "out"
    else:
        place.write_text("")
        place = place / "out"
    tokens = tmp_path / "tokens.json"
    tokens.write_text("[1]")
    for command in (
        ("run", "--model", "/nowhere", "--stats-json", place),
        ("parity", "--model", "/nowhere", "--tokens", tokens, "--out", place),
    ):
        result = invoke(*command)
        assert result.exit_code in (1, 2)
        assert "/nowhere" not in result.stderr  # it came before the look at the model
        assert str(place) in result.stderr
    if kind in ("directory", "pipe", "file as parent"):
        result = invoke("lookahead-fit", "--model", "/nowhere", "--output", place)
        assert result.exit_code in (1, 2)
        assert str(place) in result.stderr


def test_a_place_can_be_tried_without_leaving_a_trace(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("kept")
    check_writable(old)
    check_writable(tmp_path / ("long" * 63))
    check_writable(tmp_path / "new" / "deep" / "file", parents_made=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "kept"


def test_a_link_keeps_leading_to_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("option", ["--prompts", "--texts"])
def test_prompts_are_not_waited_for_at_a_pipe(option: str, invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = invoke("lookahead-fit", "--model", tiny_model, "--reply-tokens", "0", option, tmp_path / "pipe")
    assert result.exit_code == 1
    assert "is a pipe" in result.stderr


def test_an_empty_model_is_no_model(invoke: Invoke) -> None:
    result = invoke("run", "--model", "")
    assert result.exit_code == 1
    assert "'' is neither a directory nor a model name" in result.stderr
