"""What is published: wheels that hold what they must, nothing of this machine, and work where they are installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
PACKAGES = (
    "slotpack",
    "slotstream_cli",
    "slotstream_core",
    "slotstream_demo",
    "slotstream_planner",
    "slotstream_serve",
)
LIBRARIES = {"slotpack": {"_codec.abi3.so"}, "slotstream_core": {"_native.abi3.so", "_blas.abi3.so"}}
RUN = ("run", "--prompt", "Tell me a story.", "--seed", "1", "--max-tokens", "12")
NATIVE = "from slotstream_core.native.binding import library_path; print(library_path())"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def uv(*arguments: str, **variables: str) -> None:
    """Run uv with what `make setup` has fetched: no network."""
    if not UV.exists():
        pytest.skip("the wheels are built with the uv that `make setup` installs")
    # The linker's command of this interpreter may name directories of this machine.
    environment = {**os.environ, "LDSHARED": "gcc -shared", **variables}
    done = subprocess.run([str(UV), *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


def installed(place: Path, *wheels: Path) -> Path:
    """The interpreter of a fresh environment with these wheels and what they need."""
    uv("venv", "--quiet", "--offline", "--python", sys.executable, str(place))
    python = place / "bin" / "python"
    uv("pip", "install", "--quiet", "--offline", "--python", str(python), *map(str, wheels))
    return python


def output(*command: str, cwd: Path, **variables: str) -> str:
    """What a program printed, run outside the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLOTSTREAM_", "PYTHON"))}
    environment = {**kept, "SLOTSTREAM_ROOT_DIR": str(cwd / "root"), **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every package's wheel, as built for this machine from its source archive."""
    if sys.platform != "linux":
        pytest.skip("the compiled wheels are built on Linux")
    place = tmp_path_factory.mktemp("wheels")
    uv("build", "--quiet", "--offline", "--all-packages", "--python", sys.executable, "--out-dir", str(place))
    return {path.name.split("-")[0]: path for path in place.glob("*.whl")}


def test_every_wheel_holds_its_package_its_licence_and_its_types(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == sorted(PACKAGES)
    for package, wheel in wheels.items():
        names = set(zipfile.ZipFile(wheel).namelist())
        assert f"{package}/py.typed" in names
        assert [name for name in names if name.endswith("licenses/LICENSE")] != []
        version = wheel.name.split("-")[1]
        assert {name.split("/")[0] for name in names} == {package, f"{package}-{version}.dist-info"}
        assert {Path(name).name for name in names if name.endswith(".so")} == LIBRARIES.get(package, set())
        assert [name for name in names if "test_" in name or name.endswith((".c", ".h", ".pyc"))] == []


def test_compiled_wheels_serve_every_python_from_3_11_on_and_the_others_every_machine(wheels: dict[str, Path]) -> None:
    for package, wheel in wheels.items():
        expected = "cp311-abi3-linux_" if package in LIBRARIES else "py3-none-any"
        assert expected in wheel.name


def test_the_demo_model_is_in_its_wheel(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["slotstream_demo"]) as demo:
        assert sum(entry.file_size for entry in demo.infolist() if "/package/" in entry.filename) > 1_000_000


def test_no_wheel_names_a_directory_of_the_machine_that_built_it(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as opened:
            for name in opened.namelist():
                for place in (str(ROOT), str(Path.home()), sys.base_prefix):
                    assert place.encode() not in opened.read(name), f"{name} of {wheel.name} names {place}"


def test_the_wheels_install_together_and_the_demo_answers(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = installed(tmp_path / "environment", *wheels.values())
    said = output(str(python.with_name("slotstream")), *RUN, cwd=tmp_path)
    assert "demo" in said
    assert "decode 11 tokens" in said
    assert output(str(python), "-c", NATIVE, cwd=tmp_path).strip().endswith("_native.abi3.so")


def test_the_wheel_without_compiled_code_runs_anywhere(wheels: dict[str, Path], tmp_path: Path) -> None:
    """What macOS installs, where MLX computes on Metal, and Linux machines that no compiled wheel is made for."""
    build = ("build", "--quiet", "--offline", "--python", sys.executable)
    uv(*build, "--package", "slotstream-core", "--out-dir", str(tmp_path), SLOTSTREAM_WITHOUT_NATIVE="1")
    (pure,) = tmp_path.glob("*.whl")
    assert pure.name.endswith("-py3-none-any.whl")
    python = installed(
        tmp_path / "environment", pure, *(wheel for name, wheel in wheels.items() if name != "slotstream_core")
    )
    assert "decode 11 tokens" in output(str(python.with_name("slotstream")), *RUN, cwd=tmp_path)
    assert output(str(python), "-c", NATIVE, cwd=tmp_path).strip() == "None"
