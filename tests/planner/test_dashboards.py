"""Plans from Python and from the command line: JSON, sweeps, and fast enough for a slider."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from slotstream_planner import InvalidRequest, Machine, MachineError, PlanRequest, plan, published_geometry
from slotstream_planner.__main__ import main
from slotstream_planner.sensors import parse_vm_stat, read_nvidia_memory
from slotstream_planner.sweeping import sweep_machines

GEOMETRY = published_geometry()


MOST_CALLS = 12_000
"""Calls of functions that a plan may take: a slider asks for one at every step."""


def calls_of(action: Callable[[], object]) -> int:
    """Count calls, of which there are as many on a busy machine as on an idle one."""
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def test_one_plan_takes_as_many_calls_as_a_slider_has_time_for() -> None:
    machine = Machine.simulated(ram_gb=64)
    assert 1000 < calls_of(lambda: plan(GEOMETRY, machine)) < MOST_CALLS


@pytest.mark.parametrize(
    ("rams", "request_"),
    [
        ([8 + n / 2 for n in range(200)], PlanRequest()),
        ([10 + n / 200 for n in range(200)], PlanRequest(max_context=262_144)),
    ],
    ids=["mostly accepted", "all refused"],
)
def test_a_sweep_takes_no_more_calls_a_machine_than_a_plan(rams: list[float], request_: PlanRequest) -> None:
    assert calls_of(lambda: sweep_machines(GEOMETRY, rams, request_, disk_gb_s=6)) < MOST_CALLS * len(rams)


def test_a_sweep_says_what_fits_and_what_does_not() -> None:
    small, large = sweep_machines(GEOMETRY, [8, 48], disk_gb_s=6, chip="M4 Pro")
    assert small.refusal is not None
    assert small.pool_slots is None
    assert (large.pool_slots, large.window_tokens, large.refusal) == (7_726, 32_768, None)
    assert large.tok_s is not None
    assert json.loads(json.dumps(large.to_json()))["draft"] == "resident"


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_disk_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InvalidRequest):
        sweep_machines(GEOMETRY, [48], disk_gb_s=rate)


def test_the_module_prints_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sim-ram", "64"]) == 0
    assert json.loads(capsys.readouterr().out)["pool_slots"] == 7_125


def test_the_module_forecasts_for_a_given_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sim-ram", "64", "--disk-gb-s", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["speed_forecast"]["decode"]["tok_s"] > 0


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    command = f"{sys.executable} -m slotstream_planner --sim-ram 64 | true"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_the_module_prints_a_sweep_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sim-ram", "8", "--sim-ram", "64", "--disk-gb-s", "5"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["window_tokens"] for point in points] == [None, 131_072]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--sim-ram", "8"], 1, "insufficient_memory"),
        (["--sim-ram", "nan"], 2, "invalid_request"),
        (["--sim-ram", "64", "--max-context", "many"], 2, "invalid_request"),
        (["--model", "/nowhere"], 1, "geometry_error"),
        (["--sim-available", "9"], 2, "invalid_request"),
        (["--sim-ram", "16", "--sim-ram", "24", "--sim-working-set", "9"], 2, "invalid_request"),
        (["--sim-ram", "64", "--disk-gb-s", "-1"], 2, "invalid_request"),
    ],
)
def test_the_module_reports_errors_as_json(
    arguments: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == error


def test_the_module_runs_without_third_party_packages_but_psutil() -> None:
    code = (
        "import sys; from slotstream_planner.__main__ import main; main(['--sim-ram', '64']); "
        "print({m.split('.')[0] for m in sys.modules} & {'mlx', 'numpy', 'click', 'safetensors'}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            700000.
Pages purgeable:                             20.
File-backed pages:                        30000.
Pages stored in compressor:               12345.
"""


def test_available_memory_of_a_mac_is_free_purgeable_and_file_backed() -> None:
    assert parse_vm_stat(VM_STAT) == (10_000 + 20 + 30_000) * 16_384


@pytest.mark.parametrize("text", ["", VM_STAT.replace("Pages free", "Free"), VM_STAT.replace("page size", "size")])
def test_page_counts_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(MachineError, match="vm_stat"):
        parse_vm_stat(text)


def test_the_first_visible_device_is_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *--id=3*) echo "H200, 143771, 1024";; *) echo "A10, 23028, 512";; esac\n'
    )
    program.chmod(0o755)
    for visible, name in (("3,1", "H200"), ("", "A10"), ("NoDevFiles", "A10")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = read_nvidia_memory(str(program))
        assert found is not None
        assert found.name == name


def test_a_machine_without_an_nvidia_driver_has_no_device() -> None:
    assert read_nvidia_memory("/nowhere/nvidia-smi") is None
