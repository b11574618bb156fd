"""`slotstream pull`, and the download that other commands offer on first use."""

import dataclasses
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from slotpack.catalog import CatalogModel, Sidecar, default_directory
from slotpack.progress import PullProgress
from slotpack.pulling import PullOptions
from slotstream_cli import downloading
from slotstream_cli.downloading import describe, ensure_downloaded, options_from, shown_seconds
from slotstream_cli.main import main
from slotstream_cli.models import choose_model
from tests.slotpack.models import Packaged, same_files, write_package
from tests.slotpack.server import WITHIN_S, Fault, FileServer, serving


@pytest.fixture
def tmp_path() -> Iterator[pathlib.Path]:
    """Return a directory in memory where there is one: every object is synced, and disks take their time for that."""
    memory = pathlib.Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="pull-") as name:
        yield pathlib.Path(name)


@pytest.fixture
def packaged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """Return a packed model that the catalog serves as `demo`, with HOME inside tmp_path."""
    made = write_package(tmp_path)
    monkeypatch.setattr("slotpack.catalog.find_bundle", lambda: made.package)
    monkeypatch.setattr("slotpack.catalog.DEMO_MARGIN_BYTES", 0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("ROOT_DIR", "WEIGHTS_SOURCES", "COMPRESSED_SOURCES", "PULL_TRANSPORT", "PULL_CONNECTIONS"):
        monkeypatch.delenv(f"SLOTSTREAM_{name}", raising=False)
    return made


@pytest.fixture
def server(packaged: Packaged, tmp_path: pathlib.Path) -> Iterator[FileServer]:
    yield from serving(tmp_path)


@pytest.fixture
def networked(packaged: Packaged, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    """Make the catalog's default model the packed one, with its sources on the server."""
    model = dataclasses.replace(
        packaged.entry,
        name="qwen3.8-flash-next:4bit",
        directory_name="qwen38-flash-next-mlx-4bit",
        package_bases=(f"{server.base}/package",),
        raw_bases=(f"{server.base}/model",),
    )
    monkeypatch.setattr("slotpack.catalog._qwen38", lambda: model)
    return model


def test_pull_demo_unpacks_the_installed_package_into_its_place(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(main, ["pull", "demo"])
    assert result.exit_code == 0, result.output
    (place,) = (tmp_path / "home" / ".slotstream" / "models").iterdir()
    assert place.name.startswith("demo-")  # and the version, so that another demo never meets these files
    assert same_files(packaged.model, place)
    assert "ready in" in result.stderr


def test_pull_fetches_the_default_model_and_verify_checks_it(
    packaged: Packaged, networked: CatalogModel, tmp_path: pathlib.Path
) -> None:
    copy = tmp_path / "copy"
    result = CliRunner().invoke(main, ["pull", "--dir", str(copy), "--connections", "2"])
    assert result.exit_code == 0, result.output
    assert same_files(packaged.model, copy)
    assert "2 connections in use at once" in result.stderr or "1 connections in use at once" in result.stderr
    assert CliRunner().invoke(main, ["pull", "--dir", str(copy), "--verify"]).exit_code == 0
    (copy / "config.json").write_bytes(b"?" * (copy / "config.json").stat().st_size)
    (copy / "tokenizer.json").unlink()
    (copy / "mtp.safetensors").unlink()
    result = CliRunner().invoke(main, ["pull", "--dir", str(copy), "--verify"])
    assert result.exit_code == 1
    assert "damaged: config.json" in result.stdout
    assert "missing: tokenizer.json" in result.stdout
    assert "absent, optional: mtp.safetensors" in result.stdout
    assert CliRunner().invoke(main, ["pull", "--dir", str(copy)]).exit_code == 0
    assert same_files(packaged.model, copy)


def test_verify_downloads_nothing(networked: CatalogModel, server: FileServer, tmp_path: pathlib.Path) -> None:
    assert CliRunner().invoke(main, ["pull", "--dir", str(tmp_path / "copy"), "--verify"]).exit_code == 1
    assert server.seen == []
    assert not (tmp_path / "copy").exists()


def test_the_transport_flag_selects_the_raw_files(
    packaged: Packaged, networked: CatalogModel, server: FileServer, tmp_path: pathlib.Path
) -> None:
    result = CliRunner().invoke(main, ["pull", "--dir", str(tmp_path / "copy"), "--transport", "raw"])
    assert result.exit_code == 0, result.output
    assert server.paths("/package/") == []
    assert same_files(packaged.model, tmp_path / "copy")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["pull", "gpt"], 1),
        (["pull", "--connections", "0"], 2),
        (["pull", "--connections", "33"], 2),
        (["pull", "--transport", "ftp"], 2),
        (["pull", "demo", "--dir", "/dev/null/x"], 1),
        (["pull", "demo", "--dir", "/proc/x", "--verify"], 1),
    ],
)
def test_bad_requests_end_with_a_message(packaged: Packaged, arguments: list[str], status: int) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


