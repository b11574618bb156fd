"""Decode speed next to other engines, on models of equal experts, inside one memory control group.

The experts of all models have the same number, widths and bits; what lies around them differs and is small. For each
share of the experts the group may hold (as much as this engine's slots for that share take) plus a fixed amount for
everything else, page cache included. In every round each engine runs in turn in a process of its own, its files dropped
from the page cache before. It decodes random tokens one by one; a first series of them fills whatever it keeps, the
second is timed. Medians over the rounds are compared.

    python -m benchmarks.offline.peers [--llama-bench PROGRAM] [--mlx-lm PYTHON] [--layers N] [--record]

- pool: this engine, loaded under a plan whose pool takes the share.
- mapped: the same layers and kernels, experts copied out of mapped files at every use, so that the page cache is what
  remembers them.
- llama.cpp: Q4_0 experts of as many bytes, mapped. With every expert in memory also with its weights repacked, which
  copies them and so needs them to fit.
- mlx-lm: affine 4-bit with float32 scales; it loads whole arrays, so that it is killed where they do not fit.

An engine that the group killed has no speed: the result has no number for it, and its settings say that it was killed
and how much it held of what was allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.cages import Caged, CageUnavailable, MemoryCage, forget_pages, memory_cage
from benchmarks.offline.peer_models import ExpertShape, write_gguf, write_mlx_lm
from benchmarks.offline.wide_budget import widths
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.testing import write_tokenizer
from slotstream_planner import Machine, ModelGeometry, PlanRequest, plan

TIMEOUT_S = 600.0
REPOSITORY = Path(__file__).resolve().parents[2]

MLX_LM_CHILD = """
import json, random, sys, time
from pathlib import Path
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
started = time.perf_counter()
model, _ = load_model(Path(sys.argv[1]), lazy=True)
load_s = time.perf_counter() - started
draw = random.Random(0)
def decode():
    cache = make_prompt_cache(model)
    started = time.perf_counter()
    for _ in range(int(sys.argv[2])):
        mx.eval(model(mx.array([[draw.randrange(300, 30_000)]]), cache=cache))
    return time.perf_counter() - started
decode()
print(json.dumps({"load_s": load_s, "decode_s": decode()}))
"""


@dataclass(kw_only=True)
class Contestant:
    """One engine at one share.

    Attributes:
        name: What it is called in the table.
        command: Runs it.
        files: What it reads, dropped from the page cache before each run.
        runs: What became of its runs.
    """

    name: str
    command: Sequence[str]
    files: Sequence[Path]
    runs: list[Caged] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        """Whether the limit killed it; it is not tried again then."""
        return bool(self.runs) and self.runs[-1].killed


@dataclass(frozen=True, kw_only=True)
class Models:
    """The files of one run of the benchmark; None for what no engine was given for."""

    ours: Path
    gguf: Path | None
    mlx_lm: Path | None


def main() -> None:
    """Run from the command line."""
    options = parse()
    with ExitStack() as opened:
        try:
            cage = opened.enter_context(memory_cage())
        except CageUnavailable as error:
            raise SystemExit(str(error)) from error
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        models, sizes = write_models(folder, options)
        geometry = ModelGeometry.from_checkpoint(models.ours, compute="float32")
        table: list[tuple[str, ...]] = []
        values: dict[str, float] = dict(sizes)
        killed: dict[str, str] = {}
        for share in options.shares:
            slots_bytes = int(geometry.total_experts * geometry.slot_bytes * share)
            limit_bytes = slots_bytes + int(options.beside_gb * 1e9)
            plan_path = write_plan(folder / "plan.pickle", geometry, slots_bytes, limit_bytes)
            contestants = line_up(models, plan_path, options, share)
            compete(cage, contestants, limit_bytes, options.rounds)
            judge(contestants, share, limit_bytes, options.tokens, values, table)
            killed |= why_killed(contestants, share, limit_bytes)
    settings: dict[str, int | float | str] = {
        "layers": options.layers,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "beside_gb": options.beside_gb,
        **killed,
    }
    header = ("limit, engine", "decode tok/s", "of pool's", "read GB a run", "peak GB", "processor s", "wall s")
    report(
        BenchmarkResult(benchmark="peers", settings=settings, values=values),
        table=format_table(header, table),
        record=options.record,
    )


def parse() -> argparse.Namespace:
    """Read the command line, and say what is left out for want of a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's benchmark program, built for this machine")
    parser.add_argument("--mlx-lm", type=Path, help="a Python in whose environment mlx-lm is installed")
    parser.add_argument("--layers", type=int, default=4, help="of every model, at least 2")
    parser.add_argument("--tokens", type=int, default=16, help="of each of the two series")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.25, 0.5, 1.0], help="of the experts")
    parser.add_argument("--beside-gb", type=float, default=0.6, help="what the group may hold beside the experts")
    parser.add_argument("--directory", type=Path, help="where to write the models (default: the temporary directory)")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    for option, name in ((options.llama_bench, "llama-bench"), (options.mlx_lm, "mlx-lm")):
        if option is None:
            print(f"without --{name} that engine is left out", file=sys.stderr)
        elif not os.access(option, os.X_OK) or option.is_dir():
            raise SystemExit(f"--{name} {option} is not a program")
    return options


