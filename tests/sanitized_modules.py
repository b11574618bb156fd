"""Extension modules built under sanitizers, and Python programs that run with them in a process of their own."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMPILER = shutil.which("gcc")
ADDRESS = ("-fsanitize=address", "-fno-omit-frame-pointer")
UNDEFINED = ("-fsanitize=undefined", "-fno-sanitize-recover=all")


def build_module(library: pathlib.Path, sources: Mapping[pathlib.Path, tuple[str, ...]], *flags: str) -> pathlib.Path:
    """Compile and link a module whose every access is watched; each source has flags of its own.

    Skips the test where that cannot be done.
    """
    headers = sysconfig.get_path("include")
    if COMPILER is None or sys.platform != "linux" or not pathlib.Path(headers, "Python.h").exists():
        pytest.skip("a module under sanitizers needs gcc, Python's headers and Linux")
    objects = []
    for source, own in sources.items():
        objects.append(str(library.parent / f"{source.name}.o"))
        command = [COMPILER, "-g", "-fPIC", *flags, *ADDRESS, *own, f"-I{headers}", f"-I{source.parent}"]
        subprocess.run([*command, "-c", str(source), "-o", objects[-1]], check=True)
    link = [COMPILER, "-shared", *ADDRESS, *UNDEFINED, *objects, "-o", str(library), "-pthread", "-lm"]
    subprocess.run(link, check=True)
    return library


def run_under_sanitizers(program: str, *arguments: str) -> str:
    """What a Python program, a module of the tests, printed. Anything but a clean end fails the test."""
    assert COMPILER is not None
    runtimes = []
    for name in ("libasan.so", "libubsan.so"):
        asked = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        runtimes.append(asked.stdout.strip())
    # Leak detection traces the process, which containers often forbid; Python's own arenas would hide short buffers; a
    # CUDA driver maps memory in what the sanitizer would keep empty.
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:protect_shadow_gap=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout
