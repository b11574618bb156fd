"""Which MLX backend runs here. The only module that asks; everything else is handed a `Backend`.

MLX is imported inside `Backend.detect`, so that a broken installation becomes one typed error and importing this
module costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from slotstream_core.errors import BackendError
from slotstream_planner.engine_memory import DENSE_MEAN_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from types import ModuleType

    import mlx.core as mx

BackendKind = Literal["cpu", "metal", "cuda"]
FloatName = Literal["F32", "BF16"]

CPU_DISTRIBUTION = "mlx-cpu"
CUDA_DISTRIBUTION = "mlx-cuda-13"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """The limits of MLX's gathered products, of rows with an expert each, on a backend.

    Attributes:
        few_at_once: Most pairs of a row and an expert in one call that its kernel for few takes. It rounds differently.
        few_pairs: Passes of at most so many pairs go through that kernel, in several calls.
        counted_weights: How many weights of one array its kernel for many pairs tells apart.
        dense_rows: Rows of a pass from which an expert's weights are unpacked for an ordinary matrix product,
        dense_mean_rows: in passes of so many rows an expert of the layer on average; in others none is unpacked.
    """

    few_at_once: int
    few_pairs: int
    counted_weights: int
    dense_rows: int
    dense_mean_rows: int


GRAPHS_SETTING = "MLX_USE_CUDA_GRAPHS"
"""MLX collects kernels in graphs, which begin when a graph is complete. A layer whose routing is read back waits for
the last kernel of a short graph, so it is sooner done when each begins at once (docs/log.md)."""

CUDA_GATHERING = Gathering(
    few_at_once=7, few_pairs=14, counted_weights=2**32 - 1, dense_rows=8, dense_mean_rows=DENSE_MEAN_ROWS
)
"""Of MLX 0.32.4, which counts weights in 32 bits and takes other experts' where there are more, without a word. What
serves which pass is where an H200 was as fast either way (docs/log.md): 10 pairs, and about 800 rows of a prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The device MLX computes on and the floating-point type used there.

    Attributes:
        kind: "cpu", "metal" or "cuda".
        compute_dtype: bfloat16; on the CPU float32: MLX's 16-bit matrix products are 10 to 100 times slower there.
        gathering: Limits of gathered products; None where there are none.
    """

    kind: BackendKind
    compute_dtype: mx.Dtype
    gathering: Gathering | None = None

    @property
    def float_name(self) -> FloatName:
        """`compute_dtype` by its safetensors name."""
        return "F32" if "float32" in str(self.compute_dtype) else "BF16"

    def working_set_bytes(self) -> int | None:
        """Return how much memory Metal recommends that a process uses; None elsewhere or when it is unknown."""
        if self.kind != "metal":
            return None
        size = _load_mlx().device_info().get("max_recommended_working_set_size")
        return int(size) if isinstance(size, int) and size > 0 else None

    @staticmethod
    def detect() -> Backend:
        """Ask the installed MLX what it runs on. On an NVIDIA GPU also sets, unless it is set, `GRAPHS_SETTING` to 0.

        MLX reads that when it first computes; after that it has no effect.

        Raises:
            BackendError: MLX or its backend is missing, two backends are installed, or the CUDA build finds no GPU.
        """
        return detect_from(installed=_installed, load=_load_mlx, environment=os.environ)


def detect_from(
    *, installed: Callable[[str], bool], load: Callable[[], ModuleType], environment: MutableMapping[str, str]
) -> Backend:
    """Decide from two questions, so that every answer can be tested on one machine.

    Args:
        installed: Says whether a distribution of that name is installed.
        load: Imports `mlx.core` and returns it; may raise ImportError.
        environment: Where MLX finds its settings.

    Raises:
        BackendError: As `Backend.detect`.
    """
    cuda_installed = installed(CUDA_DISTRIBUTION)
    if cuda_installed and installed(CPU_DISTRIBUTION):
        raise BackendError(
            f"both {CPU_DISTRIBUTION} and {CUDA_DISTRIBUTION} are installed and overwrite each other's files; "
            f"uninstall one (keep {CUDA_DISTRIBUTION} for an NVIDIA GPU) and reinstall the other"
        )
    try:
        core = load()
    except ImportError as error:
        raise BackendError(
            f"MLX cannot be loaded ({error}); install slotstream-core again: it brings mlx-cpu on Linux, "
            "its extra 'cuda' brings the NVIDIA build, and macOS needs Apple silicon"
        ) from error
    if core.metal.is_available():
        return Backend(kind="metal", compute_dtype=core.bfloat16)
    if core.cuda.is_available():
        environment.setdefault(GRAPHS_SETTING, "0")
        return Backend(kind="cuda", compute_dtype=core.bfloat16, gathering=CUDA_GATHERING)
    if cuda_installed:
        raise BackendError(
            f"{CUDA_DISTRIBUTION} is installed but finds no usable NVIDIA GPU; "
            "check the driver with nvidia-smi, or install slotstream-core without the extra 'cuda'"
        )
    return Backend(kind="cpu", compute_dtype=core.float32)


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _load_mlx() -> ModuleType:
    if sys.platform == "win32":
        raise ImportError("Windows is not supported")
    return importlib.import_module("mlx.core")