def write_models(folder: Path, options: argparse.Namespace) -> tuple[Models, dict[str, float]]:
    """Write a model for every engine; also return the bytes of their experts."""
    settings = widths(options.layers)
    shape = ExpertShape(
        layers=options.layers,
        experts=settings["num_experts"],
        chosen=settings["num_experts_per_tok"],
        hidden=settings["hidden_size"],
        width=settings["moe_intermediate_size"],
        vocabulary=settings["vocab_size"],
    )
    ours = folder / "wide"
    write_synthetic(ours, settings, 0, bits=4)
    write_tokenizer(ours)
    models = Models(
        ours=ours,
        gguf=folder / "peer.gguf" if options.llama_bench else None,
        mlx_lm=folder / "mlx-lm" if options.mlx_lm else None,
    )
    geometry = ModelGeometry.from_checkpoint(ours, compute="float32")
    sizes: dict[str, float] = {"pool expert_bytes": geometry.expert_set_bytes}
    if models.gguf is not None:
        sizes["llama.cpp expert_bytes"] = write_gguf(models.gguf, shape)
    if models.mlx_lm is not None:
        sizes["mlx-lm expert_bytes"] = write_mlx_lm(models.mlx_lm, shape)
    return models, sizes


def write_plan(path: Path, geometry: ModelGeometry, slots_bytes: int, limit_bytes: int) -> Path:
    """Write this engine's plan, as made for a machine that has no more memory than the group."""
    request = PlanRequest(pool_gb=slots_bytes / 1e9, max_context=1024, prefill_chunk=256, mtp="off", prefix_cache="off")
    made = plan(geometry, Machine.current(), request)
    path.write_bytes(pickle.dumps(replace(made, machine=replace(made.machine, available_bytes=limit_bytes))))
    return path


def line_up(models: Models, plan_path: Path, options: argparse.Namespace, share: float) -> list[Contestant]:
    """Return who runs at a share of the experts."""
    engine = [sys.executable, "-m", "benchmarks.offline.peer_engines"]
    own = [str(models.ours), str(options.tokens)]
    shards = sorted(models.ours.glob("*.safetensors"))
    contestants = [
        Contestant(name="pool", command=[*engine, "pool", *own, str(plan_path)], files=shards),
        Contestant(name="mapped", command=[*engine, "mapped", *own], files=shards),
    ]
    if models.gguf is not None:
        command = [str(options.llama_bench), "-m", str(models.gguf), "-p", "0", "-n", str(options.tokens), "-r", "2"]
        command += ["-t", str(os.cpu_count() or 1), "-ngl", "0", "-o", "json", "--no-warmup", "-lm", "mmap"]
        contestants.append(Contestant(name="llama.cpp", command=[*command, "--repack", "0"], files=[models.gguf]))
        if share >= 1:
            contestants.append(
                Contestant(name="llama.cpp repacked", command=[*command, "--repack", "1"], files=[models.gguf])
            )
    if models.mlx_lm is not None:
        command = [str(options.mlx_lm), "-c", MLX_LM_CHILD, str(models.mlx_lm), str(options.tokens)]
        contestants.append(
            Contestant(name="mlx-lm", command=command, files=sorted(models.mlx_lm.glob("*.safetensors")))
        )
    return contestants


