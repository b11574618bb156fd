"""Whether a compiled file is all there: loading one that was cut off ends the process instead of failing."""

import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<4sBB34xQ10xHH2x")
"""Of ELF for 64 bits: magic, class, byte order, offset of the section headers, their size and number."""
_ELF_64_LITTLE: Final = (b"\x7fELF", 2, 1)


def check_whole(path: Path) -> None:
    """Refuse an ELF file that lacks bytes which its header promises; other files are left to the loader.

    The linker writes the section headers last, so they end the file.

    Raises:
        OSError: It lacks some, or cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return
    magic, width, order, offset, entry_bytes, entries = _HEADER.unpack(header)
    missing_bytes = offset + entry_bytes * entries - path.stat().st_size
    if (magic, width, order) == _ELF_64_LITTLE and missing_bytes > 0:
        raise OSError(f"{path.name} lacks its last {missing_bytes:,} bytes")
