"""Every environment variable that is read: documented, and refused with a sentence where its value means nothing."""

import pathlib
import re
from collections.abc import Callable, Mapping

import click
import pytest
from click.testing import CliRunner

from slotstream_cli.downloading import options_from
from slotstream_cli.main import main
from slotstream_core.backend import Backend
from slotstream_core.errors import SettingError
from slotstream_core.experts.reader import choose_lanes
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.native.library import native_choice
from slotstream_core.options import EngineOptions

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = re.compile(r"\b(?:SLOTSTREAM|SLOTPACK)_[A-Z_]*[A-Z]\b")

FOR_BUILDING = {"SLOTSTREAM_SANITIZE", "SLOTSTREAM_WITHOUT_NATIVE", "SLOTPACK_SANITIZE"}
OF_ANY_TEXT = {"SLOTSTREAM_API_KEY", "SLOTSTREAM_ROOT_DIR"}
CHECKED_LATER = {"SLOTSTREAM_WEIGHTS_SOURCES", "SLOTSTREAM_COMPRESSED_SOURCES"}
"""By the download itself: `test_pull`."""
TAKEN_AS_SOMETHING = {"SLOTSTREAM_DRAFT_DEPTH", "SLOTPACK_PURE_PYTHON"}
"""Documented: anything but 1 to 16 is unset; anything but 0 is 1."""


def lanes(environment: Mapping[str, str]) -> object:
    return choose_lanes(environment, core_count=2)


def kernels(environment: Mapping[str, str]) -> object:
    return DeviceKernels.load(Backend.detect(), environment)


Reader = Callable[[Mapping[str, str]], object]
READ_BY: dict[str, Reader] = {
    "SLOTSTREAM_BLAS": EngineOptions.from_environment,
    "SLOTSTREAM_DEVICE_KERNELS": kernels,
    "SLOTSTREAM_DIRECT_READS": EngineOptions.from_environment,
    "SLOTSTREAM_EXPERT_LOAD_BATCH": EngineOptions.from_environment,
    "SLOTSTREAM_EXPERT_PREFETCH_TAP": EngineOptions.from_environment,
    "SLOTSTREAM_IO_QUEUE_DEPTH": lanes,
    "SLOTSTREAM_NATIVE": native_choice,
    "SLOTSTREAM_OPT_EXPERT_PREFETCH": EngineOptions.from_environment,
    "SLOTSTREAM_OPT_ROW_INVARIANT": EngineOptions.from_environment,
    "SLOTSTREAM_PULL_CONNECTIONS": options_from,
    "SLOTSTREAM_PULL_TRANSPORT": options_from,
    "SLOTSTREAM_REPACKED": EngineOptions.from_environment,
    "SLOTSTREAM_SWEEP": EngineOptions.from_environment,
    "SLOTSTREAM_SWEEP_ADMIT": EngineOptions.from_environment,
    "SLOTSTREAM_WARM_START": EngineOptions.from_environment,
}
OPTIONS = {
    "SLOTSTREAM_MTP_EXPERTS": ("doctor",),
    "SLOTSTREAM_PREFIX_CACHE": ("serve",),
}


def named_in(*paths: pathlib.Path) -> set[str]:
    return {name for path in paths for name in NAME.findall(path.read_text(encoding="utf-8"))}


def test_every_variable_is_listed_here() -> None:
    sources = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("packages/*/setup.py")]
    known = FOR_BUILDING | OF_ANY_TEXT | CHECKED_LATER | TAKEN_AS_SOMETHING | READ_BY.keys() | OPTIONS.keys()
    assert named_in(*sources) == known


def test_every_variable_is_documented() -> None:
    pages = named_in(*(ROOT / "docs").rglob("*.md"), *ROOT.glob("packages/*/README.md"))
    used = OF_ANY_TEXT | CHECKED_LATER | TAKEN_AS_SOMETHING | READ_BY.keys() | OPTIONS.keys()
    assert used | {"SLOTSTREAM_WITHOUT_NATIVE", "SLOTPACK_SANITIZE"} <= pages
    assert {name for name in used if name.startswith("SLOTSTREAM")} <= named_in(ROOT / "docs" / "cli.md")


@pytest.mark.parametrize("name", READ_BY)
@pytest.mark.parametrize("value", ["x", "on", "2000", "-1", "\u0661"])
def test_a_value_that_means_nothing_is_refused_by_name(name: str, value: str) -> None:
    if name == "SLOTSTREAM_PULL_CONNECTIONS" and value == "2000":
        assert options_from({name: value}).connections == 32
        return
    with pytest.raises((SettingError, click.UsageError), match=f"{name} is {value!r}"):
        READ_BY[name]({name: value})


@pytest.mark.parametrize(("name", "command"), OPTIONS.items())
def test_an_option_refuses_its_variable_as_it_does_its_argument(
    name: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    result = CliRunner().invoke(main, [*command])
    assert result.exit_code == 2
    assert name in result.stderr


def test_an_engine_checks_what_was_read_before_it() -> None:
    with pytest.raises(SettingError, match="SLOTSTREAM_NATIVE is 'fast'"):
        EngineOptions.from_environment({"SLOTSTREAM_NATIVE": "fast"})


def test_doctor_refuses_what_an_engine_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_BLAS", "x")
    result = CliRunner().invoke(main, ["doctor", "--no-probe"])
    assert result.exit_code == 1
    assert "SLOTSTREAM_BLAS is 'x'" in result.output
    assert "target" not in result.output
