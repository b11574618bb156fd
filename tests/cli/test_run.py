"""`slotstream run` and `slotstream parity` from the outside."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slotstream_cli.models import choose_model
from slotstream_cli.running import cancelled_by_interrupt
from slotstream_cli.starting import run_command_line
from slotstream_core.generation.control import CancelToken
from tests.cli.conftest import Invoke

GREEDY = ("--prompt", "Hello", "--greedy", "--max-tokens", "8")


def test_the_reply_goes_to_stdout_and_the_rest_to_stderr(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("run", "--model", tiny_model, *GREEDY)
    assert result.exit_code == 0, result.stderr
    assert not any(line.startswith("--") for line in result.stdout.splitlines())
    heads = [line.split()[1] for line in result.stderr.splitlines() if line.startswith("-- ")]
    assert [head for head in heads if head in ("prefill", "decode", "experts", "memory")] == [
        "prefill",
        "decode",
        "experts",
        "memory",
    ]


@pytest.mark.parametrize("raw", [(), ("--raw",)])
def test_a_prompt_far_too_long_is_refused_with_numbers(invoke: Invoke, tiny_model: Path, raw: tuple[str, ...]) -> None:
    result = invoke("run", "--model", tiny_model, "--prompt", "-", *raw, stdin="word " * 20_000)
    assert result.exit_code == 1
    assert "the prompt has at least " in result.stderr
    assert "tokens and the context window 4,096" in result.stderr


def test_every_pool_size_prints_the_same_reply(invoke: Invoke, tiny_model: Path) -> None:
    replies = {
        invoke("run", "--model", tiny_model, *GREEDY, *size).stdout
        for size in ([], ["--experts-per-layer", "16"], ["--experts-per-layer", "8"])
    }
    assert len(replies) == 1


def test_statistics_hold_the_numbers_of_the_run(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    result = invoke("run", "--model", tiny_model, "--seed", "3", "--max-tokens", "6", "--stats-json", out)
    assert result.exit_code == 0
    stats = json.loads(out.read_text())
    assert stats["completion_tokens"] == len(stats["token_ids"])
    assert stats["seed"] == 3
    assert stats["expert_misses"] > 0
    assert stats["lifetime_peak_bytes"] >= stats["current_bytes"] > 0
    assert list(tmp_path.glob(".stats*")) == []


def test_memory_is_sampled_while_it_generates_when_asked(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    result = invoke("run", "--model", tiny_model, *GREEDY, "--sample-footprint", "--vision", "off", "--stats-json", out)
    assert result.exit_code == 0, result.stderr
    assert "MB sampled peak, " in result.stderr
    assert json.loads(out.read_text())["sampled_peak_bytes"] > 0


def test_a_seed_repeats_a_sampled_reply(invoke: Invoke, tiny_model: Path) -> None:
    sampled = ("run", "--model", tiny_model, "--max-tokens", "12", "--temperature", "1.5", "--top-k", "0")
    first, again = (invoke(*sampled, "--seed", "11").stdout for _ in range(2))
    assert first == again
    assert invoke(*sampled, "--seed", "12").stdout != first


def test_raw_sends_the_prompt_as_it_is(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    invoke("run", "--model", tiny_model, "--raw", "--prompt", "abc", "--max-tokens", "1", "--stats-json", out)
    assert json.loads(out.read_text())["prompt_tokens"] == 3


def test_the_prompt_may_come_from_stdin(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "stats.json"
    arguments = ("run", "--model", tiny_model, "--raw", "--prompt", "-", "--max-tokens", "1", "--stats-json", out)
    assert invoke(*arguments, stdin="12345").exit_code == 0
    assert json.loads(out.read_text())["prompt_tokens"] == 5


def test_thoughts_go_to_stderr(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("run", "--model", tiny_model, *GREEDY, "--think")
    assert result.exit_code == 0
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "no-such-model"], 1, "neither a directory nor a model name"),
        (["--model", "qwen3.8-flash-next:4bit"], 1, "slotstream pull"),
        (["--prompt", ""], 1, "prompt is empty"),
        (["--prompt", "", "--raw"], 1, "prompt is empty"),
        (["--prompt", "-"], 1, "prompt is empty"),
        (["--prompt", "a\udcff"], 1, "UTF-8"),
        (["--raw", "--think"], 2, "cannot be combined"),
        (["--image", "cat.png"], 2, "no vision tower"),
        (["--vision", "on"], 2, "no vision tower"),
        (["--experts-per-layer", "0"], 2, "experts-per-layer"),
        (["--memory-gb", "nan"], 2, "memory-gb"),
        (["--memory-gb", "0.001"], 1, "--memory-gb"),
        (["--max-context", "many"], 2, "auto"),
        (["--max-context", "4"], 1, "context window"),
        (["--seed", "-1"], 2, "seed"),
        (["--max-prefill-wait", "-1"], 2, "max-prefill-wait"),
        (["--presence-penalty", "nan"], 2, "not a finite number"),
        (["--stats-json", "/no/such/place.json", "--max-tokens", "1"], 1, "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    invoke: Invoke, tiny_model: Path, arguments: list[str], code: int, words: str
) -> None:
    model = [] if "--model" in arguments else ["--model", tiny_model]
    result = invoke("run", *model, *arguments)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_a_damaged_checkpoint_names_the_file(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    shard = next(copy.glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size // 2)
    result = invoke("run", "--model", copy)
    assert result.exit_code == 1
    assert shard.name in result.stderr


def test_without_the_real_model_the_demo_is_chosen_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    choice = choose_model(None)
    assert choice.name == "demo"
    assert choice.note is not None
    assert "slotstream pull" in choice.note


def test_the_demo_of_a_first_use_reads_each_expert_at_once(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    first = invoke("run", "--prompt", "What is 2 plus 3?", "--greedy", "--max-tokens", "8")
    assert first.exit_code == 0, first.stderr
    assert "unpacking the model demo" in first.stderr
    assert "experts are read from repacked records, one read each" in first.stderr
    monkeypatch.setenv("SLOTSTREAM_REPACKED", "0")
    stacked = invoke("run", "--prompt", "What is 2 plus 3?", "--greedy", "--max-tokens", "8")
    assert "unpacking" not in stacked.stderr
    assert "experts are read from stacked tensors" in stacked.stderr
    assert stacked.stdout == first.stdout


def test_an_installed_real_model_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    directory = tmp_path / "models" / "qwen38-flash-next-mlx-4bit"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert choose_model(None).directory == directory
    assert choose_model("qwen3.8-flash-next").directory == directory


def test_the_demo_streams_a_quarter_of_its_experts_and_says_so(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, demo_root: Path
) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(demo_root))
    result = invoke("run", "--prompt", "What is 2 plus 3?", "--greedy", "--max-tokens", "12")
    assert result.exit_code == 0, result.stderr
    assert "128 of 512 experts fit in the pool (25%" in result.stderr
    assert "5" in result.stdout
    everything = invoke("run", "--prompt", "What is 2 plus 3?", "--greedy", "--max-tokens", "12", "--pool-gb", "1")
    assert everything.stdout == result.stdout


def run_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "slotstream_cli", *(str(item) for item in arguments)]


def test_interrupting_stops_cleanly(endless_model: Path) -> None:
    process = subprocess.Popen(
        run_command("run", "--model", endless_model, "--seed", "1", "--max-tokens", "0", "--max-context", "40000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)  # the reply has begun
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 130
    assert b"-- interrupted" in errors
    assert b"Traceback" not in errors


def test_parity_writes_logits_and_greedy_ids(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text("[5, 6, 7, 8, 9]")
    one, chunked = tmp_path / "one.npz", tmp_path / "chunked.npz"
    assert invoke("parity", "--model", tiny_model, "--tokens", tokens, "--out", one, "--greedy", 4).exit_code == 0
    arguments = ("--chunk", 2, "--experts-per-layer", 8, "--greedy", 4)
    assert invoke("parity", "--model", tiny_model, "--tokens", tokens, "--out", chunked, *arguments).exit_code == 0
    with np.load(one) as opened:
        first = dict(opened)
    with np.load(chunked) as opened:
        second = dict(opened)
    assert first["logits"].dtype == np.float32
    assert first["logits"].shape[0] == 5
    assert first["ids"].tolist() == second["ids"].tolist()
    assert len(first["ids"]) == 9
    np.testing.assert_allclose(first["logits"], second["logits"], atol=2e-4)
    assert int(first["logits"][-1].argmax()) == first["ids"][5]


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[1.5]", '["a"]', "[true]", "[-1]", "[99999999]", "not json", "[" * 99_999]
)
def test_parity_refuses_what_is_no_list_of_ids(invoke: Invoke, tiny_model: Path, tmp_path: Path, content: str) -> None:
    tokens, out = tmp_path / "tokens.json", tmp_path / "out.npz"
    tokens.write_text(content)
    result = invoke("parity", "--model", tiny_model, "--tokens", tokens, "--out", out)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert not out.exists()


def test_parity_does_not_wait_for_a_pipe(invoke: Invoke, tiny_model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokens.json")
    result = invoke("parity", "--model", tiny_model, "--tokens", tmp_path / "tokens.json", "--out", tmp_path / "o.npz")
    assert result.exit_code == 1
    assert "is a pipe" in result.stderr


@pytest.mark.parametrize(("redirection", "words"), [("<&-", "stdin"), (">/dev/full", "cannot be written")])
def test_streams_that_cannot_be_used_are_one_clear_sentence(tiny_model: Path, redirection: str, words: str) -> None:
    arguments = run_command("run", "--model", tiny_model, "--max-tokens", "4", "--prompt")
    prompt = "-" if redirection == "<&-" else "Hello"
    command = f"{shlex.join([*arguments, prompt])} {redirection}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_prompt_that_takes_longer_than_asked_is_one_sentence_that_names_the_option(
    invoke: Invoke, tiny_model: Path
) -> None:
    result = invoke("run", "--model", tiny_model, "--max-tokens", "2", "--max-prefill-wait", "1e-9")
    assert result.exit_code == 1
    assert "the request allows 6e-08 s" in result.stderr
    assert "--max-prefill-wait" in result.stderr


def test_an_interrupt_before_the_first_token_ends_the_command_and_later_ones_the_generation() -> None:
    cancel = CancelToken()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), cancelled_by_interrupt(cancel):
        signal.raise_signal(signal.SIGINT)
    assert cancel.cancelled
    later = CancelToken()
    with cancelled_by_interrupt(later) as interrupts:
        interrupts.wait_for_tokens()
        signal.raise_signal(signal.SIGINT)
        assert later.cancelled
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_the_command_is_imported_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_options: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slotstream_cli.main.main", interrupted)
    with pytest.raises(SystemExit) as ending:
        run_command_line()
    assert ending.value.code == 130
    assert capsys.readouterr().err == "-- interrupted\n"


def test_a_path_that_cannot_be_looked_at_is_one_clear_sentence(invoke: Invoke) -> None:
    result = invoke("run", "--model", "x" * 5000)
    assert result.exit_code == 1
    assert "File name too long" in result.stderr
    assert "Traceback" not in result.output
