"""One kernel that fetches many pieces from pinned host memory and puts each into its place on an NVIDIA GPU.

The memory of slots is managed, since MLX shows it to the host, and beginning a copy into managed memory costs the
driver 5 microseconds a piece, whether pieces are handed over singly or together (docs/log.md). A launch costs as much
for 128 of them, and fetches at the speed of the bus: it asks for whole words of its lines, wherever a piece begins, and
stores them as the target's place allows, which costs the bus nothing.
"""

from __future__ import annotations

import ctypes
from typing import Final

from slotstream_core.cuda_compiler import load_kernel

NAME: Final = "slotstream_copy_pieces"

MOST_PIECES: Final = 128
"""`SS_COPIES` of csrc/copies.h: pieces of one launch."""

LINE_BYTES: Final = 128
ROW_BYTES: Final = 512
"""What a warp fetches with one load: a piece is made of such rows, the first of which begins with its first line."""

SOURCE: Final = """
struct slotstream_pieces {
  const char* from[128];
  char* to[128];
  int ends[128], bytes[128], count;
};
// Store the 16 bytes of a piece that begin `at` bytes behind its first, or those of them that are its own.
__device__ inline void slotstream_store(const uint4& word, char* piece, long long at, int bytes) {
  char* to = piece + at;
  const int beyond = at < 0 || at + 16 > bytes ? 1 : (int)(reinterpret_cast<unsigned long long>(to) % 16);
  if (beyond == 0) *reinterpret_cast<uint4*>(to) = word;
  else if (beyond == 8) {
    reinterpret_cast<uint2*>(to)[0] = uint2{word.x, word.y};
    reinterpret_cast<uint2*>(to)[1] = uint2{word.z, word.w};
  } else {
    const unsigned int parts[4] = {word.x, word.y, word.z, word.w};
    if (beyond % 4 == 0)
      for (int i = 0; i < 4; i++) reinterpret_cast<unsigned int*>(to)[i] = parts[i];
    else
      for (int i = 0; i < 16; i++)
        if (at + i >= 0 && at + i < bytes) to[i] = (char)(parts[i / 4] >> i % 4 * 8);
  }
}
extern "C" __global__ void slotstream_copy_pieces(const slotstream_pieces pieces) {
  const int rows = pieces.ends[pieces.count - 1], warps = gridDim.x * blockDim.x / 32;
  int piece = 0, begin = 0, end = pieces.ends[0];
  for (int first = (blockIdx.x * blockDim.x + threadIdx.x) / 32; first < rows; first += 4 * warps) {
    // four at a time, so that as many are on their way over the bus
    uint4 held[4];
    long long at[4];
    int of[4];
    for (int i = 0; i < 4; i++) {
      const int row = first + i * warps;
      of[i] = -1;
      if (row >= rows) continue;
      while (row >= end) begin = end, end = pieces.ends[++piece];
      const char* from = pieces.from[piece];
      at[i] = (row - begin) * 512LL + threadIdx.x % 32 * 16 - (int)(reinterpret_cast<unsigned long long>(from) % 128);
      if (at[i] <= -16 || at[i] >= pieces.bytes[piece]) continue;
      held[i] = *reinterpret_cast<const uint4*>(from + at[i]);
      of[i] = piece;
    }
    for (int i = 0; i < 4; i++)
      if (of[i] >= 0) slotstream_store(held[i], pieces.to[of[i]], at[i], pieces.bytes[of[i]]);
  }
}
"""


class Pieces(ctypes.Structure):
    """The kernel's argument, `ss_pieces` of csrc/copies.h."""

    _fields_ = (
        ("origin", ctypes.c_void_p * MOST_PIECES),
        ("target", ctypes.c_void_p * MOST_PIECES),
        ("ends", ctypes.c_int32 * MOST_PIECES),
        ("bytes", ctypes.c_int32 * MOST_PIECES),
        ("count", ctypes.c_int32),
    )

    def add(self, origin: int, target: int, byte_count: int) -> None:
        """Add a piece behind the others, by its addresses, as `begin_by_kernel` of csrc/copies.c does."""
        row = self.ends[self.count - 1] if self.count else 0
        self.origin[self.count], self.target[self.count] = origin, target
        self.bytes[self.count] = byte_count
        self.ends[self.count] = row + -(-(origin % LINE_BYTES + byte_count) // ROW_BYTES)
        self.count += 1


class Grid(ctypes.Structure):
    """`dim3` of the CUDA runtime."""

    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


def compile_copy_kernel(runtime: ctypes.CDLL, *, device: int) -> int:
    """Compile the kernel for one device and return its handle; see `load_kernel`.

    Raises:
        BackendError: The compiler is not there, or something refuses.
    """
    return load_kernel(runtime, SOURCE, NAME, device=device)