def compete(cage: MemoryCage, contestants: Sequence[Contestant], limit_bytes: int, rounds: int) -> None:
    """Run everybody in rotating order."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for number in range(rounds):
        for position in range(len(contestants)):
            contestant = contestants[(number + position) % len(contestants)]
            if contestant.killed:
                continue
            forget_pages(contestant.files)
            try:
                done = cage.run(contestant.command, limit_bytes, environment=environment, timeout_s=TIMEOUT_S)
            except CageUnavailable as error:
                raise SystemExit(str(error)) from error
            except subprocess.TimeoutExpired as error:
                raise SystemExit(f"{contestant.name} did not end within {TIMEOUT_S:.0f} s") from error
            if done.status and not done.killed:
                raise SystemExit(f"{contestant.name} ended with status {done.status}:\n{done.complaint}")
            contestant.runs.append(done)
            said = "killed" if done.killed else f"{decode_s(done):.2f} s"
            print(f"{limit_bytes / 1e9:.2f} GB, round {number + 1}, {contestant.name}: {said}", file=sys.stderr)


def decode_s(run: Caged) -> float:
    """The time of a run's second series: our children say it, llama.cpp lists both series in nanoseconds."""
    said = json.loads(run.output)
    return float(said[0]["samples_ns"][-1]) / 1e9 if isinstance(said, list) else float(said["decode_s"])


def judge(
    contestants: Sequence[Contestant],
    share: float,
    limit_bytes: int,
    tokens: int,
    values: dict[str, float],
    table: list[tuple[str, ...]],
) -> None:
    """Add the values to keep and the rows to print."""
    values[f"{share:.1%} limit_bytes"] = limit_bytes
    own = statistics.median(tokens / decode_s(run) for run in contestants[0].runs if not run.killed)
    for contestant in contestants:
        label = f"{share:.1%} {contestant.name}"
        measured: Mapping[str, float] = {
            "read_bytes": statistics.median(run.read_bytes for run in contestant.runs),
            "peak_bytes": statistics.median(run.peak_bytes for run in contestant.runs),
            "processor_s": statistics.median(run.processor_s for run in contestant.runs),
            "wall_s": statistics.median(run.wall_s for run in contestant.runs),
        }
        rate, of_own = "killed", ""
        if not contestant.killed:
            speed = statistics.median(tokens / decode_s(run) for run in contestant.runs)
            values[f"{label} decode_tokens_per_s"] = speed
            rate, of_own = f"{speed:.2f}", f"{speed / own:.2f}"
        values |= {f"{label} {name}": value for name, value in measured.items()}
        table.append(
            (
                f"{limit_bytes / 1e9:.2f} GB ({share:.1%}), {contestant.name}",
                rate,
                of_own,
                f"{measured['read_bytes'] / 1e9:.2f}",
                f"{measured['peak_bytes'] / 1e9:.2f}",
                f"{measured['processor_s']:.1f}",
                f"{measured['wall_s']:.1f}",
            )
        )


def why_killed(contestants: Sequence[Contestant], share: float, limit_bytes: int) -> dict[str, str]:
    """Return what a result says of those who were killed, by share and name."""
    return {
        f"{share:.1%} {contestant.name}": (
            f"killed by signal 9 when the memory group held {contestant.runs[-1].peak_bytes / 1e9:.2f} GB of "
            f"{limit_bytes / 1e9:.2f} that it may"
        )
        for contestant in contestants
        if contestant.killed
    }


if __name__ == "__main__":
    main()
