"""`python -m slotpack`: pack, verify, unpack, inspect, publish."""

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence

from slotpack import codec
from slotpack.errors import PullCancelled, SlotpackError
from slotpack.packing import PackProgress, pack_model
from slotpack.progress import PullProgress
from slotpack.publishing import HuggingFaceRepository, publish_package
from slotpack.unpacking import inspect_package, unpack_package, verify_package


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slotpack", description="Lossless model packages.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    pack = commands.add_parser("pack", help="make a package of a model directory")
    pack.add_argument("--model", required=True, type=pathlib.Path, help="directory with the model's files")
    pack.add_argument("--output", required=True, type=pathlib.Path, help="directory of the package")
    pack.add_argument("--workers", type=int, default=1, help="blocks coded at a time (default 1)")
    pack.add_argument("--optional", action="append", default=[], metavar="FILE", help="a file models work without")
    pack.add_argument("--exclude", action="append", default=[], metavar="NAME", help="leave a file or directory out")

    verify = commands.add_parser("verify", help="decode every object and check every digest")
    verify.add_argument("--package", required=True, type=pathlib.Path)

    unpack = commands.add_parser("unpack", help="restore the model of a package")
    unpack.add_argument("--package", required=True, type=pathlib.Path)
    unpack.add_argument("--output", required=True, type=pathlib.Path, help="directory of the model")

    inspect = commands.add_parser("inspect", help="list a package's files and sizes")
    inspect.add_argument("--package", required=True, type=pathlib.Path)

    publish = commands.add_parser("publish", help="upload a package to a Hugging Face repository")
    publish.add_argument("--package", required=True, type=pathlib.Path)
    publish.add_argument("--repo", required=True, metavar="OWNER/NAME")
    return parser


def _percent(done: int, total: int) -> str:
    return f"{100 * done // max(1, total):3d}%"


class _Line:
    """One status line: rewritten on a terminal, printed when the percentage reaches the next ten elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = -1

    def show(self, label: str, done: int, total: int) -> None:
        if self._is_terminal:
            print(f"\r{label} {_percent(done, total)}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
            return
        tenth = 10 * done // max(1, total)
        if tenth != self._last:
            self._last = tenth
            print(f"{label} {_percent(done, total)}", file=sys.stderr)


def _pack(arguments: argparse.Namespace) -> None:
    line = _Line()

    def show(progress: PackProgress) -> None:
        line.show("packing", progress.done_bytes, progress.total_bytes)

    report = pack_model(
        arguments.model,
        arguments.output,
        workers=arguments.workers,
        optional=arguments.optional,
        excluded=arguments.exclude,
        progress=show,
    )
    share = 100 * report.object_bytes / max(1, report.model_bytes)
    print(f"{report.model_bytes:,} bytes in {len(report.manifest.files)} files")
    print(f"{report.object_bytes:,} bytes in {len(report.manifest.objects)} objects ({share:.2f}% of it)")
    print(f"manifest {report.manifest.digest}")


def _verify(arguments: argparse.Namespace) -> None:
    line = _Line()
    manifest = verify_package(arguments.package, progress=lambda done, total: line.show("verifying", done, total))
    print(f"{len(manifest.objects)} objects and {len(manifest.files)} files have their digests")


def _unpack(arguments: argparse.Namespace) -> None:
    line = _Line()

    def show(progress: PullProgress) -> None:
        if progress.phase == "downloading":
            line.show("unpacking", progress.done_bytes, progress.total_bytes)

    report = unpack_package(arguments.package, arguments.output, progress=show)
    print(f"{report.directory} holds the verified model")
    for path, reason in report.skipped.items():
        print(f"left out the optional file {path}: {reason}", file=sys.stderr)


def _inspect(arguments: argparse.Namespace) -> None:
    summary = inspect_package(arguments.package)
    for entry in summary.manifest.files:
        print(f"{entry.size_bytes:>16,}  {entry.sha256}  {entry.path}{'  (optional)' if entry.optional else ''}")
    for kind, (count, object_bytes, raw_bytes) in sorted(summary.objects_by_kind.items()):
        print(f"kind {kind.value} ({kind.name.lower()}): {count} objects, {object_bytes:,} of {raw_bytes:,} bytes")
    print(f"{summary.object_bytes:,} of {summary.model_bytes:,} bytes, manifest {summary.manifest.digest}")
    print(f"coder: {codec.backend}")


def _publish(arguments: argparse.Namespace) -> None:
    line = _Line()
    report = publish_package(
        arguments.package,
        HuggingFaceRepository(arguments.repo),
        progress=lambda done, total: line.show("uploading", done, total),
    )
    print(f"{report.uploaded_files} files uploaded, {report.present_files} were there: {report.prefix}")
    if report.revision is not None:
        print(f"revision {report.revision}")


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "pack": _pack,
    "verify": _verify,
    "unpack": _unpack,
    "inspect": _inspect,
    "publish": _publish,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 1 for a refusal, 130 after Ctrl-C."""
    parsed = _parser().parse_args(arguments)
    try:
        _COMMANDS[parsed.command](parsed)
    except (KeyboardInterrupt, PullCancelled):
        print("stopped; run the command again to continue", file=sys.stderr)
        return 130
    except SlotpackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'a file'} cannot be used: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
