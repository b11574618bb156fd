"""Whether the tensors of a directory are exactly those that its configuration asks for."""

from collections.abc import Iterable, Mapping
from typing import Final

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.headers import TensorInfo
from slotstream_core.checkpoint.quantization import BITS, GROUP_SIZES, ModuleQuantization, Quantization
from slotstream_core.checkpoint.schema import (
    DRAFT,
    QUANTISABLE,
    VISION_PREFIX,
    TensorSpec,
    count_ngram_parts,
    draft_specs,
    text_specs,
)
from slotstream_core.errors import CheckpointDamaged, UnsupportedModel

FLOATS: Final = ("BF16", "F16", "F32")


def check_tensors(
    config: Qwen4ExpConfig, quantization: Quantization, tensors: Mapping[str, TensorInfo]
) -> dict[str, ModuleQuantization | None]:
    """Check names, shapes and types of all tensors; return the quantisation of every quantisable module.

    Raises:
        CheckpointDamaged: A tensor is missing, or its shape or type is wrong.
        UnsupportedModel: A tensor that no part of the model uses.
    """
    specs = list(text_specs(config, ngram_parts=count_ngram_parts(tensors)))
    if any(name.startswith(f"{DRAFT}.") for name in tensors):
        specs.extend(draft_specs(config))
    known: set[str] = set()
    settings: dict[str, ModuleQuantization | None] = {}
    for spec in specs:
        if spec.role in QUANTISABLE and f"{spec.module}.scales" in tensors:
            settings[spec.module] = _check_triple(spec, quantization, tensors)
            known.update(f"{spec.module}.{part}" for part in ("weight", "scales", "biases"))
        elif spec.name in tensors:
            _check_plain(spec, tensors[spec.name])
            known.add(spec.name)
            if spec.role in QUANTISABLE:
                settings[spec.module] = None
        elif not spec.optional:
            raise CheckpointDamaged(_missing_message(spec, tensors))
    _refuse_unknown(name for name in tensors if name not in known and not name.startswith(VISION_PREFIX))
    return settings


def _check_plain(spec: TensorSpec, tensor: TensorInfo) -> None:
    accepted = ("I64",) if spec.role == "table" else FLOATS
    if tensor.shape != spec.shape:
        raise CheckpointDamaged(
            f"{tensor.name} in {tensor.path} has shape {list(tensor.shape)}; config.json asks for {list(spec.shape)}"
        )
    if tensor.dtype not in accepted:
        raise CheckpointDamaged(
            f"{tensor.name} in {tensor.path} is {tensor.dtype}; it should be {' or '.join(accepted)}"
        )


def _check_triple(
    spec: TensorSpec, quantization: Quantization, tensors: Mapping[str, TensorInfo]
) -> ModuleQuantization:
    parts = {}
    for part in ("weight", "scales", "biases"):
        name = f"{spec.module}.{part}"
        if name not in tensors:
            raise CheckpointDamaged(f"{name} is missing beside {spec.module}.scales; download or convert it again")
        parts[part] = tensors[name]
    setting = _setting(spec, quantization, parts)
    leading, width = spec.shape[:-1], spec.shape[-1]
    words, groups = (*leading, setting.packed_width(width)), (*leading, setting.groups(width))
    for part, shape, accepted in (("weight", words, ("U32",)), ("scales", groups, FLOATS), ("biases", groups, FLOATS)):
        tensor = parts[part]
        if tensor.shape != shape or not setting.fits(width):
            raise CheckpointDamaged(
                f"{tensor.name} in {tensor.path} has shape {list(tensor.shape)}; {setting.bits}-bit groups of "
                f"{setting.group_size} of {list(spec.shape)} need {list(shape)}"
            )
        if tensor.dtype not in accepted:
            raise CheckpointDamaged(
                f"{tensor.name} in {tensor.path} is {tensor.dtype}; it should be {' or '.join(accepted)}"
            )
    if parts["scales"].dtype != parts["biases"].dtype:
        raise CheckpointDamaged(
            f"{spec.module} has {parts['scales'].dtype} scales and {parts['biases'].dtype} biases; they must agree"
        )
    return setting


def _setting(spec: TensorSpec, quantization: Quantization, parts: Mapping[str, TensorInfo]) -> ModuleQuantization:
    """The configuration's setting; n-gram shards and a draft head from another file may go by their shapes."""
    setting = quantization.of(spec.module)
    if setting is None:
        reason = "leaves it unquantised" if spec.module in quantization.modules else "has no quantization block"
        raise CheckpointDamaged(f"{spec.module} has scales in {parts['scales'].path} but config.json {reason}")
    if spec.module in quantization.modules or not (spec.role == "ngram" or spec.module.startswith(f"{DRAFT}.")):
        return setting
    width, found = spec.shape[-1], (parts["weight"].shape[-1:], parts["scales"].shape[-1:])
    candidates = [ModuleQuantization(bits=bits, group_size=size) for bits in BITS for size in GROUP_SIZES]
    for candidate in candidates:
        if candidate.fits(width) and found == ((candidate.packed_width(width),), (candidate.groups(width),)):
            return candidate
    return setting


def _missing_message(spec: TensorSpec, tensors: Mapping[str, TensorInfo]) -> str:
    if any(name.startswith("model.") for name in tensors):
        return (
            f"{spec.name} is missing and the tensors have Hugging Face names; convert the checkpoint first: "
            "slotstream convert SRC DST"
        )
    return f"{spec.name} {list(spec.shape)} is missing; download or convert the checkpoint again"


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(names)
    if unknown:
        others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UnsupportedModel(f"no part of a qwen4_exp model uses the tensor {unknown[0]}{others}")
