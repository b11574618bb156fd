"""Whatever the functions of `_native` are given, they compute, or refuse it and write nothing; never a step outside."""

import json
import os
import pathlib

import pytest

from tests.sanitized_modules import ROOT, UNDEFINED, build_module, run_under_sanitizers

pytestmark = pytest.mark.timeout(1800)  # a loaded machine compiles slowly

CSRC = ROOT / "packages" / "slotstream-core" / "csrc"
FUZZER = "tests.core.native.fuzz_arguments"
AVX2 = ("-mavx2", "-mfma")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
X86 = {"kernels_avx2.c": AVX2, "kernels_avx2_subnormal.c": AVX2, "kernels_avx512.c": AVX512, "pieces_avx2.c": AVX2}
GLUE = (
    *(
        "module.c",
        "layer_module.c",
        "draft_module.c",
        "steps.c",
        "drafts.c",
        "many_rows.c",
        "matrices.c",
        "products.c",
        "experts.c",
        "rows.c",
        "pieces.c",
    ),
    *(
        "residency_module.c",
        "residency.c",
        "tickets_module.c",
        "tickets.c",
        "requests.c",
        "lanes.c",
        "segments.c",
        "copies.c",
        "mirrors.c",
        "mapped.c",
        "launches_module.c",
        "graphs.c",
        "launches.c",
        "launched_layers_module.c",
        "launched_layers.c",
    ),
)
THREADS = ("variants.c", "threads.c")
FLAGS = ("-std=gnu11", "-ffp-contract=off", "-Wno-psabi")


def fuzzed(library: pathlib.Path, seed: int, calls: int) -> None:
    """Make the calls, and see that every function took some of them and refused others."""
    counts = json.loads(run_under_sanitizers(FUZZER, str(library), str(seed), str(calls)))
    assert counts["layer"]
    assert [name for name, (taken, refused) in counts.items() if not taken or not refused] == []


def test_arguments_of_any_kind_are_taken_or_refused_without_a_step_outside(tmp_path: pathlib.Path) -> None:
    sources: dict[pathlib.Path, tuple[str, ...]] = {CSRC / name: ("-O0", *UNDEFINED) for name in (*GLUE, *THREADS)}
    sources[CSRC / "kernels_scalar.c"] = ("-O0",)  # its sums are checked by the slow tests: that takes long to compile
    fuzzed(build_module(tmp_path / "_native.so", sources, *FLAGS), seed=1, calls=770)


@pytest.mark.slow
def test_every_variant_takes_or_refuses_arguments_of_any_kind(tmp_path: pathlib.Path) -> None:
    names = (*GLUE, *THREADS, "kernels_scalar.c")
    sources: dict[pathlib.Path, tuple[str, ...]] = {CSRC / name: ("-O1", *UNDEFINED) for name in names}
    macros: tuple[str, ...] = ()
    if os.uname().machine == "x86_64":
        sources |= {CSRC / name: ("-O1", *UNDEFINED, *instructions) for name, instructions in X86.items()}
        macros = ("-DSS_WITH_X86_VARIANTS",)
    library = build_module(tmp_path / "_native.so", sources, *FLAGS, *macros)
    for seed in range(10, 20):
        fuzzed(library, seed, calls=5400)
