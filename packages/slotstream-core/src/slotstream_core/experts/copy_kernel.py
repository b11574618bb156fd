"""One kernel that fetches many pieces from pinned host memory and puts each into its place on an NVIDIA GPU.

The memory of slots is managed, since MLX shows it to the host, and beginning a copy into managed memory costs the
driver 5 microseconds a piece, whether pieces are handed over singly or together (docs/log.md). A launch costs as much
for 128 of them, and fetches at the speed of the bus.
"""

from __future__ import annotations

import ctypes
from typing import Final

from slotstream_core.cuda_compiler import load_kernel

NAME: Final = "slotstream_copy_pieces"

MOST_PIECES: Final = 128
"""`SS_COPIES` of csrc/copies.h: pieces of one launch."""

SOURCE: Final = """
struct slotstream_pieces {
  long long count, unit, ends[128];
  const char* from[128];
  char* to[128];
};
template <typename UNIT>
__device__ inline void slotstream_copy(const slotstream_pieces& pieces) {
  const long long all = (long long)gridDim.x * blockDim.x, total = pieces.ends[pieces.count - 1];
  int piece = 0;
  for (long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x; first < total; first += 4 * all) {
    // four at a time, so that as many are on their way over the bus
    UNIT held[4];
    UNIT* to[4];
    for (int i = 0; i < 4; i++) {
      const long long unit = first + i * all;
      to[i] = nullptr;
      if (unit >= total) continue;
      while (unit >= pieces.ends[piece]) piece++;
      const long long at = unit - (piece ? pieces.ends[piece - 1] : 0);
      held[i] = reinterpret_cast<const UNIT*>(pieces.from[piece])[at];
      to[i] = reinterpret_cast<UNIT*>(pieces.to[piece]) + at;
    }
    for (int i = 0; i < 4; i++)
      if (to[i]) *to[i] = held[i];
  }
}
extern "C" __global__ void slotstream_copy_pieces(const slotstream_pieces pieces) {
  if (pieces.unit == 16) slotstream_copy<uint4>(pieces);
  else if (pieces.unit == 8) slotstream_copy<uint2>(pieces);
  else if (pieces.unit == 4) slotstream_copy<unsigned int>(pieces);
  else slotstream_copy<unsigned char>(pieces);
}
"""


class Pieces(ctypes.Structure):
    """The kernel's argument, `ss_pieces` of csrc/copies.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("unit", ctypes.c_int64),
        ("ends", ctypes.c_int64 * MOST_PIECES),
        ("origin", ctypes.c_void_p * MOST_PIECES),
        ("target", ctypes.c_void_p * MOST_PIECES),
    )


class Grid(ctypes.Structure):
    """`dim3` of the CUDA runtime."""

    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


def compile_copy_kernel(runtime: ctypes.CDLL, *, device: int) -> int:
    """Compile the kernel for one device and return its handle; see `load_kernel`.

    Raises:
        BackendError: The compiler is not there, or something refuses.
    """
    return load_kernel(runtime, SOURCE, NAME, device=device)
