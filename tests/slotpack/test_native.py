"""The C coder's own test and the golden files, under the address and undefined-behaviour sanitizers."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.sanitized_modules import UNDEFINED, build_module, run_under_sanitizers

pytestmark = pytest.mark.timeout(1800)  # a loaded machine compiles slowly
HEAVY = pytest.mark.timeout(7200)  # minutes of a processor, of which a loaded machine may give a thirtieth

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSRC = ROOT / "packages" / "slotpack" / "csrc"
NATIVE = pathlib.Path(__file__).parent / "native"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def build(source: pathlib.Path, target: pathlib.Path, *flags: str) -> None:
    if COMPILER is None:
        pytest.skip("no C compiler here")
    sources = [str(source), *(str(CSRC / name) for name in ("frame.c", "batch.c", "encode.c"))]
    command = [COMPILER, "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", *flags, f"-I{CSRC}", *sources]
    subprocess.run([*command, "-o", str(target)], check=True)


def run(program: pathlib.Path, *arguments: str) -> str:
    # Leak detection traces the process, which containers often forbid.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("flags", [(), ("-DSLOTPACK_PORTABLE",)], ids=["as-built", "without-assembly"])
def test_the_c_coder_passes_its_own_test_under_sanitizers(tmp_path: pathlib.Path, flags: tuple[str, ...]) -> None:
    build(NATIVE / "coder_test.c", tmp_path / "coder_test", *flags, *SANITIZE)
    assert "ok" in run(tmp_path / "coder_test")


@pytest.mark.parametrize("flags", [(), ("-DSLOTPACK_PORTABLE",)], ids=["as-built", "without-assembly"])
def test_golden_files_replay_through_the_fuzz_target_under_sanitizers(
    tmp_path: pathlib.Path, flags: tuple[str, ...]
) -> None:
    build(NATIVE / "fuzz_decode.c", tmp_path / "replay", "-DREPLAY", *flags, *SANITIZE)
    files = sorted(str(path) for path in (NATIVE.parent / "golden").glob("*.bin"))
    assert f"replayed {len(files)} files" in run(tmp_path / "replay", *files)


def fuzzed_module(folder: pathlib.Path, *, optimised: str, seed: int, rounds: int) -> None:
    sources = [CSRC / name for name in ("codec.c", "frame.c", "batch.c", "encode.c")]
    library = build_module(folder / "_codec.so", dict.fromkeys(sources, (optimised, *UNDEFINED)), "-std=c11")
    taken, refused = run_under_sanitizers(
        "tests.slotpack.native.fuzz_module", str(library), str(seed), str(rounds)
    ).split()
    assert int(taken) > rounds / 10
    assert int(refused) > rounds / 10


def test_the_module_takes_or_refuses_any_frame_without_a_step_outside(tmp_path: pathlib.Path) -> None:
    fuzzed_module(tmp_path, optimised="-O0", seed=1, rounds=150)


@HEAVY
@pytest.mark.slow
def test_the_module_takes_or_refuses_many_frames_without_a_step_outside(tmp_path: pathlib.Path) -> None:
    fuzzed_module(tmp_path, optimised="-O1", seed=2, rounds=10_000)


def test_the_coder_needs_no_python_header() -> None:
    for name in ("rans.h", "nibbles.h", "wide.h", "quantised.h", "frame.h", "frame.c", "batch.c", "encode.c"):
        assert "#include <Python.h>" not in (CSRC / name).read_text(encoding="utf-8")


@HEAVY
@pytest.mark.slow
def test_the_whole_folder_passes_on_the_python_reference() -> None:
    environment = {**os.environ, "SLOTPACK_PURE_PYTHON": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(pathlib.Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
