"""How long a person waits: `--help`, `doctor`, and the first token of `slotstream run` on the demo model.

Every command is a fresh process, warmed once; medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from benchmarks.recording import BenchmarkResult, format_table, report

COMMANDS = {
    "help_s": ["--help"],
    "run_help_s": ["run", "--help"],
    "doctor_help_s": ["doctor", "--help"],
    "doctor_s": ["doctor", "--model", "qwen3.8-flash-next:4bit", "--sim-ram", "48"],
}
FIRST_TOKEN = ["run", "--model", "demo", "--prompt", "Hello!", "--greedy", "--max-tokens", "4"]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in [*COMMANDS, "first_token_s"]}
    for number in range(options.rounds + 1):
        for name, arguments in COMMANDS.items():
            times[name].append(run(arguments))
        times["first_token_s"].append(first_byte(FIRST_TOKEN))
        if number == 0:
            times = {name: [] for name in times}
    values = {name: statistics.median(measured) for name, measured in times.items()}
    report(
        BenchmarkResult(benchmark="startup", settings={"rounds": options.rounds}, values=values),
        table=format_table(("command", "seconds"), [(name, f"{value:.3f}") for name, value in values.items()]),
        record=options.record,
    )


def command(arguments: list[str]) -> list[str]:
    """Return the command line of a fresh process."""
    return [sys.executable, "-m", "slotstream_cli", *arguments]


def run(arguments: list[str]) -> float:
    """Return the seconds a command takes."""
    started = time.perf_counter()
    subprocess.run(command(arguments), check=True, capture_output=True)
    return time.perf_counter() - started


def first_byte(arguments: list[str]) -> float:
    """Return the seconds until a command's first byte of output."""
    started = time.perf_counter()
    with subprocess.Popen(command(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None or not process.stdout.read(1):
            raise SystemExit("the command printed nothing")
        waited = time.perf_counter() - started
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{arguments} failed with exit code {process.returncode}")
    return waited


if __name__ == "__main__":
    main()
