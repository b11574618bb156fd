"""How each logical tensor is stored: which quantisation, which types, under which names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from slotstream_core.checkpoint.config import CONVERTED_MARKS
from slotstream_core.checkpoint.quantising import PACKED_BITS
from slotstream_core.checkpoint.quantization import GROUP_SIZES, ModuleQuantization
from slotstream_core.checkpoint.schema import QUANTISABLE, TensorSpec
from slotstream_core.checkpoint.shards import OutputTensor
from slotstream_core.errors import CheckpointError

FloatType = Literal["BF16", "F16", "F32"]

NGRAM_GROUP_SIZE: Final = 32
"""N-gram rows are short, so they keep the smallest group, as the published checkpoint does."""


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """How a checkpoint is to be quantised.

    Attributes:
        bits: Bits of experts and n-gram rows, and of everything else unless `dense_bits` differs; None stores every
            tensor in its own floating type.
        group_size: Values that share a scale; matrices too narrow for it take the largest group that fits.
        dense_bits: Bits of the matrices that are always resident; the same as `bits` when None.
    """

    bits: int | None = 4
    group_size: int = 64
    dense_bits: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("bits", self.bits), ("dense bits", self.dense_bits)):
            if value is not None and value not in PACKED_BITS:
                raise CheckpointError(f"{name} is {value}; choose {' or '.join(map(str, PACKED_BITS))}")
        if self.group_size not in GROUP_SIZES:
            raise CheckpointError(f"group size is {self.group_size}; choose one of {', '.join(map(str, GROUP_SIZES))}")
        if self.bits is None and self.dense_bits is not None:
            raise CheckpointError("dense bits need bits too: an unquantised checkpoint has neither")

    @property
    def default(self) -> ModuleQuantization | None:
        """What the configuration names for every module without an entry of its own."""
        if self.bits is None:
            return None
        return ModuleQuantization(bits=self.dense_bits or self.bits, group_size=self.group_size)

    def of(self, spec: TensorSpec) -> ModuleQuantization | None:
        """Return how one tensor is to be quantised; None keeps it in floating point.

        A row that no group divides stays unquantised.
        """
        if self.bits is None or spec.role not in QUANTISABLE:
            return None
        routed = spec.role in ("expert", "ngram")
        bits = self.bits if routed else self.dense_bits or self.bits
        widest = NGRAM_GROUP_SIZE if spec.role == "ngram" else self.group_size
        for group_size in sorted(GROUP_SIZES, reverse=True):
            setting = ModuleQuantization(bits=bits, group_size=group_size)
            if group_size <= widest and setting.fits(spec.shape[-1]):
                return setting
        return None


def stored_tensors(
    spec: TensorSpec, setting: ModuleQuantization | None, float_type: FloatType, scale_type: FloatType = "BF16"
) -> tuple[OutputTensor, ...]:
    """Return the stored tensors of one logical tensor: one, or weight, scales and biases."""
    if setting is None:
        dtype = "I64" if spec.role == "table" else float_type
        return (OutputTensor(name=spec.name, dtype=dtype, shape=spec.shape),)
    leading, width = spec.shape[:-1], spec.shape[-1]
    words, groups = (*leading, setting.packed_width(width)), (*leading, setting.groups(width))
    return (
        OutputTensor(name=f"{spec.module}.weight", dtype="U32", shape=words),
        OutputTensor(name=f"{spec.module}.scales", dtype=scale_type, shape=groups),
        OutputTensor(name=f"{spec.module}.biases", dtype=scale_type, shape=groups),
    )


def quantization_block(
    options: StorageOptions, settings: Iterable[tuple[TensorSpec, ModuleQuantization | None]]
) -> dict[str, Any] | None:
    """Return `config.json`'s quantization block: the default, and an entry for each module that differs from it."""
    default = options.default
    if default is None:
        return None
    block: dict[str, Any] = {"group_size": default.group_size, "bits": default.bits, "mode": "affine"}
    for spec, setting in settings:
        if spec.role in QUANTISABLE and setting != default:
            block[spec.module] = setting and {"group_size": setting.group_size, "bits": setting.bits}
            block[spec.module] = block[spec.module] or False
    return block


def converted_config(document: Mapping[str, Any], block: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the `config.json` of a checkpoint in our layout, from the one it came from.

    `slotstream.centred_norms` records that the norms are stored as they multiply.
    """
    result = {name: value for name, value in document.items() if name not in ("quantization", "quantization_config")}
    result["slotstream"] = dict(CONVERTED_MARKS)
    if block is not None:
        result["quantization"] = dict(block)
    return result
