"""The C core's own test under sanitizers, and for other processors where their compiler and emulator are installed."""

import os
import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.timeout(1800)  # a loaded machine compiles slowly

ROOT = pathlib.Path(__file__).resolve().parents[3]
CSRC = ROOT / "packages" / "slotstream-core" / "csrc"
TESTS = pathlib.Path(__file__).parent / "c"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
CORE = "native_test"
STEPS = "steps_test"
COMMON = ("variants.c", "threads.c", "matrices.c", "products.c", "experts.c", "rows.c", "kernels_scalar.c")
LANES = ("lanes.c", "segments.c", "copies.c", "mapped.c", "mirrors.c")
AVX2 = ("-mavx2", "-mfma")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
PIECES = ("pieces.c", "steps.c", "drafts.c", "many_rows.c")
X86 = {"kernels_avx2.c": AVX2, "kernels_avx2_subnormal.c": AVX2, "kernels_avx512.c": AVX512, "pieces_avx2.c": AVX2}
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
FLAGS = ("-std=gnu11", "-g", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{CSRC}")


def build(
    folder: pathlib.Path,
    compiler: str | None,
    *flags: str,
    x86: bool,
    neon: bool = False,
    test: str = CORE,
    more: tuple[str, ...] = (),
) -> pathlib.Path:
    if compiler is None:
        pytest.skip("no compiler for it here")
    sources: dict[str, tuple[str, ...]] = {str(CSRC / name): () for name in (*COMMON, *PIECES, *more)}
    if x86:
        sources |= {str(CSRC / name): instructions for name, instructions in X86.items()}
    if neon:
        sources[str(CSRC / "kernels_neon.c")] = ()
    sources[str(TESTS / f"{test}.c")] = ()
    macros = ("-DSS_WITH_X86_VARIANTS",) if x86 else ()
    objects = []
    for source, instructions in sources.items():
        objects.append(str(folder / f"{pathlib.Path(source).stem}.o"))
        command = [compiler, *FLAGS, *macros, *instructions, *flags, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    program = folder / test
    subprocess.run([compiler, *flags, *objects, "-o", str(program), "-pthread", "-lm"], check=True)
    return program


def build_residency(folder: pathlib.Path, *flags: str) -> pathlib.Path:
    if os.uname().sysname != "Linux":
        pytest.skip("only Linux tells whether bytes are in the page cache")
    return build(
        folder,
        COMPILER,
        *flags,
        x86=False,
        test="residency_test",
        more=("requests.c", "tickets.c", "residency.c", *LANES),
    )


def build_lanes(folder: pathlib.Path, *flags: str, test: str = "lanes_test") -> pathlib.Path:
    if COMPILER is None or os.uname().sysname != "Linux":
        pytest.skip("the test of the reading lanes needs a compiler and Linux")
    program = folder / test
    sources = [*(str(CSRC / name) for name in LANES), str(TESTS / f"{test}.c")]
    subprocess.run([COMPILER, *FLAGS, *flags, "-D_GNU_SOURCE", *sources, "-o", str(program), "-pthread"], check=True)
    return program


def build_launches(folder: pathlib.Path, *flags: str) -> pathlib.Path:
    if COMPILER is None:
        pytest.skip("no compiler here")
    program = folder / "launches_test"
    sources = [str(CSRC / "launches.c"), str(CSRC / "graphs.c"), str(TESTS / "launches_test.c")]
    subprocess.run([COMPILER, *FLAGS, *flags, *sources, "-o", str(program), "-pthread"], check=True)
    return program


def run(*command: str) -> str:
    # Leak detection traces the process, which containers often forbid.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_x86() -> bool:
    return os.uname().machine == "x86_64" and os.uname().sysname == "Linux"


@pytest.mark.slow
def test_every_variant_passes_the_c_test_under_sanitizers(tmp_path: pathlib.Path) -> None:
    neon = os.uname().machine in ("aarch64", "arm64")
    assert "ok" in run(str(build(tmp_path, COMPILER, "-O1", *SANITIZE, x86=is_x86(), neon=neon)))


def test_the_scalar_variant_passes_the_c_test_under_sanitizers(tmp_path: pathlib.Path) -> None:
    assert "scalar ok" in run(str(build(tmp_path, COMPILER, "-O0", *SANITIZE, x86=False)), "scalar")


@pytest.mark.slow
def test_the_layout_of_sixteen_lanes_passes_the_c_test_in_plain_c(tmp_path: pathlib.Path) -> None:
    flags = ("-O1", "-DSS_SCALAR_LANES=16", "-fsanitize=address", "-Wno-psabi")
    assert "scalar ok" in run(str(build(tmp_path, COMPILER, *flags, x86=False)), "scalar")


@pytest.mark.slow
def test_the_threads_have_no_data_race(tmp_path: pathlib.Path) -> None:
    flags = ("-O1", "-fsanitize=thread", "-DWITHOUT_FORK")
    assert "scalar ok" in run(str(build(tmp_path, COMPILER, *flags, x86=False)), "scalar")


def test_the_reading_lanes_pass_their_c_test_under_sanitizers(tmp_path: pathlib.Path) -> None:
    assert "lanes ok" in run(str(build_lanes(tmp_path, "-O1", *SANITIZE)))


def test_the_reading_lanes_have_no_data_race(tmp_path: pathlib.Path) -> None:
    assert "lanes ok" in run(str(build_lanes(tmp_path, "-O1", "-fsanitize=thread", "-DWITHOUT_FORK")))


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_mapped_files_pass_their_c_test_under_sanitizers(tmp_path: pathlib.Path, sanitizer: str) -> None:
    assert "mapped ok" in run(str(build_lanes(tmp_path, "-O1", f"-fsanitize={sanitizer}", test="mapped_test")))


def test_the_bookkeeping_of_a_pool_passes_its_c_test_under_sanitizers(tmp_path: pathlib.Path) -> None:
    assert "residency ok" in run(str(build_residency(tmp_path, "-O1", *SANITIZE)))


def test_reading_small_records_has_no_data_race(tmp_path: pathlib.Path) -> None:
    assert "residency ok" in run(str(build_residency(tmp_path, "-O1", "-fsanitize=thread")))


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_launches_and_their_numbers_pass_their_c_test_under_sanitizers(tmp_path: pathlib.Path, sanitizer: str) -> None:
    assert "launches ok" in run(str(build_launches(tmp_path, "-O1", f"-fsanitize={sanitizer}")))


@pytest.mark.slow
def test_neon_passes_the_c_test_in_an_emulator(tmp_path: pathlib.Path) -> None:
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("no emulator for it here")
    program = build(tmp_path, shutil.which("aarch64-linux-gnu-gcc"), "-O2", "-static", x86=False, neon=True)
    assert "neon ok" in run(emulator, str(program), "neon")


def test_the_steps_of_a_layer_pass_their_c_test_under_sanitizers(tmp_path: pathlib.Path) -> None:
    assert "steps ok" in run(str(build(tmp_path, COMPILER, "-O1", *SANITIZE, x86=False, test=STEPS)))


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_steps_of_every_instruction_set_pass_their_c_test(tmp_path: pathlib.Path, sanitizer: str) -> None:
    program = build(tmp_path, COMPILER, "-O1", f"-fsanitize={sanitizer}", x86=is_x86(), test=STEPS)
    assert "steps ok" in run(str(program))


def test_the_core_needs_no_python_header() -> None:
    modules = {"module.c", "layer_module.c", "residency_module.c", "launches_module.c", "blas_forwarding.c"}
    glue = modules | {"arrays.h", "layer_module.h"}
    core = [path for path in CSRC.iterdir() if path.suffix in (".c", ".h") and path.name not in glue]
    assert len(core) > len(glue)
    for path in core:
        assert "Python.h" not in path.read_text(encoding="utf-8")