def test_environment_variables_choose_and_flags_win() -> None:
    variables = {
        "SLOTSTREAM_PULL_TRANSPORT": "raw",
        "SLOTSTREAM_PULL_CONNECTIONS": "40",
        "SLOTSTREAM_WEIGHTS_SOURCES": "https://a.example/x, https://b.example/y,",
        "SLOTSTREAM_COMPRESSED_SOURCES": "https://c.example",
    }
    chosen = options_from(variables)
    assert (chosen.transport, chosen.connections) == ("raw", 32)
    assert chosen.raw_sources == ("https://a.example/x", "https://b.example/y")
    assert chosen.compressed_sources == ("https://c.example",)
    flags = options_from(variables, transport="compressed", connections=3)
    assert (flags.transport, flags.connections) == ("compressed", 3)
    assert options_from(variables, transport="automatic").transport == "raw"
    assert options_from({}).transport == "automatic"
    assert options_from({}).connections is None


@pytest.mark.parametrize(
    "variables",
    [
        {"SLOTSTREAM_PULL_TRANSPORT": "ftp"},
        {"SLOTSTREAM_PULL_CONNECTIONS": "many"},
        {"SLOTSTREAM_PULL_CONNECTIONS": "0"},
        {"SLOTSTREAM_PULL_CONNECTIONS": "-1"},
        {"SLOTSTREAM_PULL_CONNECTIONS": "²"},
    ],
)
def test_variables_that_make_no_sense_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(click.UsageError):
        options_from(variables)


@pytest.mark.parametrize(("variable", "value"), [("WEIGHTS_SOURCES", "ftp://x"), ("COMPRESSED_SOURCES", "http://[")])
def test_sources_that_make_no_sense_are_refused(
    packaged: Packaged, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"SLOTSTREAM_{variable}", value)
    result = CliRunner().invoke(main, ["pull", "demo"])
    assert result.exit_code == 1
    assert "is not a source" in result.stderr


