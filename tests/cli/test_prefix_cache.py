"""`slotstream prefix-cache`, and what `serve` says about a directory it cannot use."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slotstream_cli.main import main
from slotstream_cli.serving import DiskOptions, ServeOptions, open_engine
from slotstream_core.persistence.locking import DirectoryLock
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest
from tests.core.kept_states import head, named, opened, state


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["prefix-cache", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    kept = opened(tmp_path / "states")
    first = state(2000)
    kept.save(head(1, first, shared=True))
    kept.save(head(2, state(3000, first.segments), 1))
    kept.close()
    return tmp_path / "states"


def test_states_are_listed_with_tokens_size_use_and_build(directory: Path) -> None:
    code, text = run("--dir", str(directory))
    assert code == 0
    assert "2 states" in text
    assert "2,000 tokens" in text
    assert "shared prefix  test 1" in text
    assert "1 shared prefixes" in text
    code, text = run("--dir", str(directory), "--json")
    document = json.loads(text)
    assert [each["tokens"] for each in document["states"]] == [3000, 2000]
    assert [each["shared"] for each in document["states"]] == [False, True]
    assert document["total_bytes"] == sum(path.stat().st_size for path in directory.iterdir())


def test_listing_works_beside_a_server_and_clearing_does_not(directory: Path) -> None:
    with DirectoryLock(directory):
        assert run("--dir", str(directory))[0] == 0
        code, text = run("--dir", str(directory), "--clear")
    assert code == 1
    assert "in use by another process" in text
    code, text = run("--dir", str(directory), "--clear")
    assert (code, text) == (0, f"removed 4 files from {directory}\n")
    assert [path.name for path in directory.iterdir()] == [".lock"]


def test_clearing_names_what_it_could_not_remove(directory: Path) -> None:
    """0.2.26: only the removed files were reported, with success."""
    (directory / "stuck.slotseg").mkdir()
    code, text = run("--dir", str(directory), "--clear")
    assert code == 1
    assert "could not be removed: stuck.slotseg" in text
    assert sorted(path.name for path in directory.iterdir()) == [".lock", "stuck.slotseg"]


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTSTREAM_ROOT_DIR", str(tmp_path))
    code, text = run()
    assert (code, text.splitlines()[0]) == (0, f"{tmp_path / 'prefix-cache'}: 0 states, 0.0 MB")
    assert "not there yet" in text
    assert run("--clear")[0] == 0
    assert not (tmp_path / "prefix-cache").exists()


@pytest.mark.parametrize("more", [[], ["--json"], ["--clear"]])
def test_a_named_directory_that_is_not_there_is_refused(directory: Path, more: list[str]) -> None:
    """A misspelt name listed an empty cache."""
    code, text = run("--dir", f"{directory}s", *more)
    assert code == 2
    assert f"{directory}s does not exist; give the directory that serve --prefix-cache-dir was given" in " ".join(
        text.split()
    )
    assert not Path(f"{directory}s").exists()


def test_damaged_and_unreadable_files_are_named(directory: Path) -> None:
    (directory / f"{named(7)}.slotprefix").write_bytes(b"nonsense")
    (directory / "blocked.slotseg").mkdir()
    code, text = run("--dir", str(directory))
    assert code == 0
    assert f"damaged, removed at the next start: {named(7)}.slotprefix" in text
    assert "cannot be read: blocked.slotseg" in text


def test_listing_loads_no_model_library(directory: Path) -> None:
    script = (
        "import sys; from slotstream_cli.main import main\n"
        f"main(['prefix-cache', '--dir', {str(directory)!r}], standalone_mode=False)\n"
        "assert 'mlx' not in sys.modules and 'fastapi' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def serve_options(directory: Path) -> ServeOptions:
    return ServeOptions(
        model=None,
        request=PlanRequest(),
        host="127.0.0.1",
        port=0,
        api_key=None,
        allowed_hosts=(),
        max_prefill_wait_minutes=0,
        idle_exit_minutes=0,
        elastic=False,
        disk=DiskOptions(directory=directory, quota_gb=1, minimum_tokens=1024, max_age_days=30),
    )


def test_a_server_runs_without_a_directory_it_cannot_have_and_says_how_to_go_on(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_tiny_model(tmp_path / "model")
    (directory / "blocked.slotseg").mkdir()
    with open_engine(model, serve_options(directory), logging.getLogger("test")) as engine:
        assert engine.prefix_status()["persistent"] is None
    assert f"slotstream prefix-cache --dir {directory} --clear" in caplog.text
    (directory / "blocked.slotseg").rmdir()
    with (
        DirectoryLock(directory),
        open_engine(model, serve_options(directory), logging.getLogger("test")) as engine,
    ):
        assert engine.prefix_status()["persistent"] is None
    assert "in use by another process" in caplog.text
    with open_engine(model, serve_options(directory), logging.getLogger("test")) as engine:
        assert engine.prefix_status()["persistent"]["removed_at_start"]["foreign"] == 2


def test_a_directory_and_no_cache_at_all_contradict_each_other(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--no-prefix-cache", "--prefix-cache-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "give one" in result.output


def test_switched_off_by_the_environment_the_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers that launch starts always get a directory."""
    started: list[ServeOptions] = []
    monkeypatch.setattr("slotstream_cli.serving.serve_model", started.append)
    monkeypatch.setenv("SLOTSTREAM_PREFIX_CACHE", "0")
    result = CliRunner().invoke(main, ["serve", "--prefix-cache-dir", str(tmp_path)])
    assert result.exit_code == 0
    assert f"nothing is kept in {tmp_path}" in result.stderr
    assert [options.disk for options in started] == [None]


def test_clearing_below_a_file_fails_instead_of_reporting_nothing_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, text = run("--dir", str(tmp_path / "file" / "states"), "--clear")
    assert code == 1
    assert "Not a directory" in text
    assert "removed" not in text
