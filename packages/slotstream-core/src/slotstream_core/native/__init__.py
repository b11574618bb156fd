"""Products on the processor in C, where MLX's own are slow: optional, checked when loaded, and never required.

`NativeLibrary.load` returns the library or None; with None every caller uses MLX's operations. `NativeMatrix` is a
view of a matrix that somebody else owns. Nothing here imports MLX.
"""

from slotstream_core.native.library import NativeLibrary, native_choice
from slotstream_core.native.matrices import NativeExperts, NativeMatrix, host_view
from slotstream_core.native.products import NativeProducts

__all__ = ["NativeExperts", "NativeLibrary", "NativeMatrix", "NativeProducts", "host_view", "native_choice"]
