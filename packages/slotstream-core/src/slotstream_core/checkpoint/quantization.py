"""How the matrices of a checkpoint are quantised: `config.json`'s `quantization` block.

`{"group_size": 64, "bits": 4, "mode": "affine", "<module path>": {"group_size": 32, "bits": 4} | false | true}`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slotstream_core.errors import CheckpointDamaged, UnsupportedModel

BITS: Final = (2, 3, 4, 6, 8)
GROUP_SIZES: Final = (32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class ModuleQuantization:
    """Affine quantisation of one matrix along its last axis: `weight = scale * code + bias`.

    Attributes:
        bits: Bits of a code; codes are packed lowest first into 32-bit words.
        group_size: Consecutive values that share a scale and a bias.
    """

    bits: int
    group_size: int

    def packed_width(self, width: int) -> int:
        """32-bit words of one row of `width` values."""
        return width * self.bits // 32

    def groups(self, width: int) -> int:
        """Scales (and biases) of one row of `width` values."""
        return width // self.group_size

    def fits(self, width: int) -> bool:
        """Whether a row of `width` values divides into whole groups and words."""
        return width % self.group_size == 0 and width * self.bits % 32 == 0


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The settings of every module.

    Attributes:
        default: For modules without an entry of their own; None when the checkpoint is not quantised.
        modules: Module path -> its settings, or None where the file says it stays unquantised.
    """

    default: ModuleQuantization | None
    modules: Mapping[str, ModuleQuantization | None]

    def of(self, module: str) -> ModuleQuantization | None:
        """Return the settings of a module path such as `language_model.lm_head`."""
        return self.modules.get(module, self.default)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, origin: str = "config.json") -> "Quantization":
        """Read the block from a decoded `config.json`; an absent one means nothing is quantised.

        Raises:
            CheckpointDamaged: The block is malformed.
            UnsupportedModel: A mode, width or group size this version does not compute with.
        """
        block = document.get("quantization")
        if block is None:
            block = document.get("quantization_config")
        if block is None:
            return cls(default=None, modules={})
        if not isinstance(block, dict):
            raise CheckpointDamaged(f"{origin}: quantization is {type(block).__name__} where an object belongs")
        default = _module(block, None, f"{origin}: quantization")
        modules: dict[str, ModuleQuantization | None] = {}
        for name, entry in block.items():
            if name in ("bits", "group_size", "mode", "quant_method"):
                continue
            if isinstance(entry, dict):
                modules[name] = _module(entry, default, f"{origin}: quantization of {name}")
            elif entry is False:
                modules[name] = None
            elif entry is not True:
                raise UnsupportedModel(f"{origin}: quantization has the unknown setting {name} = {str(entry)[:80]}")
        return cls(default=default, modules=modules)


def _module(entry: Mapping[str, Any], default: ModuleQuantization | None, origin: str) -> ModuleQuantization:
    method = entry.get("quant_method", "affine")
    mode = entry.get("mode", "affine")
    if mode != "affine" or method != "affine":
        raise UnsupportedModel(f"{origin}: mode is {mode if mode != 'affine' else method!r}; affine is implemented")
    bits = entry.get("bits", default.bits if default else None)
    group_size = entry.get("group_size", default.group_size if default else None)
    if type(bits) is not int or bits not in BITS:
        raise UnsupportedModel(f"{origin}: bits is {bits!r}; this version computes with {', '.join(map(str, BITS))}")
    if type(group_size) is not int or group_size not in GROUP_SIZES:
        raise UnsupportedModel(
            f"{origin}: group_size is {group_size!r}; this version computes with {', '.join(map(str, GROUP_SIZES))}"
        )
    return ModuleQuantization(bits=bits, group_size=group_size)
