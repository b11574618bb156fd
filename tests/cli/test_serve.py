"""`slotstream serve` from the outside."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from slotstream_cli.serving import terminated_softly
from tests.cli.conftest import Invoke

WITHIN_S = 240.0


def test_an_open_address_needs_a_key_before_anything_is_loaded(invoke: Invoke, tiny_model: Path) -> None:
    result = invoke("serve", "--model", tiny_model, "--host", "0.0.0.0")
    assert result.exit_code == 1
    assert "--api-key" in result.stderr
    assert "SLOTSTREAM_API_KEY" in result.stderr


def test_a_port_in_use_is_refused_before_anything_is_loaded(invoke: Invoke, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", "--model", tiny_model, "--port", str(port))
    assert result.exit_code == 1
    assert f"port {port} is in use" in result.stderr
    assert "slotstream stop" in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [["--idle-exit", "-1"], ["--idle-exit", "99999"], ["--max-prefill-wait", "-1"], ["--max-prefill-wait", "inf"]],
)
def test_times_out_of_range_are_refused(invoke: Invoke, tiny_model: Path, wrong: list[str]) -> None:
    result = invoke("serve", "--model", tiny_model, *wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_serves_until_a_signal_stops_it(tiny_model: Path, tmp_path: Path, number: int, code: int) -> None:
    environment = {**os.environ, "SLOTSTREAM_ROOT_DIR": str(tmp_path), "SLOTSTREAM_API_KEY": "key"}
    command = [sys.executable, "-m", "slotstream_cli", "serve", "--model", str(tiny_model), "--port", "0"]
    command += ["--max-context", "512", "--idle-exit", "30"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://127.0.0.1:" in line)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None
        request = urllib.request.Request(f"{found[0]}/slotstream/status", headers={"x-api-key": "key"})
        with urllib.request.urlopen(request, timeout=WITHIN_S) as response:
            status = json.load(response)
        server.send_signal(number)
        rest = server.stderr.read()
        assert server.wait(WITHIN_S) == code
    assert (status["port"], status["pid"]) == (int(found[1]), server.pid)
    assert (status["context_window"], status["idle_exit_minutes"]) == (512, 30)
    assert signal.Signals(number).name in rest
    assert "Traceback" not in rest


def test_sigterm_while_the_model_loads_ends_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("slotstream.serve.test")
    caplog.set_level(logging.INFO, log.name)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, terminated_softly(log):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert "stopped by SIGTERM" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_help_needs_no_model(invoke: Invoke) -> None:
    result = invoke("serve", "--help")
    assert result.exit_code == 0
    assert "SLOTSTREAM_API_KEY" in result.stdout
