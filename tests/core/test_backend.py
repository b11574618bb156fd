"""Which backend is chosen, and what is said when none can be."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import cast

import mlx.core as mx
import pytest

from slotstream_core.backend import CPU_DISTRIBUTION, CUDA_DISTRIBUTION, GRAPHS_SETTING, Backend, detect_from
from slotstream_core.errors import BackendError


def fake_mlx(*, metal: bool, cuda: bool) -> ModuleType:
    return cast(
        ModuleType,
        SimpleNamespace(
            metal=SimpleNamespace(is_available=lambda: metal),
            cuda=SimpleNamespace(is_available=lambda: cuda),
            float32=mx.float32,
            bfloat16=mx.bfloat16,
        ),
    )


@pytest.mark.parametrize(
    ("metal", "cuda", "kind", "dtype", "name"),
    [
        (False, False, "cpu", mx.float32, "F32"),
        (True, False, "metal", mx.bfloat16, "BF16"),
        (False, True, "cuda", mx.bfloat16, "BF16"),
    ],
)
def test_the_compute_type_follows_the_device(metal: bool, cuda: bool, kind: str, dtype: mx.Dtype, name: str) -> None:
    backend = detect_from(
        installed=lambda name: name == CUDA_DISTRIBUTION and cuda,
        load=lambda: fake_mlx(metal=metal, cuda=cuda),
        environment={},
    )
    assert (backend.kind, backend.compute_dtype, backend.float_name) == (kind, dtype, name)
    assert (backend.gathering is not None) == (kind == "cuda")


def test_this_machine_has_a_backend() -> None:
    assert Backend.detect().kind in ("cpu", "metal", "cuda")


def test_two_backends_at_once_are_refused_before_mlx_is_loaded() -> None:
    def load() -> ModuleType:
        raise AssertionError("must not be loaded")

    with pytest.raises(BackendError, match=f"both {CPU_DISTRIBUTION} and {CUDA_DISTRIBUTION}"):
        detect_from(installed=lambda name: True, load=load, environment={})


def test_mlx_without_a_backend_is_one_sentence() -> None:
    def load() -> ModuleType:
        raise ImportError("libmlx.so: cannot open shared object file")

    with pytest.raises(BackendError, match=r"MLX cannot be loaded \(libmlx\.so.*install slotstream-core again"):
        detect_from(installed=lambda name: False, load=load, environment={})


def test_the_cuda_build_without_a_gpu_is_refused() -> None:
    with pytest.raises(BackendError, match="nvidia-smi"):
        detect_from(
            installed=lambda name: name == CUDA_DISTRIBUTION,
            load=lambda: fake_mlx(metal=False, cuda=False),
            environment={},
        )


@pytest.mark.parametrize(("before", "after"), [({}, "0"), ({GRAPHS_SETTING: "1"}, "1")])
def test_kernels_of_an_nvidia_gpu_begin_at_once_unless_the_user_says_otherwise(
    before: dict[str, str], after: str
) -> None:
    environment = dict(before)
    detect_from(installed=lambda name: False, load=lambda: fake_mlx(metal=False, cuda=True), environment=environment)
    assert environment == {GRAPHS_SETTING: after}


@pytest.mark.parametrize("metal", [False, True])
def test_other_devices_need_no_setting_of_mlx(metal: bool) -> None:
    environment: dict[str, str] = {}
    detect_from(installed=lambda name: False, load=lambda: fake_mlx(metal=metal, cuda=False), environment=environment)
    assert environment == {}