def test_weights_sources_select_the_raw_transport(
    packaged: Packaged, server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("SLOTSTREAM_WEIGHTS_SOURCES", f"{server.base}/model")
    assert CliRunner().invoke(main, ["pull", "demo", "--dir", str(tmp_path / "copy")]).exit_code == 0
    assert server.paths("/model/")
    assert same_files(packaged.model, tmp_path / "copy")


def test_lines_show_bytes_rate_time_and_connections() -> None:
    moment = PullProgress(
        phase="downloading",
        done_bytes=22_070_000_000,
        total_bytes=88_290_000_000,
        rate_bytes_per_s=112e6,
        eta_s=591.0,
        connections=16,
    )
    assert describe(moment) == " 24%  22.07 of 88.29 GB  112.0 MB/s  9:51 left  16 connections"
    assert (shown_seconds(None), shown_seconds(3725.0)) == ("--:--", "1:02:05")


# ---- first use -------------------------------------------------------------------------------------------------------


def test_first_use_unpacks_the_demo_without_asking(packaged: Packaged, tmp_path: pathlib.Path) -> None:
    from slotpack.catalog import find_model

    directory = ensure_downloaded(find_model("demo"), PullOptions())
    assert same_files(packaged.model, directory)
    assert ensure_downloaded(find_model("demo"), PullOptions()) == directory


def test_a_demo_whose_experts_cannot_be_written_as_records_is_used_as_it_is(
    packaged: Packaged, capsys: pytest.CaptureFixture[str]
) -> None:
    assert same_files(packaged.model, choose_model("demo").directory)  # no model: its configuration is random bytes
    said = capsys.readouterr().err
    assert "its experts are read from its stacked tensors" in said
    assert "config.json" in said


def test_a_command_that_needs_the_demo_unpacks_it(packaged: Packaged) -> None:
    assert same_files(packaged.model, choose_model("demo").directory)
    assert choose_model(None).name == "demo"


def test_a_command_that_needs_the_published_model_asks_for_it(
    packaged: Packaged, networked: CatalogModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(click.ClickException, match="slotstream pull"):
        choose_model(networked.name)
    monkeypatch.setattr(downloading, "is_interactive", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, *, err: True)
    assert same_files(packaged.model, choose_model(networked.name).directory)
    assert choose_model(None).name == networked.name


def test_first_use_never_downloads_without_a_terminal(networked: CatalogModel, server: FileServer) -> None:
    with pytest.raises(click.ClickException, match="slotstream pull"):
        ensure_downloaded(networked, PullOptions())
    assert server.seen == []


@pytest.mark.parametrize("agrees", [True, False])
def test_first_use_asks_on_a_terminal(
    networked: CatalogModel, packaged: Packaged, server: FileServer, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    monkeypatch.setattr(downloading, "is_interactive", lambda: True)
    asked: list[str] = []

    def confirm(text: str, *, err: bool) -> bool:
        asked.append(text)
        return agrees

    monkeypatch.setattr(click, "confirm", confirm)
    if agrees:
        directory = ensure_downloaded(networked, PullOptions(connections=1))
        assert directory == default_directory(networked)
        assert same_files(packaged.model, directory)
    else:
        with pytest.raises(click.ClickException, match="nothing was downloaded"):
            ensure_downloaded(networked, PullOptions())
        assert server.seen == []
    assert len(asked) == 1
    assert "GB" in asked[0]


def test_first_use_fetches_the_sidecar_as_well(
    networked: CatalogModel, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed by the original in 0.2.25: only `pull` fetched the decode-forecast file."""
    monkeypatch.setattr(downloading, "is_interactive", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, *, err: True)
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    (server.root / "side").mkdir()
    (server.root / "side" / "tap.bin").write_bytes(b"hello")
    side = Sidecar(path="tap.bin", size_bytes=5, sha256=digest, base=f"{server.base}/side")
    directory = ensure_downloaded(dataclasses.replace(networked, sidecars=(side,)), PullOptions())
    assert (directory / "tap.bin").read_bytes() == b"hello"


def test_first_use_stopped_in_the_question_or_the_download_exits_130(
    networked: CatalogModel, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed by the original in 0.2.26: a stopped first-use download looked like another failure."""
    monkeypatch.setattr(downloading, "is_interactive", lambda: True)

    def abort(text: str, *, err: bool) -> bool:
        raise click.Abort

    monkeypatch.setattr(click, "confirm", abort)
    with pytest.raises(click.exceptions.Exit) as question:
        ensure_downloaded(networked, PullOptions())
    monkeypatch.setattr(click, "confirm", lambda text, *, err: True)

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(downloading, "pull", interrupt)
    with pytest.raises(click.exceptions.Exit) as transfer:
        ensure_downloaded(networked, PullOptions())
    assert (question.value.exit_code, transfer.value.exit_code) == (130, 130)


# ---- the real process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_keeps_progress_and_says_so(
    packaged: Packaged, server: FileServer, tmp_path: pathlib.Path, number: signal.Signals, status: int
) -> None:
    """Run on a terminal, so the live display runs too."""
    bundle = tmp_path / "bundle" / "slotstream_demo"
    bundle.mkdir(parents=True)
    (bundle / "__init__.py").touch()
    shutil.copytree(packaged.package, bundle / "package")
    server.fail(Fault(path="objects/", kind="hold", after_bytes=1))
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "bundle"),
        "SLOTSTREAM_COMPRESSED_SOURCES": f"{server.base}/package",
        "TERM": "xterm",
    }
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "slotstream_cli", "pull", "demo", "--dir", str(tmp_path / "copy")]
    process = subprocess.Popen([*command, "--connections", "1"], env=environment, stderr=follower)
    os.close(follower)
    try:
        assert server.held.wait(WITHIN_S)
        process.send_signal(number)
        shown = read_all(leader)
        assert process.wait(WITHIN_S) == status
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    assert "continues from the verified bytes" in shown
    server.release.set()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " MB  " in done.stderr
    assert same_files(packaged.model, tmp_path / "copy")


def read_all(descriptor: int) -> str:
    """Return what a terminal shows until the process closes it."""
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(descriptor, 4096)
        except OSError:  # Linux reports the closed other end as an error
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces).decode(errors="replace")
